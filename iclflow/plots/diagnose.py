"""What a model is doing over training: stages, algorithms and geometry; heads of checkpoints."""

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from iclflow.plots.losses import plot_levels
from iclflow.plots.style import COLOURS, COLUMN, Picture, style

SHADES = ("0.93", "0.84")
EARLY = 0.05  # of the run
TO_THE_END = ("subspace_distance", "projector_distance", "largest_angle")  # need a last checkpoint
MARKS = ("-", ":", "-.", "--")
_PALE = (*COLOURS[:6], "#F0E442", "0.55", "0.3", "0.75")


def run_figure(found: xr.Dataset, *, title: str = "") -> Picture:
    """Loss with the stages shaded; the algorithm strip; alignment; effective rank.

    What was not found, because the task is not known, has no panel.
    """
    parts: list[tuple[float, Callable[[Axes, xr.Dataset], Any]]] = [(3.0, plot_stages)]
    if "algorithm" in found:
        parts.append((0.45, plot_algorithms))
    if "alignment" in found or "parallelism" in found:
        parts.append((1.6, _alignment))
    if "effective_rank" in found:
        parts.append((1.2, _effective_rank))
    heights = [height for height, _ in parts]
    with style():
        figure = Picture(figsize=(COLUMN * 1.6, COLUMN * (0.09 + 0.25 * sum(heights))))
        panels = figure.subplots(
            len(parts), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )[:, 0]
        for axes, (_, draw) in zip(panels, parts, strict=True):
            draw(axes, found)
        panels[-1].set_xlabel(found["time"].attrs.get("long_name", "time"))
        _clock_axis(panels[-1], found)
        panels[0].set_title(title)
        figure.align_ylabels()
    return figure


def _effective_rank(axes: Axes, found: xr.Dataset) -> None:
    axes.plot(found["time"], found["effective_rank"], color=COLOURS[0])
    axes.set_ylabel("effective\nrank")
    axes.set_ylim(0, None)


def runs_figure(found: xr.Dataset, *, title: str = "") -> Picture:
    """The losses of all seeds over the levels of the theory; a strip of algorithms for each.

    Without the task there are no algorithms, and the losses stand alone.
    """
    count, known = found.sizes["seed"], "algorithm" in found
    colours = [COLOURS[i % len(COLOURS)] for i in range(count)]
    with style():
        figure = Picture(figsize=(COLUMN * 1.6, COLUMN * (1.05 + 0.08 * count * known)))
        heights = (0.75, 0.05 + 0.08 * count) if known else (1.0,)
        panels = figure.subplots(
            len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )[:, 0]
        top, strips = panels[0], panels[-1]
        for i, colour in enumerate(colours):
            top.plot(found["time"], found["loss"].isel(seed=i), color=colour, linewidth=0.9)
        top.set_ylabel("loss")
        top.set_ylim(0, 1.08 * float(np.nanmax(found["loss"])))
        plot_levels(top, found["level_theory"].values, fontsize=7)
        top.set_title(title)
        strips.set_xlabel(found["time"].attrs.get("long_name", "time"))
        _clock_axis(strips, found)
        if not known:
            for i, colour in enumerate(colours):
                top.plot([], [], color=colour, label=f"seed {found['seed'].values[i]}")
            top.legend(loc="upper right", ncols=3)
            return figure
        names = [n for n in dict.fromkeys(found["algorithm"].values.ravel().tolist()) if n]
        for row in range(count):
            _strip(strips, found.isel(seed=row), names, (row - 0.4, row + 0.4))
        strips.set_ylim(count - 0.5, -0.5)
        shown = np.unique(np.linspace(0, count - 1, min(count, 8)).round().astype(int))
        strips.set_yticks(shown, [f"seed {found['seed'].values[k]}" for k in shown])
        for label, k in zip(strips.get_yticklabels(), shown, strict=True):
            label.set_color(colours[k])  # that of its loss curve
        figure.legend(handles=_patches(names), loc="outside lower center", **_columns(names))
    return figure


def plot_stages(axes: Axes, found: xr.Dataset) -> Axes:
    """The loss over shaded plateaus, with dotted levels L(M_m) and the algorithm on each."""
    axes.plot(found["time"], found["loss"], color=COLOURS[0], zorder=3)
    for i in range(found.sizes["stage"]):
        start, end = float(found["start"][i]), float(found["end"][i])
        axes.axvspan(start, end, color=SHADES[i % 2], linewidth=0, zorder=-1)
    axes.set_ylabel("loss")
    axes.set_ylim(0, 1.08 * float(np.nanmax(found["loss"])))
    plot_levels(axes, found["level_theory"].values, fontsize=7)
    return axes


def plot_algorithms(axes: Axes, found: xr.Dataset) -> Axes:
    """A strip coloured by the best match, paler where its margin is small."""
    names = list(dict.fromkeys(found["algorithm"].values.tolist()))
    _strip(axes, found, names, (0.0, 1.0))
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    axes.set_ylabel("nearest\nalgorithm", rotation=0, ha="right", va="center")
    axes.legend(
        handles=_patches(names), loc="upper center", bbox_to_anchor=(0.5, -0.05), **_columns(names)
    )
    return axes


def _strip(
    axes: Axes, found: xr.Dataset, names: Sequence[str], height: tuple[float, float]
) -> None:
    kept = np.isfinite(found["loss"].values)
    times, match = found["time"].values[kept], found["algorithm"].values[kept]
    margins = np.nan_to_num(found["margin"].values[kept])
    for k in range(len(times) - 1):
        colour = _PALE[list(names).index(match[k]) % len(_PALE)]
        shade = 0.25 + 0.75 * float(margins[k])
        axes.fill_between(times[k : k + 2], *height, color=colour, alpha=shade, linewidth=0)


def _patches(names: Sequence[str]) -> list[Patch]:
    return [Patch(color=_PALE[i % len(_PALE)], label=name) for i, name in enumerate(names)]


def _columns(names: Sequence[str]) -> dict[str, Any]:
    few = len(names) < 6 and max(map(len, names)) < 16
    return {"ncols": 5 if few else 3, "fontsize": 6.5, "handlelength": 1.0, "columnspacing": 1.2}


def _clock_axis(axes: Axes, found: xr.Dataset) -> None:
    """Time is logarithmic where the first drop would be squeezed against the left."""
    times, drops = found["time"].values, found["drop_time"].values
    first = float(np.nanmin(drops)) if np.isfinite(drops).any() else np.inf
    log = first < EARLY * float(times[-1])
    if log:
        axes.set_xscale("log")
    axes.set_xlim(times[times > 0][0] if log else 0, times[-1])


def _alignment(axes: Axes, found: xr.Dataset) -> None:
    if "alignment" in found:
        for d in range(found.sizes["component"]):
            curve = found["alignment"].isel(component=d)
            if bool(np.isfinite(curve).all()):
                axes.plot(
                    found["time"],
                    curve,
                    color=_PALE[(d + 1) % len(_PALE)],  # that of PCR-(d+1)
                    label=f"$e_{{{d + 1}}}$",
                )
        axes.set_ylabel("alignment\nof its head")
        if axes.lines:
            axes.legend(loc="lower right", ncols=min(4, len(axes.lines)), fontsize=6.5)
    else:
        axes.plot(found["time"], found["parallelism"], color=COLOURS[1])
        axes.set_ylabel("parallelism\nof heads")
    axes.set_ylim(0, 1.05)


def checkpoints_figure(
    data: xr.Dataset, measure: str, *, moments: int = 5, title: str = ""
) -> Picture:
    """Heat maps layer x head at some steps, one row per circuit; curves over all steps below.

    Below a distance to the last checkpoint stands the subspace speed, which needs no last one. The
    training loss comes last, where it is known.
    """
    steps = data["step"].values
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(moments, len(steps))).round().astype(int))
    circuits = data["circuit"].values
    values = data[measure].values
    limits = (np.nanmin(values), np.nanmax(values)) if np.isfinite(values).any() else (0, 1)
    with style():
        with_loss = "loss" in data
        with_speed = measure in TO_THE_END and "subspace_speed" in data and len(steps) > 2
        heights = [1.0, 1.0, 1.4] + [1.1] * (with_speed + with_loss)
        figure = Picture(figsize=(COLUMN * 2, COLUMN * (0.16 + 0.45 * sum(heights))))
        grid = figure.add_gridspec(len(heights), len(chosen), height_ratios=heights)
        image, panels = None, []
        for row, circuit in enumerate(circuits):
            for column, k in enumerate(chosen):
                panel = figure.add_subplot(grid[row, column])
                moment = data[measure].isel(step=k)
                image = panel.imshow(
                    moment.sel(circuit=circuit).transpose("layer", "head"), aspect="auto",
                    vmin=limits[0], vmax=limits[1], cmap="viridis",
                )  # fmt: skip
                _ticks(panel, data, column == 0, row == len(circuits) - 1, str(circuit))
                if row == 0:
                    panel.set_title(f"step {steps[k]}")
                panels.append(panel)
        assert image is not None
        bar = figure.colorbar(image, ax=panels, pad=0.01, aspect=30)
        bar.set_label(data[measure].attrs.get("long_name", measure))
        curves = figure.add_subplot(grid[2, :])
        _curves(curves, data, measure)
        last = curves
        if with_speed:
            last = figure.add_subplot(grid[3, :], sharex=curves)
            _layer_means(last, data, "subspace_speed")
            _labels_below(last, curves)
        if with_loss:
            panel = figure.add_subplot(grid[3 + with_speed, :], sharex=curves)
            _plot_loss(panel, data)
            _labels_below(panel, last)
        figure.suptitle(title, fontsize=8)
    return figure


def _ticks(panel: Axes, data: xr.Dataset, left: bool, bottom: bool, circuit: str) -> None:
    for size, name, axis in (
        (data.sizes["layer"], "layer", panel.yaxis),
        (data.sizes["head"], "head", panel.xaxis),
    ):
        places = np.unique(np.linspace(0, size - 1, min(size, 4)).round().astype(int))
        axis.set_ticks(places, [str(data[name].values[p]) for p in places])
    panel.tick_params(length=0, labelleft=left, labelbottom=bottom)
    panel.set_ylabel(f"{circuit}\nlayer" if left else "")
    panel.set_xlabel("head" if bottom else "")


def _curves(axes: Axes, data: xr.Dataset, measure: str) -> None:
    """The mean over the heads of each layer, a style for each circuit; drops marked."""
    _layer_means(axes, data, measure)
    if "mark" in data:
        kinds = np.array([str(s).removeprefix("QK ").removeprefix("OV ")
                          for s in data["mark_source"].values])  # fmt: skip
        for kind, line in zip(dict.fromkeys(kinds.tolist()), MARKS, strict=False):
            for i, mark in enumerate(data["mark"].values[kinds == kind]):
                axes.axvline(mark, color="0.6", linewidth=0.7, linestyle=line, zorder=0,
                             label=f"mark: {kind}" if i == 0 else None)  # fmt: skip
    steps = np.asarray(data["step"], float)
    if len(steps) > 2 and steps[-1] > 20 * max(steps[1], 1):
        axes.set_xscale("symlog", linthresh=max(steps[1], 1), linscale=0.4)
    axes.set_xlim(steps[0], steps[-1] if len(steps) > 1 else steps[0] + 1)
    axes.set_xlabel("step")
    axes.legend(ncols=3, fontsize=6, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _layer_means(axes: Axes, data: xr.Dataset, measure: str) -> None:
    """A curve for each layer and circuit."""
    colours = ListedColormap(_layer_colours(data.sizes["layer"]))
    steps = np.asarray(data["step"], float)
    for circuit, line in zip(data["circuit"].values, ("-", "--"), strict=False):
        for j in range(data.sizes["layer"]):
            curve = data[measure].sel(circuit=circuit).isel(layer=j).mean("head", skipna=False)
            few = data.sizes["layer"] <= 6
            label = f"{circuit}, layer {data['layer'].values[j]}"
            edge = j in (0, data.sizes["layer"] - 1)
            axes.plot(steps, curve, line, marker=".", markersize=3, color=colours(j),
                      label=label if few or edge else None)  # fmt: skip
    name = str(data[measure].attrs.get("long_name", measure))
    axes.set_ylabel("\n".join([*textwrap.wrap(name, 26), "mean over heads"]))


def _labels_below(axes: Axes, above: Axes) -> None:
    """Move the label and the numbers of the common axis to the lower one of two panels."""
    axes.set_xlabel(above.get_xlabel())
    above.set_xlabel("")
    above.tick_params(labelbottom=False)


def _plot_loss(axes: Axes, data: xr.Dataset) -> None:
    """The loss on the same steps, with its drops."""
    axes.plot(data["loss_step"], data["loss"], color="black", linewidth=0.9)
    for mark in data["mark"].values[data["mark_source"].values == "loss"]:
        axes.axvline(mark, color="0.6", linewidth=0.7, zorder=0)
    axes.set_ylabel("training loss")
    ends = [*np.asarray(data["step"], float), *np.asarray(data["loss_step"], float)]
    axes.set_xlim(min(ends), max(ends))


def _layer_colours(layers: int) -> Sequence[str]:
    if layers <= 6:
        return COLOURS[:layers]
    return [f"{0.8 - 0.75 * j / (layers - 1):.3f}" for j in range(layers)]


def curve_figure(found: xr.Dataset, *, title: str = "") -> Picture:
    """Somebody's loss curve with its stages, the theory's levels and the predicted drops.

    Below it, on the same steps: the losses early and late in the context with what each drop is,
    and further metrics, such as induction scores, where there are any.
    """
    sides, metrics = "early_loss" in found, "metric_step" in found
    heights = [1.0, *([0.8] if sides else []), *([0.6] if metrics else [])]
    with style():
        tall = 0.95 if len(heights) == 1 else 0.72 * sum(heights)
        figure = Picture(figsize=(COLUMN * 1.5, COLUMN * tall))
        panels = figure.subplots(
            len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
        )[:, 0]
        axes = panels[0]
        plot_stages(axes, found)
        if "predicted" in found:
            predicted = found["predicted"].transpose("next", "quantile").values
            finite = predicted[np.isfinite(predicted).all(axis=1)]
            for low, middle, high in finite:
                label = f"next drop by theory, 10–90% of {found.attrs['starts']} starts"
                axes.axvspan(low, high, color=COLOURS[1], alpha=0.18, linewidth=0, label=label)
                axes.axvline(middle, color=COLOURS[1], linewidth=0.8, label="their median")
                axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
        if sides:
            plot_sides(panels[1], found)
        if metrics:
            _plot_metrics(panels[-1], found)
        panels[-1].set_xlabel("step")
        axes.set_xlim(0, None)
        if len(panels) > 1:
            _clock_axis(panels[-1], found)
        axes.set_title(title, loc="left")
        figure.align_ylabels()
    return figure


def plot_sides(axes: Axes, found: xr.Dataset) -> Axes:
    """The losses early and late in the context; at each drop, the share that late ones have alone.

    A drop with the label of in-context learning is filled, another one is an open mark.
    """
    for side, colour, stroke in (("early", COLOURS[1], "--"), ("late", COLOURS[0], "-")):
        name = f"{side} in the context"
        axes.plot(found["time"], found[f"{side}_loss"], stroke, color=colour, label=name)
    top = float(np.nanmax([found["early_loss"], found["late_loss"]]))
    for i in range(found.sizes["drop_number"]):
        time, share = float(found["drop_time"][i]), float(found["in_context_share"][i])
        known = bool(found["in_context_label"][i] == 1)
        axes.axvline(time, color="0.6", linewidth=0.7, zorder=0)
        error = float(found["in_context_error"][i])
        text = "late does not fall" if np.isnan(share) else f"{share:.0%} ± {error:.1%} alone"
        height = (1.17 + 0.27 * (i % 2)) * top  # neighbours do not cover each other
        axes.annotate(
            f"{'in context' if known else 'not in context'}\n{text}", (time, height),
            ha="center", va="center", fontsize=6, color="black" if known else "0.35",
            bbox={"boxstyle": "round,pad=0.25", "linewidth": 0.6, "edgecolor": "0.4",
                  "facecolor": "#CFE8D5" if known else "white"},
        )  # fmt: skip
    axes.set_ylim(0, (1.32 if found.sizes["drop_number"] < 2 else 1.6) * top)
    axes.set_ylabel("loss by\nposition")
    axes.legend(loc="lower left", fontsize=6.5)
    return axes


def _plot_metrics(axes: Axes, found: xr.Dataset) -> None:
    names = [str(name) for name in found if found[name].dims == ("metric_step",)]
    for i, name in enumerate(names):
        curve = found[name].dropna("metric_step")
        axes.plot(
            curve["metric_step"], curve, marker=".", markersize=3,
            color=COLOURS[(i + 2) % len(COLOURS)], label=name.replace("_", " "),
        )  # fmt: skip
    for time in found["drop_time"].values:
        axes.axvline(time, color="0.6", linewidth=0.7, zorder=0)
    axes.set_ylabel("score")
    axes.legend(loc="upper left", fontsize=6.5)
