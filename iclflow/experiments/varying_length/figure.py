"""Contexts of varying length: loss of both models, and of the trained model by length."""

import xarray as xr
from matplotlib.axes import Axes

from iclflow.plots.levels import plot_levels
from iclflow.plots.style import COLOURS, THEORY, TIME, Figure, side_by_side


def draw(data: xr.Dataset) -> Figure:
    """Merged, separate, and the loss at every length."""
    return side_by_side(data, _merged, _separate, _lengths, height=0.78)


def _merged(axes: Axes, data: xr.Dataset) -> None:
    time = data["merged_time"].values
    axes.plot(time, data["merged_loss"].values.T, color=COLOURS[5], linewidth=1.6)
    axes.plot([], [], color=COLOURS[5], linewidth=1.6, label="simulation")
    axes.plot(time, data["merged_theory"].values, label="reduced flow", **THEORY)
    axes.set_xlim(0, 250)
    axes.set_ylim(0, 1.08 * float(data["levels"][0]))
    plot_levels(axes, data["merged_levels"].values)
    axes.set_xlabel(TIME)
    axes.set_ylabel(r"loss, mean over $n$ = 1 $\dots$ 31")
    axes.set_title("merged", loc="left")
    axes.legend(loc="upper right", bbox_to_anchor=(1.0, 0.92), handlelength=1.6)


def _separate(axes: Axes, data: xr.Dataset) -> None:
    time = data["time"].values
    for s in range(data.sizes["seed"]):
        axes.plot(time, data["loss"].values[s], color=COLOURS[s % len(COLOURS)], linewidth=1.3)
        axes.plot(time, data["staircase_loss"].values[s], **{**THEORY, "linewidth": 0.6})
    axes.plot([], [], label="predicted from $W(0)$", **{**THEORY, "linewidth": 0.6})
    axes.set_xscale("log")
    axes.set_xlim(time[1], time[-1])
    axes.set_ylim(0, 1.08 * float(data["levels"][0]))
    plot_levels(axes, data["levels"].values)
    axes.set_xlabel(TIME)
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
