"""The measurement: one pass over peak, starts, table, sweep and lines, as plain values."""

import datetime
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from iclflow.bench.engines import loops
from iclflow.bench.jobs import LITERAL, POPULATION, SOFTMAX, CostLine, Job, lines, table
from iclflow.bench.machine import STARTS, facts, peak, start_seconds
from iclflow.bench.timing import best_seconds, exponent, step_seconds
from iclflow.dynamics import Descent
from iclflow.results.progress import Progress
from iclflow.runs.fused.engine import VMAP
from iclflow.runs.sweep import sweep

LEAST = {False: 0.3, True: 0.05}  # seconds that a timed training takes, or with --quick
SWEEP = {"cpu": 4096, "gpu": 2**18}  # runs of the sweep
SWEEP_STEPS = 10_000


def measure(quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Everything, as values for JSON.

    - `quick`: fewer rows, smaller sizes, shorter timings.
    - `progress(done, total)` counts trainings.
    """
    began, machine = time.perf_counter(), facts()
    date = datetime.datetime.now(datetime.UTC)
    backend, least = machine["backend"], LEAST[quick]
    jobs, along = table(backend, quick), lines(backend, quick)
    points = {job for line in along for job in line.jobs()}
    tick = _counter(progress, 2 + len(STARTS) + len(jobs) + len(points))

    @functools.cache
    def cost(job: Job) -> tuple[float, float]:
        """Seconds and operations of a step of all runs, under `vmap`; one for all lines."""
        [loop] = loops(job, fused=False).values()
        return tick(lambda: step_seconds(loop.run, least)), loop.operations * job.runs

    top = tick(lambda: peak(least))
    starts = {name: tick(lambda n=name: start_seconds(n, 2 if quick else 5)) for name in STARTS}
    rows = [row for job in jobs for row in tick(lambda j=job: list(_rows(j, top, least)))]
    return {
        "date": date.isoformat(timespec="seconds"),
        "machine": machine,
        "quick": quick,
        "peak": top,
        "start": starts,
        "sweep": tick(lambda: _sweep(SWEEP.get(backend, SWEEP["cpu"]), quick)),
        "rows": [_compared(row, rows) for row in rows],
        "exponents": [_fitted(line, cost) for line in along],
        "seconds": time.perf_counter() - began,
    }


def _counter(progress: Progress | None, total: int) -> Callable[[Callable[[], Any]], Any]:
    done = 0

    def tick(work: Callable[[], Any]) -> Any:
        nonlocal done
        found, done = work(), done + 1
        if progress is not None:
            progress(done, total)
        return found

    return tick


def _rows(job: Job, top: float, least: float) -> Iterator[dict[str, Any]]:
    """One row an engine."""
    for engine, loop in loops(job).items():
        seconds = step_seconds(loop.run, least) / job.runs
        yield {
            "level": job.level,
            "model": job.model,
            "sizes": job.sizes,
            "engine": engine,
            "runs": job.runs,
            "steps_per_second": 1 / seconds,
            "operations": loop.operations,
            "of_peak": loop.operations / seconds / top,
        }


def _compared(row: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A row with its ratios: to `vmap` on the same job, and to the literal implementation.

    That one is of merged attention, with softmax or without, one run on as many prompts; the
    population stands for infinitely many, and is compared with the same.
    """
    same = ("level", "model", "sizes", "runs")
    plain = [r for r in rows if r["engine"] == VMAP and all(r[k] == row[k] for k in same)]
    yardstick = [
        r for r in rows
        if r["engine"] == LITERAL and (r["model"] == SOFTMAX) == (row["model"] == SOFTMAX)
    ]  # fmt: skip
    ratios = {"over_vmap": plain, "over_literal": yardstick}
    speed = row["steps_per_second"]
    return row | {k: speed / found[0]["steps_per_second"] if found else None
                  for k, found in ratios.items()}  # fmt: skip


def _fitted(line: CostLine, cost: Callable[[Job], tuple[float, float]]) -> dict[str, Any]:
    """Costs along a line and their exponent, beside that of the operations counted.

    Costs are those of a step of one run; where the number of runs changes, of all of them.
    """
    jobs = line.jobs()
    runs = [1 if line.size == "runs" else job.runs for job in jobs]
    found = [cost(job) for job in jobs]
    seconds, operations = ([c[i] / n for c, n in zip(found, runs, strict=True)] for i in (0, 1))
    slope, error = exponent(line.values, seconds)
    return {
        "level": line.job.level,
        "model": line.job.model,
        "size": line.size,
        "values": list(line.values),
        "sizes": {k: v for k, v in line.job.sizes.items() if k != line.size},
        "runs": None if line.size == "runs" else line.job.runs,
        "seconds_per_step": seconds,
        "operations": operations,
        "exponent": slope,
        "error": error,
        "exponent_of_operations": exponent(line.values, operations)[0],
    }


def _sweep(runs: int, quick: bool) -> dict[str, Any]:
    """Runs a second of `sweep` as a user calls it, host and transfers included."""
    job = Job(POPULATION, "separate")
    task, init, descent = job.task(), job.init(), Descent(0.2)
    call = lambda: sweep(task, init, descent, until=SWEEP_STEPS, seeds=runs)  # noqa: E731
    first = call()  # compiles
    seconds = best_seconds(call, 1 if quick else 3)
    return {
        "sizes": job.sizes,
        "runs": runs,
        "steps": SWEEP_STEPS,
        "engine": first.attrs["engine"],
        "runs_per_second": runs / seconds,
    }
