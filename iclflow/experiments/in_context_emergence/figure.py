"""Attention-only transformers over training: losses, heads, subspaces and ranks by depth."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from iclflow.plots.style import COLOURS, THEORY, Picture, style

WINDOW = {"color": "#E69F00", "alpha": 0.25, "linewidth": 0}


def draw_fig5(data: xr.Dataset) -> Picture:
    """Loss, heads and final losses above; subspace distance of each depth below."""
    with style():
        figure = Picture(figsize=(7.0, 3.9))
        depths = data["layers"].values
        top, bottom = figure.subfigures(2, 1, height_ratios=[1.0, 0.95]).ravel()  # pyright: ignore
        late, heads, markov = top.subplots(1, 3)
        _late_loss(late, data)
        _best_head(heads, data)
        _markov(markov, data)
        below = np.atleast_1d(bottom.subplots(1, len(depths), sharey=True))
        for axes, depth in zip(below, depths, strict=True):
            _circuits(axes, data.sel(layers=depth), "subspace_distance", relative=False)
            axes.set_ylim(0, 1)
        below[0].set_ylabel("subspace distance (16)")
        _key(below[0], data)
        return figure


def draw_fig6(data: xr.Dataset) -> Picture:
    """Effective rank of QK and OV above, prefix matching of every head below, by depth."""
    with style():
        depths = data["layers"].values
        figure = Picture(figsize=(7.0, 3.6))
        above, below = figure.subplots(2, len(depths), sharex=True, sharey="row", squeeze=False)
        for top, bottom, depth in zip(above, below, depths, strict=True):
            one = data.sel(layers=depth)
            _circuits(top, one, "effective_rank", relative=True)
            top.set_xlabel("")
            _heads(bottom, one)
        above[0].set_ylabel("effective rank (15)\nover its start")
        below[0].set_ylabel("prefix matching")
        below[0].set_ylim(-0.03, 1.03)
        _key(above[0], data)
        return figure


def _late_loss(axes: Axes, data: xr.Dataset) -> None:
    steps = _shown(data["step"].values)
    for i, depth in enumerate(data["layers"].values):
        for seed, run in enumerate(data["late_loss"].sel(layers=depth).values):
            label = _layers(int(depth)) if seed == 0 else None
            axes.plot(steps, run, color=COLOURS[i], label=label, alpha=_alpha(data))
    chance = float(np.log(data.attrs["vocabulary"]))
    axes.axhline(chance, **THEORY)
    axes.annotate(
        r"$\ln V$", (steps[-1], chance), (0, 3), textcoords="offset points", fontsize=7, ha="right"
    )
    axes.set(xscale="log", xlabel="training steps", ylabel="loss, last quarter of context")
    axes.set_ylim(0, 1.05 * max(float(data["late_loss"].max()), 1.1 * chance))
    axes.legend(loc="lower left")


def _best_head(axes: Axes, data: xr.Dataset) -> None:
    steps = _shown(data["step"].values)
    best = data["prefix_matching"].max(("layer", "head"))
    for i in range(data.sizes["layers"]):
        for seed in range(data.sizes["seed"]):
            one = {"layers": i, "seed": seed}
            style_of = {"color": COLOURS[i], "alpha": _alpha(data)}
            axes.plot(steps, data["accuracy"].isel(one), **style_of)
            axes.plot(steps, best.isel(one), linestyle=":", **style_of)
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


def _circuits(axes: Axes, data: xr.Dataset, name: str, relative: bool) -> None:
    """The mean over heads of QK and of OV, and the steps in which in-context learning emerges."""
    steps = _shown(data["step"].values)
    _window(axes, data)
    for i, circuit in enumerate(data["circuit"].values):
        for run in data[name].sel(circuit=circuit).mean(("layer", "head")).values:
            curve = run / run[0] if relative else run
            axes.plot(steps, curve, color=COLOURS[i], alpha=_alpha(data))
    axes.set(xscale="log", xlabel="training steps", title=_layers(int(data["layers"])))


def _heads(axes: Axes, data: xr.Dataset) -> None:
    """Every head of the first seed, coloured by its layer."""
    steps = _shown(data["step"].values)
    _window(axes, data)
    scores = data["prefix_matching"].isel(seed=0)
    for layer in range(int(data["layers"])):
        for head in range(scores.sizes["head"]):
            label = f"layer {layer + 1}" if head == 0 else None
            curve = scores.isel(layer=layer, head=head)
            axes.plot(steps, curve, color=COLOURS[layer], label=label, linewidth=0.9)
    axes.set(xscale="log", xlabel="training steps")
    axes.legend(loc="upper left", handlelength=1.2)


def _window(axes: Axes, data: xr.Dataset) -> None:
    start, end = data["window"].median("seed").values
    if np.isfinite(start) and np.isfinite(end):
        axes.axvspan(start, end, **WINDOW)


def _key(axes: Axes, data: xr.Dataset) -> None:
    """What the colours are, in the panel of the shallowest model."""
    for i, circuit in enumerate(data["circuit"].values):
        axes.plot([], [], color=COLOURS[i], label=circuit)
    axes.fill_between([], [], [], **WINDOW, label="emergence")
    axes.legend(loc="lower left", handlelength=1.2)


def _layers(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"


def _shown(steps: np.ndarray) -> np.ndarray:
    """Step 0 stands half a step from the start of a logarithmic axis."""
    return np.where(steps == 0, 0.5, steps)


def _alpha(data: xr.Dataset) -> float:
    return 1.0 if data.sizes["seed"] == 1 else 0.75
