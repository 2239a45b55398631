"""Figs 3B and 7 of the second paper: grokking, and the measures around generalisation."""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from iclflow.experiments.grokking.claims import END, WITH, clocks, half_change
from iclflow.plots.style import COLOURS, COLUMN, Picture, style

_NAMES = {
    "effective_rank": "effective rank of OV",
    "marginalised_rank": "marginalised rank of OV",
    "subspace_distance": "subspace distance of OV (16)",
    "projector_distance": "projector distance of OV",
    "weight_norm": "norm of all weights",
    "embedding_concentration": "Fourier, embedding",
    "unembedding_concentration": "Fourier, unembedding",
}
_SHADE = "0.9"
_LINES = ("-", ":")


def draw(data: xr.Dataset) -> Picture:
    """Losses and accuracies; measures on the clock of accuracy; who moves when, on both clocks."""
    with style():
        figure = Picture(figsize=(2 * COLUMN, 2.75 * COLUMN))
        # Two parts, so that the long names of the lower one do not narrow the upper one.
        parts: Any = figure.subfigures(2, 1, height_ratios=(2.7, 1.2))
        upper, lower = parts
        panels = upper.subplots(3, 2).ravel()
        _both(panels[0], data, "loss")
        panels[0].set_yscale("log")
        panels[0].set_ylabel("cross-entropy (nats)")
        _both(panels[1], data, "accuracy")
        panels[1].set_ylim(-0.02, 1.04)
        panels[1].set_ylabel("accuracy")
        _task_key(panels[1], data)
        one = data.isel(task=0)
        _aligned(
            panels[2], one, {"effective_rank": "effective", "marginalised_rank": "marginalised"}
        )
        panels[2].set_ylabel("rank of OV\nover its start")
        _aligned(panels[3], one, {"subspace_distance": "(16)", "projector_distance": "projectors"})
        panels[3].set_ylabel("distance of OV\nto its end")
        _norm(panels[4], one)
        _aligned(
            panels[5],
            one,
            {"embedding_concentration": "embedding", "unembedding_concentration": "unembedding"},
        )
        panels[5].set_ylabel(f"share of the {data.attrs['frequencies']}\nlargest frequencies")
        of_accuracy, of_loss = lower.subplots(1, 2, sharey=True)
        _order(of_accuracy, data, "accuracy")
        _order(of_loss, data, "loss")
        of_loss.tick_params(labelleft=False)
        _order_key(lower, data)
        upper.align_ylabels()
        for letter, axes in zip("abcdefgh", figure.axes, strict=True):
            axes.set_title(f"({letter})", loc="left")
        return figure


def _both(axes: Axes, data: xr.Dataset, what: str) -> None:
    """Loss or accuracy of the training pairs and of the others, a line style per task."""
    for i in range(data.sizes["task"]):
        one = data.isel(task=i)
        for part, colour, label in (
            ("train", COLOURS[0], "training"),
            ("test", COLOURS[1], "test"),
        ):
            curves = one[f"{part}_{what}"].values
            _runs(axes, data["step"].values, curves, colour, "" if i else label, _LINES[i])
    axes.set_xscale("log")
    axes.set_xlim(1, float(data["step"][-1]))
    axes.set_xlabel("training steps")
    axes.legend(loc="lower left" if what == "loss" else "center left")


def _task_key(axes: Axes, data: xr.Dataset) -> None:
    """Which line style is which task, where there are several."""
    if data.sizes["task"] > 1:
        first = axes.get_legend()
        handles = [
            Line2D([], [], color="0.3", linestyle=_LINES[i], label=str(task))
            for i, task in enumerate(data["task"].values)
        ]
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.0, 0.98))
        if first is not None:
            axes.add_artist(first)


def _runs(
    axes: Axes, steps: np.ndarray, curves: np.ndarray, colour: str, label: str, line: str = "-"
) -> None:
    """All seeds in one colour; `steps` is shared, or one row for each seed."""
    for clock, curve in zip(np.broadcast_to(steps, curves.shape), curves, strict=True):
        seen = clock > 0
        axes.plot(clock[seen], curve[seen], line, color=colour, linewidth=0.9, alpha=0.75)
    if label:
        axes.plot([], [], line, color=colour, label=label)


def _aligned(axes: Axes, one: xr.Dataset, names: dict[str, str]) -> None:
    """Measures of every seed against its steps over those to 95% test accuracy."""
    clock = one["step"].values[None] / one["grokked"].values[:, None]
    for i, (name, label) in enumerate(names.items()):
        _runs(axes, clock, one[name].values, COLOURS[i], label, ("-", "--")[i])
    axes.set_ylim(0, 1.04)
    _window(axes, one)


def _window(axes: Axes, one: xr.Dataset) -> None:
    """The clock of accuracy, with the middle half of the test loss's drop shaded."""
    drop = [
        float((one[stage].sel(measure="test_loss", end="run") / one["grokked"]).median())
        for stage in ("onset", "settling")
    ]
    if np.isfinite(drop).all():
        axes.axvspan(*drop, color=_SHADE, linewidth=0, zorder=-1)
    axes.axvline(1, color="0.5", linewidth=0.6, zorder=0)
    axes.set_xscale("log")
    axes.set_xlim(0.02, 3)
    axes.set_xticks([0.02, 0.1, 0.5, 1, 2], ["0.02", "0.1", "0.5", "1", "2"])
    axes.minorticks_off()
    axes.set_xlabel("steps / steps to 95% test accuracy")
    beside_title = {"loc": "lower right", "bbox_to_anchor": (1.02, 0.98)}
    axes.legend(**beside_title, ncols=2, handlelength=1.6, columnspacing=1.0)


def _norm(axes: Axes, one: xr.Dataset) -> None:
    """The norm of the weights and its curvature, which are both of order one."""
    grokked = one["grokked"].values[:, None]
    clocks = [one[name].values[None] / grokked for name in ("step", "curvature_step")]
    _runs(axes, clocks[0], one["weight_norm"].values, COLOURS[0], "norm")
    _runs(axes, clocks[1], one["norm_curvature"].values, COLOURS[2], "curvature", "--")
    axes.axhline(0, color="0.5", linewidth=0.4, zorder=0)
    axes.set_ylabel("norm of all weights\nover its start;\ncurvature over its largest")
    _window(axes, one)


def _order(axes: Axes, data: xr.Dataset, clock: str) -> None:
    """Half-change of every measure over a clock, its change taken to both ends."""
    against, names = clocks(data)[clock], [n for n in data["measure"].values if n in _NAMES]
    for row, name in enumerate(names):
        for i, task in enumerate(data["task"].values):
            for end, filled in (("run", False), (END, True)):
                ratios = (half_change(data, name, end) / against).sel(task=task).values
                place = row + (0.22 * (2 * i - 1) if data.sizes["task"] > 1 else 0)
                nudge = np.linspace(-0.12, 0.12, ratios.size) if ratios.size > 1 else np.zeros(1)
                axes.plot(
                    ratios, place + nudge, "o", color=COLOURS[i], markersize=2.4,
                    markerfacecolor=COLOURS[i] if filled else "none", markeredgewidth=0.5,
                )  # fmt: skip
    axes.axvline(1, color="0.4", linewidth=1.0, zorder=0)
    axes.axvspan(1 / WITH, WITH, color=_SHADE, linewidth=0, zorder=-1)
    axes.set_yticks(range(len(names)), [_NAMES[name] for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.set_xlim(0.15, 6)
    axes.set_xticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
    axes.minorticks_off()
    what = "95% test accuracy" if clock == "accuracy" else "half of the test loss's change"
    axes.set_xlabel(f"step of half-change / that of\n{what}")


def _order_key(figure: Any, data: xr.Dataset) -> None:
    """What the dots of the lower panels are, above them."""
    dot: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 3}
    hollow = {**dot, "markerfacecolor": "none"}
    handles: list[Any] = [
        Line2D([], [], color=COLOURS[i], label=str(task), **dot)
        for i, task in enumerate(data["task"].values)
    ]
    handles += [
        Line2D([], [], color="0.3", label=f"change until {END} × generalisation", **dot),
        Line2D([], [], color="0.3", label="until the end of the run", **hollow),
        Patch(color=_SHADE, label="within a tenth"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=5, fontsize=6.5,
                  handletextpad=0.3, columnspacing=1.0)  # fmt: skip
