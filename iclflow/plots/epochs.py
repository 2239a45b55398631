"""Curves over epochs, as the published code draws them; and a recorded run beside its repeat."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from iclflow.plots.style import COLOURS, COLUMN, THEORY, Picture, style

CURVES = {
    "loss": ("train", "black"),
    "in_weight_loss": ("test, in weight", COLOURS[0]),
    "in_context_loss": ("test, in context", COLOURS[1]),
}


def epochs_figure(run: xr.Dataset, *, values: bool = False, title: str = "") -> Picture:
    """The losses of one run against epochs; with `values`, the value weights below."""
    with style():
        figure = Picture(figsize=(COLUMN, COLUMN * (1.4 if values else 0.8)))
        panels = figure.subplots(2 if values else 1, 1, sharex=True, squeeze=False)[:, 0]
        plot_epochs(panels[0], run)
        panels[0].set_title(title)
        if values:
            panels[1].plot(run["step"], run["values"].transpose("time", ...).values)
            panels[1].set_ylabel(r"value weights $v_h$")
        panels[-1].set_xlabel("epoch")
    return figure


def plot_epochs(axes: Axes, run: xr.Dataset) -> Axes:
    """Training loss and, where recorded, the two test losses."""
    shown = [name for name in CURVES if name in run]
    for name in shown:
        label, colour = CURVES[name]
        axes.plot(run["step"], run[name].values, color=colour, label=label)
    axes.set_ylabel("loss")
    axes.set_xlim(0, max(1, int(run["step"][-1])))
    axes.set_ylim(0, None)
    if len(shown) > 1:
        axes.legend(loc="upper right")
    return axes


def comparison_figure(
    run: xr.Dataset, recorded: dict[str, np.ndarray], *, title: str = ""
) -> Picture:
    """Recorded curves (dashed) over repeated ones, and the size of their difference below."""
    with style():
        figure = Picture(figsize=(COLUMN, COLUMN * 1.3))
        upper, lower = figure.subplots(2, 1, sharex=True)
        plot_epochs(upper, run)
        for i, (name, curve) in enumerate(recorded.items()):
            label = "recorded" if i == 0 else None
            upper.plot(run["step"], curve, label=label, **{**THEORY, "color": "0.6"})
            colour = CURVES[name][1]
            gap = np.abs(run[name].values - curve)
            lower.semilogy(run["step"], np.where(gap > 0, gap, np.nan), color=colour)
        upper.legend(loc="upper right")
        upper.set_title(title)
        lower.set_ylabel("difference")
        lower.set_xlabel("epoch")
    return figure
