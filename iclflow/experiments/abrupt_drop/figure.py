"""Fig. 1: the equivalence drawn, and the loss of attention and network with the theory."""

import xarray as xr
from matplotlib.axes import Axes

from iclflow.experiments.schematics import draw_merged
from iclflow.plots.losses import plot_levels
from iclflow.plots.style import COLOURS, COLUMN, TIME, Picture, style, theory_of


def draw(data: xr.Dataset) -> Picture:
    """Left the schematic, right the loss of ATTN_M and of MLP(z) in the paper's window."""
    with style():
        figure = Picture(figsize=(2.08 * COLUMN, 0.78 * COLUMN))
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.35))
        draw_merged(left)
        plot_drop(right, data)
    return figure


def plot_drop(axes: Axes, data: xr.Dataset) -> Axes:
    """Loss over t/τ: attention wide, network thin on top, reduced flow dashed."""
    window = 2 * data.attrs["rate"] * data.attrs["window"]
    time = data["time"].values
    curves = (
        ("loss", {"color": COLOURS[5], "linewidth": 3.4}, r"$\mathrm{ATTN_M}$"),
        ("loss_mlp", {"color": COLOURS[1], "linewidth": 1.0}, r"$\mathrm{MLP}(\mathbf{z})$"),
        ("loss_theory", theory_of("0.1"), "theory, from the initial weights"),
    )
    for name, look, label in curves:
        axes.plot(time, data[name].values.T, **look)
        axes.plot([], [], label=label, **look)
    axes.set_xlim(0, window)
    axes.set_ylim(0, 1.08 * float(data["levels"][0]))
    plot_levels(axes, data["levels"].values, fontsize=7)
    axes.set_xlabel(TIME)
    axes.set_ylabel("loss")
    axes.legend(loc="upper right", bbox_to_anchor=(1.0, 0.9))
    count = data.sizes["seed"]
    axes.set_title(
        rf"$P$ = {data.attrs['sequences']:,}, $H$ = {data.attrs['heads']}, {count} seeds"
    )
    return axes
