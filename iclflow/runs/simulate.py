"""`simulate`: one training run, as a pure function."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import ArrayLike, PRNGKeyArray

from iclflow.dynamics import AbstractDynamics
from iclflow.dynamics.base import RESULTS, Stretch, marks_until, require_dynamics
from iclflow.losses import AbstractLoss, Population
from iclflow.losses.base import jumps, piece_at, require_loss, warn_single_precision
from iclflow.models import AbstractModel
from iclflow.models.base import require_model
from iclflow.results.messages import Progress, progress_bar
from iclflow.runs.record import MODELS, Record, Recording, measure_after, resolve
from iclflow.runs.testing import Test, Tests
from iclflow.runs.trajectory import Trajectory
from iclflow.tasks.base import AbstractTask, Values
from iclflow.tasks.checks import require_key

SAVES = 200  # save points, unless they are chosen


def simulate(
    loss: AbstractLoss | AbstractTask,
    model: AbstractModel,
    dynamics: AbstractDynamics,
    *,
    until: ArrayLike | None = None,
    saveat: Values | None = None,
    record: Record = ("loss",),
    test: Test = None,
    key: PRNGKeyArray | None = None,
    state: Any = None,
    progress: bool | Progress | None = False,
) -> Trajectory:
    """Train `model` on `loss` and record along the way.

    Pure: one run, no I/O, safe under `jit`, `vmap` and `grad`. A numerical failure is in
    `Trajectory.result`, not an exception.

    - `loss`: what is trained; a task stands for its population. It may change on the way: a
      `Curriculum` jumps, a `Drift` moves.
    - `dynamics`: `Descent` or `Flow`; `theory.predict` is the ladder's third rung.
    - `until`: the end, in steps (`Descent`) or t/τ (`Flow`); the last of `saveat` if omitted.
    - `saveat`: steps or times to record at, increasing; about 200, evenly spaced in the logarithm,
      if omitted. The end is always among them.
    - `record`: names of quantities (see `iclflow.runs.record.QUANTITIES`), functions
      (model, loss) -> arrays, or a mapping of names to either (or to a test loss).
    - `test`: what else the model is tested on at every save point: a task (its population), a loss,
      several of these by name, or `Tests`, which vary a field. Recorded as `test_loss`.
    - `key`: randomness of stochastic losses.
    - `state`: `Trajectory.state` of an earlier run to go on from. The weights are then its own;
      `model` says of which kind they are, and another kind is refused.
    - `progress`: True shows a progress bar, a function (done, total) is called at every save
      point, and None shows a bar after two seconds where a person looks on. The computation
      then calls back to the host, so this is refused under `jit`, `vmap` and `grad`.

    >>> import jax, iclflow as icl
    >>> task = icl.Task(spectrum=[0.4, 0.3, 0.2, 0.1], context=31)
    >>> model = icl.Merged.initialiser(task, heads=4, scale=0.1)(jax.random.key(0))
    >>> run = icl.simulate(icl.Population(task), model, icl.Descent(rate=0.2), saveat=[0, 400])
    >>> bool(run.loss[-1] < run.loss[0])
    True
    """
    source = loss
    if isinstance(loss, AbstractTask):
        loss = Population(loss)
    require_loss(loss)
    require_model(model)
    require_dynamics(dynamics)
    require_key(key)
    reason = dynamics.admits(loss, model)
    if reason is not None:
        raise ValueError(f"{type(loss).__name__} cannot train {type(model).__name__}: {reason}")
    warn_single_precision(loss)
    marks = marks_until(dynamics, until, saveat, SAVES, _ahead(loss, state))
    if test is not None:
        record = Tests.of(test).among(record, model)
    recording = resolve(record, loss=loss, dynamics=dynamics)
    if state is None:
        key = jax.random.key(0) if key is None else key
        if len(loss.pieces) == 1:
            start = _simulate if dynamics.whole else _from_start
            ticks, run = marks, partial(start, loss, model, dynamics, marks, key)
        else:
            plan = _plan(loss, 0.0, marks)
            start = _begin(loss, model, dynamics, key)
            ticks, run = _ticks(plan), partial(_by_pieces, loss, start, dynamics, marks, plan)
    else:
        ticks, run = _going_on(loss, model, dynamics, state, saveat, marks)
    found = run(recording) if progress is False else _watched(run, recording, ticks, progress)
    return Trajectory.of(found, source, model, dynamics)


def _going_on(
    loss: AbstractLoss,
    model: AbstractModel,
    dynamics: AbstractDynamics,
    state: Any,
    saveat: Values | None,
    marks: np.ndarray,
) -> tuple[np.ndarray, Callable[[Recording], Stretch]]:
    """The marks and the run from the state of an earlier one, refused if it is of another kind."""
    start = eqx.filter_eval_shape(dynamics.init, loss, model, jax.random.key(0))
    if _shapes(state) != _shapes(start):
        raise ValueError(
            "the state is of another model or another dynamics; give those of the run that it "
            "came from"
        )
    if saveat is None and not isinstance(state.mark, Tracer):
        marks = marks[marks >= np.asarray(state.mark)]
    if len(loss.pieces) == 1:
        return marks, partial(_resume, loss, state, dynamics, marks)
    plan = _plan(loss, float(np.asarray(state.mark)), marks)
    return _ticks(plan), partial(_by_pieces, loss, state, dynamics, marks, plan)


TICK = "progress"  # the name under which a watched run records nothing and calls back


def _watched(
    run: Callable[[Recording], Stretch],
    recording: Recording,
    marks: np.ndarray,
    progress: bool | Progress | None,
) -> Stretch:
    """The same run, which tells at every mark how far it is.

    A compiled run is one call, so only the computation itself can tell. The recorder at the marks
    is the one place of it that every dynamics has.
    """
    with progress_bar("training", progress) as report:
        marked = itertools.count()

        def tell() -> None:
            now = min(next(marked), len(marks) - 1)
            report(float(marks[now]), float(marks[-1]))

        def tick(model: AbstractModel, loss: AbstractLoss) -> Any:
            jax.debug.callback(tell)
            return jnp.zeros(())

        found = run(Recording({**recording.functions, TICK: tick}, recording.after))
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(found)):
            raise ValueError(
                "progress cannot be shown under jit, vmap or grad; leave it out there, or call "
                "simulate outside of them"
            )
        jax.block_until_ready(eqx.filter(found, eqx.is_array))
        jax.effects_barrier()
    kept = {name: values for name, values in found.record.items() if name != TICK}
    return eqx.tree_at(lambda r: r.record, found, kept)


def _ahead(loss: AbstractLoss, state: Any) -> tuple[float, ...]:
    """The jumps of a loss that a run has still before it."""
    found = jumps([loss])
    if state is None or not found:
        return found
    if isinstance(state.mark, Tracer):
        raise ValueError("a curriculum goes on from a state of known numbers, not of traced ones")
    return tuple(jump for jump in found if jump >= float(np.asarray(state.mark)))


class _Leg(NamedTuple):
    """The part of a run in which one piece of its loss is trained."""

    number: int  # of the piece
    jumps: bool  # whether the run comes from another piece
    marks: np.ndarray
    count: int  # of the marks, those that the piece records


def _plan(loss: AbstractLoss, here: float, marks: np.ndarray) -> list[_Leg]:
    """The legs of a run whose loss jumps, from the mark `here`.

    A leg goes to the next jump, if the run goes as far. A mark at a jump is recorded by the piece
    that begins there. All legs have equally many marks (the last is repeated), so that those with
    losses of one structure share a compiled program.
    """
    starts = [start for start, _ in loss.pieces]
    mine = np.searchsorted(starts, marks, side="right") - 1
    longest, legs = 1 + int(np.bincount(mine).max()), []
    for number in range(min(mine[0], piece_at(loss, here)[0]), mine[-1] + 1):
        own, start = marks[mine == number], starts[number]
        last = min(piece_at(loss, start)[2], float(marks[-1]))
        target = np.concatenate([own, np.full(longest - len(own), last)]).astype(marks.dtype)
        legs.append(_Leg(number, start == here > 0, target, len(own)))
        here = max(here, last)
    return legs


def _ticks(plan: list[_Leg]) -> np.ndarray:
    """The marks in the order in which a run with these legs comes to them."""
    return np.concatenate([leg.marks for leg in plan])


def _by_pieces(
    loss: AbstractLoss,
    state: Any,
    dynamics: AbstractDynamics,
    marks: np.ndarray,
    plan: list[_Leg],
    recording: Recording,
) -> Stretch:
    """A run whose loss jumps, leg by leg."""
    parts, run = [], None
    for leg in plan:
        piece = loss.pieces[leg.number][1]
        run = _advance(piece, state, dynamics, leg.marks, recording.functions, leg.jumps)
        parts.append(jax.tree.map(lambda a, n=leg.count: a[:n], run.record))
        state = run.state
    assert run is not None  # the last mark lies in some piece
    record = jax.tree.map(lambda *a: jnp.concatenate(a), *parts)
    saved = jnp.asarray(marks)
    whole = eqx.tree_at(
        lambda r: (r.time, r.step, r.record), run, (dynamics.time(saved), saved, record)
    )
    return _measured(whole, loss, dynamics, recording)


def _shapes(state: Any) -> dict[str, tuple[int, ...]]:
    """The shape of every array of a state, by its place in the state."""
    shaped = (jax.Array, jax.ShapeDtypeStruct, np.ndarray)
    found = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(p): leaf.shape for p, leaf in found if isinstance(leaf, shaped)}


@eqx.filter_jit
def _simulate(loss, model, dynamics, marks, key, recording: Recording) -> Stretch:
    return _resume(loss, dynamics.init(loss, model, key), dynamics, marks, recording)


def _from_start(loss, model, dynamics, marks, key, recording: Recording) -> Stretch:
    """The same in two programs, of which a run that goes on needs the second one again.

    To compile the steps of a solver takes seconds.
    """
    return _resume(loss, _begin(loss, model, dynamics, key), dynamics, marks, recording)


@eqx.filter_jit
def _resume(loss, state, dynamics, marks, recording: Recording) -> Stretch:
    run = dynamics.advance(loss, state, jnp.asarray(marks), recording.functions)
    return _measured(run, loss, dynamics, recording)


@eqx.filter_jit
def _begin(loss, model, dynamics, key) -> Any:
    return dynamics.init(loss, model, key)


@eqx.filter_jit
def _advance(loss, state, dynamics, marks, functions, jumps: bool) -> Stretch:
    state = dynamics.renew(loss, state) if jumps else state
    run = dynamics.advance(loss, state, jnp.asarray(marks), functions)
    # A run that had failed before this piece records nothing in it.
    alive = state.result == RESULTS.finished
    record = jax.tree.map(lambda a: jnp.where(alive, a, jnp.nan), run.record)
    return eqx.tree_at(lambda r: r.record, run, record)


@eqx.filter_jit
def _measured(run: Stretch, loss, dynamics, recording: Recording) -> Stretch:
    """The run with what is measured after it, from the models that it kept."""
    if not recording.after:
        return run
    kept = {name: values for name, values in run.record.items() if name != MODELS}
    rates = dynamics.rate_at(run.step)
    measured = measure_after(
        recording.after, run.record[MODELS], loss, rates, jnp.asarray(run.step)
    )
    return eqx.tree_at(lambda r: r.record, run, kept | measured)
