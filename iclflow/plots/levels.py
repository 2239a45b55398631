"""Levels of the loss: dotted lines, their names beside them where there is room."""

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes

LEVEL: dict[str, Any] = {"color": "0.5", "linewidth": 0.8, "linestyle": (0, (1, 1.6)), "zorder": 0}
LINE_HEIGHT = 1.15  # of a name, times its font size


def level_name(m: int, count: int) -> str:
    """L(M_m); where there are two levels only, L(0) and the least loss L_*."""
    return rf"$L(\mathcal{{M}}_{{{m}}})$" if count != 2 else (r"$L(\mathbf{0})$", r"$L_*$")[m]


def plot_levels(
    axes: Axes,
    levels: Any,
    *,
    which: Iterable[int] | None = None,
    names: bool = True,
    fontsize: float = 6.5,
    **look: Any,
) -> None:
    """Lines at levels, largest first, with names at the right edge; set the y-limits before.

    - `which`: the levels drawn; all if not said.
    - `names`: from the top those that do not run into one another; the last one always, which the
      one above it may push down a little.
    """
    drawn = list(range(len(levels)) if which is None else which)
    for m in drawn:
        axes.axhline(float(levels[m]), **{**LEVEL, **look})
    if not names or not drawn:
        return
    low, high = axes.get_ylim()
    points = 72 * axes.get_window_extent().height / axes.figure.dpi
    room = LINE_HEIGHT * fontsize * (high - low) / points
    *others, last = drawn
    places, above = {last: float(levels[last])}, float("inf")
    for m in others:
        level = float(levels[m])
        gap = level - float(levels[last])
        if above - level < room or gap < room / 2:
            continue
        places[m] = above = level
        if gap < room:
            places[m] += (room - gap) / 2
            places[last] -= (room - gap) / 2
    for m, place in places.items():
        axes.annotate(
            level_name(m, len(levels)), (1, place), xycoords=("axes fraction", "data"),
            xytext=(3, 0), textcoords="offset points", va="center", fontsize=fontsize,
            annotation_clip=False,
        )  # fmt: skip
