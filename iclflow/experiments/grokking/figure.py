"""Figs 3B and 7 of the second paper: grokking, and the measures around the test loss's drop."""

from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

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


def draw(data: xr.Dataset) -> Picture:
    """Losses and accuracies; measures on the clock of each seed's test loss; who moves first."""
    with style():
        figure = Picture(figsize=(2 * COLUMN, 2.55 * COLUMN))
        # Two parts, so that the long names of the lower one do not narrow the upper one.
        parts: Any = figure.subfigures(2, 1, height_ratios=(3, 1))
        upper, lower = parts
        panels = upper.subplots(3, 2).ravel()
        _both(panels[0], data, "loss")
        panels[0].set_yscale("log")
        panels[0].set_ylabel("cross-entropy (nats)")
        panels[0].legend(loc="lower left")
        _both(panels[1], data, "accuracy")
        panels[1].set_ylim(-0.02, 1.04)
        panels[1].set_ylabel("accuracy")
        panels[1].legend(loc="center left")
        _aligned(
            panels[2], data, {"effective_rank": "effective", "marginalised_rank": "marginalised"}
        )
        panels[2].set_ylabel("rank of OV\nover its start")
        _aligned(panels[3], data, {"subspace_distance": "(16)", "projector_distance": "projectors"})
        panels[3].set_ylabel("distance of OV\nto its end")
        _norm(panels[4], data)
        _aligned(
            panels[5],
            data,
            {"embedding_concentration": "embedding", "unembedding_concentration": "unembedding"},
        )
        panels[5].set_ylabel(f"share of the {data.attrs['frequencies']}\nlargest frequencies")
        _order(lower.subplots(), data)
        upper.align_ylabels()
        for letter, axes in zip("abcdefg", figure.axes, strict=True):
            axes.set_title(f"({letter})", loc="left")
    return figure


def _both(axes: Axes, data: xr.Dataset, what: str) -> None:
    """Loss or accuracy of the training pairs and of the others."""
    for part, colour, label in (("train", COLOURS[0], "training"), ("test", COLOURS[1], "test")):
        _runs(axes, data["step"].values, data[f"{part}_{what}"].values, colour, label)
    axes.set_xscale("log")
    axes.set_xlim(1, float(data["step"][-1]))
    axes.set_xlabel("training steps")


def _runs(
    axes: Axes, steps: np.ndarray, curves: np.ndarray, colour: str, label: str, line: str = "-"
) -> None:
    """All seeds in one colour; `steps` is shared, or one row for each seed."""
    for clock, curve in zip(np.broadcast_to(steps, curves.shape), curves, strict=True):
        seen = clock > 0
        axes.plot(clock[seen], curve[seen], line, color=colour, linewidth=0.9, alpha=0.75)
    axes.plot([], [], line, color=colour, label=label)


def _aligned(axes: Axes, data: xr.Dataset, names: dict[str, str]) -> None:
    """Measures of every seed against its steps over those to half of the test loss's drop."""
    half = data["half_change"].sel(measure="test_loss").values[:, None]
    clock = data["step"].values[None] / half
    for i, (name, label) in enumerate(names.items()):
        _runs(axes, clock, data[name].values, COLOURS[i], label, ("-", "--")[i])
    axes.set_ylim(0, 1.04)
    _window(axes, data)


def _window(axes: Axes, data: xr.Dataset) -> None:
    """The clock of the test loss, with its drop shaded."""
    drop = {
        stage: float(data[stage].sel(measure="test_loss").median())
        for stage in ("onset", "half_change", "settling")
    }
    begin, end = drop["onset"] / drop["half_change"], drop["settling"] / drop["half_change"]
    if np.isfinite([begin, end]).all():
        axes.axvspan(begin, end, color=_SHADE, linewidth=0, zorder=-1)
    axes.axvline(1, color="0.5", linewidth=0.6, zorder=0)
    axes.set_xscale("log")
    axes.set_xlim(0.02, 5)
    axes.set_xticks([0.02, 0.1, 0.5, 1, 2, 5], ["0.02", "0.1", "0.5", "1", "2", "5"])
    axes.minorticks_off()
    axes.set_xlabel("steps / steps to half of the test loss's drop")
    beside_title = {"loc": "lower right", "bbox_to_anchor": (1.02, 0.98)}
    axes.legend(**beside_title, ncols=2, handlelength=1.6, columnspacing=1.0)


def _norm(axes: Axes, data: xr.Dataset) -> None:
    """The norm of the weights and its curvature, which are both of order one."""
    half = data["half_change"].sel(measure="test_loss").values[:, None]
    clocks = [data[name].values[None] / half for name in ("step", "curvature_step")]
    _runs(axes, clocks[0], data["weight_norm"].values, COLOURS[0], "norm")
    _runs(axes, clocks[1], data["norm_curvature"].values, COLOURS[2], "curvature", "--")
    axes.axhline(0, color="0.5", linewidth=0.4, zorder=0)
    axes.set_ylabel("norm of all weights\nover its start;\ncurvature over its largest")
    _window(axes, data)


def _order(axes: Axes, data: xr.Dataset) -> None:
    """Half-change of every measure over that of the test loss: left of 1 it came first."""
    test = data["half_change"].sel(measure="test_loss").values
    names = [name for name in data["measure"].values if name in _NAMES]
    for row, name in enumerate(names):
        ratios = data["half_change"].sel(measure=name).values / test
        nudge = np.linspace(-0.22, 0.22, ratios.size) if ratios.size > 1 else np.zeros(1)
        axes.plot(ratios, row + nudge, "o", color=COLOURS[0], markersize=2.6, alpha=0.8)
        axes.plot([np.median(ratios)] * 2, [row - 0.36, row + 0.36], color="black", linewidth=1.4)
    axes.axvline(1, color=COLOURS[1], linewidth=1.0, zorder=0)
    axes.set_yticks(range(len(names)), [_NAMES[name] for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.45), max(high, 2.2))
    ticks = [
        t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10) if axes.get_xlim()[0] <= t <= axes.get_xlim()[1]
    ]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()
    axes.set_xlabel("step of half-change / that of the test loss (left of 1: moves first)")
    handles = [
        Line2D([], [], linestyle="", marker="o", markersize=2.6, color=COLOURS[0], label="a seed"),
        Line2D([], [], color="black", linewidth=1.4, label="median"),
        Line2D([], [], color=COLOURS[1], linewidth=1.0, label="test loss"),
        Patch(color=_SHADE, label="its drop (c-f)"),
    ]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))
