"""A number of each run over two axes of a sweep, as a map of colours."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize

from iclflow.plots.style import COLUMN, Picture, style

SHADES = "viridis"
WIDE = 20  # times: from here on colours are logarithmic
TICKS = 9  # on each side, at most
TEXT = 36  # squares up to which each has its number


def map_figure(data: xr.Dataset, *, title: str = "") -> Picture:
    """One map per drop (or another kind), all with the same colours, and their bar.

    - `data`: what `sweeps.look_map` found: `z` [kind, y, x] with its labels.
    """
    kinds = data.sizes["kind"]
    columns = 2 if kinds in (2, 4) else min(kinds, 3)
    rows = -(-kinds // columns)
    scale = _colours(data["z"].values)
    with style():
        wide = 1.3 * COLUMN if columns == 1 else (0.25 + 0.8 * columns) * COLUMN
        figure = Picture(figsize=(wide, (0.2 + 0.78 * rows) * COLUMN))
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        shown = []
        for number, axes in enumerate(np.ravel(grid)):
            if number >= kinds:
                axes.set_axis_off()
                continue
            plot_map(axes, data.isel(kind=number), scale)
            shown.append(axes)
            if kinds > 1:
                axes.set_title(f"{data.attrs['kind']} {number + 1}")
        for axes in shown:
            place = shown.index(axes)
            lowest = place + columns >= kinds
            axes.set_xlabel(data.attrs["x_label"] if lowest else "")
            axes.tick_params(labelbottom=lowest)
            axes.set_ylabel(data.attrs["y_label"] if place % columns == 0 else "")
        label = f"{data.attrs['statistic_label']} of {data.attrs['z_label']}"
        bar = figure.colorbar(shown[0].images[0], ax=shown, shrink=0.9, aspect=30)
        bar.set_label(label)
        if title:
            figure.suptitle(title, fontsize=8)
    return figure


def plot_map(axes: Axes, data: xr.Dataset, scale: Normalize | None = None) -> Axes:
    """One map: a square per pair of values, grey where no run has the number.

    - `data`: `z` [y, x].
    - `scale`: of the colours; that of these numbers if omitted.
    """
    z = data["z"].transpose("y", "x").values
    scale = _colours(z) if scale is None else scale
    axes.set_facecolor("0.85")
    shown = np.ma.masked_invalid(z)
    axes.imshow(shown, origin="lower", aspect="auto", cmap=SHADES, norm=scale)
    _ticks(axes.set_xticks, data["x"].values, rotation=45)
    _ticks(axes.set_yticks, data["y"].values)
    if z.size <= TEXT:
        for (row, column), value in np.ndenumerate(z):
            if np.isfinite(value):
                dark = float(scale(value)) < 0.6
                axes.text(
                    column, row, _number(value), ha="center", va="center", fontsize=5.5,
                    color="white" if dark else "black",
                )  # fmt: skip
    axes.set(xlabel=data.attrs["x_label"], ylabel=data.attrs["y_label"])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=2)
    return axes


def _ticks(place, values: np.ndarray, **given: float) -> None:
    """A tick at each value, or at some of many; the first and the last always have one."""
    at = np.unique(np.linspace(0, len(values) - 1, min(TICKS, len(values))).round().astype(int))
    words = [_number(v) if isinstance(v, float) else str(v) for v in values[at].tolist()]
    long = max(map(len, words)) > 4
    place(at, words, **(given if long else {}))


def _number(value: float) -> str:
    """Three digits, without an exponent from 0.001 to 99999."""
    return f"{value:.0f}" if 100 <= abs(value) < 1e5 else f"{value:.3g}"


def _colours(z: np.ndarray) -> Normalize:
    """Logarithmic where the numbers are positive and far apart."""
    finite = z[np.isfinite(z)]
    if not finite.size:
        return Normalize(0, 1)
    low, high = float(finite.min()), float(finite.max())
    if low > 0 and high > WIDE * low:
        return LogNorm(low, high)
    return Normalize(low, high if high > low else low + max(abs(low), 1e-12) * 1e-3)
