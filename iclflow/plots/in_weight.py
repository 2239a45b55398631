"""Figs 5 and 10: in-weight and in-context learning, by portion of fixed task vectors."""

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from iclflow.plots.style import COLOURS, COLUMN, THEORY, style

_CURVES = {
    "training": ("training loss", "black"),
    "in_weight": ("in-weight test loss", COLOURS[1]),
    "in_context": ("in-context test loss", COLOURS[0]),
}
_PREDICTED = {**THEORY, "color": "0.45", "linewidth": 0.9, "zorder": 1}
_LABEL = r"loss $\mathbb{E}(y_q - \hat{y}_q)^2$"


def draw_fig5(data: xr.Dataset) -> Figure:
    """Left: three losses at one portion. Right: the training loss at every portion."""
    with style():
        figure = Figure(figsize=(2 * COLUMN, 0.85 * COLUMN))
        left, right = figure.subplots(1, 2)
        shown = float(data.attrs["shown"])
        _losses(left, data.sel(portion=shown), float(data.attrs["final_in_context"]))
        left.set_title(f"{shown:.0%} of task vectors fixed")
        left.set_ylabel(_LABEL)
        handles = [Line2D([], [], color=c, label=name) for name, c in _CURVES.values()]
        handles.append(Line2D([], [], **_PREDICTED, label="first drop, predicted"))
        left.legend(handles=handles, loc="upper right")
        # Past the dark end of a map that reads in grey; its yellow end is too pale for lines.
        shades = colormaps["viridis"](np.linspace(0.0, 0.85, data.sizes["portion"]))
        for colour, portion in zip(shades, data["portion"].values, strict=True):
            run = data.sel(portion=portion)
            right.plot(run["time"], run["training"], color=colour, label=f"{portion:.0%}")
            _prediction(right, run)
        right.set_title("training loss by portion fixed")
        right.legend(loc="upper right", ncols=2, title="portion fixed", title_fontsize=7)
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
            if i % panels.shape[1]:
                axes.set_ylabel("")
            else:
                axes.set_ylabel(_LABEL)
            if i < panels.shape[1]:
                axes.set_xlabel("")
        handles = [Line2D([], [], color=c, label=name) for name, c in _CURVES.values()]
        handles.append(Line2D([], [], **_PREDICTED, label="first drop, predicted"))
        figure.legend(handles=handles, loc="outside upper center", ncols=4)
    return figure


def _losses(axes: Axes, run: xr.Dataset, level: float) -> None:
    for name, (_, colour) in _CURVES.items():
        # Where curves coincide (no fixed task, or all fixed) the upper ones leave gaps.
        gaps = {"training": {}, "in_weight": {"dashes": (5, 2)}, "in_context": {}}[name]
        axes.plot(run["time"], run[name], color=colour, **gaps)
    _prediction(axes, run)
    axes.axhline(level, color="0.45", linestyle=":", linewidth=0.8, zorder=0)


def _prediction(axes: Axes, run: xr.Dataset) -> None:
    """The predicted first drop, up to a little after its end: it knows nothing of the rest."""
    until = run["time"].values <= 1.25 * float(run["predicted_end"])
    axes.plot(run["time"].values[until], run["predicted"].values[until], **_PREDICTED)


def _frame(axes: Axes, data: xr.Dataset) -> None:
    axes.set_xlim(0, 1.25 * float(data.attrs["paper_window"]))
    axes.set_ylim(0, None)
    axes.set_xlabel(r"training time $t/\tau$")
