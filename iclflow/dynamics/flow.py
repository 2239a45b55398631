"""Continuous training: gradient flow by an adaptive ODE solver."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from iclflow.dynamics.base import AbstractDynamics, Recorder
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.results.trajectory import RESULTS, Trajectory


class FlowState(eqx.Module):
    """Everything needed to go on with a flow."""

    model: AbstractModel
    time: Float[Array, ""]
    scale: Float[Array, ""]  # size of the initial weights: what the absolute tolerance refers to


class Flow(AbstractDynamics):
    """τ dW/dt = -½ ∂L/∂W (10), up to t/τ = `time`.

    The absolute tolerance is `tolerance` times the root mean square of the initial weights, so
    that starts of 1e-6 are followed as faithfully as starts of 1.

    - `solver`: an adaptive solver of Diffrax, `diffrax.Tsit5()` unless given;
      `iclflow.dynamics.chebyshev.Chebyshev()` is the one for long plateaus.
    """

    time: Float[Array, ""]
    tolerance: float = 1e-9
    max_steps: int = eqx.field(static=True, default=200_000)
    solver: Any = None

    def __init__(
        self,
        time: ArrayLike,
        tolerance: float = 1e-9,
        max_steps: int = 200_000,
        *,
        solver: Any = None,
    ) -> None:
        """End time t/τ, relative tolerance of the solver, its limit of steps, and itself."""
        self.time = jnp.asarray(time, dtype=float)
        self.tolerance = tolerance
        self.max_steps = max_steps
        self.solver = solver

    def __check_init__(self) -> None:
        if not isinstance(self.time, Tracer) and not float(self.time) > 0:
            raise ValueError(f"the flow needs a positive end time, got {self.time}")
        if self.max_steps < 1:
            raise ValueError(f"the flow needs at least one step, got {self.max_steps}")

    def marks(self, count: int) -> Float[Array, " T"]:
        grid = jnp.geomspace(1e-4, 1.0, max(2, count - 1))
        return jnp.concatenate([jnp.zeros(1), grid]) * self.time

    def start(self, loss: AbstractLoss, model: AbstractModel, key: PRNGKeyArray) -> FlowState:
        del loss, key
        leaves = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
        total = sum((jnp.sum(leaf**2) for leaf in leaves), jnp.zeros(()))
        count = sum(leaf.size for leaf in leaves)
        return FlowState(model, jnp.zeros(()), jnp.sqrt(total / count))

    def advance(
        self,
        loss: AbstractLoss,
        state: FlowState,
        marks: Float[Array, " T"],
        record: dict[str, Recorder],
    ) -> Trajectory:
        import diffrax  # half a second that only a flow should cost

        weights, static = eqx.partition(state.model, eqx.is_inexact_array)

        def slope(t: Any, y: Any, args: Any) -> Any:
            gradient = eqx.filter_grad(lambda m: loss(eqx.combine(m, static)))(y)
            return jax.tree.map(lambda g: -0.5 * g, gradient)

        def recorded(t: Any, y: Any, args: Any) -> dict:
            return {name: f(eqx.combine(y, static), loss) for name, f in record.items()}

        saves = [diffrax.SubSaveAt(ts=marks, fn=recorded), diffrax.SubSaveAt(t1=True)]
        absolute = self.tolerance * jnp.maximum(state.scale, jnp.finfo(marks.dtype).tiny)
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(slope),
            diffrax.Tsit5() if self.solver is None else self.solver,
            t0=state.time,
            t1=jnp.maximum(marks[-1], state.time),
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
        ended = jnp.sum(jnp.where(jnp.isfinite(solution.ts[1]), solution.ts[1], 0.0))
        model = eqx.combine(jax.tree.map(lambda a: a[-1], last), static)
        return Trajectory(
            time=marks,
            step=marks,
            record=jax.tree.map(lambda a: jnp.where(jnp.isfinite(a), a, jnp.nan), values),
            result=RESULTS.where(
                solution.result == diffrax.RESULTS.successful, RESULTS.finished, failed
            ),
            stopped=ended,
            state=FlowState(model, ended, state.scale),
        )
