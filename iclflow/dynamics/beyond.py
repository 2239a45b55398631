"""Solvers of Diffrax that step beyond the last mark, and remember where that step began.

A step that was cut short at a mark would make every later step another one: a run would depend on
the pieces that it is computed in. So no step is cut. The weights at the last mark lie inside a
step, and a run that goes on makes this step again.
"""

from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

LEAST = 1e-2  # the error of a step that predictive control remembers, in tolerances


class Begun(NamedTuple):
    """Where the last step that was kept began.

    - `weights`, `time`: at its beginning. Before the first step, where that begins.
    - `end`: the time at its end.
    - `kept`: the solver's own state at its beginning, or None where it is not needed.
    - `last`: the weights at the last mark, if that lies inside the step.
    """

    weights: Any
    time: Any
    end: Any
    kept: Any
    last: Any


class Remembering(diffrax.AbstractWrappedSolver):
    """A solver whose state includes the beginning of its last step.

    - `solver`: makes the steps.
    - `last`: the last mark.
    - `known`: whether the first step is one that was made before; then the solver's state at its
      beginning is `kept`.
    - `keeps`: whether the state of the solver is needed. A pair of Runge and Kutta needs none: it
      computes its first slope by the same loop that computed it as the last one of another step.
    """

    solver: Any
    last: Any
    known: Any
    kept: Any
    keeps: bool = eqx.field(static=True)

    @property
    def term_structure(self) -> Any:  # pyright: ignore
        return self.solver.term_structure

    @property
    def interpolation_cls(self) -> Any:  # pyright: ignore
        return self.solver.interpolation_cls

    @property
    def term_compatible_contr_kwargs(self) -> Any:  # pyright: ignore
        return self.solver.term_compatible_contr_kwargs

    @property
    def root_finder(self) -> Any:
        """Of an implicit solver: Diffrax tells it the tolerances."""
        return self.solver.root_finder

    @property
    def root_find_max_steps(self) -> int:
        """Of an implicit solver."""
        return self.solver.root_find_max_steps

    def order(self, terms: Any) -> Any:
        return self.solver.order(terms)

    def error_order(self, terms: Any) -> Any:
        return self.solver.error_order(terms)

    def func(self, terms: Any, t0: Any, y0: Any, args: Any) -> Any:
        return self.solver.func(terms, t0, y0, args)

    def init(self, terms: Any, t0: Any, t1: Any, y0: Any, args: Any) -> Any:
        state = self.solver.init(terms, t0, t1, y0, args)
        if self.keeps:
            state = jax.tree.map(lambda a, b: jnp.where(self.known, a, b), self.kept, state)
        return state, self._begun(y0, t0, t0, state, y0)

    def _begun(self, y0: Any, t0: Any, t1: Any, state: Any, last: Any) -> Begun:
        return Begun(y0, jnp.asarray(t0), jnp.asarray(t1), state if self.keeps else None, last)

    def step(
        self, terms: Any, t0: Any, t1: Any, y0: Any, args: Any, solver_state: Any, made_jump: Any
    ) -> Any:
        state, _ = solver_state
        y1, error, dense, after, result = self.solver.step(
            terms, t0, t1, y0, args, state, made_jump
        )
        # Far outside of the step, a polynomial has no use, and may have no number.
        last = self.interpolation_cls(t0=t0, t1=t1, **dense).evaluate(jnp.clip(self.last, t0, t1))
        return y1, error, dense, (after, self._begun(y0, t0, t1, state, last)), result


class Beyond(diffrax.PIDController):
    """Integral control of the steps, until one has passed the last mark.

    - `end`: of the first step; at or before its beginning, the first step is chosen anew.
    - `last`: the last mark. After a step that reaches it the solver stops; to Diffrax, an event.

    Integral control has no memory, so that the end of a step is all there is to know of it. The
    solver also stops where steps become so short that time stands still: the weights diverge.
    """

    end: Any = 0.0
    last: Any = jnp.inf

    def init(self, terms: Any, t0: Any, *rest: Any) -> Any:
        chosen, state = super().init(terms, t0, *rest)
        return jnp.where(self.end > t0, self.end, chosen), state

    def adapt_step_size(self, t0: Any, t1: Any, *rest: Any) -> Any:
        keeps, begin, end, jumps, state, result = self._next(t0, t1, *rest)
        how = diffrax.RESULTS
        result = how.where(end > begin, result, how.dt_min_reached)  # pyright: ignore
        result = how.where(keeps & (t1 >= self.last), how.event_occurred, result)  # pyright: ignore
        return keeps, begin, end, jumps, state, result

    def _next(self, *given: Any) -> Any:
        """Whether a step is kept, and the next one."""
        return super().adapt_step_size(*given)


class StepMemory(NamedTuple):
    """What predictive control knows of earlier steps.

    - `error`: of the last step that was kept, in tolerances.
    - `size`: its length; zero if there is none.
    - `refused`: one if the step before was refused, else zero.
    """

    error: Any
    size: Any
    refused: Any

    @classmethod
    def none(cls) -> "StepMemory":
        """That there were no steps."""
        zero = jnp.zeros(())
        return cls(zero, zero, zero)


class Predictive(Beyond):
    """The same by predictive control: the growth of the error over two steps is extrapolated.

    At an escape from a plateau errors grow from step to step, and integral control refuses a third
    of all implicit steps. This is the control of the program RODAS (Hairer and Wanner, "Solving
    Ordinary Differential Equations II", Section IV.8; K. Gustafsson, ACM Transactions on
    Mathematical Software 20 (1994) 496-517): beside the next step h ε^(-1/4) there is one of
    h²/h' (ε'/ε²)^(1/4), where ε' and h' belong to the step before, and the shorter is taken. The
    step after a refused one is not longer.

    - `memory`: of the steps before the first one.

    The state of the control is its memory before and after the last step that was kept.
    """

    memory: Any = None

    def init(self, *given: Any) -> Any:
        end, _ = super().init(*given)
        return end, (self.memory, self.memory)

    def _next(
        self, t0: Any, t1: Any, y0: Any, y1: Any, args: Any, error: Any, order: Any, state: Any
    ) -> Any:
        memory, _ = state

        def scaled(a: Any, b: Any, e: Any) -> Any:
            b = jnp.where(jnp.isnan(b).any(), a, b)
            return e / (self.atol + self.rtol * jnp.maximum(jnp.abs(a), jnp.abs(b)))

        found = self.norm(jax.tree.map(scaled, y0, y1, error))
        keeps, size = found < 1, t1 - t0
        factor = self.safety * found ** (-1 / order)
        known = memory.size > 0
        before = jnp.where(known, memory.size, 1.0)
        ahead = self.safety * size / before * (memory.error / found**2) ** (1 / order)
        factor = jnp.where(keeps & known, jnp.minimum(factor, ahead), factor)
        most = jnp.where(memory.refused > 0, 1.0, self.factormax)
        factor = jnp.clip(factor, self.factormin, jnp.where(keeps, most, self.safety))
        begin = jnp.where(keeps, t1, t0)
        end = begin + jax.lax.stop_gradient(factor) * size
        kept = StepMemory(jnp.maximum(found, LEAST), size, jnp.zeros_like(size))
        refused = memory._replace(refused=jnp.ones_like(size))
        after = jax.tree.map(lambda a, b: jnp.where(keeps, a, b), kept, refused)
        state = jax.tree.map(
            lambda a, b: jnp.where(keeps, a, b), (after, memory), (after, state[1])
        )
        return keeps, begin, end, False, state, diffrax.RESULTS.successful
