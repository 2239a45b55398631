"""How fast training is here, as plain values: machine, peak, starts, table, sweep and lines.

A job is a training: a level, a model and sizes. Each engine makes it a function of a number of
steps, and its operations are counted. The yardstick is attention as it is written (5), the whole
map of every prompt, and autograd.
"""

import dataclasses
import datetime
import functools
import itertools
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jaxtyping import Array, Float

import iclflow
from iclflow.dynamics import Descent
from iclflow.losses import AbstractLoss, Features, Moments, Population, Sequences
from iclflow.models import AbstractInitialiser, AbstractModel, Blocks, empty_model
from iclflow.models.registry import MODELS
from iclflow.results.files import read_json
from iclflow.results.messages import Progress
from iclflow.results.provenance import PACKAGE
from iclflow.runs.device import cores, one_clock, vmapped
from iclflow.runs.fused.engine import VMAP, Fused, why_not
from iclflow.runs.fused.program import write
from iclflow.runs.fused.rules import live
from iclflow.runs.fused.values import Multiplied
from iclflow.runs.sweep import sweep
from iclflow.tasks.base import Prompt
from iclflow.tasks.task import Task

LEVELS: dict[str, Any] = {"moments": Moments, "features": Features, "sequences": Sequences}
POPULATION, LITERAL = "population", "literal"
SOFTMAX = "softmax-merged"
SCALE = 0.1


@dataclasses.dataclass(frozen=True)
class Job:
    """A training: one of the levels or `literal`, a model, and sizes as the papers name them."""

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
        """How the loss is known; the literal one knows the prompts."""
        if self.level == POPULATION:
            return Population(self.task())
        return LEVELS.get(self.level, Sequences).of(self.prompts())

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


@dataclasses.dataclass(frozen=True)
class CostLine:
    """A job at several values of one of its sizes."""

    job: Job
    size: str  # D, H, R, P, N or runs
    values: tuple[int, ...]

    def jobs(self) -> list[Job]:
        """One a value."""
        return [dataclasses.replace(self.job, **{self.size: value}) for value in self.values]


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
        Job(LITERAL, "merged", P=prompts),
        Job(LITERAL, SOFTMAX, P=prompts),
    ]
    if not quick:
        return found
    return [job for job in found if job.R == 1 and (job.model != "merged" or job.level == LITERAL)]


def lines(backend: str, quick: bool) -> list[CostLine]:
    """Along which sizes costs are fitted: far enough apart for the size to be what costs."""
    wide = 64 if backend == "gpu" else 1
    several = Job(POPULATION, "separate", D=8, H=8, runs=64 * wide)
    prompted = Job("sequences", "merged", P=250 * wide, N=32)
    found = [
        CostLine(several, "D", (8, 16, 32, 64)),
        CostLine(several, "H", (8, 16, 32, 64)),
        CostLine(several, "R", (1, 2, 4, 8)),
        CostLine(several, "runs", tuple(n * wide for n in (64, 256, 1024, 4096))),
        CostLine(prompted, "P", tuple(n * wide for n in (250, 500, 1000, 2000))),
        CostLine(prompted, "N", (32, 64, 128, 256)),
    ]
    if quick:
        return [dataclasses.replace(line, values=line.values[:3]) for line in found]
    moments = Job("moments", "merged", P=500, runs=64 * wide)
    features = Job("features", "merged", P=250 * wide)
    found += [
        CostLine(Job(LITERAL, "merged", P=250), "N", (32, 64, 128, 256)),
        CostLine(moments, "D", (4, 6, 8, 10)),
        CostLine(features, "P", tuple(n * wide for n in (250, 500, 1000, 2000))),
        CostLine(features, "D", (4, 6, 8, 12)),
        CostLine(dataclasses.replace(prompted, model=SOFTMAX), "N", (32, 64, 128, 256)),
    ]
    return found


class Weights(NamedTuple):
    """W^V and W^{KQ} of every head, whole; rows and columns that never matter are zero."""

    value: Float[Array, "H T T"]
    key_query: Float[Array, "H T T"]


def literal_weights(model: AbstractModel) -> Weights:
    """The whole matrices of an attention layer."""
    attention = model.as_attention()
    assert attention is not None, "the yardstick is attention"
    rows, columns = attention.value_rows(), attention.key_query()
    missing = rows.shape[2] - rows.shape[1]
    value = jnp.pad(rows, ((0, 0), (missing, 0), (0, 0)))
    return Weights(value, jnp.pad(columns, ((0, 0), (0, 0), (0, rows.shape[1]))))


def literal_loss(weights: Weights, prompts: Prompt, softmax: bool) -> Float[Array, ""]:
    """Mean |y_q - ŷ_q|², ŷ_q at the bottom right of X + Σᵢ W^Vᵢ X A(Xᵀ W^{KQ}ᵢ X) (5).

    A divides by the number of pairs N, or is the softmax over each column.
    """

    def error(prompt: Prompt) -> Float[Array, ""]:
        x = prompt.tokens.T

        def head(value: Array, key_query: Array) -> Array:
            scores = x.T @ key_query @ x
            shares = jax.nn.softmax(scores, axis=0) if softmax else scores / prompt.divisor
            return value @ x @ shares

        output = x + jnp.sum(jax.vmap(head)(*weights), axis=0)
        target = prompt.target
        return jnp.sum((target - output[-target.shape[0] :, -1]) ** 2)

    return jnp.mean(jax.vmap(error)(prompts))


@functools.partial(jax.jit, static_argnames="softmax")
def train(weights: Weights, prompts: Prompt, rate: Any, steps: Any, softmax: bool) -> Weights:
    """Gradient descent on `literal_loss`, one run."""

    def step(_: Any, now: Weights) -> Weights:
        gradient = jax.grad(literal_loss)(now, prompts, softmax)
        return jax.tree.map(lambda w, g: w - rate * g, now, gradient)

    return jax.lax.fori_loop(0, steps, step, weights)


ELEMENTWISE = {
    "add", "add_any", "sub", "mul", "div", "neg", "max", "exp", "log", "sqrt", "square",
    "integer_pow", "tanh",
}  # fmt: skip


def step_operations(loss: Callable[..., Any], weights: Any) -> float:
    """Of value and gradient of `loss` at `weights`, and two for the update of each weight.

    Counted in the traced program: a product and a sum are two operations, a function one.
    """
    arrays, static = eqx.partition(weights, eqx.is_inexact_array)
    traced = jax.make_jaxpr(jax.value_and_grad(lambda a: loss(eqx.combine(a, static))))(arrays)
    return count(traced.jaxpr) + 2 * sum(a.size for a in jax.tree.leaves(arrays))


def count(jaxpr: Any) -> float:
    """Operations on floating-point numbers in what the outputs need; known loops unrolled."""
    total = 0.0
    for equation in live(jaxpr):
        inner = [
            v for v in equation.params.values() if isinstance(v, core.ClosedJaxpr | core.Jaxpr)
        ]
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += times * sum(count(getattr(v, "jaxpr", v)) for v in inner)
        if not inner:
            total += _equation(equation)
    return total


def _equation(equation: Any) -> float:
    found, name = equation.outvars[0].aval, equation.primitive.name
    if not jnp.issubdtype(found.dtype, jnp.floating):
        return 0.0
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2.0 * found.size * math.prod(equation.invars[0].aval.shape[i] for i in contracted)
    if name in ("reduce_sum", "reduce_max"):
        return float(equation.invars[0].aval.size - found.size)
    return float(found.size) if name in ELEMENTWISE else 0.0


def fused_operations(fused: Fused, parts: tuple[Any, Any, Any], record: dict[str, Any]) -> int:
    """The operations of a step in the fused loop, which leaves out what is zero for all runs."""
    program = fused.program(parts, record)
    found = 0
    for line in write(program, fused.zeros(parts, record)).step:
        if isinstance(line, Multiplied):
            found += 2 * len(line.inputs) * len(line.outputs)
        else:
            found += line.operations
    return found


RATE = 1e-3  # small: no run converges, or has numbers too small to be normal
RECORD = {"loss": lambda model, loss: loss(model)}


class Loop(NamedTuple):
    """A training that can be made as long as is needed to time it."""

    run: Callable[[int], Any]  # steps -> when they are done
    operations: float  # of a step of one run


def loops(job: Job, fused: bool = True) -> dict[str, Loop]:
    """Engine -> the job's training by it; those that can do it on this machine."""
    loss, models, descent = job.loss(), job.models(), Descent(RATE)
    model = jax.tree.map(lambda a: a[0], models)
    if job.level == LITERAL:
        assert isinstance(loss, Sequences)
        prompts, softmax = loss.prompts, job.model == SOFTMAX
        weights = literal_weights(model)
        of = lambda w: literal_loss(w, prompts, softmax)  # noqa: E731
        run = lambda n: jax.block_until_ready(train(weights, prompts, RATE, n, softmax))  # noqa: E731
        return {LITERAL: Loop(run, step_operations(of, weights))}
    parts = (loss, descent, _start(loss, descent, models))
    plain = lambda n: vmapped(parts, (None, None), np.asarray([n]), RECORD)  # noqa: E731
    found = {VMAP: Loop(plain, step_operations(loss, model))}
    loop = Fused.of(*parts, (False, False))
    if fused and why_not(loop, parts, RECORD, job.runs, np.asarray([10**9])) is None:
        run = lambda n: loop.advance(parts, np.asarray([n]), RECORD)  # noqa: E731
        found["fused"] = Loop(run, fused_operations(loop, parts, RECORD))
    return found


@eqx.filter_jit
def _start(loss: Any, descent: Descent, models: Any) -> Any:
    """The runs before their first step, with one clock."""
    state = eqx.filter_vmap(lambda m: descent.init(loss, m, jax.random.key(0)))(models)
    return one_clock(descent, state)


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
