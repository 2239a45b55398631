"""Contexts of varying length: loss of both models, and of the trained model by length."""

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from iclflow.plots.style import COLOURS, COLUMN, THEORY, style


def draw(data: xr.Dataset) -> Figure:
    """Merged, separate, and the loss at every length."""
    with style():
        figure = Figure(figsize=(2.08 * COLUMN, 0.78 * COLUMN))
        left, middle, right = figure.subplots(1, 3)
        _merged(left, data)
        _separate(middle, data)
        _lengths(right, data)
    return figure


def _levels(axes: Axes, data: xr.Dataset, which: range | tuple[int, ...]) -> None:
    for m in which:
        level = float(data["levels"][m])
        axes.axhline(level, color="0.55", linewidth=0.6, linestyle=(0, (4, 3)), zorder=0)
        axes.annotate(
            rf"$L(\mathcal{{M}}_{m})$", (1.0, level), xycoords=("axes fraction", "data"),
            xytext=(2, 0), textcoords="offset points", fontsize=6.5,
            va="top" if m == data.sizes["level"] - 1 else "center",
        )  # fmt: skip


def _merged(axes: Axes, data: xr.Dataset) -> None:
    time = data["merged_time"].values
    _levels(axes, data, (0, data.sizes["level"] - 1))
    axes.plot(time, data["merged_loss"].values.T, color=COLOURS[5], linewidth=1.6)
    axes.plot([], [], color=COLOURS[5], linewidth=1.6, label="simulation")
    axes.plot(time, data["merged_theory"].values, label="reduced flow", **THEORY)
    axes.set_xlim(0, 250)
    axes.set_ylim(0, 1.08 * float(data["levels"][0]))
    axes.set_xlabel(r"training time $t/\tau$")
    axes.set_ylabel(r"loss, mean over $n$ = 1 $\dots$ 31")
    axes.set_title("merged", loc="left")
    axes.legend(loc="upper right", bbox_to_anchor=(1.0, 0.92), handlelength=1.6)


def _separate(axes: Axes, data: xr.Dataset) -> None:
    time = data["time"].values
    _levels(axes, data, range(data.sizes["level"]))
    for s in range(data.sizes["seed"]):
        axes.plot(time, data["loss"].values[s], color=COLOURS[s % len(COLOURS)], linewidth=1.3)
        axes.plot(time, data["staircase_loss"].values[s], **{**THEORY, "linewidth": 0.6})
    axes.plot([], [], label="predicted from $W(0)$", **{**THEORY, "linewidth": 0.6})
    axes.set_xscale("log")
    axes.set_xlim(time[1], time[-1])
    axes.set_ylim(0, 1.08 * float(data["levels"][0]))
    axes.set_xlabel(r"training time $t/\tau$")
    axes.set_title("separate, rank one", loc="left")
    axes.legend(loc="lower left", handlelength=1.6)


def _lengths(axes: Axes, data: xr.Dataset) -> None:
    n = data["length"].values
    axes.plot(n, data["length_trained"], "o", color=COLOURS[0], markersize=3, label="trained")
    axes.plot(n, data["length_best"], label="closed form", **THEORY)
    axes.plot(
        n, data["length_own"], color=COLOURS[1], linewidth=0.9, linestyle=":",
        label="best for $n$ alone",
    )  # fmt: skip
    axes.set_xlabel("pairs in the context $n$")
    axes.set_ylabel("loss at length $n$")
    axes.set_ylim(0, None)
    axes.set_xlim(0, n[-1] + 1)
    axes.set_title("merged, at the end", loc="left")
    axes.legend(loc="upper right")
