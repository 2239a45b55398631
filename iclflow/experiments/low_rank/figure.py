"""Figs 4, 8 and 9: the staircase of the loss for key and query of different rank."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from iclflow.plots.losses import LEVEL, plot_levels
from iclflow.plots.style import BENEATH, COLOURS, COLUMN, LOSS, TIME, Picture, style, theory_of

_QUIET = "0.45"
FIRST = 300.0  # t/τ at which the axis begins; nothing happens before
_LONG = {"color": "black", "linewidth": 0.9}  # levels of the long plateaus


def draw_fig4(data: xr.Dataset) -> Picture:
    """One panel a rank: six seeds over the levels L(M_m)."""
    ranks = data["rank"].values.tolist()
    with style():
        figure = Picture(figsize=(2 * COLUMN, 1.25 * COLUMN))
        panels = figure.subplots(2, 2, sharey=True, sharex=True)
        for i, (axes, rank) in enumerate(zip(panels.flat, ranks, strict=True)):
            _staircases(axes, data.sel(rank=rank), rank, float(data["clock"].max()), i == 0)
            if i % 2 == 0:
                axes.set_ylabel(LOSS)
            if i >= 2:
                axes.set_xlabel(TIME)
        handles = [
            Line2D([], [], color=COLOURS[0], label=_simulation(data.sizes["seed"])),
            Line2D(
                [], [], **{**LEVEL, **_LONG}, label=r"$L(\mathcal{M}_m)$, $m$ a multiple of $R$"
            ),
            Line2D([], [], **LEVEL, label="other levels"),
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure


draw_fig9 = draw_fig4


def _staircases(axes: Axes, runs: xr.Dataset, rank: int, end: float, first: bool) -> None:
    clock = runs["clock"].values
    levels = runs["levels"].values
    last = len(levels) - 1
    shades = COLOURS[0], COLOURS[5]
    for i, loss in enumerate(runs["loss"].values):
        axes.plot(clock, loss, color=shades[i % 2], linewidth=0.9, alpha=0.85)
    axes.set_title(f"rank $R = {rank}$")
    # Each plateau is longer than all before it together; a linear axis shows the last one only.
    axes.set_xscale("log")
    axes.set_xlim(FIRST, end)
    window = float(runs.attrs["paper_window"])
    axes.axvline(window, color="0.75", linewidth=0.8, zorder=0)
    if first:
        axes.annotate(
            "paper's window", (window, 1.0), xycoords=("data", "axes fraction"),
            xytext=(3, -12), textcoords="offset points", va="top", fontsize=6.5, color=_QUIET,
        )  # fmt: skip
    axes.set_ylim(0, 1.05)
    long = sorted({*range(0, last, rank), last})
    plot_levels(axes, levels, which=[m for m in range(last) if m not in long], names=False)
    plot_levels(axes, levels, which=long, **_LONG)


def draw_fig8(data: xr.Dataset) -> Picture:
    """Loss (top) and value weights (bottom) of one run for each rank, prediction dashed."""
    ranks = data["rank"].values.tolist()
    window = float(data.attrs["paper_window"])
    with style():
        figure = Picture(figsize=(2 * COLUMN, 1.15 * COLUMN))
        panels = figure.subplots(2, len(ranks), sharex=True, sharey="row")
        for column, rank in enumerate(ranks):
            run = data.sel(rank=rank).isel(seed=0)
            clock = run["clock"].values
            top, bottom = panels[:, column]
            top.plot(clock, run["loss"].values, color="black")
            top.set_title(f"rank $R = {rank}$")
            top.set_ylim(0, 1.05)
            plot_levels(top, run["levels"].values, names=column == len(ranks) - 1)
            ended = np.abs(run["values"].values[-1])
            signs = np.where(run["values"].values[-1] < 0, -1, 1)
            for place, head in enumerate(np.argsort(-ended)):
                colour = COLOURS[place % len(COLOURS)]
                predicted = run["predicted_values"].values[:, head]
                wakes = np.abs(predicted[-1]) > 0.1 * np.max(ended)  # dashes hide dormant heads
                look = {**(BENEATH if wakes else {}), "color": colour, "zorder": 3 - place * 0.1}
                bottom.plot(clock, signs[head] * run["values"].values[:, head], **look)
                if wakes:
                    shown = run["predicted_clock"].values, signs[head] * predicted
                    bottom.plot(*shown, **{**theory_of(colour), "zorder": 4})
            for value in run["final_values"].values:
                if value > 0:
                    bottom.axhline(value, color=_QUIET, linestyle=":", linewidth=0.8, zorder=0)
            bottom.set_xlim(0, window)
            bottom.set_xlabel(TIME)
        panels[0, 0].set_ylabel(LOSS)
        panels[1, 0].set_ylabel(r"value weights $\pm v_i$")
        handles = [
            Line2D([], [], color=COLOURS[0], **BENEATH, label="simulation (one colour per head)"),
            Line2D([], [], **theory_of(COLOURS[0]), label="predicted from the initial weights"),
            Line2D([], [], color=_QUIET, linestyle=":", label=r"$(\sum_d m_d)^{1/3}$"),
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure


def _simulation(seeds: int) -> str:
    return f"simulation, {seeds} seeds" if seeds > 1 else "simulation, one seed"
