"""Discrete training: gradient descent and its relatives, step by step."""

from typing import Any

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from iclflow.dynamics.base import AbstractDynamics, Recorder
from iclflow.dynamics.optimisers import AbstractOptimiser, GradientDescent
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.results.trajectory import RESULTS, Trajectory, log_steps

EXPLODED = 1e6  # a loss this many times its start (plus one) will not come back
CHECKPOINTS = 64  # states kept for the backward pass between two marks


class Run(eqx.Module):
    """The part of a run's state that differs between runs of a batch."""

    model: AbstractModel
    optimiser: Any
    key: PRNGKeyArray
    bound: Float[Array, ""]
    result: RESULTS
    stopped: Int[Array, ""]


class DescentState(eqx.Module):
    """Everything needed to go on with a run."""

    run: Run
    step: Int[Array, ""]  # shared by all runs of a batch, so the loop needs no per-run test

    @property
    def model(self) -> AbstractModel:
        """The weights now."""
        return self.run.model


class Descent(AbstractDynamics):
    """`steps` updates at learning rate η; gradient descent advances t/τ by 2η a step (10)."""

    rate: Float[Array, ""]
    steps: int = eqx.field(static=True)
    optimiser: AbstractOptimiser

    def __init__(
        self, rate: ArrayLike, steps: int, optimiser: AbstractOptimiser | None = None
    ) -> None:
        """Rate η, number of updates, and the update rule (gradient descent if omitted)."""
        self.rate = jnp.asarray(rate, dtype=float)
        self.steps = int(steps)
        self.optimiser = GradientDescent() if optimiser is None else optimiser

    def __check_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"the number of steps must not be negative, got {self.steps}")
        if not isinstance(self.rate, Tracer) and not np.all(
            np.isfinite(self.rate) & (np.asarray(self.rate) > 0)
        ):
            raise ValueError(f"the rate must be a positive number, got {self.rate}")

    def marks(self, count: int) -> Int[Array, " T"]:
        return jnp.asarray(log_steps(self.steps, count))

    def start(self, loss: AbstractLoss, model: AbstractModel, key: PRNGKeyArray) -> DescentState:
        first = loss(model)
        run = Run(
            model=model,
            optimiser=self.optimiser.transformation(self.rate).init(
                eqx.filter(model, eqx.is_inexact_array)
            ),
            key=key,
            bound=EXPLODED * (1 + jnp.abs(first)),
            result=RESULTS.where(jnp.isfinite(first), RESULTS.finished, RESULTS.not_a_number),
            stopped=jnp.zeros((), int),
        )
        return DescentState(run, jnp.zeros((), int))

    def advance(
        self,
        loss: AbstractLoss,
        state: DescentState,
        marks: Int[Array, " T"],
        record: dict[str, Recorder],
    ) -> Trajectory:
        def to_mark(state: DescentState, mark: Int[Array, ""]) -> tuple[DescentState, dict]:
            state = eqxi.while_loop(
                lambda s: s.step < mark,
                lambda s: DescentState(self._step(loss, s.run, s.step), s.step + 1),
                state,
                kind="checkpointed",  # as fast as a plain loop, and has a gradient
                checkpoints=CHECKPOINTS,
            )
            alive = state.run.result == RESULTS.finished
            values = {name: f(state.model, loss) for name, f in record.items()}
            return state, jax.tree.map(lambda a: jnp.where(alive, a, jnp.nan), values)

        dynamic, static = eqx.partition(state, eqx.is_array)

        def body(carry: Any, mark: Int[Array, ""]) -> tuple[Any, dict]:
            after, values = to_mark(eqx.combine(carry, static), mark)
            return eqx.filter(after, eqx.is_array), values

        dynamic, values = jax.lax.scan(body, dynamic, marks)
        state = eqx.combine(dynamic, static)
        clock = 2 * self.rate if self.optimiser.keeps_time else jnp.nan
        return Trajectory(
            time=clock * marks.astype(self.rate.dtype),
            step=marks,
            record=values,
            result=state.run.result,
            stopped=state.run.stopped,
            state=state,
        )

    def _step(self, loss: AbstractLoss, run: Run, step: Int[Array, ""]) -> Run:
        """One update; a run that has failed stays where it was."""
        batch = loss.draw(jax.random.fold_in(run.key, step))
        value, gradient = eqx.filter_value_and_grad(lambda m: batch(m))(run.model)
        transformation = self.optimiser.transformation(self.rate)
        updates, optimiser = transformation.update(
            gradient, run.optimiser, eqx.filter(run.model, eqx.is_inexact_array)
        )
        # A rate in double precision must not lift weights in single precision out of it.
        updates = jax.tree.map(lambda u, g: u.astype(g.dtype), updates, gradient)
        model = eqx.apply_updates(run.model, updates)
        running = run.result == RESULTS.finished
        healthy = running & (value < run.bound)  # False for NaN too
        return Run(
            model=_select(healthy, model, run.model),
            optimiser=_select(healthy, optimiser, run.optimiser),
            key=run.key,
            bound=run.bound,
            result=RESULTS.where(running & ~healthy, RESULTS.diverged, run.result),
            stopped=jnp.where(healthy, step + 1, run.stopped),
        )


def _select(condition: Bool[Array, ""], new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b) if eqx.is_array(a) else a, new, old)
