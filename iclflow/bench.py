"""How fast training is on this machine, as plain values: a table of trainings, and a sweep.

A job is a training: a level, a model and sizes. Each engine makes it a function of a number of
steps. `benchmarks/machine.py` compares the same jobs with the machine's peak and with a literal
implementation.
"""

import dataclasses
import datetime
import itertools
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import iclflow
from iclflow.dynamics import Descent
from iclflow.losses import AbstractLoss, Features, Moments, Population, Sequences
from iclflow.models import AbstractInitialiser, AbstractModel, Blocks, empty_model
from iclflow.models.registry import MODELS
from iclflow.results.messages import Progress
from iclflow.runs.device import cores, one_clock, vmapped
from iclflow.runs.fused.engine import VMAP, Fused, why_not
from iclflow.runs.sweep import sweep
from iclflow.tasks.base import Prompt
from iclflow.tasks.task import Task

LEVELS: dict[str, Any] = {"moments": Moments, "features": Features, "sequences": Sequences}
POPULATION = "population"
SOFTMAX = "softmax-merged"
SCALE = 0.1


@dataclasses.dataclass(frozen=True)
class Job:
    """A training: a level, a model, and sizes as the papers name them."""

    level: str
    model: str
    D: int = 4
    H: int = 5
    R: int = 1
    P: int = 1000
    N: int = 31
    runs: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        """Those that this training has."""
        names = ["D", "H", *(["R"] if self.model == "separate" else [])]
        names += [] if self.level == POPULATION else ["P", "N"]
        return {name: getattr(self, name) for name in names}

    def task(self) -> Task:
        """Eigenvalues in equal steps, of trace one: for D = 4 0.4, 0.3, 0.2 and 0.1."""
        spectrum = np.arange(self.D, 0, -1.0)
        return Task(spectrum / spectrum.sum(), self.N)

    def prompts(self) -> Prompt:
        """Drawn by NumPy, which has nothing to compile."""
        rng, task = np.random.default_rng(1), self.task()
        inputs = rng.normal(size=(self.P, self.N + 1, self.D)) * np.sqrt(task.spectrum)
        labels = np.einsum("pnd,pd->pn", inputs, rng.normal(size=(self.P, self.D)))[..., None]
        return Prompt(jnp.asarray(inputs), jnp.asarray(labels), jnp.asarray(labels))

    def loss(self) -> AbstractLoss:
        """The loss, as the level knows it."""
        if self.level == POPULATION:
            return Population(self.task())
        return LEVELS[self.level].of(self.prompts())

    def models(self) -> AbstractModel:
        """Small random weights of all runs, stacked: not by the initialiser's law, but at once."""
        rng = np.random.default_rng(0)
        draw = lambda a: jnp.asarray(SCALE * rng.normal(size=(self.runs, *a.shape)), a.dtype)  # noqa: E731
        return jax.tree.map(draw, eqx.filter(empty_model(self.init()), eqx.is_inexact_array))

    def init(self) -> AbstractInitialiser:
        """The model's start; with all blocks trained where prompts are sampled."""
        blocks = Blocks.FROZEN if self.level == POPULATION else Blocks.FULL
        given = {"heads": self.H, "rank": self.R, "blocks": blocks}
        kind = MODELS[self.model]
        options = {name: given[name] for name in kind.options}
        return kind.initialiser(self.task(), scale=SCALE, **options)


def table(backend: str, quick: bool) -> list[Job]:
    """The rows of the table; more runs at once where the hardware is wider."""
    wide = backend == "gpu"
    many, some = (2**17, 256) if wide else (1024, 4)
    prompts = 200 if quick else 1000
    found = [
        Job(POPULATION, "merged", runs=many),
        Job(POPULATION, "separate", runs=many),
        Job(POPULATION, "separate", R=2, runs=many),
        Job("moments", "merged", P=prompts, runs=many // 4),
        Job("moments", "separate", P=prompts, runs=many // 4),
        Job("features", "merged", P=prompts, runs=some),
        Job("features", "separate", P=prompts, runs=some),
        Job("sequences", "merged", P=prompts, runs=some),
        Job("sequences", "separate", P=prompts, runs=some),
        Job("sequences", SOFTMAX, P=prompts, runs=some),
    ]
    if not quick:
        return found
    return [job for job in found if job.R == 1 and job.model != "merged"]


RATE = 1e-3  # small: no run converges, or has numbers too small to be normal
RECORD = {"loss": lambda model, loss: loss(model)}


def prepared(job: Job) -> tuple[AbstractLoss, Descent, Any]:
    """Loss, dynamics and the job's runs before their first step, with one clock."""
    loss, descent = job.loss(), Descent(RATE)
    return loss, descent, _start(loss, descent, job.models())


def loops(job: Job) -> dict[str, Callable[[int], Any]]:
    """Engine -> the job's training by it, as a function of the number of steps.

    There are those engines that can do it on this machine. A call returns when all is computed.
    """
    parts = prepared(job)
    plain = lambda n: vmapped(parts, (None, None), np.asarray([n]), RECORD)  # noqa: E731
    loop = Fused.of(*parts, (False, False))
    if why_not(loop, parts, RECORD, job.runs, np.asarray([10**9])) is not None:
        return {VMAP: plain}
    return {VMAP: plain, "fused": lambda n: loop.advance(parts, np.asarray([n]), RECORD)}


@eqx.filter_jit
def _start(loss: Any, descent: Descent, models: Any) -> Any:
    """The runs before their first step, with one clock."""
    state = eqx.filter_vmap(lambda m: descent.init(loss, m, jax.random.key(0)))(models)
    return one_clock(descent, state)


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


LEAST = {False: 0.3, True: 0.05}  # seconds that a timed training takes, or with --quick
SWEEP = {"cpu": 4096, "gpu": 2**18}  # runs of the sweep
SWEEP_STEPS = 10_000


def measure(quick: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """The machine, the speeds of all jobs and that of a sweep, as values for JSON.

    - `quick`: fewer rows, smaller sizes, shorter timings.
    - `progress(done, total)` counts what has been timed.
    """
    began, machine = time.perf_counter(), facts()
    date = datetime.datetime.now(datetime.UTC)
    jobs, rows = table(machine["backend"], quick), []
    for done, job in enumerate(jobs):
        rows += measured(job, LEAST[quick])
        if progress is not None:
            progress(done + 1, len(jobs) + 1)
    swept = sweep_speed(SWEEP.get(machine["backend"], SWEEP["cpu"]), quick)
    if progress is not None:
        progress(len(jobs) + 1, len(jobs) + 1)
    return {
        "date": date.isoformat(timespec="seconds"),
        "machine": machine,
        "quick": quick,
        "sweep": swept,
        "rows": rows,
        "seconds": time.perf_counter() - began,
    }


def measured(job: Job, least: float) -> list[dict[str, Any]]:
    """One row per engine: its speed, and that relative to `vmap`.

    - `least`: seconds that a timing takes at least.
    """
    rates = {name: job.runs / step_seconds(run, least) for name, run in loops(job).items()}
    about = {"level": job.level, "model": job.model, "sizes": job.sizes, "runs": job.runs}
    return [
        {**about, "engine": name, "steps_per_second": rate, "over_vmap": rate / rates[VMAP]}
        for name, rate in rates.items()
    ]


def sweep_speed(runs: int, quick: bool) -> dict[str, Any]:
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
