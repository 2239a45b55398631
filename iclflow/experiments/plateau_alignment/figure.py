"""Weights of a small head on two plateaus against the phase, and all heads at once."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from iclflow.plots.style import COLOURS, THEORY, mode_colour, side_by_side


def draw(data: xr.Dataset) -> Figure:
    """(a) the first plateau, (b) the third, (c) prediction against measurement."""
    first, third = (lambda axes, d, m=m: _plateau(axes, d, m) for m in (0, 2))
    return side_by_side(data, first, third, _all_heads, height=0.95)


def _plateau(axes: Axes, data: xr.Dataset, plateau: int) -> None:
    """|k ± q|/2 along each eigenvector against the phase, with (63) or (70) dashed."""
    run = data.isel(plateau=plateau)
    phase = run["shown_phase"].values
    for d in range(data.sizes["component"]):
        for half, width in enumerate((2.2, 1.0)):
            values, theory = (
                np.abs(run[name].values[:, half, d]) for name in ("shown_halves", "shown_theory")
            )
            axes.plot(
                phase, values, color=mode_colour(d), linewidth=width, alpha=0.75,
                label=rf"$\mathbf{{e}}_{d + 1}$" if half == 0 else None,
            )  # fmt: skip
            axes.plot(phase, theory, **{**THEORY, "linewidth": 0.7})
    axes.set_yscale("log")
    axes.set_xlabel(r"phase $\int |v|\,\mathrm{d}t/\tau$")
    number = ("first", "second", "third", "fourth")[plateau]
    axes.set_title(f"({'a' if plateau == 0 else 'b'}) {number} plateau", loc="left")
    if plateau == 0:
        axes.set_ylabel(r"$|\mathbf{e}_d\cdot(k \pm q)|/2$; wide: growing half")
        axes.legend(loc="best", ncols=2, handlelength=1.2, columnspacing=0.8)


def _all_heads(axes: Axes, data: xr.Dataset) -> None:
    """Every component late on a plateau, predicted against measured."""
    dormant = data["dormant"].broadcast_like(data["end"]).values
    measured = data["end"].values
    learned = np.arange(data.sizes["component"]) < np.arange(data.sizes["plateau"])[:, None]
    learned = np.broadcast_to(learned[None, :, None, None, :], measured.shape) & dormant
    reach = 1.1 * float(np.abs(measured[dormant]).max())
    axes.plot([-reach, reach], [-reach, reach], color="0.6", linewidth=0.8, zorder=0)
    axes.plot(
        measured[learned], data["printed"].values[learned], "x", color=COLOURS[1], markersize=3,
        markeredgewidth=0.6, label="(70), third term as printed",
    )  # fmt: skip
    axes.plot(
        measured[dormant], data["theory"].values[dormant], "o", color=COLOURS[0], markersize=2,
        label="(63), (70) with it corrected",
    )  # fmt: skip
    axes.set_xscale("symlog", linthresh=0.03)
    axes.set_yscale("symlog", linthresh=0.03)
    ticks = (-1, -0.1, 0, 0.1, 1)
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks([], minor=True)
    axes.set_xlabel("measured late on a plateau")
    axes.set_ylabel("predicted from early on it")
    axes.set_title("(c) all small heads", loc="left")
    axes.legend(loc="upper left", handletextpad=0.2, borderaxespad=0.0)
