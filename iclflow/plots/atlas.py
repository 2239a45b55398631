"""The assumption-breaking atlas: errors as colours, exponents of descent against the rate."""

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from iclflow.plots.style import COLOURS, COLUMN, style

MARKS = {"monotone": "o", "catapult": "P", "periodic": "s", "chaotic": "^", "divergent": "X"}
RANGE = (1e-3, 1.0)  # of the colours


def atlas_figure(data: xr.Dataset, *, title: str = "") -> Figure:
    """An assumption a row, more strongly broken to the right; beside it, rates past stability."""
    with style():
        if "lyapunov" in data:
            figure = Figure(figsize=(2.4 * COLUMN, 1.05 * COLUMN))
            left, right = figure.subplots(1, 2, width_ratios=(2.1, 1))
            plot_exponents(right, data)
        else:
            figure = Figure(figsize=(1.6 * COLUMN, 1.05 * COLUMN))
            left = figure.subplots()
        plot_atlas(left, data)
        left.set_title(title)
    return figure


def plot_atlas(axes: Axes, data: xr.Dataset) -> Axes:
    """The median error of the drop times, a square a case; grey where no drop was seen."""
    labels = data["label"].values.tolist()
    rows = list(dict.fromkeys(labels))
    norm, colours = LogNorm(*RANGE), mpl.colormaps["cividis"]
    for row, label in enumerate(rows):
        for column, case in enumerate(i for i, name in enumerate(labels) if name == label):
            error, strength = float(data["error"][case]), str(data["strength"].values[case])
            known = np.isfinite(error)
            colour = colours(norm(np.clip(error, *RANGE))) if known else "0.8"
            dark = known and norm(np.clip(error, *RANGE)) < 0.55
            axes.add_patch(Rectangle((column, row), 0.96, 0.9, facecolor=colour))
            text = f"{strength}\n{_percent(error)}" if known else f"{strength}\nno drop"
            axes.text(
                column + 0.48, row + 0.45, text, ha="center", va="center", fontsize=5,
                color="white" if dark else "black",
            )  # fmt: skip
    axes.set_yticks(np.arange(len(rows)) + 0.45, rows)
    axes.set_xticks([])
    axes.set(xlim=(0, max(labels.count(label) for label in rows)), ylim=(len(rows), 0))
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel("broken more strongly →")
    bar = ScalarMappable(norm, colours)
    axes.figure.colorbar(bar, ax=axes, shrink=0.8, label="error of the drop times")
    return axes


def plot_exponents(axes: Axes, data: xr.Dataset) -> Axes:
    """The largest Lyapunov exponent a step against the rate, a mark a run, by its regime."""
    chosen = data["label"].values == "rate"
    rates = data["strength"].values[chosen].astype(float)
    exponents, kinds = (data[n].values[chosen] for n in ("lyapunov", "regime"))
    top = np.nanmax(exponents, initial=0.1)
    for number, (kind, mark) in enumerate(MARKS.items()):
        where = np.argwhere(kinds == kind)
        if not len(where):
            continue
        x = [rates[i] for i, _ in where]
        y = [exponents[i, j] if np.isfinite(exponents[i, j]) else 1.15 * top for i, j in where]
        axes.plot(x, y, mark, markersize=3.5, alpha=0.7, color=COLOURS[number], label=kind)
    axes.axhline(0, color="0.6", linewidth=0.6)
    axes.set(xlabel=r"rate $\eta$", ylabel="Lyapunov exponent a step")
    axes.legend(loc="upper left", fontsize=6)
    return axes


def _percent(error: float) -> str:
    digits = 0 if error >= 0.095 else 1 if error >= 0.0095 else 2
    return f"{error:.{digits}%}"
