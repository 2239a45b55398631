"""Continuous training by a stabilised explicit method: long plateaus in few evaluations."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from iclflow.dynamics.base import AbstractDynamics, Recorder
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.trajectory import RESULTS, Trajectory

STAGES = 80  # most evaluations in one step
DAMPING = 2 / 13  # of the stability polynomial
SAFETY = 1.15  # on the estimated spectral radius
POWER_STEPS = 30  # of the power iteration that first estimates it; one more a step afterwards


class StabilisedState(eqx.Module):
    """Everything needed to go on with a run."""

    model: AbstractModel
    time: Float[Array, ""]
    size: Float[Array, ""]  # of the next step
    scale: Float[Array, ""]  # root mean square of the initial weights
    vector: Any  # leading eigenvector of the Hessian, so far
    steps: Int[Array, ""]


class StabilisedFlow(AbstractDynamics):
    """τ dW/dt = -½ ∂L/∂W (10) by Runge-Kutta-Chebyshev steps of second order, adaptive.

    The Jacobian of a gradient flow is symmetric, and a step of s stages is stable for step sizes
    up to 0.65 s²/ρ (ρ its spectral radius): s times as far, for the same work, as s steps of
    descent. On a plateau, where the weights move slowly beside directions that are stiff, this
    takes a tenth of the evaluations of `Flow`. The absolute tolerance is relative to the initial
    weights, as in `Flow`. No reverse-mode gradient.
    """

    time: Float[Array, ""]
    tolerance: float = 1e-4
    max_steps: int = eqx.field(static=True, default=20_000)

    def __init__(self, time: ArrayLike, tolerance: float = 1e-4, max_steps: int = 20_000) -> None:
        """End time t/τ, relative tolerance of a step, and the limit of steps."""
        self.time = jnp.asarray(time, dtype=float)
        self.tolerance = tolerance
        self.max_steps = max_steps

    def __check_init__(self) -> None:
        if not isinstance(self.time, Tracer) and not float(self.time) > 0:
            raise ValueError(f"the flow needs a positive end time, got {self.time}")
        if self.max_steps < 1:
            raise ValueError(f"the flow needs at least one step, got {self.max_steps}")

    def marks(self, count: int) -> Float[Array, " T"]:
        grid = jnp.geomspace(1e-4, 1.0, max(2, count - 1))
        return jnp.concatenate([jnp.zeros(1), grid]) * self.time

    def start(self, loss: AbstractLoss, model: AbstractModel, key: PRNGKeyArray) -> StabilisedState:
        weights, static = eqx.partition(model, eqx.is_inexact_array)
        leaves, tree = jax.tree.flatten(weights)
        keys = jax.random.split(key, len(leaves))
        noise = [jax.random.normal(k, a.shape, a.dtype) for k, a in zip(keys, leaves, strict=True)]
        scale = _rms(weights)
        # At the weights themselves the Hessian is nearly zero; it matters once heads have grown.
        vector = jax.lax.fori_loop(
            0,
            POWER_STEPS,
            lambda _, v: _power_step(_slope(loss, static), weights, v)[1],
            _unit(jax.tree.unflatten(tree, noise)),
        )
        return StabilisedState(
            model, jnp.zeros(()), jnp.full((), 0.1), scale, vector, jnp.zeros((), int)
        )

    def advance(
        self,
        loss: AbstractLoss,
        state: StabilisedState,
        marks: Float[Array, " T"],
        record: dict[str, Recorder],
    ) -> Trajectory:
        static = eqx.partition(state.model, eqx.is_inexact_array)[1]
        dynamic, rest = eqx.partition(state, eqx.is_array)

        def to_mark(carry: Any, mark: Float[Array, ""]) -> tuple[Any, dict]:
            reached = jax.lax.while_loop(
                lambda c: _going(eqx.combine(c, rest), mark, self.max_steps),
                lambda c: eqx.filter(
                    self._step(loss, eqx.combine(c, rest), mark, static), eqx.is_array
                ),
                carry,
            )
            now = eqx.combine(reached, rest)
            there = now.time >= mark
            values = {name: f(now.model, loss) for name, f in record.items()}
            return reached, jax.tree.map(lambda a: jnp.where(there, a, jnp.nan), values)

        dynamic, values = jax.lax.scan(to_mark, dynamic, marks)
        state = eqx.combine(dynamic, rest)
        done = state.time >= marks[-1]
        return Trajectory(
            time=marks,
            step=marks,
            record=values,
            result=RESULTS.where(done, RESULTS.finished, RESULTS.step_limit),
            stopped=state.time,
            state=state,
        )

    def _step(
        self, loss: AbstractLoss, state: StabilisedState, mark: Float[Array, ""], static: Any
    ) -> StabilisedState:
        """Try one step, to the mark at most; a step with too large an error is made again."""
        slope = _slope(loss, static)
        weights = eqx.filter(state.model, eqx.is_inexact_array)
        first = slope(weights)
        radius, vector = _power_step(slope, weights, state.vector)
        radius = SAFETY * radius + 1e-12
        size = jnp.minimum(state.size, mark - state.time)
        size = jnp.minimum(size, 0.65 * (STAGES**2 - 1) / radius)
        stages = jnp.clip(jnp.ceil(jnp.sqrt(1 + size * radius / 0.65)), 2, STAGES).astype(int)
        after = _chebyshev_step(slope, weights, first, size, stages)
        last = slope(after)
        floor = self.tolerance * state.scale
        ratio = jax.tree.map(
            lambda a, b, f, g: (0.8 * (a - b) + 0.4 * size * (f + g))
            / (floor + self.tolerance * jnp.maximum(jnp.abs(a), jnp.abs(b))),
            weights, after, first, last,
        )  # fmt: skip
        error = _rms(ratio)
        accepted = error <= 1.0  # False for NaN
        factor = jnp.clip(0.8 / jnp.maximum(error, 1e-8) ** (1 / 3), 0.1, 4.0)
        factor = jnp.where(jnp.isfinite(error), factor, 0.1)
        # A step cut short by a mark says little about the size that the next one may have.
        proposed = jnp.where(accepted, jnp.maximum(state.size, size * factor), size * factor)
        proposed = jnp.where(accepted & (factor < 1), size * factor, proposed)
        return StabilisedState(
            model=eqx.combine(_select(accepted, after, weights), static),
            time=jnp.where(
                accepted, jnp.where(size >= mark - state.time, mark, state.time + size), state.time
            ),
            size=proposed,
            scale=state.scale,
            vector=vector,
            steps=state.steps + 1,
        )


def _going(state: StabilisedState, mark: Float[Array, ""], limit: int) -> Bool[Array, ""]:
    return (state.time < mark) & (state.steps < limit)


def _slope(loss: AbstractLoss, static: Any) -> Any:
    def slope(weights: Any) -> Any:
        gradient = eqx.filter_grad(lambda m: loss(eqx.combine(m, static)))(weights)
        return jax.tree.map(lambda g: -0.5 * g, gradient)

    return slope


def _chebyshev_step(
    slope: Any, weights: Any, first: Any, size: Float[Array, ""], stages: Int[Array, ""]
) -> Any:
    """One step of s stages, by the three-term recurrence of the Chebyshev polynomials."""
    table = jnp.asarray(_coefficients(), size.dtype)[stages]  # [stage, 5]

    def stage(j: Int[Array, ""], pair: tuple[Any, Any]) -> tuple[Any, Any]:
        before, now = pair
        mu, nu, mu_step, gamma_step = (table[j, i] for i in range(4))
        here = slope(now)
        new = jax.tree.map(
            lambda y0, y1, y2, f, f0: (
                (1 - mu - nu) * y0 + mu * y1 + nu * y2 + size * (mu_step * f + gamma_step * f0)
            ),
            weights, now, before, here, first,
        )  # fmt: skip
        return now, new

    start = jax.tree.map(lambda y, f: y + table[1, 2] * size * f, weights, first)
    return jax.lax.fori_loop(2, stages + 1, stage, (weights, start))[1]


def _coefficients() -> np.ndarray:
    """(μ, ν, μ̃, γ̃) of stage j of the method with s stages, at [s, j]."""
    table = np.zeros((STAGES + 1, STAGES + 1, 4))
    for s in range(2, STAGES + 1):
        w0 = 1 + DAMPING / s**2
        t, d, dd = np.zeros(s + 1), np.zeros(s + 1), np.zeros(s + 1)  # T_j, T'_j, T''_j at w0
        t[:2], d[1] = (1, w0), 1
        for j in range(2, s + 1):
            t[j] = 2 * w0 * t[j - 1] - t[j - 2]
            d[j] = 2 * t[j - 1] + 2 * w0 * d[j - 1] - d[j - 2]
            dd[j] = 4 * d[j - 1] + 2 * w0 * dd[j - 1] - dd[j - 2]
        w1 = d[s] / dd[s]
        b = np.zeros(s + 1)
        b[2:] = dd[2:] / d[2:] ** 2
        b[:2] = b[2]
        table[s, 1, 2] = b[1] * w1
        for j in range(2, s + 1):
            step = 2 * b[j] * w1 / b[j - 1]
            a = 1 - b[j - 1] * t[j - 1]
            table[s, j] = (2 * b[j] * w0 / b[j - 1], -b[j] / b[j - 2], step, -a * step)
    return table


def _power_step(slope: Any, weights: Any, vector: Any) -> tuple[Float[Array, ""], Any]:
    """|J v| for the unit vector v, and J v made a unit vector."""
    image = jax.jvp(slope, (weights,), (vector,))[1]
    size = _norm(image)
    # A start of zero curvature keeps its vector.
    unit = jax.tree.map(lambda a, b: jnp.where(size > 0, a / size, b), image, vector)
    return size, unit


def _norm(tree: Any) -> Float[Array, ""]:
    return jnp.sqrt(sum((jnp.sum(a**2) for a in jax.tree.leaves(tree)), jnp.zeros(())))


def _unit(tree: Any) -> Any:
    size = _norm(tree)
    return jax.tree.map(lambda a: a / size, tree)


def _rms(tree: Any) -> Float[Array, ""]:
    return _norm(tree) / sum(a.size for a in jax.tree.leaves(tree)) ** 0.5


def _select(condition: Bool[Array, ""], new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)
