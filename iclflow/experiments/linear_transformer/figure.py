"""The linear transformer: fixed point, time courses, what is conserved (second paper)."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from iclflow.plots.style import (
    COLOURS,
    COLUMN,
    HEAT,
    PAPER,
    THEORY,
    Figure,
    mode_colour,
    side_by_side,
    style,
)


def draw_fig1(data: xr.Dataset) -> Figure:
    """p₂q₁ simulated, a∞ of the paper, the exact flow; and how far apart they are."""
    products = data["products"].mean("seed").values
    exact = np.diag(data["a_exact"].values[-1])
    panels = (
        ("$p_2q_1$, simulation", products),
        (r"paper, $a_\infty = 1/s_\infty$ (11)", np.diag(data["a_infinity"].values)),
        ("exact mean flow", exact),
    )
    top = max(float(np.abs(matrix).max()) for _, matrix in panels)
    with style():
        figure = Figure(figsize=(2.08 * COLUMN, 0.72 * COLUMN))
        axes = figure.subplots(1, 4, width_ratios=(1, 1, 1, 1.25))
        for place, (title, matrix) in zip(axes, panels, strict=False):
            image = place.imshow(matrix, cmap=HEAT, vmin=-top, vmax=top)
            place.set_title(title, fontsize=7.5)
            size = len(matrix)
            place.set_xticks(range(size), [str(i + 1) for i in range(size)])
            place.set_yticks(range(size), [str(i + 1) for i in range(size)])
            place.set_xlabel("mode")
            for i in range(size):
                value = matrix[i, i]
                colour = "white" if value > 0.6 * top else "black"
                place.annotate(
                    f"{value:.3f}", (i, i), ha="center", va="center", fontsize=5.5, color=colour
                )
        axes[0].set_ylabel("mode")
        figure.colorbar(image, ax=list(axes[:3]), shrink=0.72, pad=0.02)
        _deviation(axes[3], data)
    return figure


def _deviation(axes: Axes, data: xr.Dataset) -> None:
    """Relative to a∞, in per cent, with standard errors."""
    limit = data["a_infinity"].values
    mode = np.arange(1, limit.size + 1)
    relative = {
        name: 100 * (values / limit - 1)
        for name, values in (
            ("simulation", data["a"].mean("seed").values[-1]),
            ("exact", data["a_exact"].values[-1]),
            ("optimum", data["a_optimum"].values),
        )
    }
    error = 100 * data["a_error"].values[-1] / limit
    axes.axhline(0, label=r"paper, $a_\infty$", **PAPER)
    axes.errorbar(
        mode, relative["simulation"], error, fmt="o", color=COLOURS[0], markersize=3.5,
        linewidth=0.8, capsize=2, label="simulation",
    )  # fmt: skip
    axes.plot(mode, relative["exact"], "_", color="black", markersize=9, label="exact, same time")
    axes.plot(
        mode, relative["optimum"], "D", color=COLOURS[1], markersize=3, markerfacecolor="none",
        label="exact optimum",
    )  # fmt: skip
    axes.set_xticks(mode)
    axes.set_xlim(0.5, limit.size + 0.5)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.75 * (high - low))
    axes.set_xlabel("mode")
    axes.set_ylabel(r"difference from $a_\infty$ (%)")
    axes.legend(loc="upper left", fontsize=6, handlelength=1.2, borderaxespad=0.0)


def draw_fig2(data: xr.Dataset) -> Figure:
    """a_α(t) with both theories; the conserved quantity; what single modes conserve."""
    return side_by_side(data, _courses, _conserved, _drift, height=0.8)


def _courses(axes: Axes, data: xr.Dataset) -> None:
    epochs = data["epoch"].values
    mean, error = data["a"].mean("seed").values, data["a_error"].values
    for i, s in enumerate(data["eigenvalue"].values):
        colour = mode_colour(i)
        axes.plot(epochs, mean[:, i], color=colour, label=f"$s = {s:g}$")
        axes.fill_between(
            epochs, mean[:, i] - error[:, i], mean[:, i] + error[:, i], color=colour, alpha=0.2,
            linewidth=0,
        )  # fmt: skip
        axes.plot(epochs, data["a_paper"].values[:, i], **PAPER)
        axes.plot(epochs, data["a_exact"].values[:, i], **THEORY)
    axes.plot([], [], label="paper (13)", **PAPER)
    axes.plot([], [], label="exact", **THEORY)
    axes.set_xlabel("epochs")
    axes.set_ylabel(r"$a_\alpha = (p_2 q_1)_{\alpha\alpha}$")
    axes.set_title(f"N = {int(data.attrs['context'])}", loc="left")
    axes.legend(loc="upper left", fontsize=6, handlelength=1.6, labelspacing=0.3)


def _conserved(axes: Axes, data: xr.Dataset) -> None:
    epochs = data["epoch"].values
    first, second = data["norm_p"].mean("seed").values, data["norm_q"].mean("seed").values
    axes.plot(epochs, first, color=COLOURS[0], label=r"$\|p_2\|^2$")
    axes.plot(epochs, -second, color=COLOURS[1], label=r"$-\|q_1\|^2$")
    axes.plot(epochs, first - second, color=COLOURS[2], label=r"$\mathcal{C}$, their sum")
    exact = data["norm_exact"].values
    axes.plot(epochs, exact, label="exact", **THEORY)
    axes.plot(epochs, -exact, **THEORY)
    axes.axhline(0, **THEORY)
    axes.set_xlabel("epochs")
    axes.set_ylabel("squared norms")
    axes.set_title("conserved: the whole", loc="left")
    axes.set_ylim(-1.12 * exact.max(), 1.75 * exact.max())  # room for the legend
    axes.legend(loc="upper left", fontsize=6, handlelength=1.6)


def _drift(axes: Axes, data: xr.Dataset) -> None:
    time = data["drift_time"].values
    for i, s in enumerate(data["eigenvalue"].values):
        colour = mode_colour(i)
        label = "optimum" if i == 0 else None
        axes.plot(time[1:], data["drift"].values[1:, i], color=colour)
        axes.axhline(
            float(data["drift_end"][i]), color=colour, linewidth=0.6, linestyle="--", label=label
        )
        above = 2 if data["drift_end"][i] > 0 else -8
        axes.annotate(
            f"$s = {s:g}$", (time[-1], float(data["drift_end"][i])), xytext=(0, above),
            textcoords="offset points", fontsize=6.5, color=colour, ha="right",
        )  # fmt: skip
    axes.axhline(0, label="paper (12)", **PAPER)
    axes.axvline(float(data["epoch"][-1]), color="0.8", linewidth=0.7, zorder=0)
    axes.set_xscale("log")
    axes.set_xlabel("epochs")
    axes.set_ylabel(r"$p_\alpha^2 - q_\alpha^2$, exact flow")
    axes.set_title("not conserved: a mode", loc="left")
    axes.margins(y=0.12)
    axes.legend(loc="lower left", fontsize=6, handlelength=1.4)
