"""Batches trained and summarised; a block of a store computed, here or on a worker."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import equinox as eqx
import jax
import numpy as np

from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.models.base import once_a_kind
from iclflow.runs.batch import AbstractObserver, Disk, run_batch
from iclflow.runs.cells import AbstractCells
from iclflow.runs.dataset import Trained, Variables, laid_out
from iclflow.runs.fused.engine import CPP, CUDA, VMAP
from iclflow.runs.plan import Batch, Entry, batches
from iclflow.runs.record import Recording, by_name, resolve
from iclflow.runs.simulate import warn_single_precision
from iclflow.runs.summaries import Summary

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
