"""Norms of all blocks over training, and escape times against the start (second paper)."""

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from iclflow.plots.style import COLOURS, THEORY, TIME, mode_colour, side_by_side

# Label, colour, line, width of every block.
_LOOKS = {
    "p2": ("$p_2$", COLOURS[0], "-", 2.0),
    "q1": ("$q_1$", COLOURS[5], "--", 0.9),
    "p1": ("$p_1$", COLOURS[1], "-", 2.0),
    "q2": ("$q_2$", COLOURS[4], "--", 0.9),
}


def draw(data: xr.Dataset) -> Figure:
    """(a) extra blocks that start smaller, (b) larger, (c) escape times."""
    small, large = (lambda axes, d, i=i: _norms(axes, d, i) for i in (1, 2))
    return side_by_side(data, small, large, _escapes, height=0.85)


def _norms(axes: Axes, data: xr.Dataset, index: int) -> None:
    """Norm of every block over training, all seeds."""
    run = data["norms"].isel(extra=index)
    for block, (label, colour, line, width) in _LOOKS.items():
        look = {"color": colour, "linestyle": line, "linewidth": width}
        axes.plot(data["time"], run.sel(block=block).values.T, **look)
        axes.plot([], [], label=label, **look)
    axes.set_yscale("log")
    axes.set_ylim(1e-7, 10)
    axes.set_xlabel(TIME)
    axes.set_title(
        f"({' ab'[index]}) $p_1, q_2$ start {'smaller' if index == 1 else 'larger'}", loc="left"
    )
    if index == 1:
        axes.set_ylabel("norm of a block")
        axes.legend(loc="lower left", ncols=2, handlelength=1.6, columnspacing=0.8)


def _escapes(axes: Axes, data: xr.Dataset) -> None:
    """Half-times against 1/a₀, each over its own time scale, and t*."""
    begin, scale = 1 / data["begin"].values, data["timescale"].values
    for mode in range(data.sizes["mode"]):
        times, theory = (data[n].values[:, mode] / scale[mode] for n in ("half_time", "escape"))
        label = f"$s$ = {float(data['eigenvalue'][mode]):g}"
        axes.plot(begin, times, "o", color=mode_colour(mode), markersize=3.5, label=label)
        axes.plot(begin, theory, **THEORY)
    axes.plot([], [], label="$t^*$", **THEORY)
    axes.set_xscale("log")
    axes.set_xlabel("$1/a_0$")
    axes.set_ylabel(r"$t/\tau_\alpha$ at which $a_\alpha = a_\infty/2$")
    axes.set_title("(c) escape times", loc="left")
    axes.legend(loc="upper left", handlelength=1.4, fontsize=6)
