"""What a sweep would take: engines, blocks, seconds, memory and disk, before anything is drawn."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from iclflow.losses.memory import RESERVE, device_bytes
from iclflow.models import empty_model
from iclflow.runs import cost
from iclflow.runs.batch import blank_state, choose
from iclflow.runs.fused.engine import VMAP
from iclflow.runs.plan import SMALL, Entry, batches
from iclflow.runs.record import resolve
from iclflow.study.settings import Settings, save_count, task_size, weight_count
from iclflow.study.study import Study
from iclflow.sweeps.cells import OF_LOSS, marks_of
from iclflow.sweeps.design import Design
from iclflow.sweeps.layout import block_shape

LONG = 10.0  # seconds of a block at most: what Ctrl-C or a kill can lose
LEAST, MOST = 16, 65536  # cells of a block
PER_WORKER = 4  # blocks that a worker should have, so that all end together
TRACED = 16  # programs whose steps are counted; further ones are compared by their weights
FEW = 64  # prompts that a loss is drawn from to count the operations of its step
# Seconds, rough ones of two cores; `python benchmarks/sweeps.py announced` compares their sum.
STARTED = 4.0  # of a process: imports, its key, and small programs
POINT = 1.5e-3  # to build the task, the loss and the dynamics of one point
DRAWN = 2e-8  # to draw one number of a prompt
CELL = 2e-5  # to start one run, and to lay it out and write it
SAVED = 3e-8  # to record one number of one run at one save point
SUMMARY = {"detected_times": 4e-3, "predicted_times": 2e-2, "prediction_error": 2e-2}
SUMMARY |= {"algorithm": 1e-3}
ORBIT = 2048 * 3  # steps of descent that `lyapunov` and `regime` are worth


@dataclasses.dataclass(frozen=True)
class Program:
    """Cells that share one compiled program.

    - `cells`: how many there are in the design.
    - `group`: how many are trained together where memory allows.
    - `engine`: what advances them.
    - `compiling`: seconds, once.
    - `cell`: seconds of one cell, with its summaries.
    - `memory`: bytes of one cell inside a batch.
    """

    cells: int
    group: int
    engine: str
    compiling: float
    cell: float
    memory: int


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Cells, blocks of them, bytes of memory and of the store, and seconds on one process."""

    cells: int
    points: int
    block: tuple[int, ...]  # shape
    shared: Mapping[Any, Program]
    memory: int  # of one block, bytes
    disk: int
    seconds: float

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

    def program(self, settings: Settings) -> Program:
        """The program of the cells of one point."""
        return self.shared[shape_of(settings)]


def estimate(design: Design, workers: int = 1, cells: int | None = None) -> Estimate:
    """What a design takes, from the operations of its steps and the speeds of this machine.

    One point of each compiled program is built, of few prompts; nothing else is drawn and nothing
    is trained.

    - `workers`: processes, each of which wants some blocks.
    - `cells`: how many cells a block has; if omitted, what memory and a few seconds allow.
    """
    kinds: dict[Any, _Kind] = {}
    for place in design.places():
        settings = design.settings(place)
        kind = kinds.setdefault(shape_of(settings), _Kind(settings))
        kind.points += 1
        kind.losses.add(tuple(getattr(settings, name) for name in OF_LOSS))
    shared: dict[Any, Program] = {}
    refused: list[str] = []
    for shape, kind in kinds.items():
        known = list(shared.values())
        if len(shared) < TRACED:
            shared[shape] = _program(design, kind, refused)
        else:
            shared[shape] = _scaled(known[0], next(iter(kinds.values())), kind, design)
    if len(refused) == len(shared):  # what a dry run accepts must be able to run
        raise ValueError(f"no cell of this design can be trained: {refused[0]}")
    longest = max(program.cell for program in shared.values())
    widest = max(program.memory for program in shared.values())
    size = min(MOST, int(LONG / longest) + 1, int(RESERVE * device_bytes() / widest) + 1)
    if workers > 1:
        size = max(min(LEAST, size), min(size, math.ceil(design.cells / (PER_WORKER * workers))))
    block = block_shape(design, size if cells is None else cells)
    first = design.settings((0,) * len(design.axes))
    saves = min(save_count(first), 3 * (first.steps or 10**9)) if design.record else 0
    wide = saves * sum(_width(name, first) for name in design.record)
    kept = wide + 4 + len(design.summaries) * task_size(first)
    points = int(np.prod(design.shape[:-1], dtype=object))
    return Estimate(
        cells=design.cells,
        points=points,
        block=block,
        shared=shared,
        memory=math.prod(block) * widest,
        disk=8 * design.cells * kept,
        seconds=STARTED
        + points * POINT
        + sum(program.compiling + program.cells * program.cell for program in shared.values()),
    )


@dataclasses.dataclass
class _Kind:
    """Points of one shape: the settings of the first, how many, and the losses they have."""

    settings: Settings
    points: int = 0
    losses: set[Any] = dataclasses.field(default_factory=set)


def _program(design: Design, kind: _Kind, refused: list[str]) -> Program:
    """What the cells of one shape take; the reason goes to `refused` where none can be built."""
    settings, points = kind.settings, kind.points
    try:
        study = _small_study(settings)
        marks = marks_of(study)
    except ValueError as reason:  # the point fails when it is run, and the others do not
        refused.append(str(reason))
        cells = points * design.seeds
        return Program(cells, cells, VMAP, 0.0, POINT, 8 * weight_count(settings))
    group = runs = points * design.seeds
    own = settings.vary != "weights"
    if cost.numbers(study.loss) > SMALL:  # runs on one loss are trained together, and no others
        group = 1 if own else runs // len(kind.losses)
    model = empty_model(study.init)
    during: dict[str, Any] = {name: name for name in ("loss", *design.record)} | study.tests
    record = resolve(during, loss=study.loss, dynamics=study.dynamics).functions
    one = np.asarray([0])
    entry = Entry((0,), study.loss, study.init, study.dynamics, one, one.astype(np.uint32))
    (batch,) = batches([entry], one.astype(np.uint32), lambda *_: 0)
    batch = dataclasses.replace(batch, group=group)
    engine = choose(batch, blank_state(batch), marks, record).kind
    prompts = settings.sequences or 0
    by_prompt = study.choice.level in ("sequences", "features") and settings.batch is None
    more = prompts / _few(settings) if by_prompt and prompts else 1.0
    operations = more * cost.operations(study.loss, study.dynamics, model)
    steps = cost.steps_of(marks)
    # As fast as it is among many runs; the overhead of each step is shared by a block.
    work = group * steps * operations
    speed = cost.speed(engine, work).operation
    orbit = ORBIT if {"lyapunov", "regime"} & {*design.summaries} else 0
    recorded = len(marks) * sum(_width(name, settings) for name in ("loss", *design.record))
    drawn = prompts * (settings.context + 1) * task_size(settings) * DRAWN
    cell = (
        CELL
        + SAVED * recorded
        + (steps * speed + orbit * cost.speed(VMAP, work).operation) * operations
        + sum(SUMMARY.get(name, 0.0) for name in design.summaries)
        + (drawn if own else drawn / design.seeds)
    )
    scratch = study.loss.scratch() * math.ceil(more)
    overhead = cost.seconds(VMAP, 0.0, 1, steps) if engine == VMAP else 0.0
    compiling = cost.compiling(engine, operations, work) + cost.compiling(VMAP, 0.0, work)
    memory = cost.run_bytes(model, 8 * recorded, scratch)
    return Program(runs, group, engine, compiling + overhead, cell, memory)


def _scaled(like: Program, first: _Kind, kind: _Kind, design: Design) -> Program:
    """The program of a further shape: that of the first one, in proportion to its weights."""
    ratio = weight_count(kind.settings) / weight_count(first.settings)
    cells, memory = kind.points * design.seeds, int(ratio * like.memory)
    return Program(cells, cells, like.engine, ratio * like.compiling, ratio * like.cell, memory)


def _few(settings: Settings) -> int:
    """The prompts that a step is counted with."""
    return min(settings.sequences or FEW, max(FEW, 2 * (settings.batch or 0)))


def _small_study(settings: Settings) -> Study:
    """The study of settings with few prompts, and without measuring a rate that is not needed."""
    task = settings.task()
    init = settings.initialiser(task)
    choice = settings.choice(task)
    few = None if settings.sequences is None else _few(settings)
    small = dataclasses.replace(settings, sequences=few)
    loss = small.build_loss(task, choice)
    if settings.rate is None and settings.time is None and settings.dynamics != "flow":
        small = dataclasses.replace(small, rate=1e-3)
    return Study(small, task, init, choice, loss, small.build_dynamics(loss, init), {})


def _width(name: str, settings: Settings) -> int:
    known = {"weights": weight_count(settings), "values": settings.heads}
    return (known | {"effective": task_size(settings) ** 2}).get(name, 1)


def shape_of(settings: Settings) -> tuple:
    """What cells of one compiled program share, as far as the settings tell."""
    marks = (settings.steps, settings.time, settings.save)
    model = (settings.model, settings.heads, settings.rank, settings.blocks, settings.optimiser)
    data = (task_size(settings), settings.sequences is None, settings.dynamics, settings.batch)
    return (*marks, *model, *data)
