"""Continuous training: gradient flow by an adaptive ODE solver."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from iclflow.dynamics.base import AbstractDynamics, Recorder
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.results.trajectory import RESULTS, Trajectory


class FlowState(eqx.Module):
    """Everything needed to go on with a flow."""

    model: AbstractModel
    mark: Float[Array, ""]  # the time t/τ reached
    scale: Float[Array, ""]  # size of the initial weights: what the absolute tolerance refers to
    result: RESULTS

    @property
    def stopped(self) -> Float[Array, "*runs"]:
        """The last time that was computed."""
        return self.mark


class Flow(AbstractDynamics):
    """Gradient flow, τ dW/dt = -½ ∂L/∂W (10), by an adaptive solver.

    The absolute tolerance is `tolerance` times the root mean square of the initial weights, so
    that starts of 1e-6 are followed as faithfully as starts of 1.

    - `tolerance`: relative tolerance of a step.
    - `max_steps`: the most steps of the solver between two calls; a longer run ends with the
      result `step_limit`.
    - `solver`: an adaptive solver of Diffrax, `diffrax.Tsit5()` unless given;
      `iclflow.Rosenbrock()` is the one for attention in the population over long times and in
      many dimensions, `iclflow.Chebyshev()` for long plateaus of anything else.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Merged.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> run = icl.simulate(icl.Population(task), model, icl.Flow(), until=10.0, saveat=[0.0, 10.0])
    >>> bool(run.loss[1] < run.loss[0])
    True
    """

    tolerance: float | Float[Array, ""] = 1e-9
    max_steps: int = eqx.field(static=True, default=200_000)
    solver: Any = None

    def __check_init__(self) -> None:
        if not isinstance(self.tolerance, Tracer) and not self.tolerance > 0:
            raise ValueError(f"the tolerance must be positive, got {self.tolerance}")
        if self.max_steps < 1:
            raise ValueError(f"the flow needs at least one step, got {self.max_steps}")

    def admits(self, loss: AbstractLoss, model: AbstractModel) -> str | None:
        if loss.stochastic:
            return (
                f"a flow follows the gradient of one loss, and {type(loss).__name__} draws a new "
                f"batch for every step; use Descent, or the loss it evaluates on"
            )
        if loss.drifts and self.solver is not None and _autonomous(self.solver):
            return (
                f"{type(self.solver).__name__} follows a gradient that does not depend on time, "
                f"and this loss drifts; use Flow() with its own solver"
            )
        return loss.admits(model)

    def time(self, marks: ArrayLike) -> Any:
        return marks

    def spread(self, until: float, count: int) -> np.ndarray:
        return np.concatenate([np.zeros(1), np.geomspace(1e-4, 1.0, max(2, count - 1))]) * until

    def as_marks(self, marks: Any) -> Any:
        return marks.astype(float) if isinstance(marks, Tracer) else np.asarray(marks, float)

    def init(self, loss: AbstractLoss, model: AbstractModel, key: PRNGKeyArray) -> FlowState:
        del loss, key
        leaves = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
        total = sum((jnp.sum(leaf**2) for leaf in leaves), jnp.zeros(()))
        count = sum(leaf.size for leaf in leaves)
        return FlowState(model, jnp.zeros(()), jnp.sqrt(total / count), RESULTS.finished)

    def advance(
        self,
        loss: AbstractLoss,
        state: FlowState,
        marks: Float[Array, " T"],
        record: dict[str, Recorder],
    ) -> Trajectory:
        import diffrax  # half a second that only a flow should cost

        from iclflow.dynamics.rosenbrock import Rosenbrock

        marks = jnp.asarray(marks, float)
        weights, static = eqx.partition(state.model, eqx.is_inexact_array)

        def slope(t: Any, y: Any, args: Any) -> Any:
            now = loss.at(t)
            gradient = eqx.filter_grad(lambda m: now(eqx.combine(m, static)))(y)
            return jax.tree.map(lambda g: -0.5 * g, gradient)

        def recorded(t: Any, y: Any, args: Any) -> dict:
            now = loss.at(t)
            return {name: f(eqx.combine(y, static), now) for name, f in record.items()}

        absolute = self.tolerance * jnp.maximum(state.scale, jnp.finfo(marks.dtype).tiny)
        solver = diffrax.Tsit5() if self.solver is None else self.solver
        if isinstance(solver, Rosenbrock):
            solver = solver.on(loss, state.model, self.tolerance, absolute)
        saves = [diffrax.SubSaveAt(ts=marks, fn=recorded), diffrax.SubSaveAt(t1=True)]
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(slope),
            solver,
            t0=state.mark,
            t1=jnp.maximum(marks[-1], state.mark),
            dt0=None,
            y0=weights,
            saveat=diffrax.SaveAt(subs=saves),
            stepsize_controller=diffrax.PIDController(rtol=self.tolerance, atol=absolute),
            max_steps=self.max_steps,
            throw=False,
        )
        assert solution.ys is not None
        assert solution.ts is not None
        values, last = solution.ys
        limit = solution.result == diffrax.RESULTS.max_steps_reached
        failed = RESULTS.where(limit, RESULTS.step_limit, RESULTS.diverged)
        result = RESULTS.where(
            solution.result == diffrax.RESULTS.successful, RESULTS.finished, failed
        )
        result = RESULTS.where(state.result == RESULTS.finished, result, state.result)
        ended = jnp.sum(jnp.where(jnp.isfinite(solution.ts[1]), solution.ts[1], 0.0))
        model = eqx.combine(jax.tree.map(lambda a: a[-1], last), static)
        return Trajectory(
            time=marks,
            step=marks,
            record=jax.tree.map(lambda a: jnp.where(jnp.isfinite(a), a, jnp.nan), values),
            result=result,
            stopped=ended,
            state=FlowState(model, ended, state.scale, result),
        )


def _autonomous(solver: Any) -> bool:
    """Whether a solver takes the slope for a function of the weights alone."""
    from iclflow.dynamics.chebyshev import Chebyshev
    from iclflow.dynamics.rosenbrock import Rosenbrock

    return isinstance(solver, Rosenbrock | Chebyshev)
