"""What a sweep would take, from its sizes alone, before anything is drawn or compiled."""

import dataclasses
import math

import jax
import numpy as np

from iclflow.losses.memory import RESERVE, device_bytes
from iclflow.runs.plan import SPEED
from iclflow.study.settings import Settings
from iclflow.study.sizes import save_count, task_size, weight_count
from iclflow.sweeps.design import Design
from iclflow.sweeps.layout import block_shape

FLOW = 4000  # gradients that a flow takes, roughly
COMPILE = 3.0  # seconds a program
LONG = 10.0  # seconds of a block at most: what Ctrl-C or a kill can lose
LEAST, MOST = 16, {"cpu": 4096, "gpu": 65536}  # cells of a block
PER_WORKER = 4  # blocks that a worker should have, so that all end together
COPIES = 8  # of the weights: gradients, the optimiser's state, what a step needs


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Cells, blocks of them, bytes of memory and of the store, and seconds."""

    cells: int
    points: int
    block: tuple[int, ...]  # shape
    programs: int  # compiled
    memory: int  # of one block, bytes
    disk: int
    seconds: float  # on one process

    @property
    def blocks(self) -> int:
        """How many there are."""
        return math.ceil(self.cells / max(1, math.prod(self.block)))


def estimate(design: Design, workers: int = 1, cells: int | None = None) -> Estimate:
    """What a design takes; `workers` processes each want some blocks, of `cells` if given."""
    first = design.settings((0,) * len(design.axes))
    speed = SPEED.get(jax.default_backend(), SPEED["gpu"])
    each = cell_seconds(first, speed)
    size = min(MOST.get(jax.default_backend(), MOST["gpu"]), int(LONG / each) + 1)
    size = min(size, int(RESERVE * device_bytes() / cell_bytes(first)) + 1)
    size = max(min(LEAST, size), min(size, math.ceil(design.cells / (PER_WORKER * workers))))
    if workers == 1 and design.cells <= MOST["cpu"] and each * design.cells < LONG:
        size = design.cells
    block = block_shape(design, size if cells is None else cells)
    seconds, programs = 0.0, set()
    for place in design.places():
        settings = design.settings(place)
        seconds += design.seeds * cell_seconds(settings, speed)
        programs.add(_shape(settings))
    saves = min(save_count(first), 3 * (first.steps or 10**9)) if design.record else 0
    wide = saves * sum(_width(name, first) for name in design.record)
    numbers = wide + 4 + len(design.summaries) * task_size(first)
    return Estimate(
        cells=design.cells,
        points=int(np.prod(design.shape[:-1], dtype=int)),
        block=block,
        programs=len(programs),
        memory=math.prod(block) * cell_bytes(first),
        disk=8 * design.cells * numbers,
        seconds=seconds + COMPILE * len(programs),
    )


def cell_seconds(settings: Settings, speed: float) -> float:
    """How long a run takes inside a batch, roughly."""
    steps = settings.steps or FLOW
    if settings.steps is None and settings.rate is not None and settings.time is not None:
        steps = settings.time / (2 * settings.rate)
    return steps * (weight_count(settings) + loss_numbers(settings)) / speed


def loss_numbers(settings: Settings) -> int:
    """Numbers that a step reads of the loss, roughly."""
    size, drawn = task_size(settings), settings.batch or settings.sequences
    full = settings.blocks == "full" or settings.sequences is not None
    features = size * (size + 1) * (size + 2) // 2 if full else size**2
    if settings.model.startswith("softmax") or settings.loss == "sequences":
        return (drawn or 1) * (settings.context + 1) * (size + 1) * settings.heads
    if settings.loss == "features" or settings.batch is not None:
        return (drawn or 1) * features
    return features**2 if drawn is not None else 4 * size**2


def cell_bytes(settings: Settings) -> int:
    """Memory of one run inside a batch."""
    wide = 4 + settings.heads + (weight_count(settings) if _weights(settings) else 0)
    scratch = loss_numbers(settings) if settings.model.startswith("softmax") else 0
    return 8 * (COPIES * weight_count(settings) + save_count(settings) * wide + scratch)


def _weights(settings: Settings) -> bool:
    return "weights" in (settings.record or ())


def _width(name: str, settings: Settings) -> int:
    known = {"weights": weight_count(settings), "values": settings.heads}
    return (known | {"effective": task_size(settings) ** 2}).get(name, 1)


def _shape(settings: Settings) -> tuple:
    """What cells of one compiled program share, as far as the settings tell."""
    marks = (settings.steps, settings.time, settings.save)
    model = (settings.model, settings.heads, settings.rank, settings.blocks, settings.optimiser)
    data = (task_size(settings), settings.sequences is None, settings.dynamics, settings.batch)
    return (*marks, *model, *data)
