"""How long softmax attention waits as its initial weights shrink: first ∝ 1/w, later ~ ln(1/w).

From the same keys, queries and values, softmax attention flows on `LargeContext`, its population
loss to first order in 1/N, and linear attention on its own population. The first drop makes
the values of all softmax heads of order one. The keys of idle heads then grow exponentially, so
that later plateaus last ~ ln(1/w), where those of linear attention keep growing as 1/w.
"""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from iclflow.dynamics import Flow
from iclflow.dynamics.chebyshev import Chebyshev
from iclflow.experiments.base import Claim, at_least, at_most, near
from iclflow.experiments.runs import Variable, finished, named, train
from iclflow.losses import LargeContext, Population
from iclflow.measures import first_crossings
from iclflow.models import Separate, Softmax
from iclflow.plots.style import COLOURS, LOSS, THEORY, TIME, Picture, side_by_side
from iclflow.results.messages import Progress
from iclflow.tasks.task import Task

SPECTRUM, CONTEXT, HEADS = (0.4, 0.3, 0.2, 0.1), 31, 5
SCALES, QUICK_SCALES = (0.03, 0.01, 0.003), (0.03, 0.01)
SEEDS, QUICK_SEEDS = 10, 3
LEVELS = (0.8, 0.3, 0.18)  # in the first drop, and on both sides of a later plateau
KINDS = ("softmax", "linear")
WAITS = ("until L = 0.8", "from L = 0.3 to 0.18")
# When a run ends, in units of 1/w: after all drops, but for the slowest starts of linear attention.
ENDS = {"softmax": 70.0, "linear": 500.0}
LATE = 6000.0  # added to each end, for what does not grow as 1/w
TOLERANCE = 1e-4  # of a step of the flow; at 1e-6 the times are the same to 2e-4
MARKS = 1500


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Losses of softmax and of linear attention from the same starts, and how long they wait."""
    report = progress or (lambda done, total: None)
    seeds, scales = (QUICK_SEEDS, QUICK_SCALES) if quick else (SEEDS, SCALES)
    task, flow = Task(SPECTRUM, CONTEXT), Flow(TOLERANCE, solver=Chebyshev())
    problems = ((LargeContext(task), Softmax.initialiser), (Population(task), Separate.initialiser))
    shape = (len(KINDS), len(scales))
    clocks, losses = np.empty((*shape, MARKS)), np.empty((*shape, seeds, MARKS))
    rho = np.empty((len(scales), seeds))
    for kind, (loss, initialiser) in enumerate(problems):
        record = ["loss", "rho"] if kind == 0 else ["loss"]
        for i, scale in enumerate(scales):  # together all would go on as long as the slowest
            end = ENDS[KINDS[kind]] / scale + LATE
            marks = np.concatenate([[0.0], np.geomspace(end / 300, end, MARKS - 1)])
            init = initialiser(task, heads=HEADS, rank=1, scale=scale)
            runs = train(loss, init, flow, saveat=marks, seeds=seeds, record=record)
            clocks[kind, i], losses[kind, i] = marks, runs["loss"].values
            if kind == 0:
                rho[i] = runs["rho"].max("time").values
            report(kind * len(scales) + i + 1, len(KINDS) * len(scales))
    times = first_crossings(clocks[:, :, None], losses, LEVELS)
    waits = np.stack([times[..., 0], times[..., 2] - times[..., 1]], axis=-1)
    variables: dict[str, Variable] = {
        "clock": (("kind", "scale", "mark"), clocks, r"training time $t/\tau$"),
        "loss": (("kind", "scale", "seed", "mark"), losses, "loss"),
        "wait": (("kind", "scale", "seed", "part"), waits, "t/τ of waiting"),
        "rho": (("scale", "seed"), rho, "largest ρ of the run"),
    }
    coordinates = {"kind": list(KINDS), "scale": list(scales), "part": list(WAITS)}
    settings = {
        "figure": "softmax: plateaus", "quick": quick, "inputs": len(SPECTRUM), "context": CONTEXT,
        "heads": HEADS, "tolerance": TOLERANCE,
        "data": "softmax: population to first order in 1/N (S9); linear: population",
    }  # fmt: skip
    return finished(xr.Dataset(named(variables), coordinates), settings)


def exponents(data: xr.Dataset, kind: str, part: str) -> np.ndarray:
    """The exponent of a wait in 1/w of every start, from the largest w to the smallest."""
    wait = data["wait"].sel(kind=kind, part=part)
    scale = data["scale"].values.astype(float)
    slope = np.log(wait.isel(scale=-1) / wait.isel(scale=0)) / np.log(scale[0] / scale[-1])
    return slope.values[np.isfinite(slope.values)]


def claims(data: xr.Dataset) -> list[Claim]:
    """Exponents in 1/w of the first plateau and of a later one."""
    first, later = (exponents(data, "softmax", part) for part in WAITS)
    linear = exponents(data, "linear", WAITS[1])
    ends = np.log(1 / data["scale"].values.astype(float)[[0, -1]])
    logarithm = float(np.log(ends[1] / ends[0]) / (ends[1] - ends[0]))
    known = f"{len(linear)} of {data.sizes['seed']} starts fall below 0.18 in the time given"
    return [
        near(
            "softmax-first-plateau", "The first plateau of softmax attention lasts ∝ 1/w: exponent "
            "in 1/w farthest from 1", "(S9)", 1.0,
            float(max(first, key=lambda s: abs(s - 1))), 0.02,
            "corrections are of relative order w", f"{_range(first)}; largest ρ of all runs "
            f"{float(data['rho'].max()):.2f}", beyond=True, population=True,
        ),
        at_most(
            "softmax-later-plateaus", "Later plateaus of softmax attention last ~ ln(1/w): largest "
            "exponent in 1/w", "(S9)", float(later.max()), 0.5,
            f"between ln(1/w), which is {logarithm:.2f} from the largest to the smallest w, and 1",
            f"{_range(later)}", beyond=True, population=True,
        ),
        at_least(
            "softmax-later-linear", "Later plateaus of linear attention from the same starts last "
            "∝ 1/w: least exponent in 1/w", "(84)", float(linear.min()), 0.9,
            "1 up to corrections of the order of w and to changes in the order of the heads",
            f"{_range(linear)}; {known}", beyond=True, population=True,
        ),
    ]  # fmt: skip


def _range(slopes: np.ndarray) -> str:
    return (
        f"median {np.median(slopes):.3f}, from {slopes.min():.3f} to {slopes.max():.3f} over "
        f"{len(slopes)} starts"
    )


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim other data that turn its verdict round.

    - `softmax-first-plateau`: the later plateaus of the same runs.
    - the others: softmax and linear attention under each other's name.
    """
    wait = data["wait"]
    other = data.assign(wait=wait.copy(data=wait.values[::-1]))
    later = data.assign(wait=wait.copy(data=wait.values[..., ::-1]))
    return {
        "softmax-first-plateau": later,
        "softmax-later-plateaus": other,
        "softmax-later-linear": other,
    }


def draw(data: xr.Dataset) -> Picture:
    """Losses of one start, and both waits of all starts against w."""
    return side_by_side(data, _losses, _first, _later, height=0.86)


def _losses(axes: Axes, data: xr.Dataset) -> None:
    for number, scale in enumerate(data["scale"].values):
        for kind, look in zip(KINDS, ("-", "--"), strict=True):
            one = data.sel(scale=scale, kind=kind)
            axes.plot(one["clock"], one["loss"][0], color=COLOURS[2 + number], linestyle=look)
        axes.plot([], [], color=COLOURS[2 + number], label=f"w = {scale:g}")
    axes.plot([], [], color="0.4", label="softmax")
    axes.plot([], [], color="0.4", linestyle="--", label="linear")
    axes.set(xscale="log", xlabel=TIME, ylabel=LOSS, ylim=(0.1, 1.05))
    axes.set_xlim(3e2, 5 * float(data["clock"].max()))  # room for the legend
    axes.set_title("one start", loc="left")
    axes.legend(loc="upper right", handlelength=1.6)


def _waits(axes: Axes, data: xr.Dataset, part: str) -> None:
    scale = data["scale"].values.astype(float)
    for number, kind in enumerate(KINDS):
        wait = data["wait"].sel(kind=kind, part=part).values
        look: dict[str, Any] = {"color": COLOURS[number], "marker": "o", "markersize": 2.5}
        axes.plot(scale, wait, linewidth=0.7, **look)
        axes.plot([], [], label=kind, **look)
    axes.set(xscale="log", yscale="log", xlabel="init scale $w$", ylabel=f"$t/\\tau$ {part}")
    axes.set_xticks(scale, [f"{x:g}" for x in scale])
    axes.minorticks_off()
    axes.invert_xaxis()


def _guide(axes: Axes, data: xr.Dataset, part: str, kind: str, *, logarithm: bool) -> None:
    """A law through the median of the largest w."""
    scale = data["scale"].values.astype(float)
    growth = np.log(1 / scale) if logarithm else 1 / scale
    middle = np.nanmedian(data["wait"].sel(part=part, kind=kind).values[0])
    look = {**THEORY, "linestyle": ":"} if logarithm else THEORY
    name = r"$\propto \ln(1/w)$" if logarithm else r"$\propto 1/w$"
    axes.plot(scale, middle * growth / growth[0], label=name, **look)


def _first(axes: Axes, data: xr.Dataset) -> None:
    _waits(axes, data, WAITS[0])
    _guide(axes, data, WAITS[0], "linear", logarithm=False)
    axes.set_title("the first plateau", loc="left")
    axes.legend(loc="upper left")


def _later(axes: Axes, data: xr.Dataset) -> None:
    _waits(axes, data, WAITS[1])
    _guide(axes, data, WAITS[1], "softmax", logarithm=True)
    _guide(axes, data, WAITS[1], "linear", logarithm=False)
    wait = data["wait"].sel(part=WAITS[1])
    axes.set_ylim(top=6 * float(wait.max()))  # room for the legend
    axes.set_title("a later plateau", loc="left")
    axes.legend(loc="upper left", ncols=2)
