"""Blocks that the theory sets to zero: size and effect against the number of sequences."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from iclflow.plots.style import COLOURS, COLUMN, THEORY, Figure, style


def draw(data: xr.Dataset) -> Figure:
    """Two panels with the powers P^(-1/2) and 1/P beside."""
    with style():
        figure = Figure(figsize=(1.6 * COLUMN, 0.75 * COLUMN))
        left, right = figure.subplots(1, 2)
        _power(left, data, "blocks", -0.5, "size of the extra blocks", r"$\propto P^{-1/2}$")
        _power(right, data, "gap", -1.0, "training loss gained", r"$\propto 1/P$")
    return figure


def _power(axes: Axes, data: xr.Dataset, name: str, power: float, label: str, theory: str) -> None:
    counts = data["count"].values.astype(float)
    values = data[name].values
    axes.plot(counts, values.T, "o", color=COLOURS[5], markersize=2.5, alpha=0.6)
    typical = np.exp(np.log(values).mean(axis=0))
    axes.plot(counts, typical, "o-", color=COLOURS[0], markersize=4, label="geometric mean")
    axes.plot(counts, typical[-1] * (counts / counts[-1]) ** power, label=theory, **THEORY)
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{int(count):,}" for count in counts])
    axes.set_xticks([], minor=True)
    axes.set_yscale("log")
    axes.set_xlabel("training sequences $P$")
    axes.set_ylabel(label)
    axes.legend(loc="lower left")
