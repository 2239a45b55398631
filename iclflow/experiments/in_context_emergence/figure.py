"""Attention-only transformers over training: losses, heads, subspaces and ranks by depth."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from iclflow.experiments.in_context_emergence.claims import course
from iclflow.plots.style import COLOURS, THEORY, Picture, style

WINDOW = {"color": "#E69F00", "alpha": 0.25, "linewidth": 0}


def draw_fig5(data: xr.Dataset) -> Picture:
    """Losses and heads; distance and speed of the subspaces by depth, under two courses."""
    with style():
        figure = Picture(figsize=(7.0, 7.4))
        depths = data["layers"].values
        usual, without = (course(data, which) for which in ("usual", "usual_without"))
        top, bottom = figure.subfigures(2, 1, height_ratios=[1.0, 2.7]).ravel()  # pyright: ignore
        late, heads, markov = top.subplots(1, 3)
        _late_loss(late, usual, data.attrs)
        _best_head(heads, usual)
        _markov(markov, data)
        rows = bottom.subplots(3, len(depths), sharey="row", squeeze=False)
        for i, depth in enumerate(depths):
            one, other = usual.sel(layers=depth), without.sel(layers=depth)
            _circuits(rows[0, i], one, "subspace_distance", other)
            _circuits(rows[1, i], course(data, "long").sel(layers=depth), "subspace_distance")
            _circuits(rows[2, i], one, "subspace_speed", other)
            rows[0, i].set_title(_layers(int(depth)))
            rows[2, i].set_xlabel("training steps")
        for row, which, what in (
            (rows[0], "usual", "distance (16)"),
            (rows[1], "long", "distance (16)"),
            (rows[2], "usual", "speed"),
        ):
            row[0].set_ylabel(f"subspace {what}\n{_title(data, which)}")
        for axes in rows[:2].ravel():
            axes.set_ylim(0.2, 1)
        for axes in rows[2]:
            axes.set_ylim(0, None)
        _key(rows[0, 0], data)
        return figure


def draw_fig6(data: xr.Dataset) -> Picture:
    """Effective rank of QK and OV under two courses, and the score of every head, by depth."""
    with style():
        depths = data["layers"].values
        figure = Picture(figsize=(7.0, 5.4))
        rows = figure.subplots(3, len(depths), sharey="row", squeeze=False)
        usual, without = (course(data, which) for which in ("usual", "usual_without"))
        for i, depth in enumerate(depths):
            one = usual.sel(layers=depth)
            _circuits(rows[0, i], one, "effective_rank", without.sel(layers=depth), relative=True)
            _circuits(
                rows[1, i], course(data, "long").sel(layers=depth), "effective_rank", relative=True
            )
            _heads(rows[2, i], one)
            rows[0, i].set_title(_layers(int(depth)))
        for row, which in ((rows[0], "usual"), (rows[1], "long")):
            row[0].set_ylabel(f"effective rank (15)\nover its start\n{_title(data, which)}")
        rows[2, 0].set_ylabel(f"prefix matching\n{_title(data, 'usual')}")
        rows[2, 0].set_ylim(-0.03, 1.03)
        _key(rows[0, 0], data)
        return figure


def _title(data: xr.Dataset, which: str) -> str:
    """A course, short enough for an axis."""
    one = data.sel(course=data.attrs[which])
    return f"{one['schedule'].item()} rate,\n{one['multiple'].item()} × emergence"


def _late_loss(axes: Axes, one: xr.Dataset, about: dict) -> None:
    steps = _shown(one["step"].values)
    for i, depth in enumerate(one["layers"].values):
        for seed, run in enumerate(one["late_loss"].sel(layers=depth).values):
            label = _layers(int(depth)) if seed == 0 else None
            axes.plot(steps, run, color=COLOURS[i], label=label, alpha=_alpha(one))
    chance = float(np.log(about["vocabulary"]))
    axes.axhline(chance, **THEORY)
    axes.annotate(
        r"$\ln V$", (steps[-1], chance), (0, 3), textcoords="offset points", fontsize=7, ha="right"
    )
    axes.set(xscale="log", xlabel="training steps", ylabel="loss, last quarter of context")
    axes.set_ylim(0, 1.05 * max(float(one["late_loss"].max()), 1.1 * chance))
    axes.legend(loc="lower left")


def _best_head(axes: Axes, one: xr.Dataset) -> None:
    steps = _shown(one["step"].values)
    best = one["prefix_matching"].max(("layer", "head"))
    for i in range(one.sizes["layers"]):
        for seed in range(one.sizes["seed"]):
            run = {"layers": i, "seed": seed}
            style_of = {"color": COLOURS[i], "alpha": _alpha(one)}
            axes.plot(steps, one["accuracy"].isel(run), **style_of)
            axes.plot(steps, best.isel(run), linestyle=":", **style_of)
    axes.plot([], [], color="0.3", label="accuracy on repeats")
    axes.plot([], [], color="0.3", linestyle=":", label="best prefix-matching head")
    axes.set(xscale="log", xlabel="training steps", ylim=(-0.03, 1.32))
    axes.set_yticks([0, 0.5, 1])
    axes.legend(loc="upper left")


def _markov(axes: Axes, data: xr.Dataset) -> None:
    place = np.arange(1, data.sizes["position"] + 1)
    for i, depth in enumerate(data["markov_layers"].values):
        for seed, run in enumerate(data["markov_loss"].sel(markov_layers=depth).values):
            label = _layers(int(depth)) if seed == 0 else None
            axes.plot(place, run, color=COLOURS[i], label=label, alpha=_alpha(data))
    axes.plot(place, data["markov_optimal"], label="Bayes-optimal", **THEORY)
    axes.plot(
        place, data["markov_unigram"], label="token frequencies", **{**THEORY, "color": "0.6"}
    )
    axes.set(xlabel="tokens read", ylabel="loss, Markov chains")
    low = float(min(data["markov_optimal"].min(), data["markov_loss"].min()))
    high = float(max(data["markov_unigram"].max(), data["markov_loss"].max()))
    axes.set_ylim(low - 0.05 * (high - low), high + 0.75 * (high - low))
    axes.legend(loc="upper right", ncols=2, columnspacing=0.8, handlelength=1.2, fontsize=6.5)


def _circuits(
    axes: Axes,
    one: xr.Dataset,
    name: str,
    without: xr.Dataset | None = None,
    *,
    relative: bool = False,
) -> None:
    """QK and OV, means over heads, and the steps in which in-context learning emerges.

    Dotted, in the same colours, the mean over seeds where there is nothing to copy.
    """
    steps = _shown(one["step"].values)
    _window(axes, one)
    for i, circuit in enumerate(one["circuit"].values):
        for run in one[name].sel(circuit=circuit).values:
            curve = run / run[0] if relative else run
            axes.plot(steps, curve, color=COLOURS[i], alpha=_alpha(one), linewidth=0.9)
        if without is not None:
            other = without[name].sel(circuit=circuit)
            other = (other / other.isel(mark=0) if relative else other).mean("seed")
            axes.plot(steps, other, ":", color=COLOURS[i], linewidth=1.1)
    axes.set_xscale("log")


def _heads(axes: Axes, one: xr.Dataset) -> None:
    """Every head of the first seed, coloured by its layer."""
    steps = _shown(one["step"].values)
    _window(axes, one)
    scores = one["prefix_matching"].isel(seed=0)
    for layer in range(int(one["layers"])):
        for head in range(scores.sizes["head"]):
            label = f"layer {layer + 1}" if head == 0 else None
            curve = scores.isel(layer=layer, head=head)
            axes.plot(steps, curve, color=COLOURS[layer], label=label, linewidth=0.9)
    axes.set(xscale="log", xlabel="training steps")
    axes.legend(loc="upper left", handlelength=1.2)


def _window(axes: Axes, one: xr.Dataset) -> None:
    start, end = one["window"].median("seed").values
    if np.isfinite(start) and np.isfinite(end):
        axes.axvspan(start, end, **WINDOW)


def _key(axes: Axes, data: xr.Dataset) -> None:
    """What the colours are, in the panel of the shallowest model."""
    for i, circuit in enumerate(data["circuit"].values):
        axes.plot([], [], color=COLOURS[i], label=circuit)
    axes.plot([], [], ":", color="0.4", label="nothing to copy")
    axes.fill_between([], [], [], **WINDOW, label="emergence")
    axes.legend(loc="lower left", handlelength=1.2)


def _layers(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"


def _shown(steps: np.ndarray) -> np.ndarray:
    """Step 0 stands half a step from the start of a logarithmic axis."""
    return np.where(steps == 0, 0.5, steps)


def _alpha(data: xr.Dataset) -> float:
    return 1.0 if data.sizes["seed"] == 1 else 0.6
