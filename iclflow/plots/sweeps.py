"""A sweep: one variable against another, with the spread over seeds, and the map of regimes."""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from iclflow.plots.style import BENEATH, COLOURS, COLUMN, PAPER, style, theory_of

WIDE = 20  # times: from here on an axis is logarithmic
MARKS = "o^sDv"
STROKES = ("-", "--", "-.", ":")


def sweep_figure(data: xr.Dataset, *, title: str = "") -> Figure:
    """What `sweeps.look` found, as lines with bands or as points; theory dashed."""
    with style():
        figure = Figure(figsize=(COLUMN * 1.35, COLUMN * 0.85))
        plot_sweep(figure.subplots(), data)
        figure.axes[0].set_title(title)
    return figure


def plot_sweep(axes: Axes, data: xr.Dataset) -> Axes:
    """Median and 10-90% of a variable along an axis, or one point per run."""
    data = data.transpose("colour", "kind", "x", "point", ..., missing_dims="ignore")
    about = data.attrs
    single = data.sizes["colour"] == 1
    text = data["x"].dtype.kind in "OUT"
    x = np.arange(data.sizes["x"]) if text else data["x"].values
    order = np.argsort(x) if x.ndim == 1 else x
    for c in range(data.sizes["colour"]):
        for k in range(data.sizes["kind"]):
            colour = COLOURS[(k if single else c) % len(COLOURS)]
            name = _name(data, c, k, single)
            if "middle" not in data:
                points = x[c, k], data["y"].values[c, k]
                mark = {"marker": MARKS[k % len(MARKS)], "markersize": 2.5, "linestyle": "none"}
                axes.plot(*points, alpha=0.6, color=colour, label=name, **mark)
                continue
            low, middle, high = (data[n].values[c, k][order] for n in ("low", "middle", "high"))
            stroke = "-" if single else STROKES[k % len(STROKES)]
            axes.fill_between(x[order], low, high, color=colour, alpha=0.18, linewidth=0)
            if np.isfinite(middle).any():  # else no run had this drop
                mark = {"marker": "o", "markersize": 2.5}
                if "theory" not in data:
                    axes.plot(x[order], middle, stroke, color=colour, label=name, **mark)
                else:
                    axes.plot(x[order], middle, color=colour, **BENEATH)
                    axes.plot(x[order], middle, color=colour, label=name, linestyle="", **mark)
                    said = data["theory"].values[c, k][order]
                    axes.plot(x[order], said, **{**theory_of(colour), "zorder": 5})
    if "theory" in data:
        axes.plot([], [], label="theory", **theory_of("0.3"))
    if "formula" in data:
        axes.plot(x[order], data["formula"].values[order], label="fastest of $H$", **PAPER)
    axes.set_xlabel(about["x_label"])
    axes.set_ylabel(about["y_label"])
    if text:
        axes.set_xticks(x, [str(value) for value in data["x"].values], rotation=30, ha="right")
    elif _wide(x):
        axes.set_xscale("log")
    elif x.dtype.kind in "iu":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if _wide(data["middle" if "middle" in data else "y"].values):
        axes.set_yscale("log")
    if axes.get_legend_handles_labels()[1]:
        beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        axes.legend(title=about["colour"] or None, fontsize=6, **beside)
    return axes


def _name(data: xr.Dataset, colour: int, kind: int, single: bool) -> str | None:
    what = data.attrs["kind"]
    own = f"{what} {kind + 1}" if what and data.sizes["kind"] > 1 else ""
    name = own if single else str(data["colour"].values[colour])
    if not single and own:
        name = f"{name}, {own}"
    return name or None


def _wide(values: Any) -> bool:
    finite = np.asarray(values)[np.isfinite(values)]
    return bool(finite.size and finite.min() > 0 and finite.max() > WIDE * finite.min())
