"""Stages of the linear transformer's loss, and the detectors that find them (second paper)."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from iclflow.plots.losses import plot_levels
from iclflow.plots.style import (
    BENEATH,
    COLOURS,
    COLUMN,
    HALF_LOSS,
    PAPER,
    THEORY,
    Picture,
    side_by_side,
    style,
    theory_of,
)

_MARK = {"color": "0.8", "linewidth": 0.5, "zorder": 0}


def draw_fig3(data: xr.Dataset) -> Picture:
    """The staged loss at N = 200; training at N = 8; the error of the closed form against N."""
    return side_by_side(data, _staged, _small, _error, height=0.8)


def _staged(axes: Axes, data: xr.Dataset) -> None:
    epochs = data["epoch"].values[1:]
    plot_levels(axes, data["levels"].values, names=False)
    axes.plot(epochs, data["loss"].values[1:], color=COLOURS[0], label="simulation", **BENEATH)
    axes.plot(epochs, data["loss_paper"].values[1:], label="paper (14)", **PAPER)
    axes.plot(epochs, data["loss_exact"].values[1:], label="exact", **theory_of(COLOURS[0]))
    for i, time in enumerate(data["half_paper"].values):
        axes.annotate(
            f"$t_{i + 1}$", (time, 1), xycoords=("data", "axes fraction"), xytext=(2, -7),
            textcoords="offset points", fontsize=6.5, color="0.35",
        )  # fmt: skip
        axes.axvline(time, **_MARK)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.15 * float(data["loss"][0]))
    axes.set_xlabel("epochs")
    axes.set_ylabel(HALF_LOSS)
    axes.set_title(f"N = {int(data.attrs['staged_context'])}: plateaus and cliffs", loc="left")
    axes.legend(loc="lower left", fontsize=6, handlelength=1.6, bbox_to_anchor=(0.0, 0.1))


def _small(axes: Axes, data: xr.Dataset) -> None:
    time = data["small_time"].values[1:]
    name = "SGD" if str(data.attrs["small_training"]).startswith("SGD") else "simulation"
    axes.plot(time, data["small_loss"].values[1:], color=COLOURS[0], label=name, **BENEATH)
    axes.plot(time, data["small_loss_paper"].values[1:], label="paper (14)", **PAPER)
    axes.plot(time, data["small_loss_exact"].values[1:], label="exact", **theory_of(COLOURS[0]))
    axes.set_xscale("log")
    axes.set_xlim(1, time[-1])
    axes.set_xlabel(r"epochs × $\eta P$")
    axes.set_title(f"N = {int(data.attrs['small_context'])}", loc="left")
    axes.legend(loc="lower left", fontsize=6, handlelength=1.6)


def _error(axes: Axes, data: xr.Dataset) -> None:
    contexts = data["context"].values.astype(float)
    error, final = data["error"].values, data["final_error"].values
    axes.plot(
        contexts, error, "o", color=COLOURS[0], markersize=4, label=r"$a(t)$, over $a_\infty$"
    )
    axes.plot(contexts, error[-1] * contexts[-1] / contexts, label=r"$\propto 1/N$", **THEORY)
    axes.plot(
        contexts, final, "s", color=COLOURS[1], markersize=3.5, label=r"$L(\infty)$, relative"
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("context length $N$")
    axes.set_ylabel("largest error of (13), (14)")
    axes.set_title("paper against exact", loc="left")
    axes.legend(loc="upper right", fontsize=6, handlelength=1.4)


_DETECTORS = (
    (
        "autocorrelation",
        r"$\mathrm{d}^2 A/\mathrm{d}(\ln \mathrm{lag})^2$",
        "lag, epochs",
        "loss autocorrelation",
    ),
    ("norm", r"$\mathrm{d}^2 \|p_2\|/\mathrm{d}(\ln t)^2$", "epochs", r"norm $\|p_2\|$"),
    ("baseline", r"$\mathrm{d}^2 L/\mathrm{d}(\ln t)^2$", "epochs", "loss (baseline)"),
)


def draw_fig4(data: xr.Dataset) -> Picture:
    """Three curvatures, their peaks marked, beside the half-times of the modes; the ranks."""
    with style():
        figure = Picture(figsize=(2.08 * COLUMN, 1.25 * COLUMN))
        axes = figure.subplots(2, 2).ravel()
        for place, (name, label, clock, title) in zip(axes, _DETECTORS, strict=False):
            _curvature(place, data, name)
            place.set_ylabel(label)
            place.set_xlabel(clock)
            place.set_title(title, loc="left")
        axes[0].legend(
            loc="upper left", fontsize=6, handlelength=1.2, frameon=True, framealpha=1.0,
            edgecolor="none",
        )  # fmt: skip
        _ranks(axes[3], data)
    return figure


def _curvature(axes: Axes, data: xr.Dataset, name: str) -> None:
    time, values = data[f"{name}_time"].values, data[f"{name}_curvature"].values
    for i, half in enumerate(data["half_time"].values):
        label = r"$a_\alpha = a_\infty/2$" if i == 0 else None
        axes.axvline(half, color="0.55", linewidth=0.8, linestyle=(0, (4, 3)), label=label)
    axes.plot(time, values, color=COLOURS[0])
    bends = data[f"{name}_bends"].values
    axes.plot(
        bends, np.interp(bends, time, values), "v" if name != "norm" else "^", color=COLOURS[1],
        markersize=4, label="a mode learned",
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlim(4, time[-1])


def _ranks(axes: Axes, data: xr.Dataset) -> None:
    epochs = data["epoch"].values[1:]
    for half in data["half_time"].values:
        axes.axvline(half, color="0.55", linewidth=0.8, linestyle=(0, (4, 3)))
    for i, drop in enumerate(data["dropped"].values):
        axes.plot(epochs, data["rank"].values[i, 1:], color=COLOURS[i], label=f"{int(drop)}")
    axes.set_xscale("log")
    axes.set_xlim(4, epochs[-1])
    axes.set_xlabel("epochs")
    axes.set_ylabel("effective rank, rel. to start")
    axes.set_title("marginalised effective rank", loc="left")
    axes.legend(
        title="modes left out", fontsize=6, title_fontsize=6, handlelength=1.2, ncols=3,
        columnspacing=0.8, loc="lower right", frameon=True, framealpha=1.0, edgecolor="none",
    )  # fmt: skip
