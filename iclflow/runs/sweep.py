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
from jaxtyping import PRNGKeyArray

from iclflow.dynamics import AbstractDynamics
from iclflow.losses import AbstractLoss, Population
from iclflow.models import AbstractInitialiser, AbstractModel
from iclflow.runs.batch import BatchResult, Run, group_runs, train_together
from iclflow.runs.labels import INTERRUPTED, attributes, finish, stamp, variables
from iclflow.runs.record import names_after, resolve
from iclflow.runs.simulate import SAVES, check_marks
from iclflow.tasks.base import AbstractTask, Values
from iclflow.tasks.task import Task

Source = AbstractLoss | AbstractTask | Callable[[PRNGKeyArray], AbstractLoss]


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
    saveat: Values | None = None,
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
            runs.append(Run((*index, j), losses[j], draw_model(here[1], weights), here[2], key))
    for run in runs:
        reason = run.dynamics.admits(run.loss, run.model)
        if reason is not None:
            raise ValueError(f"cannot train {type(run.model).__name__}: {reason}")
    marks = np.asarray(dynamics.marks(SAVES) if saveat is None else check_marks(saveat, dynamics))
    groups = group_runs(runs)
    total = float(marks[-1]) * len(groups)
    results = []
    for i, group in enumerate(groups):
        report = None
        if progress is not None:
            report = lambda done, i=i: progress(i * float(marks[-1]) + done, total)  # noqa: E731
        functions = resolve(record, also, loss=_common(group), dynamics=group[0].dynamics)
        results.append(train_together(group, marks, functions, report, names_after(record)))
        if results[-1].interrupted:
            break
    if settings is None:
        about = {"source": source, "init": init, "dynamics": dynamics, "vary": vary}
        settings = {**about, "seeds": numbers, "axes": axes, "record": list(record)}
    coordinates = {**axes, "seed": numbers}
    return _assemble(results, coordinates, marks, settings)


@eqx.filter_jit
def draw_model(init: AbstractInitialiser, key: PRNGKeyArray) -> AbstractModel:
    """`init(key)`, compiled once for all keys."""
    return init(key)


def _common(group: Sequence[Run]) -> AbstractLoss | None:
    """The loss that all runs of a group share, if they do."""
    first = group[0].loss
    return first if all(run.loss is first for run in group) else None


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
    inner = _fields(getattr(thing, "inner", None))
    return [f.name for f in dataclasses.fields(thing) if f.name != "inner"] + inner


def _owns(thing: Any, name: str) -> bool:
    return name in _fields(thing)


def _replace(thing: Any, name: str, value: Any) -> Any:
    if isinstance(thing, Task):
        return thing.replace(**{name: value})
    if hasattr(thing, "inner"):
        return dataclasses.replace(thing, inner=_replace(thing.inner, name, value))
    old = getattr(thing, name)
    if eqx.is_array(old):
        return eqx.tree_at(lambda t: getattr(t, name), thing, jnp.asarray(value, old.dtype))
    return dataclasses.replace(thing, **{name: value})


def _losses(source: Any, seeds: Sequence[int], vary: Vary) -> list[AbstractLoss]:
    if isinstance(source, AbstractTask):
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


def _assemble(
    results: Sequence[BatchResult],
    coordinates: Mapping[str, Sequence[Any]],
    marks: np.ndarray,
    settings: Any,
) -> xr.Dataset:
    lead = tuple(coordinates)
    shape = tuple(len(values) for values in coordinates.values())
    blocks: dict[str, tuple[tuple[str, ...], list]] = {}
    clock = np.full((*shape, len(marks)), np.nan)
    ended = np.full(shape, INTERRUPTED, np.int8)
    stopped = np.zeros(shape)
    edge = np.full(shape, np.nan)
    for result in results:
        for i, run in enumerate(result.runs):
            clock[run.index] = result.time[i]
            ended[run.index], stopped[run.index] = result.result[i], result.stopped[i]
            edge[run.index] = result.sharpness[i]
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
    about = {"long_name": "largest Hessian eigenvalue of $L$ at the last weights", "units": "1"}
    dataset = dataset.assign(final_sharpness=(lead, edge, about))
    if not same:
        label = {"long_name": r"training time $t/\tau$", "units": "1"}
        dataset = dataset.drop_vars("time").assign(clock=((*lead, "time"), clock, label))
    return dataset.assign_coords({name: list(values) for name, values in coordinates.items()})
