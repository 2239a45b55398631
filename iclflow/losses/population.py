"""The loss in the limit of infinitely many sequences, from moments in closed form."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float

from iclflow.linalg import contract
from iclflow.losses.base import AbstractLoss
from iclflow.losses.features import ReducedFeatures
from iclflow.models import AbstractLinearModel, AbstractModel, Blocks
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.prompt import Normaliser
from iclflow.tasks.task import ContextLabels, Task, require_task


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
        n = np.asarray(task.lengths, dtype=float)
        z = {
            Normaliser.PAIRS: n,
            Normaliser.TOKENS: n + 1,
            Normaliser.CONTEXT: np.full_like(n, task.context),
            Normaliser.NONE: np.ones_like(n),
        }[task.normaliser]
        terms = (n / z, (n / z) ** 2, n / z**2, 1 / z, 1 / z**2)
        return cls(*(float(t.mean()) for t in terms))


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
    """

    power: Float[Array, ""]
    cross: Float[Array, "O OD D"]
    second: Float[Array, "OD OD"]
    covariance: Float[Array, "D D"]

    def __init__(self, task: AbstractTask) -> None:
        """Evaluate the closed forms.

        - `task`: a linear regression, `Task`; others have no closed form and are refused.
        """
        known = require_task(task, "the population is")
        self.power, self.cross, self.second, self.covariance = _closed_form(known)

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        self.require(model)
        assert isinstance(model, AbstractLinearModel)
        weights = ReducedFeatures().weights(model)
        return self.power + bilinear_form(weights, self.second, self.covariance, self.cross)

    def admits(self, model: AbstractModel) -> str | None:
        if isinstance(model, AbstractLinearModel) and model.blocks is Blocks.FULL:
            return (
                "the closed form covers frozen zero blocks; freeze them, or use "
                "population_moments(task), or sampled Moments"
            )
        return ReducedFeatures().admits(model)


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
