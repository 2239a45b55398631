"""The measurement, as plain values: the machine, its peak, starts, table, sweep and lines."""

import datetime
import functools
import itertools
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import iclflow
from iclflow.bench.engines import loops
from iclflow.bench.jobs import LITERAL, POPULATION, SOFTMAX, CostLine, Job, lines, table
from iclflow.dynamics import Descent
from iclflow.results.files import read_json
from iclflow.results.progress import Progress
from iclflow.results.provenance import PACKAGE
from iclflow.runs.device import cores
from iclflow.runs.fused.engine import VMAP
from iclflow.runs.sweep import sweep

# Name -> a program whose start is timed, in a process of its own.
STARTS = {
    "python": ("-c", "pass"),
    "import jax": ("-c", "import jax"),
    "import iclflow": ("-c", "import iclflow"),
    "ready to sweep": ("-c", "import iclflow as icl; icl.Task, icl.Separate, icl.sweep"),
    "iclflow --help": ("-m", "iclflow", "--help"),
}
PEAK_SIZE = {"cpu": 1024, "gpu": 8192}


def facts() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    device = jax.devices()[0]
    single = not jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "backend": jax.default_backend(),
        "device": processor() if device.platform == "cpu" else device.device_kind,
        "cores": cores(),
        "processor": processor(),
        "precision": "single" if single else "double",
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "iclflow": iclflow.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
    }


def processor() -> str:
    """Its name, where the system says it."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def peak(least: float) -> float:
    """Operations per second in a product of two large matrices, at the precision of training."""
    size = PEAK_SIZE.get(jax.default_backend(), PEAK_SIZE["cpu"])
    left, right = jax.random.normal(jax.random.key(0), (2, size, size))

    @jax.jit
    def products(left: Any, right: Any, times: Any) -> Any:
        one = lambda _, x: jnp.matmul(x, right, precision="highest") * (1 / size)  # noqa: E731
        return jax.lax.fori_loop(0, times, one, left)

    run = lambda times: jax.block_until_ready(products(left, right, times))  # noqa: E731
    return 2.0 * size**3 / step_seconds(run, least)


def start_seconds(name: str, repeats: int) -> float:
    """Of one of `STARTS`, the fastest of several, after one that fills the caches."""
    # So that it is this package which is imported, from wherever the program was started.
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def start() -> None:
        command = [sys.executable, *STARTS[name]]
        subprocess.run(command, check=True, capture_output=True, env=environment)

    start()
    return best_seconds(start, repeats)


REPEATS = 3


def best_seconds(call: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Wall time of the fastest of several calls."""
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def step_seconds(run: Callable[[int], Any], least: float) -> float:
    """Seconds of a step: `run(steps)` with as many as take `least`, the fastest of several."""
    run(1)  # compiles
    steps = 1
    for _ in itertools.count():
        spent = best_seconds(lambda n=steps: run(n), 1)
        if spent >= least:
            break
        steps = int(steps * min(64.0, 1 + 1.2 * least / spent))
    return min(spent, best_seconds(lambda: run(steps), REPEATS - 1)) / steps


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """Slope of log cost against log size by least squares, and its standard error."""
    x, y = np.log(sizes), np.log(costs)
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    residual = y - y.mean() - slope * x
    return slope, float(np.sqrt(residual @ residual / (len(x) - 2) / (x @ x)))


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
    """Runs per second of `sweep` as a user calls it, host and transfers included."""
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


PARTS = {"date", "machine", "quick", "peak", "start", "sweep", "rows", "exponents", "seconds"}


def read(path: Path | str) -> dict[str, Any]:
    """A measurement that `iclflow bench --out` wrote."""
    try:
        found = read_json(path)
    except ValueError as error:
        raise ValueError(f"{error}; give one of iclflow bench --out") from None
    if not isinstance(found, dict) or set(found) != PARTS:
        raise ValueError(f"{path} holds no measurement; give one of iclflow bench --out")
    return found
