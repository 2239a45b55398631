"""The scale of the initial weights: losses of both models, and when the drops come."""

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes

from iclflow.plots.levels import plot_levels
from iclflow.plots.style import BENEATH, COLOURS, THEORY, TIME, Figure, side_by_side, theory_of

NAME_APART = 3.5  # factor in time between the names of two drops


def draw(data: xr.Dataset) -> Figure:
    """Merged, separate, and the times of the drops against w."""
    return side_by_side(data, _merged, _separate, _times, height=0.86)


def _colour(scale: float):
    """Dark for small weights, light for large ones, the same in all panels."""
    return colormaps["viridis"](0.92 * np.clip((np.log10(scale) + 6) / 7, 0, 1))


def _power(scale: float) -> str:
    exponent = int(np.floor(np.log10(scale) + 1e-9))
    factor = scale / 10.0**exponent
    if abs(factor - 1) < 1e-6:
        return rf"$10^{{{exponent}}}$" if abs(exponent) > 1 else f"{scale:g}"
    return f"{scale:g}"


def _merged(axes: Axes, data: xr.Dataset) -> None:
    time = data["merged_time"].values
    for i, scale in enumerate(data["merged_scale"].values):
        loss = data["merged_loss"].values[i]
        axes.plot(time[1:], loss[1:], color=_colour(scale), label=_power(scale))
    axes.plot(time[1:], data["lazy_loss"].values[1:], label="lazy", **THEORY)
    _frame(axes, "merged", (0.03, time[-1]), 1.7 * float(data["levels"][0]))
    axes.set_ylabel("loss")


def _separate(axes: Axes, data: xr.Dataset) -> None:
    plot_levels(axes, data["levels"].values, names=False)
    for i, scale in enumerate(data["separate_scale"].values):
        time, loss = data["separate_time"].values[i], data["separate_loss"].values[i]
        has_theory = np.isclose(data["theory_scale"].values, scale).any()
        look = BENEATH if has_theory else {}
        axes.plot(time[1:], loss[1:], color=_colour(scale), label=_power(scale), **look)
    for i, scale in enumerate(data["theory_scale"].values):
        alone = not np.isclose(data["separate_scale"].values, scale).any()
        axes.plot(
            data["theory_time"].values[i], data["theory_loss"].values[i],
            label=_power(scale) if alone else None, **theory_of(_colour(scale)),
        )  # fmt: skip
    axes.plot([], [], label="predicted", **theory_of("0.3"))
    end = float(data["theory_time"].max())
    _frame(axes, "separate, rank one", (0.3, end), 1.7 * float(data["levels"][0]))


def _frame(axes: Axes, title: str, window: tuple[float, float], top: float) -> None:
    axes.set(xscale="log", xlim=window, ylim=(0, top), xlabel=TIME)
    axes.set_title(title, loc="left")
    axes.legend(
        title="$w$", ncols=2, loc="upper right", handlelength=1.2, columnspacing=0.8,
        labelspacing=0.25, borderaxespad=0.0, title_fontsize=7,
    )  # fmt: skip


def _times(axes: Axes, data: xr.Dataset) -> None:
    """Medians over seeds; merged with its two formulas, separate with the staircase."""
    scales = data["merged_scale"].values
    dots = {"linestyle": "", "markersize": 3.5, "marker": "o"}
    axes.plot(scales, data["merged_half_time"].median("seed"), color=COLOURS[1], **dots)
    axes.plot(scales, data["merged_half_theory"], **theory_of(COLOURS[1]))
    small = scales <= 0.1
    axes.plot(
        scales[small], data["merged_half_paper"].values[small], color=COLOURS[1], linewidth=0.8,
        linestyle=":",
    )  # fmt: skip
    height = 0.0
    drops, theory = data["separate_drops"].median("seed"), data["theory_drops"].median("seed")
    for d, colour in enumerate((COLOURS[0], COLOURS[5], COLOURS[2], COLOURS[3])):
        axes.plot(data["separate_scale"], drops.values[:, d], color=colour, **dots)
        axes.plot(data["theory_scale"], theory.values[:, d], **theory_of(colour))
        height = max(NAME_APART * height, float(theory[0, d]))  # drops may come close together
        axes.annotate(
            f"$t_{d + 1}$", (float(data["theory_scale"][0]), height), xytext=(-3, 0),
            textcoords="offset points", fontsize=6.5, color=colour, ha="right", va="center",
        )  # fmt: skip
    axes.plot([], [], color="0.4", label="simulated", **dots)
    axes.plot([], [], label="predicted", **theory_of("0.4"))
    axes.plot([], [], color="0.4", linewidth=0.8, linestyle=":", label="(51)")
    axes.annotate(
        "merged", (3e-6, float(data["merged_half_time"][0].median())), xytext=(0, 5),
        textcoords="offset points", fontsize=7, color=COLOURS[1],
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1.5e-7, 2 * scales[-1])
    axes.set_xlabel("initial scale $w$")
    axes.set_ylabel(r"time of the drops $t/\tau$")
    axes.set_title("all seeds, medians", loc="left")
    axes.legend(loc="upper right", handlelength=1.4, borderaxespad=0.0)
