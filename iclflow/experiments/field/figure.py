"""A group of tables as a picture: how many standard errors our numbers are from theirs."""

import numpy as np
import xarray as xr
from matplotlib.ticker import MaxNLocator

from iclflow.experiments.field.comparisons.cells import SOLID_Z, Found, scores
from iclflow.experiments.field.data import found_in
from iclflow.plots.style import COLOURS, COLUMN, Picture, style

ACROSS = 3  # panels in a row


def draw(data: xr.Dataset) -> Picture:
    """A panel per table: z of every cell, ours and with the mistake."""
    tables = found_in(data)
    rows = -(-len(tables) // ACROSS)
    across = min(ACROSS, len(tables))
    with style():
        figure = Picture(figsize=(max(across, 1.35) * 0.72 * COLUMN, rows * 0.62 * COLUMN))
        panels = figure.subplots(rows, across, squeeze=False)
        for panel in panels.flat[len(tables) :]:
            panel.set_visible(False)
        for place, (name, found, _) in enumerate(tables):
            _panel(panels.flat[place], name, found, place % across == 0)
        first = panels.flat[0]
        handles, labels = first.get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _panel(axes, name: str, found: Found, leftmost: bool) -> None:
    """One table."""
    z, wrong = found.cells.z(), found.cells.z("control")
    if not len(z):  # a table of checks alone
        z = np.asarray([(c.measured - c.expected) / c.tolerance for c in found.checks])
        wrong = np.asarray([(c.control - c.expected) / c.tolerance for c in found.checks])
        title = f"{name}\n{sum(np.abs(z) <= 1)} of {len(z)} checks hold"
        about = "gap over tolerance"
    else:
        chi2, largest = scores(z)
        title = f"{name}\nχ²/n = {chi2:.2f}, largest |z| = {largest:.1f}"
        about = "z = (theirs - ours)/error"
    number = np.arange(1, len(z) + 1)
    axes.axhspan(-SOLID_Z, SOLID_Z, color="0.93", zorder=0)
    axes.axhline(0, color="0.6", linewidth=0.6, zorder=1)
    size = 14 if len(z) < 60 else 5
    axes.scatter(
        number, wrong, s=size, marker="x", color="0.55", linewidth=0.7, label="with one mistake"
    )
    axes.scatter(number, z, s=size, color=COLOURS[0], label="ours", zorder=3, linewidth=0)
    axes.set_yscale("symlog", linthresh=SOLID_Z, linscale=1.5)
    reach = max(2 * SOLID_Z, 2.5 * float(np.abs(np.concatenate([z, wrong])).max()))
    axes.set_ylim(-reach, reach)
    ticks = [t for t in (-1000, -100, -10, -2, 0, 2, 10, 100, 1000) if abs(t) <= reach]
    axes.set_yticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_title(title)
    axes.set_xlabel("cell")
    if leftmost:
        axes.set_ylabel(about)
