"""Batches trained, summarised and laid out as one labelled Dataset; blocks of a store computed.

A block is computed in this process or by a worker of a cluster, with the same code.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import ArrayLike

from iclflow.dynamics import AbstractDynamics
from iclflow.losses import AbstractLoss
from iclflow.losses.base import warn_single_precision
from iclflow.models import AbstractInitialiser, AbstractModel, empty_model
from iclflow.models.base import once_a_kind
from iclflow.results.provenance import stamp
from iclflow.runs.batch import AbstractObserver, Batch, BatchResult, Disk, Entry, batches, run_batch
from iclflow.runs.cells import AbstractCells
from iclflow.runs.device import copied
from iclflow.runs.fused.engine import CPP, CUDA, VMAP
from iclflow.runs.record import (
    COUNTED,
    INTERRUPTED,
    Finished,
    Recording,
    Summary,
    attributes,
    by_name,
    clock_and_ends,
    coordinates_of,
    in_axes,
    resolve,
    summarise,
    variables,
)

FINAL = "final_"  # begins the names of what is recorded of the last weights only
CLOCKS = ("clock", "step")  # variables of a point, which all of its seeds share

Variables = dict[str, tuple[tuple[str, ...], np.ndarray]]  # name -> (further dims, array)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A batch that has come to its end, with its summaries.

    - `clock`: t/τ of every run at the marks, [mark] or [run, mark].
    - `summaries`: name -> (dims after the run's, array).
    """

    result: BatchResult
    clock: np.ndarray
    summaries: Variables

    @classmethod
    def of(cls, result: BatchResult, computed: Mapping[str, Summary]) -> "Trained":
        """The summaries are computed point by point: the levels of the plateaus are a point's."""
        clock = clock_of(result, result.batch.point.marks)
        parts: dict[str, list[tuple[tuple, np.ndarray]]] = {}
        for place, rows in by_point(result.batch.cells) if computed else ():
            runs = Finished(
                point=result.batch.points[place],
                seeds=result.batch.seeds[: result.batch.count][rows],
                time=np.broadcast_to(clock, (result.batch.count, clock.shape[-1]))[rows],
                loss=result.record["loss"][rows],
                record=jax.tree.map(lambda a, r=rows: a[r], result.record),
                weights=jax.tree.map(lambda a, r=rows: a[r], result.final.get("weights")),
            )
            for name, array in summarise(computed, runs).items():
                parts.setdefault(name, []).append(((np.arange(result.batch.count)[rows],), array))
        found = {}
        for name, rows in parts.items():
            array = on_grid(rows, (result.batch.count,))
            numbered = tuple(f"{name}_{i}" for i in range(array.ndim - 1))
            dims = computed[name].dims
            found[name] = (dims if len(dims) == array.ndim - 1 else numbered, array)
        return cls(result, clock, found)


def by_point(cells: np.ndarray) -> list[tuple[tuple[int, ...], slice]]:
    """The places along the axes of a batch, each with the slice of its runs.

    The runs of one place lie side by side.

    - `cells`: the place of each run, [run, axis], the seed's last.
    """
    places = cells[:, :-1]
    ends = np.flatnonzero((places[1:] != places[:-1]).any(axis=1)) + 1 if places.shape[1] else []
    starts = [0, *(int(end) for end in ends)]
    return [
        (tuple(map(int, places[a])), slice(a, b))
        for a, b in zip(starts, [*starts[1:], len(cells)], strict=True)
    ]


@dataclasses.dataclass(frozen=True)
class GridLayout:
    """What batches found, laid out over the cells of a region.

    - `values`: name -> (dims after the cells', array [*cells, ...]); NaN where nothing is.
    - `clocks`: t/τ and the marks of every point, [*axes, time].
    - `labels`: coordinates that records bring along: dimension -> (dims, labels, attributes).
    """

    values: Variables
    clocks: dict[str, np.ndarray]
    labels: dict[str, Any]


def laid_out(
    found: Sequence[Trained], shape: tuple[int, ...], keeps: Callable[[str], bool]
) -> GridLayout:
    """Put what batches found onto a grid, the seeds last.

    - `found`: the batches.
    - `shape`: of the grid; cells that no batch reached are NaN.
    - `keeps`: whether a record is kept, by its name.
    """
    parts: dict[str, tuple[tuple[str, ...], list]] = {}

    def put(name: str, dims: tuple[str, ...], place: tuple, array: np.ndarray) -> None:
        parts.setdefault(name, (dims, []))[1].append((place, array))

    labels: dict[str, Any] = {}
    longest = max((len(one.result.batch.point.marks) for one in found), default=0)
    clocks = {name: np.full((*shape[:-1], longest), np.nan) for name in CLOCKS}
    for one in found:
        batch = one.result.batch
        place, marks = tuple(batch.cells.T), batch.point.marks
        put("result", (), place, one.result.result)
        put("stopped", (), place, one.result.stopped)
        last = {n: v for n, v in one.result.final.items() if n in by_name(batch.point.final)}
        record = {n: v for n, v in one.result.record.items() if keeps(n)}
        axes = batch.like.axes()
        labels |= coordinates_of(record) | coordinates_of(last)
        for name, (dims, array) in variables(record, 2, axes).items():
            put(name, ("time", *dims), place, array)
        for name, (dims, array) in variables(last, 1, axes).items():
            put(FINAL + name, dims, place, array)
        for name, (dims, array) in one.summaries.items():
            put(name, dims, place, array)
        for index, rows in by_point(batch.cells):
            row = one.clock if one.clock.ndim == 1 else one.clock[rows.start]
            clocks["clock"][index][: len(marks)] = row
            clocks["step"][index][: len(marks)] = marks
    whole = {name: (dims, on_grid(rows, shape)) for name, (dims, rows) in parts.items()}
    return GridLayout(whole, clocks, labels)


def assemble(found: Sequence[Trained], cells: AbstractCells) -> xr.Dataset:
    """Put all runs onto their grid as a labelled Dataset.

    Runs that were not reached are NaN, and their `result` is `interrupted`.

    - `found`: the batches that came to their end, or to an interrupt.
    - `cells`: the sweep, which has the labels and what the Dataset is stamped with.
    """
    layout = laid_out(found, cells.shape, cells.keeps)
    values, lead = dict(layout.values), cells.dims
    result, stopped = (values.pop(name)[1] for name in ("result", "stopped"))
    data = {n: ((*lead, *dims), array, label_of(n, cells)) for n, (dims, array) in values.items()}
    timed = any(one.result.batch.parts[2].keeps_time for one in found)
    result = np.where(np.isfinite(result), result, INTERRUPTED).astype(np.int8)
    ends = {"result": (lead, result), "stopped": (lead, np.nan_to_num(stopped.astype(float)))}
    marks = found[0].result.batch.point.marks
    runs = clocked(xr.Dataset(data), layout.clocks["clock"], marks, ends, timed)
    engines = "; ".join(dict.fromkeys(one.result.engine for one in found))
    about = {} if timed else {"clock": COUNTED}
    labels: dict[str, Any] = {
        axis.name: (axis.name, np.asarray(axis.fields[axis.name])) for axis in cells.dimensions
    }
    labels |= {"seed": ("seed", cells.numbers.astype(int)), **layout.labels}
    attributes_ = {**stamp(cells.about), "engine": engines, **about}
    return runs.assign_coords(labels).assign_attrs(attributes_)


def clocked(
    runs: xr.Dataset, clock: np.ndarray, marks: np.ndarray, ends: Mapping[str, tuple], timed: bool
) -> xr.Dataset:
    """Runs with their clock, and with how they ended.

    - `clock`: t/τ of every point at the marks, [*axes, time]; NaN of points that are not there.
    - `marks`: the save points, which all of them have.
    - `ends`: `result` and `stopped`, each (dims, array).
    - `timed`: whether the clock is t/τ, and not the number of steps.

    Points of one clock make it the coordinate `time`; else every run has its own in the variable
    `clock`.
    """
    rows = clock.reshape(-1, clock.shape[-1])
    rows = rows[~np.isnan(rows).all(axis=1)]
    same = bool((rows == rows[0]).all())
    times, found = clock_and_ends(
        time=rows[0] if same else marks.astype(float),
        step=marks,
        result=ends["result"],
        stopped=ends["stopped"],
        timed=timed,
    )
    if not same:
        about, dims = times.pop("time")[2], (*ends["result"][0], "time")
        wide = np.broadcast_to(clock[..., None, :], (*ends["result"][1].shape, len(marks)))
        found["clock"] = (dims, wide, about)
    return runs.assign(found).assign_coords(times)


def label_of(name: str, cells: AbstractCells) -> dict[str, str]:
    """Long name and units of a variable."""
    if name in cells.computed:
        summary = cells.computed[name]
        words = summary.long_name or name.replace("_", " ")
        return {"long_name": words, "units": summary.units}
    return attributes(name.removeprefix(FINAL))


def on_grid(parts: Sequence[tuple[tuple, np.ndarray]], shape: tuple[int, ...]) -> np.ndarray:
    """Put rows of runs at their places on a grid.

    Runs of other shapes, with fewer heads for example, leave NaN in what they do not have.

    - `parts`: pairs of (index arrays of the places, rows [run, ...]).
    - `shape`: of the grid.
    """
    place, array = parts[0]
    in_order = np.arange(len(array))
    if len(array) == np.prod(shape) and np.all(np.ravel_multi_index(place, shape) == in_order):
        return copied(array).reshape(*shape, *array.shape[1:])  # one batch of all runs
    if array.dtype == object:
        whole = np.full(shape, "", object)
        for place, array in parts:
            whole[place] = array
        return whole
    largest = np.max([array.shape[1:] for _, array in parts], axis=0).astype(int)
    kind = np.result_type(*(array for _, array in parts), np.float32)
    whole = np.full((*shape, *largest), np.nan, kind)
    for place, array in parts:
        whole[(*place, *(slice(n) for n in array.shape[1:]))] = array
    return whole


def clock_of(result: BatchResult, marks: np.ndarray) -> np.ndarray:
    """t/τ of every run at the marks, [mark] or [run, mark]."""
    dynamics, axis = result.batch.parts[2], result.batch.axes[2]
    clocks = np.asarray(_clocks(dynamics, axis, marks))
    return clocks if axis is None else clocks[: result.batch.count]


@eqx.filter_jit
def _clocks(dynamics: AbstractDynamics, axis: Any, marks: ArrayLike) -> Any:
    if axis is None:
        return dynamics.time(marks)
    return eqx.filter_vmap(lambda one: one.time(marks), in_axes=(axis,))(dynamics)


def final_models(runs: Mapping[str, Any], init: AbstractInitialiser) -> AbstractModel:
    """The last models of a sweep that was asked for `final=["weights"]`, stacked along its seeds.

    - `runs`: the Dataset, or a mapping with its variables.
    - `init`: the initialiser of the sweep, which says what kind of model the weights belong to.
    """
    like = empty_model(init)
    axes = like.axes()

    def plain(name: str) -> np.ndarray:
        found = runs[FINAL + name]
        named = isinstance(found, xr.DataArray)
        return in_axes(found, axes.get(name, ()), ("seed",)) if named else np.asarray(found)

    arrays = {
        name: jnp.asarray(plain(name), a.dtype).reshape(-1, *a.shape)
        for name, a in like.weights().items()
    }
    return jax.vmap(like.with_weights)(arrays)


REASON = 300  # characters
ENGINES = (VMAP, CPP, CUDA)  # a store keeps the place of the one that advanced each cell


def planned(
    entries: Sequence[Entry], seeds: np.ndarray, sizes: Sequence[int] | None = None
) -> list[Batch]:
    """The entries in batches that fit in memory; `ValueError` for what cannot be trained.

    - `seeds`: those that the entries have positions among.
    - `sizes`: of the batches of an earlier plan.
    """
    return list(batches(entries, seeds, recorded_bytes, sizes))


def recorded_bytes(entry: Entry, model: AbstractModel) -> int:
    """What one run records; `ValueError` if it cannot be trained, or has nothing to record."""
    reason = entry.dynamics.admits(entry.loss, model)
    if reason is not None:
        names = type(entry.loss).__name__, type(model).__name__
        raise ValueError(f"{names[0]} cannot train {names[1]}: {reason}")
    functions = resolve(entry.point.record, loss=entry.loss, dynamics=entry.dynamics).functions
    return len(entry.point.marks) * measured_bytes(functions, model, entry.loss)


@once_a_kind
def measured_bytes(*parts: Any) -> int:
    """The bytes of (recorders, model, loss) at one save point; nothing is computed."""
    leaves = jax.tree.leaves(eqx.filter_eval_shape(_measured, *parts))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def _measured(functions: dict[str, Any], model: AbstractModel, loss: AbstractLoss) -> Any:
    return {name: function(model, loss) for name, function in functions.items()}


def recordings(batch: Batch, computed: Mapping[str, Summary]) -> tuple[Recording, Recording]:
    """What a batch records at its save points, and what it records of its last weights.

    - `batch`: the runs, whose point says what is asked for.
    - `computed`: the summaries. Some of them need the last weights, which are then recorded too.
    """
    loss, _, dynamics = batch.one
    warn_single_precision(loss)
    common = loss if batch.axes[0] is None else None
    ending = by_name(batch.point.final)
    if any(summary.weights for summary in computed.values()):
        ending = {**ending, "weights": "weights"}
    during, last = (
        resolve(what, loss=common, dynamics=dynamics) for what in (batch.point.record, ending)
    )
    if "conserved_drift" in last.after:
        raise ValueError("conserved_drift is a change since the start; put it into record")
    return during, last


def train(
    batch: Batch,
    number: int,
    cells: AbstractCells,
    observers: Sequence[AbstractObserver] = (),
    disk: Disk | None = None,
) -> Trained:
    """Train a batch to its end, or to where Ctrl-C stops it, and compute its summaries.

    - `batch`, `number`: the runs, and their place among the batches of the sweep.
    - `cells`: the sweep that they belong to, which says what is summarised.
    - `observers`: they are called after each piece.
    - `disk`: where progress is kept; None keeps nothing.
    """
    during, last = recordings(batch, cells.computed)
    marks = batch.point.marks
    result = run_batch(batch, number, marks, during, last, cells.key, observers, disk)
    return Trained.of(result, cells.computed)


@dataclasses.dataclass(frozen=True)
class Block:
    """A region of a sweep's cells, of which some are to be computed.

    - `cells`: of the whole sweep; pickled for a worker.
    - `starts`: where the region begins along each dimension.
    - `wanted`: which of its cells are to be computed; its shape is that of the region.
    - `engines`: of each point, the engine and the number of runs that share its program.
    - `size`: cells of a full block: batches are filled up to it, and compile once.
    - `double`: whether numbers have double precision.
    """

    cells: AbstractCells | bytes
    starts: tuple[int, ...]
    wanted: np.ndarray
    engines: tuple[tuple[str, int], ...]
    size: int
    double: bool


@dataclasses.dataclass
class Answer:
    """What a block found: arrays [*cells of the region, ...], NaN where nothing was computed.

    - `values`: name -> (dims after the cells', array).
    - `clocks`: the clock and the step at the save points, [*axes, time].
    - `done`: which cells were computed.
    - `failures`: the place of each cell that failed, and the reason.
    - `kinds`: the place in `ENGINES` of the engine that advanced each cell, or -1.
    - `engines`: the engines in words.
    - `timed`: whether any of the clocks is t/τ.
    - `labels`: coordinates that records bring along, as in `GridLayout`.
    """

    values: Variables
    clocks: dict[str, np.ndarray]  # clock and step at the save points, [*axes, time]
    done: np.ndarray
    failures: list[tuple[tuple[int, ...], str]]  # cell, reason
    kinds: np.ndarray  # the place in `ENGINES` of what advanced each cell, or -1
    engines: tuple[str, ...] = ()  # what advanced the batches, and why
    timed: bool = True  # whether any of its clocks is t/τ
    labels: dict[str, Any] = dataclasses.field(default_factory=dict)  # as in `GridLayout`


def compute(block: Block) -> Answer:
    """Train the wanted cells of a block; a cell that fails is told with its reason.

    Each batch has the size that the whole block gives it, whatever is wanted of it, so that a
    cell does not depend on which other cells were there before.
    """
    cells = _unpickled(block.cells) if isinstance(block.cells, bytes) else block.cells
    jax.config.update("jax_enable_x64", block.double)  # a worker starts without
    first, shape = block.starts, block.wanted.shape
    seeds = cells.seeds_in(first[-1], first[-1] + shape[-1])
    failures: list[tuple[tuple[int, ...], str]] = []
    entries: list[Entry] = []
    engines = dict(zip(np.ndindex(*shape[:-1]), block.engines, strict=True))
    for index in engines:
        places = np.flatnonzero(block.wanted[index])
        if not len(places):
            continue
        try:
            point = cells.point(tuple(i + a for i, a in zip(index, first[:-1], strict=True)))
            entries += point.entries(index, seeds[places], places)
        except Exception as error:
            failures += [((*index, int(place)), _reason(error)) for place in places]
    found: list[Trained] = []
    # Cells of other save points are other programs; one that raises must not halve the others.
    groups: dict[bytes, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.point.marks.tobytes(), []).append(entry)
    one = partial(_trained, cells=cells, seeds=seeds, engines=engines, size=block.size)
    whole = int(np.prod(shape))
    for group in groups.values():
        _run(group, partial(one, whole=whole), found, failures)
    done, kinds = np.zeros(shape, bool), np.full(shape, -1, np.int8)
    for each in found:
        done[tuple(each.result.batch.cells.T)] = True
        kinds[tuple(each.result.batch.cells.T)] = ENGINES.index(each.result.kind)
    said = tuple(dict.fromkeys(each.result.engine for each in found))
    layout = laid_out(found, shape, cells.keeps)
    timed = any(each.result.batch.parts[2].keeps_time for each in found) or not found
    more = (failures, kinds, said, timed, layout.labels)
    return Answer(layout.values, layout.clocks, done, *more)


@lru_cache(maxsize=2)
def _unpickled(cells: bytes) -> AbstractCells:
    """The cells of a sweep, the same object for all of its blocks: its functions compile once."""
    import cloudpickle

    return cloudpickle.loads(cells)


def _run(entries: list[Entry], one: Any, found: list, failures: list) -> None:
    """Train entries; where that raises an error, train each half by itself.

    In the end single cells are left, and those that still raise are failures with their reason. One
    bad cell among thousands thus costs some repeated work and none of the others.

    - `one`: trains a list of entries.
    - `found`, `failures`: lists that the results and the failures are added to.
    """
    try:
        found += list(one(entries))
    except Exception as error:
        if len(entries) > 1:
            middle = len(entries) // 2
            halves = entries[:middle], entries[middle:]
        elif len(entries[0].seeds) > 1:
            halves = _split(entries[0])
        else:
            (entry,) = entries
            failures.append(((*entry.index, int(entry.seeds[0])), _reason(error)))
            return
        for half in halves:
            _run(list(half), one, found, failures)


def _split(entry: Entry) -> tuple[list[Entry], list[Entry]]:
    middle = len(entry.seeds) // 2
    first, last = slice(middle), slice(middle, None)
    return tuple(  # pyright: ignore
        [dataclasses.replace(entry, seeds=entry.seeds[part], weights=entry.weights[part])]
        for part in (first, last)
    )


def _trained(
    entries: list[Entry],
    *,
    cells: AbstractCells,
    seeds: np.ndarray,
    engines: Mapping[tuple[int, ...], tuple[str, int]],
    size: int,
    whole: int,
) -> Iterator[Trained]:
    # All cells of one shape: fill up. Else each shape has a batch of its own.
    """Train entries in the batches that a full block has.

    Where all cells have one shape, the batch is filled up to the size of the block, so that every
    block runs the same compiled program. Otherwise each shape has a batch of its own.

    - `engines`: for each place, the engine and the number of runs that share its program.
    - `size`: the cells of a full block.
    - `whole`: the cells of this block, wanted or not.
    """
    plans = planned(entries, seeds)
    if len(plans) == 1 and plans[0].count < max(whole, size):
        plans = planned(entries, seeds, [max(whole, size)])
    for number, batch in enumerate(plans):
        engine, count = engines[next(iter(batch.points))]
        batch = dataclasses.replace(batch, engine=engine, group=count)
        found = train(batch, number, cells)
        if found.result.interrupted:
            raise KeyboardInterrupt
        yield found


def _reason(error: Exception) -> str:
    line = " ".join(f"{error}".split()) or type(error).__name__
    return line[:REASON]
