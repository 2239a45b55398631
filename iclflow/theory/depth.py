"""What depth does: the best losses of L linear layers, their limits, and the plateaus of two.

The equation numbers are those of the page on depth. With white inputs and Γ_l = γ_l I, or with any
Λ and Γ_l = γ_l Λ⁻¹, the layers are a polynomial p(W) = Π_l (1 - g_l W) of a white Wishart W, and
L/tr T = E p(s)² over its eigenvalues s (D6), with T = Λ^{1/2} E[wwᵀ] Λ^{1/2}. This part is exact at
any depth. For two layers the loss of any weights is known (D16), and its constrained minima are
found by descent.
"""

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.losses.population import WhiteTask, beyond_white
from iclflow.losses.wishart import trace_moments
from iclflow.models import AbstractModel, Layers, Merged
from iclflow.tasks.checks import require_real, require_size
from iclflow.tasks.laws import Gaussian
from iclflow.tasks.task import Task
from iclflow.theory.algorithms.linear import least_squares, zero_predictor

Moments = Sequence[Fraction]


@dataclasses.dataclass(frozen=True)
class BestSteps:
    """The best layers of the family Γ_l = γ_l Λ⁻¹.

    - `loss`: L/tr T, the share of the power of the labels that is left.
    - `steps`: g_l, one number per layer, from the smallest; all orders are equally good.
    """

    loss: float
    steps: tuple[float, ...]


def limit_moments(ratio: Fraction, count: int) -> tuple[Fraction, ...]:
    """m_k of the Marchenko-Pastur law, D, N → ∞ at D/N = ratio, for k = 0 … count.

    m_k = Σ_r y^r C(k, r) C(k-1, r) / (r + 1): the limit of `trace_moments`.
    """
    if not ratio > 0:
        raise ValueError(f"the ratio D/N must be positive, got {ratio}")
    found = [Fraction(1)]
    for k in range(1, count + 1):
        terms = (
            Fraction(math.comb(k, r) * math.comb(k - 1, r), r + 1) * ratio**r for r in range(k)
        )
        found.append(sum(terms, Fraction(0)))
    return tuple(found)


def white_loss(steps: Sequence[float], moments: Moments) -> float:
    """L/tr T = Σ_k c_k m_k with Π_l (1 - g_l s)² = Σ_k c_k s^k (D6), in fractions.

    - `steps`: g_l of each layer.
    - `moments`: m_0 … m_2L, of `trace_moments` or `limit_moments`.
    """
    product = [Fraction(1)]
    for step in (*steps, *steps):
        g = Fraction(float(step))
        product = [a - g * b for a, b in zip([*product, 0], [0, *product], strict=True)]
    if len(moments) < len(product):
        raise ValueError(f"{len(steps)} layers need {len(product)} moments, got {len(moments)}")
    return float(sum(c * m for c, m in zip(product, moments, strict=False)))


def best_tied(moments: Moments, layers: int) -> BestSteps:
    """The best one step for all layers: the least E(1 - g s)^{2L}, which is convex in g (D6).

    - `moments`: m_0 … m_2L.
    - `layers`: L.

    >>> from iclflow.losses.wishart import trace_moments
    >>> from iclflow.theory.depth import best_tied
    >>> round(best_tied(trace_moments(4, 31, 4), 2).loss, 6)
    0.039446
    """
    layers = require_size("layers", layers)

    def slope(g: Fraction) -> Fraction:
        """The derivative in g, in fractions so that its sign is right."""
        terms = (
            math.comb(2 * layers, k) * k * (-1) ** k * g ** (k - 1) * moments[k]
            for k in range(1, 2 * layers + 1)
        )
        return sum(terms, Fraction(0))

    low, high = Fraction(0), Fraction(2)  # E(1 - g s)^{2L} exceeds 1 at g = 2 already, by Jensen
    for _ in range(54):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    step = float(low)
    return BestSteps(white_loss([step] * layers, moments), (step,) * layers)


def best_untied(moments: Moments, layers: int) -> BestSteps:
    """The best L steps: the polynomial of degree L with p(0) = 1 and the least E p(s)² (D8).

    Its coefficients solve Σ_j c_j m_{i+j} = -m_i, the steps are one over its roots, and the least
    loss is det[m_{i+j}]_{0…L} / det[m_{i+j}]_{1…L}.

    - `moments`: m_0 … m_2L.
    - `layers`: L.

    >>> from iclflow.losses.wishart import trace_moments
    >>> from iclflow.theory.depth import best_untied
    >>> round(best_untied(trace_moments(4, 31, 4), 2).loss, 6)
    0.026207
    """
    layers = require_size("layers", layers)
    rows = [
        [moments[i + j] for j in range(1, layers + 1)] + [-moments[i]] for i in range(1, layers + 1)
    ]
    for i in range(layers):  # the matrix is positive definite: no pivoting, and fractions are exact
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for k in range(layers):
            if k != i:
                rows[k] = [x - rows[k][i] * y for x, y in zip(rows[k], rows[i], strict=True)]
    coefficients = [row[-1] for row in rows]
    loss = 1 + sum((c * m for c, m in zip(coefficients, moments[1:], strict=False)), Fraction(0))
    # 1/s is a root of the reversed polynomial x^L + c_1 x^{L-1} + … + c_L.
    steps = np.sort(np.roots([1.0, *map(float, coefficients)]).real)
    return BestSteps(float(loss), tuple(steps.tolist()))


def untied_limit(ratio: float, layers: int) -> float:
    """The least untied loss in the Marchenko-Pastur limit: 1/Σ_{j=0}^{L} (N/D)^j (D9)."""
    return 1 / sum(ratio**-j for j in range(layers + 1))


def tied_curvature(size: int, context: int) -> float:
    """∂²L/∂δ² per tr T of two layers g ± δ at the best tied step g: -4 E[s²(1 - g s)²].

    It is negative unless s has one value: the looped solution is a saddle of the untied problem,
    and layers that start unequal split into a large and a small step.
    """
    moments = trace_moments(size, context, 4)
    g = best_tied(moments, 2).steps[0]
    return -4 * float(moments[2] - 2 * Fraction(g) * moments[3] + Fraction(g) ** 2 * moments[4])


def beyond_two_layers(task: Task) -> str | None:
    """None where the theory of two layers covers a task, else the reason why not."""
    reason = beyond_white(task)
    if reason is None and not isinstance(task.inputs, Gaussian):
        reason = f"it is known for Gaussian inputs, got {type(task.inputs).__name__}"
    return reason


def require_two_layers(task: Task) -> WhiteTask:
    """The white coordinates of a task, or `ValueError` where two layers have no closed form."""
    reason = beyond_two_layers(task)
    if reason is not None:
        raise ValueError(f"the theory of two layers does not cover this task: {reason}")
    white = WhiteTask.of(task)
    assert white is not None
    if not float(jnp.min(task.spectrum)) > 0:
        raise ValueError(
            "the theory of two layers needs inputs with variance in every direction, got an "
            "eigenvalue 0; leave it out, for nothing depends on it"
        )
    return white


def _require_pair(layers: Any, size: int) -> Float[Array, "2 D D"]:
    """Γ₀ and Γ₁ as one array, or `ValueError` with one line."""
    found = require_real("layers", layers)
    if found.shape != (2, size, size):
        raise ValueError(
            f"two layers of {size} inputs have matrices of shape (2, {size}, {size}), got "
            f"{found.shape}"
        )
    return found


@eqx.filter_jit
def _residuals(white: WhiteTask, layers: Float[Array, "2 D D"]) -> Float[Array, "2 D D"]:
    return -jax.grad(lambda g: white.two_layers(g))(layers) / 2


def layer_residuals(task: Task, layers: Float[Array, "2 D D"]) -> Float[Array, "2 D D"]:
    """A^{(l)} = -½ ∂L/∂Γ_l, what an idle head of layer l sees.

    Such a head, τ dk/dt = v A q and so on, grows as at one layer; its gains are the singular
    values of A^{(l)}.

    - `task`: Gaussian inputs, one output.
    - `layers`: Γ₀ and Γ₁.
    """
    white = require_two_layers(task)
    return _residuals(white, _require_pair(layers, task.size))


def layer_gains(task: Task, layers: Float[Array, "2 D D"]) -> Float[np.ndarray, "2 D"]:
    """The singular values of A^{(l)} of both layers, largest first; see `layer_residuals`."""
    return np.linalg.svd(np.asarray(layer_residuals(task, layers)), compute_uv=False)


def second_drop_rates(task: Task) -> tuple[float, float]:
    """‖A^{(l)}‖_F of an idle layer l = 0, 1 while the other one is at the one-layer optimum (D19).

    One over it is the time scale of the second drop of merged layers that start unequal.
    """
    best = least_squares(task).reduced_weights()[0, 0]
    zero = jnp.zeros_like(best)
    rates = [
        jnp.linalg.norm(layer_residuals(task, jnp.stack(pair))[layer])
        for layer, pair in enumerate(((zero, best), (best, zero)))
    ]
    return float(rates[0]), float(rates[1])


# The minima of two layers are searched in white coordinates, in factors G_l = A_l B_lᵀ. A head that
# is missing is a column of zeros that a mask keeps there, so all ranks share one compiled function.

Factors = Float[np.ndarray, "2 2 D D"]  # layer, A or B, entry, head


@eqx.filter_jit
def _value_and_slope(
    white: WhiteTask, factors: Array, mask: Array, tied: bool
) -> tuple[Float[Array, ""], Float[Array, "2 2 D D"]]:
    def loss(factors: Float[Array, "2 2 D D"]) -> Float[Array, ""]:
        left, right = jnp.moveaxis(factors * mask[:, None, None, :], 1, 0)
        layers = jnp.einsum("ldh,lch->ldc", left, right)
        return white.two_layers(jnp.stack([layers[0], layers[0]]) if tied else layers)

    return jax.value_and_grad(loss)(factors)


def _descend(
    white: WhiteTask, start: Factors, ranks: tuple[int, int], *, tied: bool = False
) -> tuple[float, Factors]:
    """The local minimum below a start, with at most so many heads in each layer."""
    from scipy.optimize import minimize

    size = start.shape[-1]
    mask = np.stack([np.arange(size) < rank for rank in ranks]).astype(float)
    heads = jax.device_put(mask)

    def both(flat: Float[np.ndarray, " W"]) -> tuple[float, Float[np.ndarray, " W"]]:
        value, slope = _value_and_slope(
            white, jax.device_put(flat.reshape(start.shape)), heads, tied
        )
        return float(value), np.asarray(slope, float).reshape(-1)

    found = minimize(both, start.reshape(-1), jac=True, method="BFGS", options={"gtol": 1e-9})
    return float(found.fun), found.x.reshape(start.shape) * mask[:, None, None, :]


def _normalised(task: Task) -> WhiteTask:
    """White coordinates in which the layers themselves are the G_l: root = I."""
    white = require_two_layers(task)
    identity = jnp.eye(len(white.root))
    return dataclasses.replace(white, root=identity)


def _of_matrices(*layers: Float[np.ndarray, "D D"]) -> Factors:
    """Balanced factors of given G_l."""
    found = []
    for matrix in layers:
        left, values, right = np.linalg.svd(matrix)
        found.append([left * np.sqrt(values), right.T * np.sqrt(values)])
    return np.asarray(found)


def _scattered(*shape: int, number: int) -> Float[np.ndarray, "..."]:
    """Numbers of mean square one without any pattern, others for each `number`; not random.

    A search needs starts with a share of every direction, and the same ones every time.
    """
    turns = np.sqrt(2) * (np.arange(math.prod(shape)) + 1) ** 2 + np.sqrt(3) * number
    return np.sqrt(2) * np.cos(2 * np.pi * turns).reshape(shape)


def _distinct(losses: Sequence[float], tolerance: float = 1e-7) -> list[float]:
    """Sorted, with those that agree kept once."""
    found: list[float] = []
    for loss in sorted(losses):
        if not found or loss > found[-1] + tolerance * max(1.0, abs(found[-1])):
            found.append(loss)
    return found


def untied_minima(task: Task) -> list[float]:
    """The local minima that two untied layers end in, from the lowest (one where Λ is white).

    They are reached from the best steps of (D8) in both orders: a large step first, or a small one.
    """
    return _distinct([loss for loss, _ in layer_minima(task)])


def layer_minima(task: Task) -> list[tuple[float, Float[np.ndarray, "2 D D"]]]:
    """The two minima of `untied_minima` with Γ₀ and Γ₁: the large step first, then the small one.

    - `task`: Gaussian inputs, one output.

    >>> import jax, iclflow as icl
    >>> from iclflow.theory.depth import layer_minima
    >>> minima = layer_minima(icl.Task([0.4, 0.3, 0.2, 0.1], 31))
    >>> [layers.shape for _, layers in minima]
    [(2, 4, 4), (2, 4, 4)]
    """
    white, size = _normalised(task), task.size
    steps = best_untied(trace_moments(size, task.context, 4), 2).steps
    inverse = np.linalg.inv(np.asarray(require_two_layers(task).root))
    found = []
    for order in (steps[::-1], steps):
        start = _of_matrices(*(step * np.eye(size) for step in order))
        loss, factors = _descend(white, start, (size, size))
        layers = np.einsum("ldh,lch->ldc", factors[:, 0], factors[:, 1])  # G = rootᵀ Γᵀ root
        found.append((loss, inverse.T @ np.swapaxes(layers, 1, 2) @ inverse))
    return found


def step_algorithms(task: Task) -> dict[str, AbstractModel]:
    """The best one and two preconditioned steps of gradient descent in context, by name.

    A linear layer is such a step (D2), so these are what one and two layers can learn: candidates
    for `iclflow.diagnosis.identify`.

    - `task`: Gaussian inputs, one output.
    """
    best = least_squares(task).reduced_weights()[0, 0]

    def stack(*matrices: Any) -> Layers:
        one = jnp.ones((1, 1, 1))
        return Layers.of([Merged(values=one, merged=jnp.asarray(m)[None]) for m in matrices])

    large, small = (layers for _, layers in layer_minima(task))
    return {
        "no step": zero_predictor(task),
        "1 preconditioned step": stack(best),
        "2 preconditioned steps, the large one first": stack(*large),
        "2 preconditioned steps, the small one first": stack(*small),
    }


def tied_levels(task: Task, *, restarts: int = 4) -> list[float]:
    """The least losses of two tied layers with 0 … D heads of rank one; the last is the optimum.

    The optimum need not be symmetric: for N above about D² it gains by an antisymmetric part of Γ.
    So the search starts from points that are not symmetric.

    - `restarts`: further starts of each search, besides those with one more head on a mode.
    """
    white, size = _normalised(task), task.size
    levels = [float(white.two_layers(jnp.zeros((2, size, size))))]
    best = np.zeros((2, 2, size, size))
    for rank in range(1, size + 1):
        starts = []
        for mode in range(size):  # one more head, on each mode in turn
            grown = best.copy()
            grown[:, :, :, rank - 1] = 0.1 * _scattered(size, number=size * rank + mode)
            grown[:, :, mode, rank - 1] += 0.7
            starts.append(grown)
        starts += [0.6 * _scattered(*best.shape, number=i) for i in range(restarts)]
        found = [_descend(white, start, (rank, rank), tied=True) for start in starts]
        loss, best = min(found, key=lambda pair: pair[0])
        levels.append(loss)
    return levels


def plateau_table(task: Task, *, restarts: int = 4) -> Float[np.ndarray, "rows columns"]:
    """L*(r₀, r₁), the least loss of two layers of ranks r₀ and r₁, each 0 … D (D20).

    A plateau of separate rank-one heads is a pair of numbers of active heads, and a run is a path
    from (0, 0) to (D, D) that adds one head at a time; which path depends on the start. No closed
    form is known. The table is found by descent over factors from the neighbouring entries, with
    one more head along the leading directions of its layer's residual, and from scattered starts. A
    second, higher local minimum exists for some pairs, and runs may wait there instead.

    - `task`: Gaussian inputs, one output. The search takes seconds at D = 4 and grows as D⁵ or so.
    - `restarts`: the number of scattered starts of each pair.
    """
    white, size = _normalised(task), task.size
    zero = np.zeros((2, 2, size, size))
    found = {(0, 0): (float(white.two_layers(jnp.zeros((2, size, size)))), zero)}
    pairs = [(i, j) for i in range(size + 1) for j in range(size + 1)]
    for ranks in sorted(pairs, key=sum)[1:]:  # every pair after those with one head less
        starts = [0.6 * _scattered(*zero.shape, number=i) for i in range(restarts)]
        for layer in (0, 1):
            if ranks[layer] == 0:
                continue
            fewer = (ranks[0] - (layer == 0), ranks[1] - (layer == 1))
            starts += _with_one_more(white, found[fewer][1], layer, ranks[layer] - 1)
        tried = [_descend(white, start, ranks) for start in starts]
        found[ranks] = min(tried, key=lambda pair: pair[0])
    table = [[found[i, j][0] for j in range(size + 1)] for i in range(size + 1)]
    return np.asarray(table)


def _with_one_more(white: WhiteTask, factors: Factors, layer: int, head: int) -> list[Factors]:
    """Starts with one more head of a layer, along the two leading directions of its residual."""
    matrices = jnp.asarray(np.einsum("ldh,lch->ldc", factors[:, 0], factors[:, 1]))
    left, _, right = np.linalg.svd(np.asarray(_residuals(white, matrices))[layer])
    starts = []
    for mode in range(min(2, len(left))):
        start = factors + 0.02 * _scattered(*factors.shape, number=mode)
        start[layer, :, :, head] = 0.4 * np.stack([left[:, mode], right[mode]])
        starts.append(start)
    return starts


TABLE_SIZE = 5  # the largest D whose table is made without being asked for


def depth_summary(task: Task, layers: int) -> dict[str, Any]:
    """What theory says of L layers on a task: the numbers behind `iclflow theory --layers`.

    For two layers `tied_loss`, `untied_losses` (the local minima) and `plateau_table` are those of
    any weights. For more they are those of the family Γ_l = γ_l Λ⁻¹, and there is no table.

    That family and its limit are known for one context length and no noise on the context labels.
    Elsewhere what is said of them is None, and other depths than two are refused.

    - `task`: Gaussian inputs, one output.
    - `layers`: L, at most `MOST_SUMMED`.
    """
    layers = require_size("layers", layers)
    two = layers == 2
    white = require_two_layers(task)
    family = len(white.lengths) == 1 and float(white.label_variance) == 0
    if not (two or family):
        raise ValueError(
            f"losses of {layers} layers are known for one context length and no noise on the "
            f"labels of the context; leave these out, or ask for two layers"
        )
    if layers > MOST_SUMMED:
        raise ValueError(
            f"exact losses are known up to {MOST_SUMMED} layers, got {layers}; in the limit of "
            f"large D and N use best_tied(limit_moments(…)) and untied_limit"
        )
    levels = tied_levels(task) if two and task.size <= TABLE_SIZE else None
    table = plateau_table(task).tolist() if two and task.size <= TABLE_SIZE else None
    rates = second_drop_rates(task) if two else None
    known = _family(task, layers, white) if family else None
    summed: dict[str, Any] = known or dict.fromkeys(FAMILY)
    return {
        "layers": layers,
        "covers": "any weights" if two else "layers proportional to the inverse of Λ",
        "zero_loss": float(jnp.trace(white.tasks) + white.target_variance),
        "tied_loss": _tied_loss(task, levels) if two else summed["isotropic_tied_loss"],
        "tied_levels": levels,
        "untied_losses": untied_minima(task) if two else [summed["isotropic_untied_loss"]],
        "plateau_table": table,
        **summed,
        "second_drop_rates": None if rates is None else list(rates),
        "gains": layer_gains(task, jnp.zeros((2, task.size, task.size))).tolist() if two else None,
    }


MOST_SUMMED = 24  # layers whose 2 L moments are summed within some seconds
FAMILY = (
    "isotropic_tied_loss", "isotropic_untied_loss", "isotropic_tied_step",
    "isotropic_untied_steps", "asymptotic_tied_loss", "asymptotic_untied_loss", "tied_curvature",
)  # fmt: skip


def _family(task: Task, layers: int, white: WhiteTask) -> dict[str, Any]:
    """What is known of layers Γ_l = γ_l Λ⁻¹ at one context length without noise on the labels."""
    power, noise = float(jnp.trace(white.tasks)), float(white.target_variance)
    ratio = Fraction(task.size, task.context)
    exact = trace_moments(task.size, task.context, 2 * layers)
    limit = limit_moments(ratio, 2 * layers)
    tied, untied = best_tied(exact, layers), best_untied(exact, layers)
    found = (
        power * tied.loss + noise, power * untied.loss + noise, tied.steps[0], list(untied.steps),
        power * best_tied(limit, layers).loss + noise,
        power * untied_limit(float(ratio), layers) + noise,
        power * tied_curvature(task.size, task.context) if layers == 2 else None,
    )  # fmt: skip
    return dict(zip(FAMILY, found, strict=True))


def _tied_loss(task: Task, levels: list[float] | None) -> float:
    """The least loss of two tied layers."""
    if levels is not None:
        return levels[-1]
    white, size = _normalised(task), task.size
    step = best_tied(trace_moments(size, task.context, 4), 2).steps[0]
    spread = _scattered(size, size, number=0)
    layers = [step * np.eye(size) + noise * spread for noise in (0.0, 0.1)]
    starts = [_of_matrices(layer, layer) for layer in layers]
    return min(_descend(white, start, (size, size), tied=True)[0] for start in starts)
