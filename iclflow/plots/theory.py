"""The theory by itself: plateau levels, and the predicted loss of one start."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from iclflow.plots.style import COLOURS, COLUMN, THEORY, style


def theory_figure(
    levels: Sequence[float],
    *,
    curve: Any = None,
    drops: Sequence[float] | None = None,
) -> Figure:
    """Levels L(M_m) as steps; over time, with the drops marked, where a start was given.

    `curve` is anything with a `time` and a `loss`.
    """
    with style():
        figure = Figure(figsize=(COLUMN * 1.35, COLUMN * 0.85))
        axes = figure.subplots()
        if curve is None:
            axes.stairs(levels, baseline=None, color=COLOURS[0], linewidth=1.6)
            axes.set_xlabel("modes learned $m$")
            axes.set_xticks(
                [m + 0.5 for m in range(len(levels))], [str(m) for m in range(len(levels))]
            )
            axes.set_xlim(0, len(levels))
        else:
            end = float(curve.time[-1])
            axes.plot(curve.time, curve.loss, color=COLOURS[0])
            for m, level in enumerate(levels):
                axes.axhline(level, **{**THEORY, "linewidth": 0.6, "color": "0.45"}, zorder=0)
                if len(levels) <= 8:
                    axes.annotate(
                        rf"$L(\mathcal{{M}}_{{{m}}})$", (end, level), xytext=(3, 0),
                        textcoords="offset points", va="center", fontsize=7,
                        annotation_clip=False,
                    )  # fmt: skip
            for i, time in enumerate(drops or ()):
                axes.axvline(time, color="0.75", linewidth=0.6, zorder=0)
                axes.annotate(
                    f"$t_{{{i + 1}}}$", (time, 0), xycoords=("data", "axes fraction"),
                    xytext=(2, 3), textcoords="offset points", fontsize=7,
                )  # fmt: skip
            # Plateaus lengthen from drop to drop: in the logarithm all of them can be seen.
            axes.set_xscale("log")
            axes.set_xlim(min(drops or (end,)) / 4, end)
            axes.set_xlabel(r"training time $t/\tau$")
        axes.set_ylabel(r"loss $\mathbb{E}(y_q - \hat{y}_q)^2$")
        axes.set_ylim(0, None)
    return figure
