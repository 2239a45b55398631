"""`sweep`: many runs, the one loop on the host: cells, batches, pieces, observers, a store."""

import dataclasses
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
from iclflow.losses.memory import require_memory
from iclflow.models import AbstractInitialiser
from iclflow.results.progress import Progress, progress_bar
from iclflow.results.provenance import code_key
from iclflow.runs.batch import AbstractObserver, Piece
from iclflow.runs.cells import AbstractCells, Grid, Vary
from iclflow.runs.cluster import on_cluster
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
from iclflow.runs.estimate import SweepEstimate, estimate
from iclflow.runs.folder import RunFolder
from iclflow.runs.fused.engine import CUDA, VMAP, available
from iclflow.runs.record import Record
from iclflow.runs.store import Region, Store, as_runs, extent, is_store
from iclflow.runs.testing import Test, Tests
from iclflow.tasks.base import AbstractTask, Values
from iclflow.tasks.checks import require_path

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
      the others in `iclflow.runs.summaries.SUMMARIES`, or a `Summary` of your own by its name.
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

    >>> import iclflow as icl
    >>> task = icl.Task(spectrum=[0.6, 0.3], context=15)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> axes = {"scale": [0.1, 0.2]}
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), until=20, seeds=3, axes=axes)
    >>> dict(runs.result.sizes)
    {'scale': 2, 'seed': 3}
    """
    require_path("store", store)
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
        tests=Tests.of(test),
        settings=settings,
    )
    if is_store(store):
        if observers:
            raise ValueError(
                "observers look on where the runs of a sweep are in memory; give a folder for "
                "store, or leave observers out"
            )
        into_store(cells, store, client=client, progress=progress)  # pyright: ignore
        runs = as_runs(store, cells)  # pyright: ignore
    elif client is not None:
        raise ValueError(
            'a cluster computes into a store; give its name too, for example store="s.zarr"'
        )
    else:
        runs = in_memory(cells, store, observers, progress)
    rate = getattr(dynamics, "rate", None)
    if rate is None or callable(rate) or "rate" in cells.dims:
        return runs
    return runs.assign_attrs(rate=float(rate))  # also where the settings leave it to be chosen


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
