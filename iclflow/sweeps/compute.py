"""One block of cells computed: a pure function of plain values, here or on a worker."""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from iclflow.runs.batch import BatchResult, run_batch
from iclflow.runs.dataset import clock_of, on_grid
from iclflow.runs.labels import variables
from iclflow.runs.plan import Batch, Entry, batches
from iclflow.runs.record import Record, resolve
from iclflow.study.settings import Settings
from iclflow.study.study import Study
from iclflow.sweeps.cells import Workshop, marks_of
from iclflow.sweeps.layout import ENGINES
from iclflow.sweeps.summaries import KINDS, OF_WEIGHTS, Finished, summarise

REASON = 300  # characters


@dataclasses.dataclass(frozen=True)
class Block:
    """Cells to compute: points times seeds, those of them that are wanted."""

    points: tuple[Settings, ...]
    seeds: np.ndarray
    wanted: np.ndarray  # [point, seed]
    engines: tuple[tuple[str, int], ...]  # of each point, with the runs that share its program
    size: int  # cells of a full block: batches are filled up to it, and compile once
    record: tuple[str, ...]
    summaries: tuple[str, ...]


@dataclasses.dataclass
class Answer:
    """What a block found: arrays [point, seed, ...] with NaN where nothing was computed."""

    values: dict[str, tuple[tuple[str, ...], np.ndarray]]  # name -> (further dims, array)
    clocks: dict[str, np.ndarray]  # clock and step at the save points, [point, time]
    done: np.ndarray  # [point, seed]
    failures: list[tuple[int, int, str]]  # point, seed, reason
    kinds: np.ndarray  # [point, seed]: the place in `ENGINES` of what advanced the cell, or -1
    engines: tuple[str, ...] = ()  # what advanced the batches, and why


# A batch, t/τ and the marks of its runs [2, run, time], and its summaries.
_Trained = tuple[BatchResult, np.ndarray, dict[str, tuple[tuple[str, ...], np.ndarray]]]
_workshop = Workshop()  # of this process


def compute(block: Block) -> Answer:
    """Train the wanted cells of a block; a cell that fails is told with its reason.

    Each batch has the size that the whole block gives it, whatever is wanted of it, so that a
    cell does not depend on which other cells were there before.
    """
    jax.config.update("jax_enable_x64", True)  # a worker starts without
    failures: list[tuple[int, int, str]] = []
    found: list[_Trained] = []
    for group in _alike(block, failures):
        _run(group, block, found, failures)
    done = np.zeros(block.wanted.shape, bool)
    kinds = np.full(done.shape, -1, np.int8)
    for result, _, _ in found:
        done[tuple(result.batch.cells.T)] = True
        kinds[tuple(result.batch.cells.T)] = ENGINES.index(result.kind)
    engines = tuple(dict.fromkeys(result.engine for result, _, _ in found))
    return Answer(_laid_out(found, block), _clocks(found, block), done, failures, kinds, engines)


@dataclasses.dataclass(frozen=True)
class _Group:
    """Entries with the same save points; `studies` by their point."""

    marks: np.ndarray
    entries: list[Entry]
    studies: dict[int, Study]


def _alike(block: Block, failures: list[tuple[int, int, str]]) -> Iterator[_Group]:
    """The wanted cells, grouped by save points; points that cannot be built are failures."""
    groups: dict[bytes, _Group] = {}
    for point, settings in enumerate(block.points):
        places = np.flatnonzero(block.wanted[point])
        if not len(places):
            continue
        try:
            study = _workshop.study(settings)
            marks = marks_of(study)
            entries = _workshop.entries(study, point, block.seeds[places], places)
        except Exception as error:
            failures += [(point, int(place), _reason(error)) for place in places]
            continue
        group = groups.setdefault(marks.tobytes(), _Group(marks, [], {}))
        group.entries.extend(entries)
        group.studies[point] = study
    yield from groups.values()


def _run(group: _Group, block: Block, found: list, failures: list) -> None:
    """Train a group; what raises is halved until single cells are left, which are failures."""
    try:
        found += list(_trained(group, block))
    except Exception as error:
        if len(group.entries) > 1:
            middle = len(group.entries) // 2
            halves = group.entries[:middle], group.entries[middle:]
        elif len(group.entries[0].seeds) > 1:
            halves = _split(group.entries[0])
        else:
            (entry,) = group.entries
            failures.append((entry.index[0], int(entry.seeds[0]), _reason(error)))
            return
        for half in halves:
            _run(dataclasses.replace(group, entries=list(half)), block, found, failures)


def _split(entry: Entry) -> tuple[list[Entry], list[Entry]]:
    middle = len(entry.seeds) // 2
    first, last = slice(middle), slice(middle, None)
    return tuple(  # pyright: ignore
        [dataclasses.replace(entry, seeds=entry.seeds[part], weights=entry.weights[part])]
        for part in (first, last)
    )


def _trained(group: _Group, block: Block) -> Iterator[_Trained]:
    whole = len(block.points) * len(block.seeds)
    # All cells of one shape: fill up. Else each shape has a batch of its own.
    saved = 8 * len(group.marks)
    plans = list(batches(group.entries, block.seeds, lambda *_: saved))
    if len(plans) == 1 and plans[0].count < max(whole, block.size):
        sizes = [max(whole, block.size)]
        plans = list(batches(group.entries, block.seeds, lambda *_: saved, sizes))
    for number, batch in enumerate(plans):
        point = int(batch.cells[0, 0])
        study = group.studies[point]
        engine, count = block.engines[point]
        batch = dataclasses.replace(batch, engine=engine, group=count)
        loss, _, dynamics = batch.one
        reason = dynamics.admits(loss, batch.like)
        if reason is not None:
            raise ValueError(f"{type(loss).__name__} cannot train this model: {reason}")
        common = loss if batch.axes[0] is None else None
        during: Record = {name: name for name in ("loss", *block.record)} | study.tests
        ending: Record = ["weights"] if OF_WEIGHTS & {*block.summaries} else []
        recording = resolve(during, loss=common, dynamics=dynamics)
        final = resolve(ending, loss=common, dynamics=dynamics)
        result = run_batch(batch, number, group.marks, recording, final, None, (), None)
        if result.interrupted:
            raise KeyboardInterrupt
        clock = np.broadcast_to(clock_of(result, group.marks), (batch.count, len(group.marks)))
        yield (
            result,
            np.stack([clock, np.broadcast_to(group.marks, clock.shape)]),
            _summaries(result, clock, group, block),
        )


def _summaries(
    result: BatchResult, time: np.ndarray, group: _Group, block: Block
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """The summaries of a batch, point by point: levels differ from point to point."""
    points, rows = result.batch.cells[:, 0], np.arange(result.batch.count)
    parts: dict[str, list[tuple[tuple, np.ndarray]]] = {}
    for point in np.unique(points):
        mine = rows[points == point]
        weights = result.final.get("weights")
        weights = None if weights is None else {n: a[mine] for n, a in weights.items()}
        seeds = block.seeds[result.batch.cells[mine, 1]]
        loss = result.record["loss"][mine]
        runs = Finished(group.studies[int(point)], _workshop, seeds, time[mine], loss, weights)
        for name, array in summarise(block.summaries, runs).items():
            parts.setdefault(name, []).append(((mine,), array))
    return {name: (KINDS[name][1], _joined(found, (len(rows),))) for name, found in parts.items()}


def _laid_out(
    found: Sequence[_Trained], block: Block
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """The batches of a block on its grid [point, seed]."""
    parts: dict[str, tuple[tuple[str, ...], list]] = {}

    def put(name: str, dims: tuple[str, ...], place: tuple, array: np.ndarray) -> None:
        parts.setdefault(name, (dims, []))[1].append((place, array))

    for result, _, summaries in found:
        batch: Batch = result.batch
        place = tuple(batch.cells.T)
        put("result", (), place, result.result)
        put("stopped", (), place, result.stopped)
        for name, (dims, array) in summaries.items():
            put(name, dims, place, array)
        kept = result.record if block.record else {}
        kept = {n: a for n, a in kept.items() if n != "loss" or n in block.record}
        for name, (dims, array) in variables(kept, 2, batch.like.axes()).items():
            put(name, ("time", *dims), place, array)
    return {n: (dims, _joined(rows, block.wanted.shape)) for n, (dims, rows) in parts.items()}


def _clocks(found: Sequence[_Trained], block: Block) -> dict[str, np.ndarray]:
    """t/τ and the marks of each point; runs of one point share them."""
    longest = max((clocks.shape[2] for _, clocks, _ in found), default=0)
    whole = np.full((2, len(block.points), longest), np.nan)
    for result, clocks, _ in found:
        whole[:, result.batch.cells[:, 0], : clocks.shape[2]] = clocks
    return {"clock": whole[0], "step": whole[1]}


def _joined(parts: list[tuple[tuple, np.ndarray]], shape: tuple[int, ...]) -> np.ndarray:
    if parts[0][1].dtype != object:
        return on_grid(parts, shape)
    whole = np.full(shape, "", object)
    for place, array in parts:
        whole[place] = array
    return whole


def _reason(error: Exception) -> str:
    line = " ".join(f"{error}".split()) or type(error).__name__
    return line[:REASON]
