"""Drop times against the scale of the initial weights, with the fitted law and the theory's."""

import itertools
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from iclflow.plots.style import COLUMN, THEORY, Picture, mode_colour, style

PANELS = 6  # at most


def escape_figure(fit: Any, *, title: str = "") -> Picture:
    """The times of all runs, the fitted law of each drop, and the theory of the same starts.

    - `fit`: of `icl.fit.escape`, or its `data`; one panel for each value of its other axes.
    """
    fit = fit if isinstance(fit, xr.Dataset) else getattr(fit, "data", None)
    if not isinstance(fit, xr.Dataset) or "slope" not in fit:
        raise ValueError("plots.escape draws a fit: icl.plots.escape(icl.fit.escape(runs))")
    axes = [d for d in fit["slope"].dims if d != "drop_number"]
    places = list(itertools.product(*(range(fit.sizes[d]) for d in axes)))
    if len(places) > PANELS:
        raise ValueError(
            f"the fit has {len(places)} panels over {', '.join(map(str, axes))}; select some of "
            f"them with .sel(...), at most {PANELS}"
        )
    with style():
        wide = min(len(places), 3) * 1.55 * COLUMN
        rows = -(-len(places) // 3)
        figure = Picture(figsize=(wide, rows * 0.95 * COLUMN))
        grid = np.ravel(figure.subplots(rows, min(len(places), 3), sharey=True, squeeze=False))
        for panel, place in zip(grid, places, strict=False):
            at = dict(zip(axes, place, strict=True))
            words = [f"{d} {fit[d].values[i] if d in fit.coords else i}" for d, i in at.items()]
            plot_escape(panel, fit.isel(at))
            panel.set_title(", ".join(words) or title)
        for spare in grid[len(places) :]:
            spare.set_axis_off()
        for panel in grid[1:]:
            panel.set_ylabel("")
    return figure


def plot_escape(axes: Axes, fit: xr.Dataset) -> Axes:
    """One panel: a point per run, a line per drop, the theory dashed."""
    against, power = fit.attrs["against"], fit.attrs["law"] == "power"
    x = fit[against].values.astype(float)
    ends = np.array([x.min(), x.max()])
    dims = ("drop_number", against, "seed")
    measured, predicted = (fit[n].transpose(*dims).values for n in ("time", "theory_time"))
    for drop in range(fit.sizes["drop_number"]):
        slope, low, high, theory = (
            float(fit[n].values[drop]) for n in ("slope", "low", "high", "theory")
        )
        if not np.isfinite(slope):
            continue
        name = f"drop {drop + 1}: " + (
            f"{slope:.3f} [{low:.3f}, {high:.3f}]"
            if power
            else f"{slope:.3g} [{low:.3g}, {high:.3g}]"
        )
        colour = mode_colour(drop)
        for times in measured[drop].T:
            axes.plot(x, times, "o", color=colour, markersize=2, alpha=0.35)
        height = _height(x, measured[drop], slope, power)
        axes.plot(ends, _law(height, slope, ends, power), color=colour, label=name)
        if np.isfinite(theory):
            both = np.isfinite(predicted[drop]).any(axis=0)  # seeds that the theory was asked about
            above = _height(x, predicted[drop][:, both], theory, power)
            above -= _height(x, measured[drop][:, both], theory, power)
            axes.plot(ends, _law(height + above, theory, ends, power), **THEORY)
    if np.isfinite(predicted).any():
        axes.plot([], [], label="theory, same starts", **THEORY)
    axes.set_xscale("log")
    few = x if len(x) <= 8 else x[:: len(x) // 5]
    axes.set_xticks(few, [f"{value:g}" for value in few])
    axes.xaxis.set_minor_locator(NullLocator())
    if power:
        axes.set_yscale("log")
    name = "init scale $w$" if against == "scale" else against
    axes.set(xlabel=name, ylabel=r"time of the drop, $t/\tau$")
    what = "exponent [95 %]" if power else r"$dT/d\,\ln w$ [95 %]"
    if fit.attrs["confidence"] != 0.95:
        what = what.replace("95 %", f"{100 * fit.attrs['confidence']:g} %")
    beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    axes.legend(title=what, title_fontsize=7, **beside)
    return axes


def _height(x: np.ndarray, times: np.ndarray, slope: float, power: bool) -> float:
    """The intercept of the middle start, given the slope that all share."""
    y = np.log(times) if power else times
    return float(np.nanmedian(y - slope * np.log(x)[:, None]))


def _law(height: float, slope: float, ends: np.ndarray, power: bool) -> np.ndarray:
    line = height + slope * np.log(ends)
    return np.exp(line) if power else line
