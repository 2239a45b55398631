"""The loss in the limit of infinitely many sequences, from moments in closed form."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from iclflow.linalg import contract, is_concrete
from iclflow.losses.base import AbstractLoss, misfit
from iclflow.losses.commuting import (
    MOST_LAYERS,
    commuting_noise,
    commuting_signal,
    eigenvalue_rule,
)
from iclflow.losses.features import ReducedFeatures, refusal
from iclflow.losses.wishart import two_layer_noise, two_layer_signal
from iclflow.models import AbstractLayers, AbstractLinearModel, AbstractModel, Blocks, Steps
from iclflow.results.display import eigenvalues
from iclflow.tasks.base import AbstractTask, Normaliser
from iclflow.tasks.laws import Gaussian
from iclflow.tasks.task import ContextLabels, Task, require_task

NODES = 9  # of the rule for one eigenvalue of W, which is exact for up to eight white layers
DIAGONAL = 1e-10  # the largest share of a matrix off its diagonal that is a rounding error


class LengthMoments(eqx.Module):
    """Means over the context lengths n, with z the normaliser: ⟨n/z⟩, ⟨n²/z²⟩, … (E3)."""

    pairs: float  # ⟨n/z⟩
    pairs_squared: float  # ⟨n²/z²⟩
    pairs_single: float  # ⟨n/z²⟩
    query: float  # ⟨1/z⟩
    query_squared: float  # ⟨1/z²⟩

    @classmethod
    def of(cls, task: Task) -> "LengthMoments":
        """The averages for a task's lengths and 1/N convention."""
        n, z = lengths_and_divisors(task)
        terms = (n / z, (n / z) ** 2, n / z**2, 1 / z, 1 / z**2)
        return cls(*(float(t.mean()) for t in terms))


def lengths_and_divisors(task: Task) -> tuple[np.ndarray, np.ndarray]:
    """The context lengths n of a task, and what attention divides by at each."""
    n = np.asarray(task.lengths, dtype=float)
    z = {
        Normaliser.PAIRS: n,
        Normaliser.TOKENS: n + 1,
        Normaliser.CONTEXT: np.full_like(n, task.context),
        Normaliser.NONE: np.ones_like(n),
    }[task.normaliser]
    return n, z


class WhiteTask(eqx.Module):
    """A task in white coordinates: x = root z, so that Λ̂ = root W rootᵀ with a white W.

    With A_l = Γ_lᵀ and G_l = rootᵀ A_l root the loss of L layers is, for any law of the inputs,
    L = E tr[Q T Qᵀ] + (σ²/n) E tr[P W Pᵀ], and the variance of the noise on the target (D5). There
    Q = (I - G_{L-1} W) ⋯ (I - G₀ W) and P = Σ_l G_l (I - W G_{l-1}) ⋯ (I - W G₀). Attention that
    divides by z instead of n has n/z times the weights.

    - `root`: any root of Λ.
    - `tasks`: T = rootᵀ E[wwᵀ] root, of one output.
    - `label_variance`, `target_variance`: σ² of the context labels and of the target.
    - `lengths`, `shares`: n and n/z of each context length, which are averaged over.
    """

    root: Float[Array, "D D"]
    tasks: Float[Array, "D D"]
    label_variance: Float[Array, ""]
    target_variance: Float[Array, ""]
    lengths: Float[Array, " n"]
    shares: Float[Array, " n"]

    @classmethod
    def of(cls, task: Task) -> "WhiteTask | None":
        """The white coordinates of a task; None where (D5) does not hold."""
        return None if beyond_white(task) is not None else _white(task)

    def whiten(self, layers: Float[Array, "L D D"]) -> Float[Array, "L D D"]:
        """G_l of layers Γ_l, at n/z = 1."""
        return contract("dj,ldk->lkj", self.root, contract("ldc,ck->ldk", layers, self.root))

    def two_layers(self, layers: Float[Array, "2 D D"]) -> Float[Array, ""]:
        """The population loss of Γ₀ and Γ₁ for Gaussian inputs, (D16) and (D17)."""
        first, second = self.whiten(layers)

        def of_length(n: Float[Array, ""], share: Float[Array, ""]) -> Float[Array, ""]:
            g0, g1 = share * first, share * second
            noise = self.label_variance / n * two_layer_noise(g0, g1, n)
            return two_layer_signal(g0, g1, self.tasks, n) + noise

        if len(self.lengths) == 1:  # no batch of one: matrix products are faster without
            found = of_length(self.lengths[0], self.shares[0])
        else:
            found = jnp.mean(jax.vmap(of_length)(self.lengths, self.shares))
        return found + self.target_variance

    def steps(
        self, rates: Float[Array, "L D"], rules: Float[Array, "n K 2"] | None
    ) -> Float[Array, ""]:
        """The population loss of diagonal layers, Gaussian inputs.

        - `rates`: the diagonals of the Γ_l; if all of them are multiples of one, `rules` may be
          the rules for one eigenvalue of W, where inputs are white (D6).
        - `rules`: None takes (D10), which needs diagonal Λ and E[wwᵀ].
        """
        layers = rates * jnp.sum(self.root**2, axis=1)[None]

        def of_length(
            n: Float[Array, ""], share: Float[Array, ""], rule: Float[Array, "K 2"] | None
        ) -> Float[Array, ""]:
            g, variance = share * layers, self.label_variance / n
            if rule is None:
                tasks = jnp.diagonal(self.tasks)
                return commuting_signal(g, tasks, n) + variance * commuting_noise(g, n)
            s, weights = rule.T
            read = jnp.zeros_like(s)  # P at an eigenvalue s of W, and Q = 1 - P s
            for step in g[:, 0]:
                read = read + step * (1 - s * read)
            signal = jnp.trace(self.tasks) * (weights @ (1 - s * read) ** 2)
            return signal + variance * len(self.root) * (weights @ (s * read**2))

        found = jax.vmap(of_length)(self.lengths, self.shares, rules)
        return jnp.mean(found) + self.target_variance


def beyond_white(task: AbstractTask) -> str | None:
    """None if (D5) holds for prompts of the task, else the reason why not."""
    if not isinstance(task, Task):
        return f"it is known for the linear regression of a Task, got {type(task).__name__}"
    if task.outputs > 1:
        return f"it is known for one output, got {task.outputs}"
    if task.context_labels is ContextLabels.NOISE:
        return "the labels of its context are noise"
    return None


def _rules(task: Task) -> Float[Array, "n K 2"] | None:
    """The rules for one eigenvalue of W at each context length, where the inputs are white."""
    spectrum = task.spectrum
    if not is_concrete(spectrum) or np.ptp(np.asarray(spectrum)) > 0:
        return None
    found = [eigenvalue_rule(task.size, length, NODES) for length in task.lengths]
    return jnp.asarray(np.swapaxes(np.array(found), 1, 2))


@eqx.filter_jit
def _white(task: Task) -> WhiteTask:
    root = task.basis * jnp.sqrt(task.spectrum)[None, :]
    n, z = lengths_and_divisors(task)
    return WhiteTask(
        root,
        root.T @ task.second_moment()[0, :, 0] @ root,
        task.label_noise**2,
        task.target_noise**2,
        jnp.asarray(n),
        jnp.asarray(n / z),
    )


@jax.custom_jvp
def bilinear_form(
    weights: Float[Array, "O K D"],
    second: Float[Array, "K K"],
    covariance: Float[Array, "D D"],
    cross: Float[Array, "O K D"],
) -> Float[Array, ""]:
    """⟨M, B M Λ⟩ - 2 ⟨M, G⟩ for symmetric B and Λ, with a gradient that reuses B M Λ."""
    return jnp.sum(weights * (_curved(weights, second, covariance) - 2 * cross))


def _bilinear_form_jvp(primals: tuple, tangents: tuple) -> tuple:
    weights, second, covariance, cross = primals
    curved = _curved(weights, second, covariance)
    value = jnp.sum(weights * (curved - 2 * cross))
    zero, (change, of_second, of_covariance, of_cross) = SymbolicZero, tangents
    # The form is linear in the rest; only what is differentiated is computed.
    tangent = jnp.zeros_like(value)
    if type(change) is not zero:
        tangent += 2 * jnp.sum((curved - cross) * change)
    if type(of_second) is not zero:
        tangent += jnp.sum(weights * _curved(weights, of_second, covariance))
    if type(of_covariance) is not zero:
        tangent += jnp.sum(weights * _curved(weights, second, of_covariance))
    if type(of_cross) is not zero:
        tangent -= 2 * jnp.sum(weights * of_cross)
    return value, tangent


bilinear_form.defjvp(_bilinear_form_jvp, symbolic_zeros=True)


def _curved(weights: Array, second: Array, covariance: Array) -> Float[Array, "O K D"]:
    return contract("ojd,dc->ojc", contract("jk,okd->ojd", second, weights), covariance)


class Population(AbstractLoss):
    """L = E|y|² - 2 ⟨M, G⟩ + ⟨M, B M Λ⟩ for the reduced models, P → ∞ (41)(42).

    With β the context correlation of all outputs, stacked to O·D numbers: `second` B = E[ββᵀ],
    `cross` G = E[y β x_qᵀ], `covariance` Λ. For S_w = E[w wᵀ], noise σ² and one length N,
    B = (1 + 1/N) Λ S_w Λ + (tr(Λ S_w) + σ²) Λ / N, G = Λ S_w Λ; the paper's (20)(31) is S_w = I.

    Two layers of Gaussian inputs are (D16)(D17), for any weights; `white` is what they need of the
    task, None where they do not hold. `Steps` that commute with the covariance are (D10) up to
    three layers, and (D6) up to eight where the inputs are white: `rules` has the nodes and the
    weights that average over one eigenvalue of W, None where the inputs are not white.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> zero = icl.Merged.initialiser(task, heads=2, scale=0.0)(jax.random.key(0))
    >>> round(float(icl.Population(task)(zero)), 6)
    0.9
    """

    power: Float[Array, ""]
    cross: Float[Array, "O OD D"]
    second: Float[Array, "OD OD"]
    covariance: Float[Array, "D D"]
    white: WhiteTask | None
    rules: Float[Array, "n K 2"] | None

    def __init__(self, task: AbstractTask) -> None:
        """Evaluate the closed forms.

        - `task`: a linear regression, `Task`; others have no closed form and are refused.
        """
        known = require_task(task, "the population is")
        self.power, self.cross, self.second, self.covariance = _closed_form(known)
        self.white = WhiteTask.of(known) if isinstance(known.inputs, Gaussian) else None
        self.rules = _rules(known) if self.white is not None else None

    def shown(self) -> dict[str, Any]:
        """The eigenvalues of Λ, the context lengths where they are kept, and L(0) = E|y|²."""
        covariance, white = self.covariance, self.white
        found: dict[str, Any] = {"D": covariance.shape[-1]}
        if is_concrete(covariance) and covariance.ndim == 2:
            spectrum = np.linalg.eigvalsh(np.asarray(covariance))[::-1]
            found = {"spectrum": eigenvalues(spectrum)}
        if white is not None:
            lengths = white.lengths
            found["context"] = lengths.reshape(()) if lengths.size == 1 else lengths
        return found | {"power": self.power}

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        self.require(model)
        if isinstance(model, Steps):  # its closed form is in the rates, not in the matrices
            assert self.white is not None
            shared = self.rules is not None and model.steps.shape[-1] == 1
            return self.white.steps(model.rates(), self.rules if shared else None)
        if model.depth == 2:
            assert self.white is not None
            assert isinstance(model, AbstractLayers)
            return self.white.two_layers(model.matrices()[:, 0, 0])
        model = model.single()
        assert isinstance(model, AbstractLinearModel)
        weights = ReducedFeatures().weights(model)
        return self.power + bilinear_form(weights, self.second, self.covariance, self.cross)

    def admits(self, model: AbstractModel) -> str | None:
        if isinstance(model, Steps):
            return misfit(model, *self.dims()) or self._beyond_steps(model)
        if model.depth > 1:
            unfit = misfit(model, *self.dims())
            if unfit is not None:
                return unfit
            if model.depth > 2:
                return (
                    f"the closed form covers any weights of one or two layers, got "
                    f"{model.depth}; use Draws.sample(task, 1000, key)"
                )
            if self.white is None:
                return (
                    "the closed form of two layers covers Gaussian inputs, one output and labels "
                    "made by the task; use Draws or Statistics"
                )
            return None
        model = model.single()
        if isinstance(model, AbstractLinearModel) and model.blocks is Blocks.FULL:
            return (
                "the closed form covers frozen zero blocks; freeze them, or use "
                "population_moments(task), or sampled Moments"
            )
        return refusal(ReducedFeatures(), model, *self.dims())

    def _beyond_steps(self, model: Steps) -> str | None:
        """Why the closed form of layers that commute with Λ does not hold; None if it does."""
        white, layers = self.white, model.layers
        if white is None:
            return (
                "the closed form of steps covers Gaussian inputs, one output and labels made by "
                "the task; use Draws or Statistics"
            )
        if self.rules is not None and model.steps.shape[-1] == 1:
            return None if layers < NODES else f"steps are known up to {NODES - 1}, got {layers}"
        if layers > MOST_LAYERS:
            return (
                f"the closed form of more than {MOST_LAYERS} steps covers white inputs with one "
                f"number per layer (shared=True), got {layers}; use Draws.sample(task, 1000, key)"
            )
        if is_concrete(white.root) and is_concrete(white.tasks):
            root = np.asarray(white.root)  # in NumPy: under `jit` a product of JAX would be traced
            for matrix in (root @ root.T, np.asarray(white.tasks)):
                off = matrix - matrix * np.eye(matrix.shape[-1])
                if np.abs(off).max() > DIAGONAL * np.abs(matrix).max():
                    return (
                        "the closed form of steps needs covariances of inputs and tasks that are "
                        "diagonal; leave the rotation out, or use Draws"
                    )
        return None

    def dims(self) -> tuple[int, int]:
        return self.covariance.shape[0], self.cross.shape[0]


@eqx.filter_jit  # one compilation for all of it, not one an operation
def _closed_form(task: Task) -> tuple[Array, Array, Array, Array]:
    """E|y|², G, B and Λ of a task."""
    covariance, lengths = task.covariance, LengthMoments.of(task)
    tasks = task.second_moment()
    outputs, size = task.outputs, task.size
    power = jnp.einsum("ocod,cd->", tasks, covariance) + outputs * task.target_noise**2
    if task.context_labels is ContextLabels.NOISE:
        # The labels carry nothing of the task: β is noise, uncorrelated with the target.
        cross = jnp.zeros((outputs, outputs * size, size))
        second = lengths.pairs_single * jnp.kron(jnp.eye(outputs), covariance)
        return power, cross, second, covariance
    # Λ E[W_oᵀ W_p] Λ: what two different pairs, or a pair and the query, have in common.
    signal = jnp.einsum("da,oapb,bc->odpc", covariance, tasks, covariance)
    noise = jnp.einsum("pr,dc->pdrc", jnp.eye(outputs), covariance) * task.label_noise**2
    second = (lengths.pairs_squared - lengths.pairs_single) * signal
    second = second + lengths.pairs_single * (_quartic(task, tasks) + noise)
    cross = lengths.pairs * jnp.einsum("pdoc->opdc", signal)
    return (
        power,
        cross.reshape(outputs, outputs * size, size),
        second.reshape(outputs * size, outputs * size),
        covariance,
    )


def _quartic(task: Task, tasks: Float[Array, "O D O D"]) -> Float[Array, "O D O D"]:
    """`E[x xᵀ W_pᵀ W_r x xᵀ]` from the fourth moment of the standardised inputs."""
    root = task.basis * jnp.sqrt(task.spectrum)[None, :]  # x = root z
    inner = jnp.einsum("ai,oapb,bj->opij", root, tasks, root)

    def one(block: Float[Array, "D D"]) -> Float[Array, "D D"]:
        return root @ task.inputs.quartic((block + block.T) / 2) @ root.T

    return jnp.einsum("opdc->odpc", jax.vmap(jax.vmap(one))(inner))
