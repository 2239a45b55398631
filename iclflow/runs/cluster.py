"""Blocks of a sweep on a Dask cluster: sent, computed again where workers die, and gathered."""

import asyncio
import dataclasses
import logging
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from iclflow.runs.compute import Answer, Block, compute
from iclflow.runs.store import Region, require
from iclflow.tasks.checks import shown

AHEAD = 2  # blocks per thread of a cluster: one to compute, one to go on with
ATTEMPTS = 20  # of a block; Dask gives up on a task after three dead workers
CONNECT = 10  # seconds
ALONE = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"}
ALONE |= dict.fromkeys(("NPROC", "PJRT_NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


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
    """A client of a cluster that runs already.

    - `address`: of its scheduler, or the name of its scheduler file.
    """
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


def require_client(client: Any) -> None:
    """Refuse what is no client of a cluster; its class is not imported to ask."""
    if not (hasattr(client, "submit") and hasattr(client, "nthreads")):
        raise ValueError(
            f'client must be a distributed.Client, such as distributed.Client("tcp://host:8786"), '
            f"got {shown(client)}"
        )


def on_cluster(
    client: Any, blocks: Iterator[tuple[Region, Block]]
) -> Iterator[tuple[Region, Answer]]:
    """The answers to blocks in the order in which they come.

    A few blocks per thread are under way, so memory is bounded. A scheduler that is gone is no
    failure of the cells: nothing is written of them.
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

    pickled: dict[int, bytes] = {}  # of the cells, which all blocks share

    def send(region: Region, block: Block, attempt: int) -> None:
        if id(block.cells) not in pickled:
            pickled[id(block.cells)] = require("cloudpickle").dumps(block.cells)
        sent = dataclasses.replace(block, cells=pickled[id(block.cells)])
        future = client.submit(compute, sent, pure=False)
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
    cells = [(tuple(map(int, cell)), reason) for cell in np.argwhere(block.wanted)]
    none = np.zeros(block.wanted.shape, bool)
    return Answer({}, {}, none, cells, np.full(none.shape, -1, np.int8))
