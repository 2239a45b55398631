"""A sweep carried out: block after block here, or many at once on a Dask cluster."""

import asyncio
import dataclasses
import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from iclflow.runs.fused.engine import CUDA, VMAP, available
from iclflow.sweeps.compute import Answer, Block, compute
from iclflow.sweeps.design import Design
from iclflow.sweeps.estimate import Estimate, estimate, shape_of
from iclflow.sweeps.layout import ENGINES, Region, extent, require
from iclflow.sweeps.store import SweepStore, load

AHEAD = 2  # blocks a thread has on a cluster: one to compute, one to go on with
ATTEMPTS = 20  # of a block whose workers die, each of three deaths
CONNECT = 10  # seconds
ALONE = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
ALONE |= dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclasses.dataclass(frozen=True)
class Standing:
    """How far a sweep has come, in cells."""

    done: int
    total: int
    failed: int
    lost: int = 0  # of damaged chunks, computed anew
    engines: tuple[str, ...] = ()  # that computed, and why


def run(
    design: Design,
    out: Path | str,
    *,
    block: int | None = None,
    client: Any = None,
    progress: Callable[[Standing], None] | None = None,
) -> xr.Dataset:
    """Compute the cells of a design that the store `out` has not yet; returns the whole store.

    - `design`: what to run (`Design.of`, `Design.read`).
    - `out`: a folder, FILE.zarr. The same call goes on where the last one ended, however it ended;
      values of an axis, or seeds, that were added are computed alone.
    - `block`: how many cells are trained together and written at once, for a new store; if omitted,
      what memory and a few seconds allow.
    - `client`: a `distributed.Client`; the cluster it is of computes, this process writes.
    - `progress` is called after every block.

    A cell that fails has its reason in the store, and is tried again by the next call. Ctrl-C ends
    the block that is being written, then the sweep.
    """
    workers = 1 if client is None else max(1, len(client.nthreads()))
    expected = estimate(design, workers, block)
    store = SweepStore(out, design, expected.block)
    try:
        lost = 0 if store.new else store.repair()
        wanted = store.wanted()
        standing = Standing(int((~wanted).sum()), design.cells, 0, lost)
        if progress is not None:
            progress(standing)
        blocks = _blocks(store, wanted, _engines(store, expected))
        found = _here(blocks) if client is None else _there(client, blocks)
        for region, answer in found:
            with _uninterrupted():
                store.write(region, answer)
            standing = dataclasses.replace(
                standing,
                done=standing.done + int(answer.done.sum()),
                failed=standing.failed + len(answer.failures),
                engines=tuple(dict.fromkeys((*standing.engines, *answer.engines))),
            )
            if progress is not None:
                progress(standing)
        store.finish()
    finally:
        store.close()
    return load(out, check=False)


@contextmanager
def local_client(workers: int) -> Iterator[Any]:
    """A cluster of single-threaded processes on this machine.

    They speak TLS with keys that are made for this call, so that no other user of the machine can
    send them work.
    """
    distributed = require("distributed")
    require("cryptography")  # which makes the keys
    cluster = distributed.LocalCluster(
        security=distributed.Security.temporary(),
        protocol="tls://",
        n_workers=workers,
        threads_per_worker=1,
        dashboard_address=None,
        # Dask starts its server of pages even without the pages, by default on a port that another
        # cluster may have.
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        env=ALONE,
        silence_logs=logging.ERROR,  # a worker that is slow to end is no news
    )
    with cluster, distributed.Client(cluster) as client:
        yield client


@contextmanager
def remote_client(address: str) -> Iterator[Any]:
    """A cluster that runs already, by the address of its scheduler, or by its scheduler file."""
    distributed = require("distributed")
    if "://" not in address and address.endswith(".json") and not Path(address).is_file():
        raise ValueError(f"there is no scheduler file {address}; dask scheduler writes it")
    named = {"scheduler_file": address} if Path(address).is_file() else {"address": address}
    try:
        client = distributed.Client(**named, timeout=CONNECT)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"no Dask scheduler answers at {address}: {reason}") from None
    with client:
        yield client


def _engines(store: SweepStore, expected: Estimate) -> dict[Any, tuple[str, int]]:
    """The engine of each program, and the runs that share it: the engine of cells there already."""
    found = {shape: (program.engine, program.group) for shape, program in expected.shared.items()}
    codes = store.engines()
    if (codes < 0).all():
        return found
    begun: dict[Any, Counter] = {}
    for place in store.design.places():
        there = codes[place][codes[place] >= 0]
        if len(there):
            count = begun.setdefault(shape_of(store.design.settings(place)), Counter())
            count.update(there.tolist())
    for shape, count in begun.items():
        engine = ENGINES[count.most_common(1)[0][0]]
        if engine not in (VMAP, available()):
            raise ValueError(
                f"{store.path} was computed by the fused loop in {engine}, which is not here, and "
                f"cells by {available()} would differ in their last digits; go on where there is "
                f"{'a GPU with CuPy' if engine == CUDA else 'a C++ compiler'}, or choose another "
                f"name"
            )
        found[shape] = (engine, found[shape][1])
    return found


def _blocks(
    store: SweepStore, wanted: np.ndarray, programs: dict[Any, tuple[str, int]]
) -> Iterator[tuple[Region, Block]]:
    """The blocks with cells that are wanted."""
    design = store.design
    for region in store.regions():
        cells = wanted[region]
        if not cells.any():
            continue
        places = np.ndindex(*extent(region)[:-1])
        starts = [side.start for side in region[:-1]]
        points = tuple(
            design.settings(tuple(i + s for i, s in zip(place, starts, strict=True)))
            for place in places
        )
        seeds = (design.seed + np.arange(region[-1].start, region[-1].stop)).astype(np.uint32)
        rows, size = cells.reshape(len(points), -1), int(np.prod(store.block))
        engines = tuple(programs[shape_of(settings)] for settings in points)
        yield region, Block(points, seeds, rows, engines, size, design.record, design.summaries)


def _here(blocks: Iterator[tuple[Region, Block]]) -> Iterator[tuple[Region, Answer]]:
    for region, block in blocks:
        yield region, compute(block)


def _there(client: Any, blocks: Iterator[tuple[Region, Block]]) -> Iterator[tuple[Region, Answer]]:
    """On a cluster, as they come; a few blocks a thread are under way, so memory is bounded.

    A scheduler that is gone is no failure of the cells: nothing is written of them.
    """
    distributed = require("distributed")
    gone = (OSError, TimeoutError, futures.CancelledError, asyncio.CancelledError)
    try:
        yield from _from_cluster(distributed, client, blocks)
    except gone as error:
        raise error if isinstance(error, ConnectionError) else _lost(error) from None


def _lost(error: BaseException) -> ConnectionError:
    reason = " ".join(str(error).split())[:120] or type(error).__name__
    return ConnectionError(
        f"the Dask scheduler does not answer any more ({reason}); what was computed is kept, and "
        f"the same command goes on from it when there is a scheduler again"
    )


def _from_cluster(
    distributed: Any, client: Any, blocks: Iterator[tuple[Region, Block]]
) -> Iterator[tuple[Region, Answer]]:
    running = distributed.as_completed(loop=client.loop)
    work: dict[Any, tuple[Region, Block, int]] = {}

    def send(region: Region, block: Block, attempt: int) -> None:
        future = client.submit(compute, block, pure=False)
        work[future.key] = (region, block, attempt)
        running.add(future)

    for region, block in blocks:
        send(region, block, 1)
        if len(work) >= AHEAD * max(1, sum(client.nthreads().values())):
            break
    for future in running:
        region, block, attempt = work.pop(future.key)
        if future.status not in ("finished", "error"):
            raise _lost(futures.CancelledError(f"a block is {future.status}"))
        if future.status == "finished":
            yield region, future.result()
        elif isinstance(future.exception(), distributed.KilledWorker) and attempt < ATTEMPTS:
            send(region, block, attempt + 1)
            continue
        else:
            yield region, _failed(block, future.exception())
        for region, block in blocks:
            send(region, block, 1)
            break


def _failed(block: Block, error: Any) -> Answer:
    """The answer of a block that no worker could give."""
    reason = f"the worker failed: {' '.join(str(error).split())[:200]}"
    cells = [(int(p), int(s), reason) for p, s in zip(*np.nonzero(block.wanted), strict=True)]
    none = np.zeros(block.wanted.shape, bool)
    return Answer({}, {}, none, cells, np.full(none.shape, -1, np.int8))


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
