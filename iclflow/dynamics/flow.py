"""Continuous training: gradient flow by an adaptive ODE solver."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float, PRNGKeyArray

from iclflow.dynamics.base import RESULTS, AbstractDynamics, Recorder, Stretch
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.tasks.checks import require_real, require_size, shown

NO_STEP = 100  # units of the last place of the time, in which weights that diverge change


class NextStep(eqx.Module):
    """The step with which a flow goes on, so that a pause changes no bit of a run.

    A step that reaches beyond a mark is made again from where it began. The weights at the mark
    lie inside this step, and a solver that began from them would make other steps.

    - `weights`: the weights at the beginning of the step.
    - `time`: when it begins.
    - `size`: its length, or zero for a solver that begins anew from the weights of the model.
    - `last`: the binary logarithm of the squared error of the step before, in tolerances.
    - `crawled`: explicit steps in a row that stability bounded; infinite where steps are implicit.
    - `end`: when it ends. Zero if the step is not one of Diffrax.
    - `kept`: what a solver of Diffrax and its control know at its beginning; None for what needs
      to know nothing.

    A fused flow reads and writes `last` and `crawled`, and Diffrax `end` and `kept`.
    """

    weights: AbstractModel
    time: Float[Array, "*runs"]
    size: Float[Array, "*runs"]
    last: Float[Array, "*runs"]
    crawled: Float[Array, "*runs"]
    end: Float[Array, "*runs"]
    kept: Any

    @classmethod
    def anew(cls, model: AbstractModel, kept: Any) -> "NextStep":
        """No step: a solver begins from the weights of the model.

        - `kept`: arrays of the shapes of what the solver keeps.
        """
        zero = jnp.zeros(())
        weights = eqx.filter(model, eqx.is_inexact_array)
        return cls(weights, zero, zero, zero, zero, zero, jax.tree.map(jnp.zeros_like, kept))


class FlowState(eqx.Module):
    """Everything needed to go on with a flow.

    - `model`: the weights reached.
    - `result`: how the solver does.
    - `step`: what the solver takes along to its next step.
    """

    model: AbstractModel
    mark: Float[Array, "*runs"]  # the time t/τ reached
    scale: Float[Array, "*runs"]  # of the initial weights: what the absolute tolerance refers to
    result: RESULTS
    step: NextStep

    @property
    def stopped(self) -> Float[Array, "*runs"]:
        """The last time that was computed."""
        return self.mark

    @property
    def running(self) -> Bool[Array, "*runs"]:
        """Whether the run goes on."""
        return self.result == RESULTS.finished


def slope(loss: AbstractLoss, model: AbstractModel) -> AbstractModel:
    """-½ ∂L/∂W (10): the slopes of the weights, where the model has its weights."""
    # The factor is inside, where it meets one number and not every weight.
    return eqx.filter_grad(lambda m: -0.5 * loss(m))(model)


def _tolerance(value: ArrayLike) -> Any:
    return require_real("tolerance", value)


class Flow(AbstractDynamics):
    """Gradient flow, τ dW/dt = -½ ∂L/∂W (10), by an adaptive solver.

    The absolute tolerance is `tolerance` times the root mean square of the initial weights, so
    that starts of 1e-6 are followed as faithfully as starts of 1.

    - `tolerance`: relative tolerance of a step.
    - `max_steps`: the most steps of the solver between two calls; a longer run ends with the
      result `step_limit`.
    - `solver`: an adaptive solver of Diffrax, `diffrax.Tsit5()` unless given (a sweep may then take
      another pair of the same accuracy, which its attribute `engine` names);
      `iclflow.Rosenbrock()` is the one for attention in the population over long times and in
      many dimensions, `iclflow.Chebyshev()` for long plateaus of anything else.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Merged.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> run = icl.simulate(icl.Population(task), model, icl.Flow(), until=10.0, saveat=[0.0, 10.0])
    >>> bool(run.loss[1] < run.loss[0])
    True
    """

    tolerance: Float[Array, "*runs"] = eqx.field(converter=_tolerance, default=1e-9)
    max_steps: int = eqx.field(static=True, default=200_000)
    solver: Any = None

    def __check_init__(self) -> None:
        known = not isinstance(self.tolerance, Tracer)
        if known and not np.all(np.isfinite(self.tolerance) & (np.asarray(self.tolerance) > 0)):
            raise ValueError(f"the tolerance must be a positive number, got {self.tolerance}")
        require_size("max_steps", self.max_steps)

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
        if isinstance(marks, Tracer):
            return marks.astype(float)
        found = np.asarray(marks)
        if found.dtype.kind not in "fiu" or not np.isfinite(found).all():
            raise ValueError(f"a flow needs times t/τ that are finite numbers, got {shown(marks)}")
        return found.astype(float)

    def init(self, loss: AbstractLoss, model: AbstractModel, key: PRNGKeyArray) -> FlowState:
        del key
        leaves = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
        total = sum((jnp.sum(leaf**2) for leaf in leaves), jnp.zeros(()))
        count = sum(leaf.size for leaf in leaves)
        scale = jnp.sqrt(total / count)
        step = NextStep.anew(model, self._kept(loss, model))
        return FlowState(model, jnp.zeros(()), scale, RESULTS.finished, step)

    def _kept(self, loss: AbstractLoss, model: AbstractModel) -> Any:
        """Arrays of the shapes of what solver and control know at the beginning of a step."""
        if self.explicit:
            return None, None
        import diffrax

        from iclflow.dynamics.beyond import StepMemory

        term = diffrax.ODETerm(lambda t, y, args: slope(loss.at(t), eqx.combine(y, static)))
        weights, static = eqx.partition(model, eqx.is_inexact_array)
        shapes = eqx.filter_eval_shape(self.solver.init, term, 0.0, 0.0, weights, None)
        kept = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)
        return kept, StepMemory.none() if self.implicit else None

    def renew(self, loss: AbstractLoss, state: FlowState) -> FlowState:
        """The same without the step that it would go on with: it was made with the old loss."""
        del loss
        step = NextStep.anew(state.model, state.step.kept)
        return eqx.tree_at(lambda s: s.step, state, step)

    @property
    def explicit(self) -> bool:
        """Whether the solver is `diffrax.Tsit5()`, given or not."""
        if self.solver is None:
            return True
        import diffrax

        return type(self.solver) is diffrax.Tsit5 and self.solver == diffrax.Tsit5()

    @property
    def implicit(self) -> bool:
        """Whether the solver is `iclflow.Rosenbrock()`."""
        if self.solver is None:
            return False
        from iclflow.dynamics.rosenbrock import Rosenbrock

        return isinstance(self.solver, Rosenbrock)

    def ground(self, state: FlowState) -> Float[Array, "*runs"]:
        """The weight below which the tolerance is absolute."""
        return jnp.maximum(state.scale, jnp.finfo(state.scale.dtype).tiny)

    def advance(
        self,
        loss: AbstractLoss,
        state: FlowState,
        marks: Float[Array, " T"],
        record: dict[str, Recorder],
    ) -> Stretch:
        import diffrax  # half a second that only a flow should cost

        from iclflow.dynamics.beyond import Beyond, Predictive, Remembering
        from iclflow.dynamics.rosenbrock import Rosenbrock

        marks = jnp.asarray(marks, float)
        weights, static = eqx.partition(state.model, eqx.is_inexact_array)

        @eqx.filter_jit
        def field(t: Any, y: Any, args: Any) -> Any:
            return slope(loss.at(t), eqx.combine(y, static))

        def recorded(t: Any, y: Any, args: Any) -> dict:
            now = loss.at(t)
            return {name: f(eqx.combine(y, static), now) for name, f in record.items()}

        absolute = self.tolerance * self.ground(state)
        solver = diffrax.Tsit5() if self.solver is None else self.solver
        if isinstance(solver, Rosenbrock):
            solver = solver.on(loss, state.model, self.tolerance, absolute)
        step, last = state.step, marks[-1]
        goes_on = step.size > 0
        known = goes_on & (step.end > step.time)
        begin = jnp.where(goes_on, step.time, state.mark)
        end = jnp.where(known, step.end, jnp.where(goes_on, step.time + step.size, begin))
        weights = jax.tree.map(lambda a, b: jnp.where(goes_on, a, b), step.weights, weights)
        # What a loss that drifts would be beyond the last mark may be no loss at all.
        cuts = loss.drifts
        stop = jnp.maximum(last, begin) if cuts else jnp.inf
        saves = [diffrax.SubSaveAt(ts=marks, fn=recorded), diffrax.SubSaveAt(t1=True)]
        kept, memory = step.kept
        control = Beyond if memory is None else functools.partial(Predictive, memory=memory)
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            Remembering(solver, last, known, kept, not self.explicit),
            t0=begin,
            t1=stop,
            dt0=None,
            y0=weights,
            saveat=diffrax.SaveAt(subs=saves, solver_state=True, controller_state=True),
            stepsize_controller=control(
                rtol=self.tolerance, atol=absolute, end=end, last=jnp.inf if cuts else last
            ),
            max_steps=self.max_steps,
            throw=False,
        )
        assert solution.ys is not None
        assert solution.solver_state is not None
        (values, after), begun = solution.ys, solution.solver_state[1]
        failed = begun.end < last
        ended = jnp.where(failed, begun.end, last)
        reached = jax.tree.map(lambda a, b: jnp.where(failed, a[-1], b), after, begun.last)
        model = eqx.combine(reached, static)
        limit = solution.result == diffrax.RESULTS.max_steps_reached
        limit &= ~_stuck(loss.at(ended), model, ended)
        why = RESULTS.where(limit, RESULTS.step_limit, RESULTS.diverged)
        result = RESULTS.where(failed, why, RESULTS.finished)
        result = RESULTS.where(state.result == RESULTS.finished, result, state.result)
        anew = NextStep.anew(model, step.kept)
        # A run that failed begins anew where it is, and so does one whose last step was cut short.
        size = begun.end - begun.time
        controlled = solution.controller_state
        kept = begun.kept, None if memory is None or controlled is None else controlled[1]
        again = (begun.weights, begun.time, size, anew.last, step.crawled, begun.end, kept)
        again = jax.tree.map(lambda a, b: jnp.where(failed | cuts, a, b), anew, NextStep(*again))
        return Stretch(
            time=marks,
            step=marks,
            record=jax.tree.map(lambda a: jnp.where(jnp.isfinite(a), a, jnp.nan), values),
            result=result,
            stopped=ended,
            state=FlowState(model, ended, state.scale, result, again),
        )


def _autonomous(solver: Any) -> bool:
    """Whether a solver takes the slope for a function of the weights alone."""
    from iclflow.dynamics.chebyshev import Chebyshev
    from iclflow.dynamics.rosenbrock import Rosenbrock

    return isinstance(solver, Rosenbrock | Chebyshev)


def _stuck(loss: AbstractLoss, model: AbstractModel, time: Float[Array, ""]) -> Bool[Array, ""]:
    """Whether no step can be short enough: the weights grow faster than the clock resolves."""
    resolution = NO_STEP * jnp.finfo(time.dtype).eps * time
    weights, slopes = (
        sum((jnp.sum(a**2) for a in jax.tree.leaves(eqx.filter(m, eqx.is_inexact_array))), 0.0)
        for m in (model, slope(loss, model))
    )
    return ~(resolution**2 * slopes < weights) & ~(slopes == 0)
