"""Experiments spread over processes; one that dies is a failed figure, not a failed report.

The science is imported where it runs: the processes are then under way while this one has little
more to do than to wait.
"""

import dataclasses
import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from iclflow.experiments.base import Claim, Figure
from iclflow.results.messages import Progress


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one figure.

    `computing` is the time its data took, in an earlier run if they were `reused`; figures drawn
    from the same data have the same.
    """

    name: str
    status: str  # computed, reused or failed
    computing: float = 0.0
    drawing: float = 0.0
    claims: tuple[Claim, ...] = ()
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: str = ""
    caption: str = ""
    cover: str = ""  # the caption of its cover, where it has one


Watch = Callable[[str, float, Outcome | None], None]  # (figure, fraction done, its outcome)
Work = Sequence[Figure]  # the figures of one experiment

_REPORT_EVERY = 0.1  # seconds


def spread(
    work: Sequence[Work], out: Path, quick: bool, jobs: int, watch: Watch
) -> dict[str, Outcome]:
    """Figure name -> outcome; in this process if there is one job or one experiment."""
    made: dict[str, Outcome] = {}

    def tell(figures: Work, message: float | list[Outcome]) -> None:
        if not isinstance(message, list):
            for figure in figures:
                watch(figure.name, message, None)
            return
        for found in message:
            made[found.name] = found
            watch(found.name, 1.0, found)

    if min(jobs, len(work)) > 1:
        _in_processes(work, out, quick, min(jobs, len(work)), tell)
        return made
    from iclflow.report.making import make

    for figures in work:
        tell(figures, 0.0)
        report = _fraction(lambda done, figures=figures: tell(figures, done))
        tell(figures, make(figures, out, quick, report))
    return made


def _in_processes(
    work: Sequence[Work], out: Path, quick: bool, jobs: int, tell: Callable[..., None]
) -> None:
    """Each process takes the next experiment when it has finished one.

    Experiments that share training data stay in one process if they can: it has the data.
    """
    # Forking a process that has used JAX can deadlock.
    context = multiprocessing.get_context("spawn")
    waiting = list(work)
    busy: dict[Connection, tuple[Any, Work]] = {}

    def begin(connection: Connection, process: Any, last: str | None = None) -> None:
        if waiting:
            elsewhere = [figures[0].source.shared for _, figures in busy.values()]
            figures = waiting.pop(next_work([w[0].source.shared for w in waiting], last, elsewhere))
            busy[connection] = (process, figures)
            connection.send(list(figures))
            tell(figures, 0.0)
        else:
            connection.send(None)
            process.join()

    def start() -> None:
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, out, quick, jobs), daemon=True)
        with unheard():
            process.start()
        there.close()
        begin(here, process)

    try:
        for _ in range(jobs):
            start()
        while busy:
            for connection in multiprocessing.connection.wait(list(busy)):
                assert isinstance(connection, Connection)
                process, figures = busy[connection]
                try:
                    message = connection.recv()
                except (EOFError, OSError):  # killed, for want of memory most often
                    process.join()
                    del busy[connection]
                    error = f"its process ended with code {process.exitcode}; memory may be short"
                    tell(figures, [Outcome(f.name, "failed", error=error) for f in figures])
                    if waiting:
                        start()
                    continue
                tell(figures, message)
                if isinstance(message, list):
                    del busy[connection]
                    begin(connection, process, figures[0].source.shared)
    finally:
        for process, _ in busy.values():
            process.terminate()
        for process, _ in busy.values():
            process.join()


@contextmanager
def unheard() -> Iterator[None]:
    """Ctrl-C waits, and processes that are started meanwhile never hear it: we end them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def next_work(waiting: Sequence[str], last: str | None, elsewhere: Sequence[str]) -> int:
    """Which of the waiting experiments to take, known by the data they share with others.

    One that shares with the `last` done here; else one that shares with none under way
    `elsewhere`; else the first.
    """
    ranked = [(name != last, name in elsewhere, i) for i, name in enumerate(waiting)]
    return min(ranked)[-1]


def _serve(connection: Connection, out: Path, quick: bool, jobs: int) -> None:
    """A worker, one of `jobs`: experiments in, fractions done and outcomes out."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several to one GPU
    import jax

    from iclflow.pool import threads
    from iclflow.report.making import make
    from iclflow.runs.device import cores

    share = max(1, cores() // jobs)  # more threads of XLA would only wait
    os.environ |= {"NPROC": str(share), "PJRT_NPROC": str(threads(share))}
    # Tracing a program makes millions of objects beside those of the libraries, all of which stay:
    # looking for garbage among them as often as usual takes a twentieth of the time.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jax.config.update("jax_enable_x64", True)
    while (figures := connection.recv()) is not None:
        connection.send(make(figures, out, quick, _fraction(connection.send)))


def _fraction(send: Callable[[float], None]) -> Progress:
    """Progress (done, total) as a fraction, at most ten times per second."""
    last = -float("inf")

    def report(done: float, total: float) -> None:
        nonlocal last
        if time.monotonic() - last >= _REPORT_EVERY:
            last = time.monotonic()
            send(min(1.0, float(done / total)) if total else 0.0)

    return report
