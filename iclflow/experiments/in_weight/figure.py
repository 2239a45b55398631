"""Figs 5 and 10: in-weight and in-context learning, by portion of fixed task vectors."""

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from iclflow.plots.levels import LEVEL
from iclflow.plots.style import COLOURS, COLUMN, LOSS, THEORY, TIME, Figure, style

# Name, colour and width: where curves coincide the wider ones show beside the narrower.
_CURVES = {
    "training": ("training loss", COLOURS[2], 2.2),
    "in_weight": ("in-weight test loss", COLOURS[1], 1.4),
    "in_context": ("in-context test loss", COLOURS[0], 0.9),
}
_PREDICTED = {**THEORY, "linewidth": 0.9, "zorder": 5}


def draw_fig5(data: xr.Dataset) -> Figure:
    """Left: three losses at one portion. Right: the training loss at every portion."""
    with style():
        figure = Figure(figsize=(2 * COLUMN, 0.85 * COLUMN))
        left, right = figure.subplots(1, 2)
        shown = float(data.attrs["shown"])
        _losses(left, data.sel(portion=shown), float(data.attrs["final_in_context"]))
        left.set_title(f"{shown:.0%} of task vectors fixed")
        left.set_ylabel(LOSS)
        left.legend(handles=_handles(), loc="upper right")
        # Past the dark end of a map that reads in grey; its yellow end is too pale for lines.
        shades = colormaps["viridis"](np.linspace(0.0, 0.85, data.sizes["portion"]))
        for colour, portion in zip(shades, data["portion"].values, strict=True):
            run = data.sel(portion=portion)
            right.plot(run["time"], run["training"], color=colour, label=f"{portion:.0%}")
            _prediction(right, run)
        right.set_title("training loss, portions fixed")
        right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), title="fixed", title_fontsize=7)
        for axes in (left, right):
            _frame(axes, data)
    return figure


def draw_fig10(data: xr.Dataset) -> Figure:
    """A panel for each portion, three losses each."""
    with style():
        figure = Figure(figsize=(2 * COLUMN, 1.25 * COLUMN))
        panels = figure.subplots(2, -(-data.sizes["portion"] // 2), sharex=True, sharey=True)
        for i, (axes, portion) in enumerate(zip(panels.flat, data["portion"].values, strict=True)):
            _losses(axes, data.sel(portion=portion), float(data.attrs["final_in_context"]))
            axes.set_title(f"({'abcdef'[i]}) {portion:.0%} fixed")
            _frame(axes, data)
            axes.set_ylim(0, 1.6)
            if i % panels.shape[1]:
                axes.set_ylabel("")
            else:
                axes.set_ylabel(LOSS)
            if i < panels.shape[1]:
                axes.set_xlabel("")
        figure.legend(handles=_handles(), loc="outside upper center", ncols=3)
    return figure


def _losses(axes: Axes, run: xr.Dataset, level: float) -> None:
    for name, (_, colour, width) in _CURVES.items():
        axes.plot(run["time"], run[name], color=colour, linewidth=width)
    _prediction(axes, run)
    axes.axhline(level, **LEVEL)


def _handles() -> list[Line2D]:
    lines = [
        Line2D([], [], color=colour, linewidth=width, label=name)
        for name, colour, width in _CURVES.values()
    ]
    lines.append(Line2D([], [], **_PREDICTED, label="first drop, predicted"))
    lines.append(Line2D([], [], **LEVEL, label="least squares in context"))
    return lines


def _prediction(axes: Axes, run: xr.Dataset) -> None:
    """The predicted first drop, up to a little after its end: it knows nothing of the rest."""
    until = run["time"].values <= float(run["predicted_end"]) + 15
    axes.plot(run["time"].values[until], run["predicted"].values[until], **_PREDICTED)


def _frame(axes: Axes, data: xr.Dataset) -> None:
    axes.set_xlim(0, 1.25 * float(data.attrs["paper_window"]))
    axes.set_ylim(0, None)
    axes.set_xlabel(TIME)
