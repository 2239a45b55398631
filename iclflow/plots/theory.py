"""The theory by itself: plateau levels, and the predicted loss of one start."""

import math
from collections.abc import Sequence
from typing import Any

import xarray as xr

from iclflow.plots.losses import LEVEL, plot_levels
from iclflow.plots.style import (
    COLOURS,
    COLUMN,
    HALF_LOSS,
    LOSS,
    PAPER,
    THEORY,
    TIME,
    Picture,
    mode_colour,
    style,
)  # fmt: skip

BESIDE = 0.05  # share of the time axis, within which two drops share a label


def theory_figure(
    levels: Sequence[float],
    *,
    curve: Any = None,
    drops: Sequence[float] | None = None,
) -> Picture:
    """Levels L(M_m) as steps; over time, with the drops marked, where a start was given.

    `curve` is anything with a `time` and a `loss`.
    """
    with style():
        figure = Picture(figsize=(COLUMN * 1.35, COLUMN * 0.85))
        axes = figure.subplots()
        if curve is None:
            axes.stairs(levels, baseline=None, color=COLOURS[0], linewidth=1.6)
            axes.set_xlabel("modes learned $m$")
            axes.set_xticks(
                [m + 0.5 for m in range(len(levels))], [str(m) for m in range(len(levels))]
            )
            axes.set_xlim(0, len(levels))
        else:
            end = float(curve.time[-1])
            axes.plot(curve.time, curve.loss, color=COLOURS[0])
            axes.set_ylim(0, None)
            plot_levels(axes, levels, fontsize=7)
            first = min(drops or (end,)) / 4
            for numbers, time in _labels(drops or (), first, end):
                axes.annotate(
                    numbers, (time, 1), xycoords=("data", "axes fraction"),
                    xytext=(0, 2), textcoords="offset points", fontsize=7, ha="center",
                )  # fmt: skip
            for time in drops or ():
                axes.axvline(time, color="0.75", linewidth=0.6, zorder=0)
            # Plateaus lengthen from drop to drop: in the logarithm all of them can be seen.
            axes.set_xscale("log")
            axes.set_xlim(first, end)
            axes.set_xlabel(TIME)
        axes.set_ylabel(LOSS)
        axes.set_ylim(0, None)
    return figure


def _labels(drops: Sequence[float], first: float, end: float) -> list[tuple[str, float]]:
    """The names of drops and where they stand on a logarithmic axis; those too close share one."""
    groups: list[list[int]] = []
    for i, time in enumerate(drops):
        close = groups and math.log(time / drops[groups[-1][-1]]) < BESIDE * math.log(end / first)
        if close:
            groups[-1].append(i)
        else:
            groups.append([i])
    names = [
        "–".join(f"$t_{{{i + 1}}}$" for i in sorted({group[0], group[-1]})) for group in groups
    ]
    middles = [math.sqrt(drops[group[0]] * drops[group[-1]]) for group in groups]
    return list(zip(names, middles, strict=True))


def transformer_figure(curves: xr.Dataset) -> Picture:
    """Both theories of one start over time: a_α(t), and the loss with the paper's ½."""
    rate = float(curves.attrs["epoch_rate"])
    time = curves["time"].values[1:] / rate
    clock = rf"{TIME} = epochs × $\eta P$" if rate == 1 else "epochs"
    with style():
        figure = Picture(figsize=(2.08 * COLUMN, 0.85 * COLUMN))
        left, right = figure.subplots(1, 2)
        for i, s in enumerate(curves["eigenvalue"].values):
            colour = mode_colour(i)
            name = f"$s = {s:.3g}$" if curves.sizes["mode"] <= 6 else None
            left.plot(time, curves["exact"].values[1:, i], color=colour, label=name)
            left.plot(time, curves["paper"].values[1:, i], **{**PAPER, "color": colour})
            left.plot(
                time[-1], float(curves["a_optimum"][i]), "_", color=colour, markersize=8,
                clip_on=False,
            )  # fmt: skip
        left.plot([], [], color="0.3", label="exact")
        left.plot([], [], label="paper (13)", **{**PAPER, "color": "0.3"})
        left.plot([], [], "_", color="0.3", markersize=8, label="optimum")
        left.set_ylabel(r"$a_\alpha = p_\alpha q_\alpha$")
        right.plot(time, curves["exact_loss"].values[1:], color=COLOURS[0], label="exact")
        right.plot(time, curves["paper_loss"].values[1:], label="paper (14)", **THEORY)
        right.axhline(float(curves["optimum_loss"]), **LEVEL)
        right.set_ylabel(HALF_LOSS)
        right.set_ylim(0, None)
        for axes in (left, right):
            axes.set_xscale("log")
            axes.set_xlabel(clock)
            axes.legend(fontsize=6.5)
    return figure
