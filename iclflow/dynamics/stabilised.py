"""Continuous training by a stabilised explicit method: long plateaus in few evaluations."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from iclflow.dynamics.base import AbstractDynamics, Recorder
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.results.trajectory import RESULTS, Trajectory

STAGES = 80  # most evaluations in one step
DAMPING = 2 / 13  # of the stability polynomial
REACH = 0.65  # a step of s stages is stable for sizes up to REACH (s² - 1)/ρ
SAFETY = 1.15  # on the estimated spectral radius ρ
FIRST = 0.1  # size of the first step tried

Slope = Callable[[Array], Array]


class Progress(eqx.Module):
    """How far a run has come, and what its next step will be."""

    time: Float[Array, ""]
    size: Float[Array, ""]  # of the next step
    scale: Float[Array, ""]  # root mean square of the initial weights
    radius: Float[Array, ""]  # ρ and its eigenvector, by one step of power iteration each step
    vector: Float[Array, " W"]
    steps: Int[Array, ""]


class StabilisedState(eqx.Module):
    """Everything needed to go on with a run."""

    model: AbstractModel
    progress: Progress

    @property
    def time(self) -> Float[Array, ""]:
        """The time t/τ reached."""
        return self.progress.time


class StabilisedFlow(AbstractDynamics):
    """τ dW/dt = -½ ∂L/∂W (10) by Runge-Kutta-Chebyshev steps of second order, adaptive.

    The Jacobian of a gradient flow is symmetric, and a step of s stages is stable for step sizes
    up to 0.65 s²/ρ (ρ its spectral radius): about s/3 times as far, for the same work, as s steps
    of descent at its largest rate. This pays on a plateau, where the weights move slowly beside
    directions that are stiff. The absolute tolerance is relative to the initial weights, as in
    `Flow`. There is no reverse-mode gradient.
    """

    time: Float[Array, ""]
    tolerance: Float[Array, ""]
    max_steps: int = eqx.field(static=True)

    def __init__(
        self, time: ArrayLike, tolerance: ArrayLike = 1e-4, max_steps: int = 20_000
    ) -> None:
        """End time t/τ, relative tolerance of a step, and the limit of steps."""
        self.time = jnp.asarray(time, dtype=float)
        self.tolerance = jnp.asarray(tolerance, dtype=float)
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
        weights = _flatten(loss, model)[0]
        progress = Progress(
            time=jnp.zeros((), weights.dtype),
            size=jnp.full((), FIRST, weights.dtype),
            scale=_rms(weights),
            radius=jnp.ones((), weights.dtype),
            vector=_unit(jax.random.normal(key, weights.shape, weights.dtype)),
            steps=jnp.zeros((), int),
        )
        return StabilisedState(model, progress)

    def advance(
        self,
        loss: AbstractLoss,
        state: StabilisedState,
        marks: Float[Array, " T"],
        record: dict[str, Recorder],
    ) -> Trajectory:
        weights, slope, restore = _flatten(loss, state.model)

        def to_mark(carry: Any, mark: Float[Array, ""]) -> tuple[Any, dict]:
            weights, progress = jax.lax.while_loop(
                lambda c: (c[1].time < mark) & (c[1].steps < self.max_steps),
                lambda c: self._step(slope, c[0], c[1], mark),
                carry,
            )
            there = progress.time >= mark
            values = {name: f(restore(weights), loss) for name, f in record.items()}
            values = jax.tree.map(lambda a: jnp.where(there, a, jnp.nan), values)
            return (weights, progress), values

        (weights, progress), values = jax.lax.scan(to_mark, (weights, state.progress), marks)
        done = progress.time >= marks[-1]
        return Trajectory(
            time=marks,
            step=marks,
            record=values,
            result=RESULTS.where(done, RESULTS.finished, RESULTS.step_limit),
            stopped=progress.time,
            state=StabilisedState(restore(weights), progress),
        )

    def _step(
        self, slope: Slope, weights: Array, state: Progress, mark: Float[Array, ""]
    ) -> tuple[Array, Progress]:
        """Try one step, to the mark at most; a step with too large an error is made again."""
        radius = SAFETY * state.radius + 1e-12
        size = jnp.minimum(state.size, mark - state.time)
        size = jnp.minimum(size, REACH * (STAGES**2 - 1) / radius)
        stages = jnp.clip(jnp.ceil(jnp.sqrt(1 + size * radius / REACH)), 2, STAGES).astype(int)
        width = 1e-5 * (state.scale + jnp.linalg.norm(weights))
        side = weights + width * state.vector
        after, first, there, moved = _chebyshev_step(slope, weights, side, size, stages)
        allowed = state.scale + jnp.maximum(jnp.abs(weights), jnp.abs(after))
        estimate = 0.8 * (weights - after) + 0.4 * size * (first + there)
        error = _rms(estimate / (self.tolerance * allowed))
        image = (moved - first) / width
        curvature = jnp.linalg.norm(image)
        accepted = error <= 1.0  # False for NaN
        factor = jnp.clip(0.8 / jnp.maximum(error, 1e-8) ** (1 / 3), 0.1, 4.0)
        factor = jnp.where(jnp.isfinite(error), factor, 0.1)
        # A step cut short by a mark says nothing against the size planned before.
        planned = jnp.where(factor >= 1, state.size, 0.0)
        reached = jnp.where(size >= mark - state.time, mark, state.time + size)
        return jnp.where(accepted, after, weights), Progress(
            time=jnp.where(accepted, reached, state.time),
            size=jnp.maximum(size * factor, planned),
            scale=state.scale,
            radius=curvature,
            # Where there is no curvature the vector stays.
            vector=jnp.where(curvature > 0, image / curvature, state.vector),
            steps=state.steps + 1,
        )


def _flatten(loss: AbstractLoss, model: AbstractModel) -> tuple[Array, Slope, Callable]:
    """The weights as one vector, the slope -½ ∂L/∂W there, and the way back to a model."""
    weights, static = eqx.partition(model, eqx.is_inexact_array)
    vector, unravel = ravel_pytree(weights)

    def restore(vector: Array) -> AbstractModel:
        return eqx.combine(unravel(vector), static)

    return vector, jax.grad(lambda vector: -0.5 * loss(restore(vector))), restore


def _chebyshev_step(
    slope: Slope, weights: Array, side: Array, size: Float[Array, ""], stages: Int[Array, ""]
) -> tuple[Array, Array, Array, Array]:
    """One step of s stages: the new weights, and the slopes at the old, the new and at `side`.

    All slopes are found in one loop, so that there is one place to compile: round 0 looks at
    `side`, rounds 1 to s are the stages of the three-term recurrence, round s + 1 looks at the
    new weights.
    """
    table = jnp.asarray(_coefficients(), size.dtype)[stages]  # [round, 4]

    def round_(j: Int[Array, ""], carry: tuple[Array, ...]) -> tuple[Array, ...]:
        before, now, first, moved, _ = carry
        mu, nu, mu_step, gamma_step = (table[j, i] for i in range(4))
        here = slope(jnp.where(j == 0, side, now))
        first, moved = jnp.where(j == 1, here, first), jnp.where(j == 0, here, moved)
        change = size * (mu_step * here + gamma_step * first)
        new = (1 - mu - nu) * weights + mu * now + nu * before + change
        return now, new, first, moved, here

    zero = jnp.zeros_like(weights)
    carry = (weights, weights, zero, zero, zero)
    after, _, first, moved, there = jax.lax.fori_loop(0, stages + 2, round_, carry)
    return after, first, there, moved


@functools.cache
def _coefficients() -> np.ndarray:
    """(μ, ν, μ̃, γ̃) of stage j of the method with s stages, at [s, j]; stage 0 changes nothing."""
    table = np.zeros((STAGES + 1, STAGES + 2, 4))
    table[:, 0, 0] = 1.0
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


def _unit(vector: Array) -> Array:
    return vector / jnp.linalg.norm(vector)


def _rms(vector: Array) -> Float[Array, ""]:
    return jnp.sqrt(jnp.mean(vector**2))
