"""Merged key and query: the one abrupt drop as a function of time (15)(45)-(51), E2.

Only the growing half of a small random start survives its plateau,
`s(0) = ¼ ‖w₂(0) + W₁(0) m̂‖²` with m̂ = vec(G)/‖G‖; after that all heads are parallel and the
weights are one matrix M = Σ vᵢ Uᵢ that obeys `τ dM/dt = ‖M‖ R + M ⟨M, R⟩/‖M‖`, R = G - 𝓗[M] (Q6),
for any loss that is quadratic in M; 𝓗[M] = B M Λ for a population. Times are t/τ.

With every weight block trained (`first_drop`) the zero blocks of an in-weight mixture do not stay
zero (87). This is beyond the paper: what is learned first is the leading direction of
E[y S ⊗ x_q], in weight and in context at once.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, ArrayLike, Float

from iclflow.linalg import pack_dual, packed_pairs
from iclflow.losses import FullFeatures, Moments, Population
from iclflow.models import Merged
from iclflow.theory.drops.base import Curve, Times
from iclflow.theory.drops.quadratic import Quadratic, Source, require_products

EARLY = 1e-40  # of the least-squares M: below it M grows along G and nothing else
HALFWAY = 1 - 0.5**0.5  # of the way of s, where the loss is halfway down


class FirstDrop(eqx.Module):
    """The first drop of merged attention with all blocks, from small weights.

    Near zero the pairs a = [𝐯; v], b = vec[U; 𝐮] of every head obey τ da/dt = C b,
    τ db/dt = Cᵀa with C = E[y S ⊗ x_q]: they grow along its leading singular vectors, at the
    rate σ₁. On that line the loss is E[y²] - 2 σ₁ s + κ s², and s follows the logistic course of
    (15): τ ds/dt = 2 s (σ₁ - κ s), s(0) = ¼ Σ (a·u + b·w)². The other directions are left out: the
    time of the drop is right to leading order in small weights, its end an estimate.

    - `power`: E[y²].
    """

    growth: float  # σ₁
    curvature: float  # κ
    power: float
    start: float  # s(0)

    @property
    def level(self) -> float:
        """The loss after the drop."""
        return self.power - self.growth**2 / self.curvature

    def time(self, share: float = HALFWAY) -> float:
        """When s has come a share of its way; by default when the loss is halfway down."""
        end = self.growth / self.curvature
        return float(np.log(share / (1 - share) * (end / self.start - 1)) / (2 * self.growth))

    def loss(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
        """The loss on the clock t/τ."""
        end = self.growth / self.curvature
        s = end / (1 + (end / self.start - 1) * np.exp(-2 * self.growth * times))
        return self.power - 2 * self.growth * s + self.curvature * s**2


def first_drop(loss: Moments, model: Merged) -> FirstDrop:
    """The prediction from the moments of all features and the initial weights; one output.

    - `loss`: moments of the full features.
    - `model`: the initial weights, with all blocks.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> start = icl.Merged.initialiser(task, heads=2, scale=0.01, blocks=icl.Blocks.FULL)
    >>> drop = icl.theory.first_drop(icl.population_moments(task), start(jax.random.key(0)))
    >>> bool(0 < drop.time(0.5) < drop.time(0.9))
    True
    """
    size, outputs = model.input_size, model.values.shape[1]
    token = size + 1
    first, second = packed_pairs(token)
    if not isinstance(loss.map, FullFeatures) or outputs != 1:
        raise ValueError(
            f"the first drop needs moments of all features and one output, got "
            f"{type(loss.map).__name__} and {outputs}; give population_moments(task)"
        )
    cross = np.zeros((token, token, size))
    packed = np.asarray(loss.cross).reshape(len(first), size)
    cross[first, second] = cross[second, first] = packed
    left, gains, right = np.linalg.svd(cross.reshape(token, -1))
    line = np.outer(left[:, 0], right[0]).reshape(token, token, size)
    weights = np.asarray(pack_dual(jnp.asarray(line))).reshape(-1)
    rows = np.asarray(model.value_rows())[:, 0]
    merged = np.asarray(model.key_query()).reshape(len(rows), -1)
    return FirstDrop(
        growth=float(gains[0]),
        curvature=float(weights @ np.asarray(loss.second) @ weights),
        power=float(loss.power),
        start=float(np.sum((rows @ left[:, 0] + merged @ right[0]) ** 2) / 4),
    )


def least_loss(loss: Moments) -> float:
    """The least loss of any weights on the features, E[y²] - E[yφ]ᵀ E[φφᵀ]⁺ E[yφ]; one output.

    - `loss`: the moments.

    >>> import numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> least = icl.theory.least_loss(icl.population_moments(task))
    >>> bool(np.isclose(least, icl.theory.plateau_losses(task)[-1]))
    True
    """
    cross, second = np.asarray(loss.cross)[0], np.asarray(loss.second)
    return float(loss.power) - float(cross @ np.linalg.lstsq(second, cross, rcond=None)[0])


def growing_strength(source: Source | Quadratic, model: Merged) -> Float[Array, ""]:
    """s(0) = ¼ Σᵢ (vᵢ + ⟨Uᵢ, G⟩/‖G‖)² (E2); ‖w₂(0)‖² if aligned (44).

    - `source`: the task, its population, or the quadratic loss of a sample.
    - `model`: the initial weights.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> start = icl.Merged.initialiser(task, heads=2, scale=0.0)(jax.random.key(0))
    >>> float(icl.theory.growing_strength(task, start))
    0.0
    """
    return jnp.sum(_halves(Quadratic.of(source), model)[0] ** 2)


def _halves(loss: Quadratic, model: Merged) -> tuple[Float[Array, " H"], Float[Array, " H"]]:
    """The growing and the decaying combination of each head's value and merged weight."""
    if model.values.shape[1] != 1 or model.merged.shape[1] != loss.size:
        raise ValueError(
            f"no merged time course: the loss has 1 output and {loss.size} inputs, the model "
            f"{model.values.shape[1]} and {model.merged.shape[1]}; draw it with "
            f"Merged.initialiser(task, ...)"
        )
    return _combinations(jnp.asarray(loss.cross), model.values[:, 0, 0], model.merged)


@jax.jit  # one compilation for all of it, not one an operation
def _combinations(
    cross: Float[Array, "D D"], values: Float[Array, " H"], merged: Float[Array, "H D D"]
) -> tuple[Float[Array, " H"], Float[Array, " H"]]:
    along = jnp.einsum("hdc,dc->h", merged, cross / jnp.linalg.norm(cross))
    return (values + along) / 2, (values - along) / 2


def logistic_strength(
    time: ArrayLike, initial: ArrayLike, rate: ArrayLike, saturation: ArrayLike
) -> Float[Array, "..."]:
    """s(t) = γ e^{2γt} / (α (e^{2γt} - 1) + γ/s(0)), from τ ds/dt = 2 s (γ - α s) (15)(46)."""
    return _logistic(*(jnp.asarray(a, float) for a in (time, initial, rate, saturation)))


@jax.jit
def _logistic(
    t: Float[Array, "..."],
    s: Float[Array, "..."],
    gamma: Float[Array, "..."],
    alpha: Float[Array, "..."],
) -> Float[Array, "..."]:
    decay = jnp.exp(-2 * gamma * t)
    return gamma * s / (alpha * s * -jnp.expm1(-2 * gamma * t) + gamma * decay)


class WhiteCourse(eqx.Module):
    """The closed form (15)(45)-(48) for white inputs, loss and weights, from any small start.

    It needs 𝓗[G] = α G, so that M keeps the direction of G: Λ = c I (α = c³ (1 + (1 + D)/N),
    γ = c² √D), or the same on the range of Λ. The error in the loss is of order w².

    - `source`: the task or its population.
    - `model`: the initial weights.
    """

    power: Float[Array, ""]  # E[y²]
    direction: Float[Array, "D D"]  # G/‖G‖
    rate: Float[Array, ""]  # γ = ‖G‖
    saturation: Float[Array, ""]  # α
    growing: Float[Array, " H"]  # ½ (v + ⟨U, m̂⟩) at the start
    decaying: Float[Array, " H"]  # ½ (v - ⟨U, m̂⟩) at the start
    orthogonal: Float[Array, "H D D"]  # U without its part along m̂, at the start

    def __init__(self, source: Source | Quadratic, model: Merged) -> None:
        """Reduce a start; `ValueError` unless the task is white."""
        loss = Quadratic.of(source)
        self.growing, self.decaying = _halves(loss, model)
        self.power = jnp.asarray(loss.power)
        self.direction, self.rate, self.saturation, self.orthogonal, gap = _white_parts(
            jnp.asarray(loss.cross), jnp.asarray(loss.curved(loss.cross)), model.merged
        )
        if not float(gap) < 1e-6:
            raise ValueError(
                f"the closed form needs white inputs, 𝓗[G] ∝ G, and misses by {float(gap):.1g}; "
                f"use merged_course, which integrates the reduced flow"
            )

    @property
    def initial(self) -> Float[Array, ""]:
        """s(0) of E2."""
        return jnp.sum(self.growing**2)

    def strength(self, time: ArrayLike) -> Float[Array, "..."]:
        """s(t) = ‖M‖, so that the prediction is σ βᵀ x_q with σ = s/√D."""
        return logistic_strength(time, self.initial, self.rate, self.saturation)

    def loss(self, time: ArrayLike) -> Float[Array, "..."]:
        """L = E[y²] - 2 γ s + α s²: c D - 2 σ c² D + σ² c³ D (1 + (1 + D)/N)."""
        s = self.strength(time)
        return self.power - 2 * self.rate * s + self.saturation * s**2

    def half_time(self) -> Float[Array, ""]:
        """When s is half of its limit: (1/2γ) ln(γ/(α s(0)) - 1)."""
        ratio = self.rate / (self.saturation * self.initial)
        return jnp.log(ratio - 1) / (2 * self.rate)

    def mid_drop_time(self) -> Float[Array, ""]:
        """When half of the loss drop is done: s is 1 - 1/√2 of its limit."""
        ratio = self.rate / (self.saturation * self.initial)
        return jnp.log((ratio - 1) / (1 + jnp.sqrt(2.0))) / (2 * self.rate)

    def model(self, time: Float[Array, ""] | float) -> Merged:
        """The weights at one time: the growing part, the decaying one, and what is left over.

        v = a f + n/f, ⟨U, m̂⟩ = a f - n/f with f² = s/s(0) (their product is conserved, (17));
        the rest of U loses its component on the direction a of the heads: exp(-α ∫ s dt).
        """
        t = jnp.asarray(time, float)
        factor = jnp.sqrt(self.strength(t) / self.initial)
        up, down = self.growing * factor, self.decaying / factor
        head = self.growing / jnp.sqrt(self.initial)
        fade = jnp.exp(-self.rate * t) * factor  # exp(-α ∫ s dt), as d ln s/dt = 2 (γ - α s)
        shared = jnp.einsum("h,hdc->dc", head, self.orthogonal)
        left = self.orthogonal - (1 - fade) * head[:, None, None] * shared[None]
        merged = (up - down)[:, None, None] * self.direction[None] + left
        return Merged(values=(up + down)[:, None, None], merged=merged)


@jax.jit
def _white_parts(
    cross: Float[Array, "D D"], image: Float[Array, "D D"], merged: Float[Array, "H D D"]
) -> tuple[Array, Array, Array, Array, Array]:
    """Direction, γ, α, the rest of U, and how far 𝓗[G] is from α G."""
    rate = jnp.linalg.norm(cross)
    direction, saturation = cross / rate, jnp.sum(image * cross) / rate**2
    gap = jnp.linalg.norm(image - saturation * cross) / jnp.linalg.norm(image)
    along = jnp.einsum("hdc,dc->h", merged, direction)
    return direction, rate, saturation, merged - along[:, None, None] * direction[None], gap


def _reduced_flow(
    loss: Quadratic, strength: float, horizon: float, tolerance: float, **options: Any
) -> Any:
    """Integrate τ dM/dt = ‖M‖ R + M ⟨M, R⟩/‖M‖ from M = s(0) G/‖G‖, as D² numbers."""
    shape = loss.cross.shape

    def slope(t: float, m: np.ndarray) -> np.ndarray:
        size, r = np.linalg.norm(m), loss.residual(m.reshape(shape)).ravel()
        return size * r + m * (m @ r) / size

    return scipy.integrate.solve_ivp(
        slope,
        (0.0, horizon),
        strength * loss.cross.ravel() / np.linalg.norm(loss.cross),
        method="DOP853",
        dense_output=True,
        rtol=tolerance,
        atol=1e-2 * tolerance * strength,
        **options,
    )


def merged_course(
    source: Source | Quadratic, model: Merged, times: Times, *, tolerance: float = 1e-10
) -> Curve:
    """The reduced flow of a small merged start on any quadratic loss (E2)(Q6), at the times t/τ.

    The heads keep the proportions of their growing halves.

    - `source`: the task, its population, or a loss of prompts; one output.
    - `model`: the initial weights.
    - `times`: t/τ.
    - `tolerance`: relative error of the solver per step.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> start = icl.Merged.initialiser(task, heads=2, scale=0.01)(jax.random.key(0))
    >>> icl.theory.merged_course(task, start, [0.0, 100.0]).loss.shape
    (2,)
    """
    loss = Quadratic.of(source)
    growing = np.asarray(_halves(loss, model)[0], float)
    require_products(growing)
    start = float(growing @ growing)
    saves = np.atleast_1d(np.asarray(times, float))
    matrices = np.zeros((len(saves), *loss.cross.shape))
    if start > 0 and loss.cross.any():  # else nothing grows: at rest for ever
        waited, strength = _growth(loss, start)
        horizon = max(float(saves.max()) - waited, float(np.finfo(float).eps))
        states = _reduced_flow(loss, strength, horizon, tolerance).sol(
            np.maximum(saves - waited, 0)
        )
        # Before that M = s(0) e^(2γt) G/γ, less than a sum of squares can hold.
        slower = np.exp(2 * np.linalg.norm(loss.cross) * np.minimum(saves - waited, 0))
        matrices = (np.asarray(states) * slower).T.reshape(matrices.shape)
    strength = np.sqrt(np.linalg.norm(matrices, axis=(1, 2)))
    share = growing / np.sqrt(start) if start > 0 else growing
    return Curve(saves, loss.loss(matrices), strength[:, None] * share[None, :], matrices)


def merged_half_time(
    source: Source | Quadratic, model: Merged, *, tolerance: float = 1e-10
) -> float:
    """When the loss is halfway down its one drop, from the reduced flow (E2)(Q6).

    - `source`: the task, its population, or the quadratic loss of a sample.
    - `model`: the initial weights.
    - `tolerance`: relative, of the steps of the solver.

    >>> import jax, numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> init = icl.Merged.initialiser(task, heads=2, scale=0.01)
    >>> start = init(jax.random.key(0))
    >>> half = icl.theory.merged_half_time(task, start)
    >>> bool(np.isclose(half, icl.predict(task, start).times[0]))
    True
    """
    loss = Quadratic.of(source)
    require_products(np.asarray(_halves(loss, model)[0]))
    start = float(growing_strength(loss, model))
    if start == 0 or not loss.cross.any():
        return float("inf")
    middle = (loss.power + float(loss.loss(loss.least_squares))) / 2

    def crossing(t: float, m: np.ndarray) -> float:
        return float(loss.loss(m.reshape(loss.cross.shape))) - middle

    crossing.terminal = True  # type: ignore[attr-defined]
    # The half time is about ln(1/s(0))/2γ. Modes much slower than γ = ‖G‖ make it longer.
    rate = float(np.linalg.norm(loss.cross))
    waited, strength = _growth(loss, start)
    horizon = 1e4 * (1 + abs(np.log(strength))) / rate
    found = _reduced_flow(loss, strength, horizon, tolerance, events=crossing).t_events[0]
    return waited + float(found[0]) if len(found) else float("nan")


def _growth(loss: Quadratic, start: float) -> tuple[float, float]:
    """How long M only grows along G by e^(2γt), and its size after that.

    Below `EARLY` of the least-squares M what is left of (E2) is less than rounding, and squares of
    M are no longer numbers.
    """
    end = EARLY * float(np.linalg.norm(loss.least_squares))
    if start >= end:
        return 0.0, start
    return float(np.log(end / start) / (2 * np.linalg.norm(loss.cross))), end


def paper_merged_duration(population: Population, scale: ArrayLike) -> Float[Array, "..."]:
    """(49)-(51): t/τ ≈ ln(1/w)/‖Λ²‖, the leading logarithm of the duration of the plateau.

    Short by about 36% at w = 0.1 and 9% at 1e-6; `merged_half_time` is accurate.

    - `population`: says Λ.
    - `scale`: w, one number or several.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> population = icl.Population(task)
    >>> durations = [icl.theory.paper_merged_duration(population, w) for w in (1e-2, 1e-4)]
    >>> round(float(durations[1] / durations[0]), 4)
    2.0
    """
    rate = np.linalg.norm(np.asarray(population.cross[0]))
    return jnp.asarray(-np.log(np.asarray(scale, float)) / rate)
