"""Softmax versions of Figs 1 and 3: one drop with merged key and query, several with separate."""

import xarray as xr
from matplotlib.lines import Line2D

from iclflow.plots.levels import LEVEL, plot_levels
from iclflow.plots.style import COLOURS, COLUMN, LOSS, TIME, Figure, style, theory_of


def draw(data: xr.Dataset) -> Figure:
    """Left: merged. Right: separate, a colour a seed; linear attention dashed."""
    with style():
        figure = Figure(figsize=(2 * COLUMN, 0.9 * COLUMN))
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, name in ((left, "merged"), (right, "separate")):
            time = data[f"{name}_time"].values
            for i, loss in enumerate(data[name].values):
                axes.plot(time, loss, color=COLOURS[i], linewidth=1.5)
                if f"{name}_linear" in data:
                    axes.plot(time, data[f"{name}_linear"].values[i], **theory_of(COLOURS[i]))
            axes.set_xlim(0, time[-1])
            levels = data[f"{name}_levels"].values
            axes.set_ylim(0, 1.08 * max(levels[0], float(data[name].max())))
            plot_levels(axes, levels)
            axes.set_xlabel(TIME)
        left.set_title("merged key and query")
        right.set_title("separate key and query, rank one")
        left.set_ylabel(LOSS)
        handles = [
            Line2D([], [], color=COLOURS[0], linewidth=1.5, label="softmax (one colour per seed)"),
            Line2D([], [], **LEVEL, label="levels (24), linear"),
        ]
        if "merged_linear" in data:
            label = "linear attention, same start and data"
            handles.insert(1, Line2D([], [], **theory_of("0.3"), label=label))
        figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure
