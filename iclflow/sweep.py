"""`sweep`: many runs, on the host: seeds and axes, compiled segments, progress, interruption."""

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import ArrayLike, PRNGKeyArray

from iclflow.dataset import OUTCOMES, attributes, finish, outcome, stamp, variables
from iclflow.dynamics import AbstractDynamics, Descent
from iclflow.dynamics.descent import DescentState
from iclflow.losses import AbstractLoss, Population
from iclflow.models import AbstractInitialiser, AbstractModel
from iclflow.record import resolve
from iclflow.simulate import SAVES, check_marks
from iclflow.task import Task

SEGMENTS = 12  # compiled pieces of a run, between which progress is shown and Ctrl-C works
Source = AbstractLoss | Task | Callable[[PRNGKeyArray], AbstractLoss]


class Vary(enum.Enum):
    """What the seeds change."""

    WEIGHTS = "weights"  # many initialisations on one dataset
    DATA = "data"  # one initialisation on many datasets
    ALL = "all"


def sweep(
    source: Source,
    init: AbstractInitialiser,
    dynamics: AbstractDynamics,
    *,
    seeds: int | Sequence[int] = 1,
    axes: Mapping[str, Sequence[Any]] | None = None,
    vary: Vary = Vary.WEIGHTS,
    record: Sequence[str] = ("loss",),
    also: Mapping[str, Callable[[AbstractModel], Any]] | None = None,
    saveat: ArrayLike | None = None,
    progress: Callable[[float, float], None] | None = None,
    settings: Any = None,
) -> xr.Dataset:
    """Train over seeds and axes; runs of one shape are trained together.

    - `source`: a loss; a `Task` (its population); or a function key -> loss, for `vary` data.
    - `seeds`: how many, or which; seed s starts from `init(jax.random.key(s))`.
    - `axes`: field name -> values, of the dynamics (`rate`), the initialiser (`scale`, `rank`,
      `heads`) or, if `source` is a Task, the task (`context`, `label_noise`).
    - `progress(done, total)` is called between segments, in training steps or time.

    Ctrl-C returns what was computed: later points are NaN and `result` says `interrupted`.
    """
    numbers = list(range(seeds)) if isinstance(seeds, int) else [int(s) for s in seeds]
    axes = {name: list(values) for name, values in (axes or {}).items()}
    if not numbers or not all(axes.values()):
        raise ValueError("a sweep needs at least one seed and one value on every axis")
    names = tuple(axes)
    runs = []
    for index in np.ndindex(*(len(values) for values in axes.values())):
        point = {name: axes[name][i] for name, i in zip(names, index, strict=True)}
        here = _at(point, source, init, dynamics)
        losses = _losses(here[0], numbers, vary)
        for j, seed in enumerate(numbers):
            key = jax.random.key(seed)
            weights = jax.random.key(numbers[0]) if vary is Vary.DATA else key
            runs.append(_Run((*index, j), losses[j], here[1](weights), here[2], key))
    for run in runs:
        reason = run.dynamics.admits(run.loss, run.model)
        if reason is not None:
            raise ValueError(f"cannot train {type(run.model).__name__}: {reason}")
    marks = np.asarray(
        dynamics.marks(SAVES) if saveat is None else check_marks(saveat, dynamics)
    )
    groups = _groups(runs)
    total = float(marks[-1]) * len(groups)
    results = []
    for i, group in enumerate(groups):
        report = None
        if progress is not None:
            report = lambda done, i=i: progress(i * float(marks[-1]) + done, total)  # noqa: E731
        results.append(_train(group, marks, resolve(record, also), report))
        if results[-1].interrupted:
            break
    if settings is None:
        about = {"source": source, "init": init, "dynamics": dynamics, "vary": vary}
        settings = {**about, "seeds": numbers, "axes": axes, "record": list(record)}
    coordinates = {**axes, "seed": numbers}
    return _assemble(results, runs, coordinates, marks, settings)


@dataclasses.dataclass
class _Run:
    index: tuple[int, ...]
    loss: AbstractLoss
    model: AbstractModel
    dynamics: AbstractDynamics
    key: PRNGKeyArray


@dataclasses.dataclass
class _Result:
    runs: list[_Run]
    record: dict[str, Any]  # [run, time, ...]
    time: np.ndarray
    result: np.ndarray
    stopped: np.ndarray
    interrupted: bool


def _at(point: Mapping[str, Any], source: Any, init: Any, dynamics: Any) -> tuple[Any, Any, Any]:
    """Source, initialiser and dynamics with the fields of one grid point set."""
    things = {"dynamics": dynamics, "init": init, "source": source}
    for name, value in point.items():
        owners = [k for k, thing in things.items() if _owns(thing, name)]
        if len(owners) != 1:
            known = sorted({f for t in things.values() for f in _fields(t)})
            raise ValueError(f"no single axis is called {name!r}; there are {', '.join(known)}")
        things[owners[0]] = _replace(things[owners[0]], name, value)
    return things["source"], things["init"], things["dynamics"]


def _fields(thing: Any) -> list[str]:
    if isinstance(thing, AbstractLoss) or not dataclasses.is_dataclass(thing):
        return []
    inner = _fields(thing.inner) if hasattr(thing, "inner") else []
    return [f.name for f in dataclasses.fields(thing) if f.name != "inner"] + inner


def _owns(thing: Any, name: str) -> bool:
    return name in _fields(thing)


def _replace(thing: Any, name: str, value: Any) -> Any:
    if isinstance(thing, Task):
        return thing.replace(**{name: value})
    if hasattr(thing, "inner"):
        return eqx.tree_at(
            lambda t: t.inner, thing, _replace(thing.inner, name, value), is_leaf=_is_module
        )
    old = getattr(thing, name)
    if eqx.is_array(old):
        return eqx.tree_at(lambda t: getattr(t, name), thing, jnp.asarray(value, old.dtype))
    return dataclasses.replace(thing, **{name: value})


def _is_module(thing: Any) -> bool:
    return isinstance(thing, AbstractInitialiser)


def _losses(source: Any, seeds: Sequence[int], vary: Vary) -> list[AbstractLoss]:
    if isinstance(source, Task):
        source = Population(source)
    if isinstance(source, AbstractLoss):
        if vary is not Vary.WEIGHTS:
            raise ValueError(
                f"to vary {vary.value}, give a function key -> loss instead of one loss"
            )
        return [source] * len(seeds)
    if vary is Vary.WEIGHTS:
        return [source(jax.random.key(seeds[0]))] * len(seeds)
    return [source(jax.random.key(seed)) for seed in seeds]


def _groups(runs: Sequence[_Run]) -> list[list[_Run]]:
    """Runs that can be trained together: the same loss arrays, shapes and static settings."""
    groups: dict[Any, list[_Run]] = {}
    for run in runs:
        small = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(run.loss, eqx.is_array)))
        shared = None if small <= 4096 else id(run.loss)
        parts = (run.loss, run.model, run.dynamics)
        arrays, static = eqx.partition(parts, eqx.is_array)
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(arrays))
        key = (shared, shapes, jax.tree.structure(arrays), str(jax.tree.leaves(static)))
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def _stack(trees: Sequence[Any]) -> tuple[Any, Any]:
    """Stacked trees and their vmap axes; one shared tree if all are the same object."""
    first = trees[0]
    if all(tree is first for tree in trees):
        return first, None
    arrays = [eqx.partition(tree, eqx.is_array)[0] for tree in trees]
    static = eqx.partition(first, eqx.is_array)[1]
    return eqx.combine(jax.tree.map(lambda *a: jnp.stack(a), *arrays), static), eqx.if_array(0)


@eqx.filter_jit
def _start(losses, models, dynamics, keys, axes) -> Any:  # noqa: ANN001
    def one(loss: Any, model: Any, how: Any, key: Any) -> Any:
        return how.start(loss, model, key)

    return eqx.filter_vmap(one, in_axes=axes)(losses, models, dynamics, keys)


@eqx.filter_jit
def _advance(losses, state, dynamics, marks, record, axes) -> Any:  # noqa: ANN001
    def one(loss: Any, state: Any, how: Any) -> Any:
        return how.advance(loss, state, marks, record)

    return eqx.filter_vmap(one, in_axes=axes)(losses, state, dynamics)


def _train(
    group: list[_Run], marks: np.ndarray, record: dict, report: Callable[[float], None] | None
) -> _Result:
    losses, loss_axis = _stack([run.loss for run in group])
    dynamics, dynamics_axis = _stack([run.dynamics for run in group])
    models = jax.tree.map(lambda *a: jnp.stack(a), *[run.model for run in group])
    keys = jnp.stack([run.key for run in group])
    map_axis = eqx.if_array(0)
    state = _start(losses, models, dynamics, keys, (loss_axis, map_axis, dynamics_axis, map_axis))
    state_axis: Any = map_axis
    if isinstance(group[0].dynamics, Descent):
        # One step counter for the whole batch keeps the inner loop free of per-run tests.
        state = DescentState(state.run, state.step[0])
        state_axis = DescentState(map_axis, None)
    size = -(-len(marks) // SEGMENTS)
    pieces, interrupted, done = [], False, 0
    try:
        for begin in range(0, len(marks), size):
            segment = marks[begin : begin + size]
            padded = np.concatenate([segment, np.repeat(segment[-1:], size - len(segment))])
            run = _advance(
                losses, state, dynamics, padded, record, (loss_axis, state_axis, dynamics_axis)
            )
            jax.block_until_ready(run.record)
            state = run.state
            if isinstance(state, DescentState):
                state = DescentState(state.run, state.step[0])
            pieces.append(jax.tree.map(lambda a, n=len(segment): np.asarray(a)[:, :n], run.record))
            ended = (outcome(run.result), np.asarray(run.stopped))
            done = begin + len(segment)
            if report is not None:
                report(float(segment[-1]))
    except KeyboardInterrupt:
        interrupted = True
        if not pieces:
            raise
    joined = jax.tree.map(lambda *a: np.concatenate(a, axis=1), *pieces)
    if interrupted:
        missing = len(marks) - done
        joined = jax.tree.map(
            lambda a: np.pad(
                a, [(0, 0), (0, missing)] + [(0, 0)] * (a.ndim - 2), constant_values=np.nan
            ),
            joined,
        )
        ended = (np.where(ended[0] == 0, OUTCOMES.index("interrupted"), ended[0]), ended[1])
    clocks = np.stack([_clock(run.dynamics, marks) for run in group])
    return _Result(group, joined, clocks, ended[0], ended[1], interrupted)


def _clock(dynamics: AbstractDynamics, marks: np.ndarray) -> np.ndarray:
    if not isinstance(dynamics, Descent):
        return marks
    return marks * (2 * float(dynamics.rate) if dynamics.optimiser.keeps_time else np.nan)


def _assemble(
    results: Sequence[_Result],
    runs: Sequence[_Run],
    coordinates: Mapping[str, Sequence[Any]],
    marks: np.ndarray,
    settings: Any,
) -> xr.Dataset:
    lead = tuple(coordinates)
    shape = tuple(len(values) for values in coordinates.values())
    blocks: dict[str, tuple[tuple[str, ...], list]] = {}
    clock = np.full((*shape, len(marks)), np.nan)
    ended = np.full(shape, OUTCOMES.index("interrupted"), np.int8)
    stopped = np.zeros(shape)
    for result in results:
        for i, run in enumerate(result.runs):
            clock[run.index] = result.time[i]
            ended[run.index], stopped[run.index] = result.result[i], result.stopped[i]
        for name, (dims, array) in variables(result.record, 2).items():
            rows = blocks.setdefault(name, (dims, []))[1]
            rows.extend((run.index, array[i]) for i, run in enumerate(result.runs))
    data = {}
    for name, (dims, rows) in blocks.items():
        # Runs of other shapes (fewer heads, lower rank) leave NaN where they have nothing.
        largest = np.max([row.shape for _, row in rows], axis=0)
        whole = np.full((*shape, *largest), np.nan)
        for index, row in rows:
            whole[(*index, *(slice(n) for n in row.shape))] = row
        data[name] = ((*lead, "time", *dims), whole, attributes(name))
    dataset = xr.Dataset(data, attrs=stamp(settings))
    flat = clock.reshape(-1, len(marks))
    same = bool(np.all(np.isnan(flat) | (flat == flat[0])))
    dataset = finish(
        dataset,
        time=flat[0] if same else marks.astype(float),
        step=marks,
        result=(lead, ended),
        stopped=(lead, stopped),
    )
    if not same:
        label = {"long_name": r"training time $t/\tau$", "units": "1"}
        dataset = dataset.drop_vars("time").assign(clock=((*lead, "time"), clock, label))
    return dataset.assign_coords({name: list(values) for name, values in coordinates.items()})

