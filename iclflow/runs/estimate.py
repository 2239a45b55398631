"""What a sweep would take: engines, blocks, seconds, memory and disk, before anything is drawn."""

import dataclasses
import math
from collections.abc import Hashable, Mapping

import numpy as np

from iclflow.losses.memory import RESERVE, device_bytes
from iclflow.models import empty_model
from iclflow.runs import cost
from iclflow.runs.batch import SMALL, batches, blank_state, choose
from iclflow.runs.cells import AbstractCells, Vary
from iclflow.runs.compute import measured_bytes
from iclflow.runs.fused.engine import VMAP
from iclflow.runs.record import by_name, resolve
from iclflow.runs.store import block_shape

LONG = 10.0  # seconds of a block at most: what Ctrl-C or a kill can lose
LEAST = 16  # cells of a block
MOST = {"cpu": 2**16, "gpu": 2**20}  # cells of a block; a GPU is done with fewer in milliseconds
PER_WORKER = 4  # blocks that a worker should have, so that all end together
TRACED = 16  # programs whose steps are counted; those between take as much as the nearest
# Seconds, rough ones of two cores; `python benchmarks/sweeps.py announced` compares their sum.
STARTED = 4.0  # of a process: imports, its key, and small programs
POINT = 1.5e-3  # to build the task, the loss and the dynamics of one point
DRAWN = 2e-8  # to draw one number of a prompt
CELL = 2e-5  # to start one run, and to lay it out and write it
SAVED = 3e-8  # to record one number of one run at one save point


@dataclasses.dataclass(frozen=True)
class SharedProgram:
    """Cells that share one compiled program.

    - `cells`: how many there are in the design.
    - `group`: how many are trained together where memory allows.
    - `engine`: what advances them.
    - `compiling`: seconds, once.
    - `cell`: seconds of one cell, with its summaries.
    - `memory`: bytes of one cell inside a batch.
    - `kept`: bytes of what a store keeps of one cell.
    """

    cells: int
    group: int
    engine: str
    compiling: float
    cell: float
    memory: int
    kept: int


@dataclasses.dataclass(frozen=True)
class SweepEstimate:
    """Cells, blocks of them, bytes of memory and of the store, and seconds.

    - `workers`: the processes that compute, each with a device as fast as the one here.
    - `alone`: seconds on one process.
    - `seconds`: seconds on all of them. What every process does for itself, importing and
      compiling, is not shared.
    """

    cells: int
    points: int
    block: tuple[int, ...]  # shape
    shared: Mapping[Hashable, SharedProgram]
    memory: int  # of one block, bytes
    disk: int
    seconds: float
    alone: float
    workers: int = 1

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return math.ceil(self.cells / max(1, math.prod(self.block)))

    @property
    def programs(self) -> int:
        """How many programs are compiled."""
        return len(self.shared)

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that will advance the cells."""
        return tuple(dict.fromkeys(program.engine for program in self.shared.values()))


def estimate(cells: AbstractCells, workers: int = 1, size: int | None = None) -> SweepEstimate:
    """What a sweep takes, from the operations of its steps and the speeds of this machine.

    One point of each compiled program is built, of few prompts; nothing else is drawn and nothing
    is trained.

    - `workers`: processes, each of which wants some blocks.
    - `size`: how many cells a block has; if omitted, what memory and a few seconds allow.
    """
    kinds: dict[Hashable, _Kind] = {}
    for place in cells.places():
        kind = kinds.setdefault(cells.program(place), _Kind(place))
        kind.points += 1
        kind.losses.add(cells.losses(place))
    refused: list[str] = []
    traced = np.unique(np.linspace(0, len(kinds) - 1, TRACED).round().astype(int))
    known = {i: _program(cells, list(kinds.values())[i], refused) for i in traced}
    shared: dict[Hashable, SharedProgram] = {}
    for i, (program, kind) in enumerate(kinds.items()):
        runs = kind.points * cells.count
        like = known[traced[np.argmin(np.abs(traced - i))]]
        alike = dataclasses.replace(like, cells=runs, group=runs)
        shared[program] = known.get(i, alike)
    if len(refused) == len(known):  # what a dry run accepts must be able to run
        raise ValueError(f"no cell of this sweep can be trained: {refused[0]}")
    longest = max(program.cell for program in shared.values())
    widest = max(program.memory for program in shared.values())
    most = min(
        MOST[cost.backend()], int(LONG / longest) + 1, int(RESERVE * device_bytes() / widest) + 1
    )
    if workers > 1:
        most = max(min(LEAST, most), min(most, math.ceil(cells.cells / (PER_WORKER * workers))))
    block = block_shape(cells, most if size is None else size)
    points = int(np.prod(cells.shape[:-1], dtype=object))
    own = STARTED + sum(program.compiling for program in shared.values())
    work = points * POINT + sum(program.cells * program.cell for program in shared.values())
    return SweepEstimate(
        cells=cells.cells,
        points=points,
        block=block,
        shared=shared,
        memory=math.prod(block) * widest,
        disk=sum(program.cells * program.kept for program in shared.values()),
        seconds=own + work / workers,
        alone=own + work,
        workers=workers,
    )


@dataclasses.dataclass
class _Kind:
    """Points of one program: the place of the first, how many, and the losses they have."""

    place: tuple[int, ...]
    points: int = 0
    losses: set[Hashable] = dataclasses.field(default_factory=set)


def _program(cells: AbstractCells, kind: _Kind, refused: list[str]) -> SharedProgram:
    """What the cells of one compiled program take.

    - `cells`: the sweep.
    - `kind`: the points of this program.
    - `refused`: a list that the reason is added to, if none of the points can be built.
    """
    runs = kind.points * cells.count
    try:
        outline = cells.outline(kind.place)
        point, seed = outline.point, cells.seeds_in(0, 1)
        (entry,) = point.entries(kind.place, seed, np.asarray([0]))
        during = resolve(point.record, loss=entry.loss, dynamics=entry.dynamics).functions
    except ValueError as reason:  # the point fails when it is run, and the others do not
        refused.append(str(reason))
        return SharedProgram(runs, runs, VMAP, 0.0, POINT, 0, 0)
    group, own = runs, point.vary is not Vary.WEIGHTS
    if cost.numbers(entry.loss) > SMALL:  # runs on one loss are trained together, and no others
        group = 1 if own else runs // len(kind.losses)
    model, marks = empty_model(entry.init), point.marks
    (batch,) = batches([entry], seed, lambda *_: 0)
    batch = dataclasses.replace(batch, group=group)
    engine = choose(batch, blank_state(batch), marks, during).kind
    operations = outline.more * cost.operations(entry.loss, entry.dynamics, model)
    steps = cost.steps_of(marks)
    # As fast as it is among many runs; the overhead of each step is shared by a block.
    work = group * steps * operations
    speed, plain = (cost.speed(name, work).operation for name in (engine, VMAP))
    recorded = len(marks) * measured_bytes(during, model, entry.loss)
    wanted = {name: one for name, one in during.items() if cells.keeps(name)}
    kept = len(marks) * measured_bytes(wanted, model, entry.loss)
    levels = max(1, len(point.levels) - 1) if cells.computed else 0
    ending = 8 * cost.numbers(model) * ("weights" in by_name(point.final))
    more = cells.computed.values()
    orbit = max((summary.steps for summary in more), default=0.0)
    cell = (
        CELL
        + SAVED * recorded / 8
        + (steps * speed + orbit * plain) * operations
        + sum(summary.seconds for summary in more)
        + DRAWN * (outline.drawn if own else outline.drawn / cells.count)
    )
    scratch = entry.loss.scratch() * math.ceil(outline.more)
    overhead = cost.seconds(VMAP, 0.0, 1, steps) if engine == VMAP else 0.0
    compiling = cost.compiling(engine, operations, work) + cost.compiling(VMAP, 0.0, work)
    memory = cost.run_bytes(model, recorded, scratch)
    stored = kept + ending + 8 * (4 + levels * len(cells.computed))
    return SharedProgram(runs, group, engine, compiling + overhead, cell, memory, stored)
