"""`sweep`: many runs, the one loop on the host: cells, batches, pieces, observers, a store.

What a sweep into a store takes is estimated beforehand: engines, blocks, seconds, memory, disk.
"""

import dataclasses
import math
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import ArrayLike, PRNGKeyArray

from iclflow.dynamics import AbstractDynamics
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractInitialiser, empty_model
from iclflow.results.files import require_path
from iclflow.results.messages import Progress, progress_bar
from iclflow.results.provenance import code_key
from iclflow.runs import cost
from iclflow.runs.batch import (
    SMALL,
    AbstractObserver,
    Piece,
    batches,
    blank_state,
    choose,
    require_observers,
)
from iclflow.runs.cells import AbstractCells, Grid, Vary
from iclflow.runs.cluster import on_cluster, require_client
from iclflow.runs.compute import (
    ENGINES,
    Answer,
    Block,
    Trained,
    assemble,
    compute,
    measured_bytes,
    planned,
    recordings,
    train,
)
from iclflow.runs.folder import RunFolder
from iclflow.runs.fused.engine import CUDA, VMAP, available
from iclflow.runs.record import Record, by_name, resolve
from iclflow.runs.store import Region, Store, as_runs, block_shape, extent
from iclflow.runs.testing import Test, Tests
from iclflow.tasks.base import AbstractTask, Values
from iclflow.tasks.checks import RESERVE, device_bytes, require_memory

One = AbstractLoss | AbstractTask | Callable[[PRNGKeyArray], AbstractLoss]
Source = One | Mapping[Any, One]


def sweep(
    source: Source,
    init: AbstractInitialiser,
    dynamics: AbstractDynamics,
    *,
    until: ArrayLike | None = None,
    saveat: Values | None = None,
    seeds: int | Sequence[int] | None = None,
    axes: Mapping[str, Sequence[Any] | Mapping[str, Any]] | None = None,
    vary: Vary = Vary.WEIGHTS,
    record: Record = ("loss",),
    final: Record = (),
    test: Test = None,
    start: xr.Dataset | None = None,
    key: PRNGKeyArray | None = None,
    store: Path | str | None = None,
    client: Any = None,
    observers: Sequence[AbstractObserver] = (),
    progress: bool | Progress | None = None,
    settings: Any = None,
) -> xr.Dataset:
    """Train over seeds and axes; runs of one shape are trained together.

    - `source`: a loss; a `Task` (its population); a function key -> loss, for `vary` data; or
      several of these by name, which are then an axis `source`.
    - `until`, `saveat`: as in `simulate`.
    - `seeds`: how many, or which; seed s starts from `init(jax.random.key(s))`. One, if omitted.
    - `axes`: field name -> values, of the dynamics (`rate`), its optimiser (`weight_decay`,
      `decay`), the initialiser (`scale`, `rank`, `heads`) or, if `source` is a Task, the task
      (`context`, `label_noise`, `spectrum`). A list of numbers or an object is labelled by its
      text; a mapping instead of a list names the values, `{"rate": {"cosine": schedule}}`.
    - `record`: as in `simulate`, and summaries of whole runs: `"drop_times"`, `"final_loss"` and
      the others in `iclflow.runs.record.SUMMARIES`, or a `Summary` of your own by its name.
    - `final`: what is recorded of the last weights only, as `record` says it; the variables are
      called `final_…`.
    - `test`: what else the models are tested on at every save point, as in `simulate`: the variable
      `test_loss`.
    - `start`: the Dataset of an earlier sweep with its last weights (`final=["weights"]`). All of
      its seeds and axes go on from there, on this source and by this dynamics, with a new clock and
      a new state of the optimiser; `init` says which model they are of. An axis of the earlier
      sweep only chooses the start, unless `axes` names it too.
    - `key`: seed s draws the batches of a stochastic loss from `fold_in(key, s)`; if omitted, from
      `jax.random.key(s)`.
    - `store`: where results are kept, so that the same call goes on from them and ends with the
      same bits. A name that ends in `.zarr` is a store for many cells: each block of them is
      written when it is done, cells that are there are not computed again, values of axes and
      seeds can be added later, and the Dataset reads from it as it is needed. Any other name is a
      folder that keeps the states of a sweep which fits in memory, between the pieces of its runs;
      a run that is over in a fraction of a second leaves nothing there and is repeated.
      What holds another sweep is refused.
    - `client`: a `distributed.Client`. Its cluster computes, and this process writes into `store`.
    - `observers`: objects that look on between the pieces of a run, as `Snapshots`.
    - `progress`: None shows a progress bar on a terminal or in a notebook if the sweep lasts
      longer than two seconds; True shows it always, False never. A function is called instead
      of a bar, with (done, total) in training steps or time, between the pieces of the runs; with
      a `.zarr` store in cells, after each block.
    - `settings`: what the Dataset is stamped with, instead of these arguments.

    Ctrl-C returns what was computed: later points are NaN and `result` says `interrupted`; it is
    raised where there is nothing yet, and with a `.zarr` store, which keeps what was computed.

    - `init`: draws the initial weights, key -> model.
    - `dynamics`: how to train, `Descent` or `Flow`.

    >>> import iclflow as icl
    >>> task = icl.Task(spectrum=[0.6, 0.3], context=15)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> axes = {"scale": [0.1, 0.2]}
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), until=20, seeds=3, axes=axes)
    >>> dict(runs.result.sizes)
    {'scale': 2, 'seed': 3}
    """
    path = None if store is None else require_path("store", store)
    require_observers(observers)
    if client is not None:
        require_client(client)
    cells = Grid.of(
        source,
        axes,
        until=until,
        saveat=saveat,
        start=start,
        seeds=seeds,
        init=init,
        dynamics=dynamics,
        vary=vary,
        record=record,
        final=final,
        key=key,
        tests=None if test is None else Tests.of(test),
        settings=settings,
    )
    if path is not None and path.suffix == ".zarr":
        if observers:
            raise ValueError(
                "observers look on where the runs of a sweep are in memory; give a folder for "
                "store, or leave observers out"
            )
        into_store(cells, path, client=client, progress=progress)
        runs = as_runs(path, cells)
    elif client is not None:
        raise ValueError(
            'a cluster computes into a store; give its name too, for example store="s.zarr"'
        )
    else:
        runs = in_memory(cells, store, observers, progress)
    if "rate" in cells.dims or dynamics.constant_rate is None:
        return runs
    # Also where the settings leave the rate to be chosen.
    return runs.assign_attrs(rate=dynamics.constant_rate)


def in_memory(
    cells: AbstractCells,
    folder: Path | str | None = None,
    observers: Sequence[AbstractObserver] = (),
    progress: bool | Progress | None = None,
) -> xr.Dataset:
    """Train all cells, and keep all that they record in memory; the rest is as in `sweep`."""
    places = np.arange(len(cells.numbers))
    entries = [
        entry
        for place in cells.places()
        for entry in cells.point(place).entries(place, cells.numbers, places)
    ]
    disk = None
    if folder is not None:

        def settings() -> dict[str, Any]:
            points = [cells.text(place) for place in cells.places()]
            about = {"settings": cells.about, "points": points, "seeds": cells.numbers}
            return about | {"code": code_key(__name__)}

        disk = RunFolder(folder, settings)
    sizes = None if disk is None else disk.sizes
    plan = planned(entries, cells.numbers, sizes)
    kept = 0  # what cannot be recorded, or kept in memory, is said before anything runs
    for batch in plan:
        during, _ = recordings(batch, cells.computed)
        point = measured_bytes(during.functions, batch.like, batch.one[0])
        kept += len(batch.cells) * len(batch.point.marks) * point
    require_memory(
        2 * kept,  # once in the batches, and once in the Dataset that they are put into
        f"the records of {sum(len(batch.cells) for batch in plan):,} runs",
        "save at fewer points, record less, or give a store: store='runs.zarr'",
    )
    if disk is not None and sizes is None:
        disk.begin([len(batch.seeds) for batch in plan])
    results: list[Trained] = []
    with progress_bar("training", progress) as report:
        watching = [*observers, _Steps(report, len(plan))]
        for number, batch in enumerate(plan):
            try:
                found = train(batch, number, cells, watching, disk)
            except KeyboardInterrupt:
                if not results:
                    raise
                break
            results.append(found)
            if found.result.interrupted:
                break
    return assemble(results, cells)


@dataclasses.dataclass(frozen=True)
class _Steps:
    """Reports how far all batches have come together."""

    report: Progress
    batches: int

    def stops(self, marks: np.ndarray) -> Sequence[float]:
        return ()

    def __call__(self, piece: Piece) -> None:
        end = float(piece.marks[-1])
        self.report(piece.number * end + piece.mark, self.batches * end)


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
WRITTEN = 6e-7  # the part of that which one process does for all workers: it writes the store
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
      compiling, is not shared, and one process writes what all of them have computed.
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
        seconds=own + max(work / workers, WRITTEN * cells.cells),
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


def into_store(
    cells: AbstractCells,
    path: Path | str,
    *,
    block: int | None = None,
    client: Any = None,
    progress: bool | Progress | None = None,
    expected: SweepEstimate | None = None,
) -> None:
    """Compute the cells that the store at `path` does not have yet, block by block.

    - `path`: a folder, FILE.zarr. The same call goes on where the last one ended, however it ended;
      values of an axis, or seeds, that were added are computed alone.
    - `block`: how many cells are trained together and written at once, for a new store; if omitted,
      what memory and a few seconds allow.
    - `client`: a `distributed.Client`; the cluster it is of computes, this process writes.
    - `progress`: as in `sweep`, in cells.
    - `expected`: the estimate of these cells, where it is known already.

    A cell that fails has its reason in the store, and is tried again by the next call. Ctrl-C ends
    the block that is being written, then the sweep.
    """
    workers = 1 if client is None else max(1, len(client.nthreads()))
    expected = estimate(cells, workers, block) if expected is None else expected
    store = Store(path, cells, expected.block)
    try:
        lost = 0 if store.new else store.repair()
        if lost:
            warnings.warn(
                f"{path} has damaged or missing chunks: {lost} cells are computed anew",
                stacklevel=3,
            )
        with progress_bar("cells", progress) as report:
            programs, done = _engines(store, expected)
            report(done, cells.cells)
            blocks = _blocks(store, programs)
            found = _here(blocks) if client is None else on_cluster(client, blocks)
            for region, answer in found:
                with _uninterrupted():
                    store.write(region, answer)
                done += int(answer.done.sum()) + len(answer.failures)
                report(done, cells.cells)
        store.finish()
    finally:
        store.close()


def _here(blocks: Iterator[tuple[Region, Block]]) -> Iterator[tuple[Region, Answer]]:
    for region, block in blocks:
        yield region, compute(block)


def _engines(store: Store, expected: SweepEstimate) -> tuple[dict[Hashable, tuple[str, int]], int]:
    """The engine of each program, with the runs that share it; and how many cells are there.

    A program goes on with the engine that most of its cells have.
    """
    found = {name: (program.engine, program.group) for name, program in expected.shared.items()}
    begun: dict[Hashable, Counter] = {}
    for region in () if store.new else store.regions():
        codes = store.engines(region)
        for place in np.ndindex(*extent(region)[:-1]):
            there = codes[place][codes[place] >= 0]
            if len(there):
                program = store.cells.program(_absolute(place, region))
                count = dict(zip(*np.unique(there, return_counts=True), strict=True))
                begun.setdefault(program, Counter()).update(count)
    for program, count in begun.items():
        engine = ENGINES[count.most_common(1)[0][0]]
        if engine not in (VMAP, available()):
            raise ValueError(
                f"{store.path} was computed by the fused loop in {engine}, which is not here, and "
                f"cells by {available()} would differ in their last digits; go on where there is "
                f"{'a GPU with CuPy' if engine == CUDA else 'a C++ compiler'}, or choose another "
                f"name"
            )
        found[program] = (engine, found[program][1])
    return found, int(sum(count.total() for count in begun.values()))


def _absolute(place: tuple[int, ...], region: Region) -> tuple[int, ...]:
    """A place along the axes, from where it is inside a region."""
    return tuple(i + side.start for i, side in zip(place, region[:-1], strict=True))


def _blocks(
    store: Store, programs: Mapping[Hashable, tuple[str, int]]
) -> Iterator[tuple[Region, Block]]:
    """The blocks with cells that are missing."""
    cells, double = store.cells, bool(jax.config.read("jax_enable_x64"))
    for region in store.regions():
        wanted = store.engines(region) < 0
        if not wanted.any():
            continue
        engines = tuple(
            programs[cells.program(_absolute(place, region))]
            for place in np.ndindex(*extent(region)[:-1])
        )
        starts, size = tuple(side.start for side in region), int(np.prod(store.block))
        yield region, Block(cells, starts, wanted, engines, size, double)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait for the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    names = (signal.SIGINT, signal.SIGTERM)
    before = {name: signal.signal(name, lambda number, _: came.append(number)) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    if came:
        raise KeyboardInterrupt
