"""How near training comes to the peak of a machine, how its costs grow, and what a start takes.

    python benchmarks/machine.py [--quick] [--single] [--out FILE.json] [--plot FILE.png]
    python benchmarks/machine.py --from FILE.json ... [--plot FILE.png] [--history FILE.png]

These are the jobs of `iclflow bench` and more. Their operations are counted, and compared with the
peak of the machine, a product of two large matrices. The yardstick is attention as it is written
(5), the whole map of every prompt, and automatic differentiation. Costs are fitted along each size.
`--from` shows and draws earlier measurements instead; `--history` draws those of one machine
against their dates. Nothing else should run beside a measurement, which takes about three minutes
on two cores.
"""

import argparse
import dataclasses
import datetime
import functools
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jaxtyping import Array, Float
from matplotlib import dates, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from iclflow import bench
from iclflow.bench import POPULATION, RATE, RECORD, SOFTMAX, Job
from iclflow.losses import Sequences
from iclflow.models import AbstractModel
from iclflow.plots.style import COLOURS, COLUMN, style
from iclflow.results.files import read_json, write_text
from iclflow.results.pictures import save_figure
from iclflow.results.provenance import PACKAGE
from iclflow.runs.fused.engine import VMAP, Fused
from iclflow.runs.fused.program import write
from iclflow.runs.fused.rules import live
from iclflow.runs.fused.values import Multiplied
from iclflow.tasks.base import Prompt

LITERAL = "literal"


@dataclasses.dataclass(frozen=True)
class CostLine:
    """A job at several values of one of its sizes."""

    job: Job
    size: str  # D, H, R, P, N or runs
    values: tuple[int, ...]

    def jobs(self) -> list[Job]:
        """One job per value."""
        return [dataclasses.replace(self.job, **{self.size: value}) for value in self.values]


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
    """The operations of a step in the fused loop, which leaves out what is zero for all runs.

    - `parts`: loss, dynamics and runs, as `iclflow.bench.prepared` makes them.
    - `record`: what the loop records.
    """
    program = fused.program(parts, record)
    found = 0
    for line in write(program, fused.zeros(parts, record)).step:
        if isinstance(line, Multiplied):
            found += 2 * len(line.inputs) * len(line.outputs)
        else:
            found += line.operations
    return found


def literal_loop(job: Job) -> tuple[Callable[[int], Any], float]:
    """The job's training as it is written, as a function of steps; the operations of a step."""
    trained = dataclasses.replace(job, level="sequences")
    loss, model = trained.loss(), jax.tree.map(lambda a: a[0], trained.models())
    assert isinstance(loss, Sequences)
    prompts, softmax, weights = loss.prompts, job.model == SOFTMAX, literal_weights(model)
    run = lambda n: jax.block_until_ready(train(weights, prompts, RATE, n, softmax))  # noqa: E731
    return run, step_operations(lambda w: literal_loss(w, prompts, softmax), weights)


def operations(job: Job, engine: str) -> float:
    """The operations of one step of one run of a job by an engine."""
    if engine == LITERAL:
        return literal_loop(job)[1]
    parts = bench.prepared(job)
    if engine == VMAP:
        return step_operations(parts[0], jax.tree.map(lambda a: a[0], job.models()))
    return fused_operations(Fused.of(*parts, (False, False)), parts, RECORD)


# Name -> a program whose start is timed, in a process of its own.
STARTS = {
    "python": ("-c", "pass"),
    "import jax": ("-c", "import jax"),
    "import iclflow": ("-c", "import iclflow"),
    "ready to sweep": ("-c", "import iclflow as icl; icl.Task, icl.Separate, icl.sweep"),
    "iclflow --help": ("-m", "iclflow", "--help"),
}
PEAK_SIZE = {"cpu": 1024, "gpu": 8192}


def peak(least: float) -> float:
    """Operations per second in a product of two large matrices, at the precision of training."""
    size = PEAK_SIZE.get(jax.default_backend(), PEAK_SIZE["cpu"])
    left, right = jax.random.normal(jax.random.key(0), (2, size, size))

    @jax.jit
    def products(left: Any, right: Any, times: Any) -> Any:
        one = lambda _, x: jnp.matmul(x, right, precision="highest") * (1 / size)  # noqa: E731
        return jax.lax.fori_loop(0, times, one, left)

    run = lambda times: jax.block_until_ready(products(left, right, times))  # noqa: E731
    return 2.0 * size**3 / bench.step_seconds(run, least)


def start_seconds(name: str, repeats: int) -> float:
    """Of one of `STARTS`, the fastest of several, after one that fills the caches."""
    # So that it is this package which is imported, from wherever the program was started.
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def start() -> None:
        command = [sys.executable, *STARTS[name]]
        subprocess.run(command, check=True, capture_output=True, env=environment)

    start()
    return bench.best_seconds(start, repeats)


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """Slope of log cost against log size by least squares, and its standard error."""
    x, y = np.log(sizes), np.log(costs)
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    residual = y - y.mean() - slope * x
    return slope, float(np.sqrt(residual @ residual / (len(x) - 2) / (x @ x)))


def measure(
    quick: bool = False, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Everything that is measured, as values for JSON.

    - `quick`: fewer rows, smaller sizes, shorter timings.
    - `progress`: told what comes next.
    """
    began, backend, least = time.perf_counter(), jax.default_backend(), bench.LEAST[quick]
    progress("peak")
    top = peak(least)
    progress("starts")
    starts = {name: start_seconds(name, 2 if quick else 5) for name in STARTS}
    progress("trainings and a sweep")
    found = bench.measure(quick)
    rows, prompts = found["rows"], 200 if quick else 1000
    for model in ("merged", SOFTMAX):
        job = Job(LITERAL, model, P=prompts)
        speed = 1 / bench.step_seconds(literal_loop(job)[0], least)
        rows.append(
            {"level": LITERAL, "model": model, "sizes": job.sizes, "engine": LITERAL, "runs": 1}
            | {"steps_per_second": speed, "over_vmap": None}
        )
    for row in rows:
        job = Job(row["level"], row["model"], **row["sizes"], runs=row["runs"])
        row["operations"] = operations(job, row["engine"])
        row["of_peak"] = row["operations"] * row["steps_per_second"] / top

    @functools.cache
    def cost(job: Job) -> tuple[float, float]:
        """Seconds and operations of a step of all runs, under `vmap`; one for all lines."""
        if job.level == LITERAL:
            run, counted = literal_loop(job)
        else:
            run, counted = bench.loops(job)[VMAP], operations(job, VMAP)
        return bench.step_seconds(run, least), counted * job.runs

    exponents = []
    for line in lines(backend, quick):
        progress(f"cost along {line.size}")
        exponents.append(_fitted(line, cost))
    return found | {
        "peak": top,
        "start": starts,
        "rows": [_compared(row, rows) for row in rows],
        "exponents": exponents,
        "seconds": time.perf_counter() - began,
    }


def _compared(row: dict[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A row with its speed relative to the literal implementation.

    That one is of merged attention, with softmax or without, one run on as many prompts; the
    population stands for infinitely many, and is compared with the same.
    """
    [yardstick] = [
        r for r in rows
        if r["engine"] == LITERAL and (r["model"] == SOFTMAX) == (row["model"] == SOFTMAX)
    ]  # fmt: skip
    return row | {"over_literal": row["steps_per_second"] / yardstick["steps_per_second"]}


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


PARTS = {"date", "machine", "quick", "peak", "start", "sweep", "rows", "exponents", "seconds"}


def read(path: Path | str) -> dict[str, Any]:
    """A measurement that --out wrote."""
    found = read_json(path)
    if not isinstance(found, dict) or set(found) != PARTS:
        raise SystemExit(f"{path} holds no measurement; give a file that --out wrote")
    return found


COUNTED = {"color": "black", "linewidth": 1.2}  # what the operations say, as theory does
ROOM = 0.6  # of a line, that the machines share
ENGINES = {"vmap": "-", "fused": "--", "literal": ":"}


def bench_figure(measured: list[dict[str, Any]]) -> Figure:
    """Speeds beside exponents, one colour per machine; what --out wrote."""
    rows = max(len(_names(measured, "rows", _training)), len(_names(measured, "exponents", _line)))
    with style():
        figure = Figure(figsize=(2.08 * COLUMN, 0.7 + 0.27 * rows))
        left, right = figure.subplots(1, 2, width_ratios=(1.4, 1))
        plot_speeds(left, measured)
        plot_exponents(right, measured)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


def plot_speeds(axes: Axes, measured: list[dict[str, Any]]) -> Axes:
    """One line per training and engine: runs·steps per second, and the share of the peak."""
    names = _names(measured, "rows", _training)
    for number, found in enumerate(measured):
        for row in found["rows"]:
            place = names.index(_training(row)) + _shift(number, len(measured))
            look = {"marker": "o", "markersize": 3.5, "color": _colour(number)}
            axes.plot(row["steps_per_second"], place, linestyle="none", **look)
            share = f"{100 * row['of_peak']:.2g}%"
            where = {"xytext": (5, -0.5), "textcoords": "offset points", "va": "center"}
            axes.annotate(share, (row["steps_per_second"], place), fontsize=5, **where)
        axes.plot([], [], linewidth=4, color=_colour(number), label=_machine(found["machine"]))
    axes.plot([], [], label="operations counted", **COUNTED)
    axes.set(xscale="log", xlabel="runs · steps per second (share of the peak)")
    axes.set_xmargin(0.1)
    return _listed(axes, names)


def plot_exponents(axes: Axes, measured: list[dict[str, Any]]) -> Axes:
    """One line a size: the fitted exponent and its error; that of its operations in black."""
    names = _names(measured, "exponents", _line)
    for number, found in enumerate(measured):
        for line in found["exponents"]:
            row = names.index(_line(line))
            place = row + _shift(number, len(measured))
            look = {"fmt": "o", "markersize": 3, "color": _colour(number), "elinewidth": 0.8}
            axes.errorbar(line["exponent"], place, xerr=line["error"], **look)
            ends = (row - ROOM / 2, row + ROOM / 2)
            axes.plot([line["exponent_of_operations"]] * 2, ends, **COUNTED)
    axes.set(xlabel="exponent of cost")
    axes.set_xlim(left=0)
    return _listed(axes, names)


def history_figure(measured: list[dict[str, Any]]) -> Figure:
    """Speeds of one machine over time, one column per level; below, as multiples of literal ones.

    A hollow marker is a measurement beside other work: a load above the number of cores.
    """
    if len(machines := {_machine(found["machine"]) for found in measured}) > 1:
        raise ValueError(f"a history is of one machine, not of {len(machines)}: {machines}")
    measured = sorted(measured, key=lambda found: datetime.datetime.fromisoformat(found["date"]))
    rows = [row for found in measured for row in found["rows"]]
    models = list(dict.fromkeys(map(_model, rows)))
    levels = list(dict.fromkeys(row["level"] for row in rows if row["over_literal"] != 1))
    with style():
        figure = Figure(figsize=(2.08 * COLUMN, 1.2 * COLUMN))
        panels = figure.subplots(2, len(levels), sharex=True, squeeze=False)
        for column, level in zip(panels.T, levels, strict=True):
            column[0].set_title(level)
            # The yardstick computes what the last level does, and stands beside it.
            shown = (level, "literal") if level == levels[-1] else (level,)
            _plot_history(column[0], measured, "steps_per_second", shown, models)
            _plot_history(column[1], measured, "over_literal", (level,), models)
        panels[0, 0].set_ylabel("runs · steps per second")
        panels[1, 0].set_ylabel("multiple of the literal speed")
        for number, model in enumerate(models):
            panels[0, 0].plot([], [], linewidth=4, color=_colour(number), label=model)
        for engine in dict.fromkeys(row["engine"] for row in rows):
            panels[0, 0].plot([], [], ENGINES[engine], color="0.3", label=engine)
        look = {"marker": "o", "markersize": 3.5, "linestyle": "none", "color": "0.3"}
        panels[0, 0].plot([], [], markerfacecolor="white", label="beside other work", **look)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
    return figure


def _plot_history(
    axes: Axes, measured: list[dict[str, Any]], value: str, levels: tuple[str, ...], models: list
) -> None:
    lines: dict[tuple[str, str], list[tuple[Any, float, bool]]] = {}
    for found in measured:
        date, machine = datetime.datetime.fromisoformat(found["date"]), found["machine"]
        busy = (machine["load_before"] or 0) > machine["cores"]
        for row in found["rows"]:
            if row["level"] in levels:
                point = (date, row[value], busy)
                lines.setdefault((_model(row), row["engine"]), []).append(point)
    for (model, engine), points in lines.items():
        look: dict[str, Any] = {"color": _colour(models.index(model)), "markersize": 3.5}
        axes.plot([p[0] for p in points], [p[1] for p in points], ENGINES[engine], **look)
        for date, height, busy in points:
            axes.plot(date, height, "o", markerfacecolor="white" if busy else None, **look)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.xaxis.set_major_locator(locator := dates.AutoDateLocator(minticks=2, maxticks=4))
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    axes.set_xmargin(0.1)
    axes.grid(axis="y", linewidth=0.3, color="0.85")


def _model(row: dict[str, Any]) -> str:
    rank = f" R={row['sizes']['R']}" if "R" in row["sizes"] else ""
    return f"{row['model']}{rank}"


def _listed(axes: Axes, names: list[str]) -> Axes:
    """Lines of a list, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", linewidth=0.3, color="0.85")
    axes.tick_params(axis="y", length=0)
    return axes


def _names(measured: list[dict[str, Any]], part: str, name: Any) -> list[str]:
    return list(dict.fromkeys(name(row) for found in measured for row in found[part]))


def _training(row: dict[str, Any]) -> str:
    shown = ("R",) if row["level"] == "moments" else ("R", "P")  # moments: any P costs the same
    sizes = "".join(f" {k}={row['sizes'][k]:,}" for k in shown if k in row["sizes"])
    engine = "" if row["engine"] == row["level"] else f", {row['engine']}"
    return f"{row['level']} {row['model']}{sizes}{engine}"


def _line(line: dict[str, Any]) -> str:
    return f"{line['size']}: {line['level']} {line['model']}"


def _shift(number: int, count: int) -> float:
    return ROOM * ((number + 0.5) / count - 0.5)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _machine(machine: dict[str, Any]) -> str:
    cores = f", {machine['cores']} cores" if machine["backend"] == "cpu" else ""
    return f"{machine['device']}{cores}, {machine['precision']} precision"


def show(found: dict[str, Any]) -> None:
    """What was measured, in lines."""
    machine, start = found["machine"], found["start"]
    print(f"{_machine(machine)}: peak {found['peak'] / 1e9:,.4g} GFLOP/s by a matrix product")
    print(f"{'training':40} {'runs·steps/s':>14} {'of peak':>8} {'/ vmap':>8} {'/ literal':>10}")
    for row in found["rows"]:
        faster = "" if row["over_vmap"] is None else f"{row['over_vmap']:.3g}"
        print(f"{_training(row):40} {row['steps_per_second']:14,.0f} {row['of_peak']:8.1%} "
              f"{faster:>8} {row['over_literal']:10.3g}")  # fmt: skip
    for line in found["exponents"]:
        print(f"cost along {_line(line):28} ^ {line['exponent']:.2f} ± {line['error']:.2f}, of the "
              f"operations {line['exponent_of_operations']:.2f}")  # fmt: skip
    sweep = found["sweep"]
    print(f"sweep of {sweep['runs']:,} runs, {sweep['steps']:,} steps: "
          f"{sweep['runs_per_second']:,.0f} runs/s, {sweep['engine']}")  # fmt: skip
    print("; ".join(f"{name} {seconds:.2f} s" for name, seconds in start.items()))
    print(f"import iclflow / import jax {start['import iclflow'] / start['import jax']:.2f}; "
          f"all this took {found['seconds']:.0f} s")  # fmt: skip


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer rows, shorter timings")
    parser.add_argument("--single", action="store_true", help="measure in single precision")
    parser.add_argument("--out", type=Path, help="write the measurement (.json)")
    parser.add_argument("--from", dest="files", type=Path, nargs="+", default=[],
                        help="show these measurements instead of a new one")  # fmt: skip
    parser.add_argument("--plot", type=Path, help="draw speeds and exponents")
    parser.add_argument("--history", type=Path, help="draw speeds against the dates of --from")
    return parser


def main(words: Sequence[str] | None = None) -> None:
    args = options().parse_args(words)
    jax.config.update("jax_enable_x64", not args.single)
    found = [read(path) for path in args.files]
    found = found or [measure(args.quick, lambda part: print(f"{part} …", file=sys.stderr))]
    if args.out is not None:
        write_text(args.out, json.dumps(found[0], indent=1, allow_nan=False) + "\n")
    for path, draw in ((args.plot, bench_figure), (args.history, history_figure)):
        if path is not None:
            save_figure(draw(found), path)
    for one in found:
        show(one)


if __name__ == "__main__":
    main()
