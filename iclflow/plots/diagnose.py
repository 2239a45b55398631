"""What a model is doing over training: stages, algorithms and geometry; heads of checkpoints."""

from collections.abc import Sequence

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from iclflow.plots.style import COLOURS, COLUMN, THEORY, style

SHADES = ("0.93", "0.84")
EARLY = 0.05  # of the run
_PALE = (*COLOURS[:6], "#F0E442", "0.55", "0.3", "0.75")


def run_figure(found: xr.Dataset, *, title: str = "") -> Figure:
    """Loss with the stages shaded; the algorithm strip; alignment; effective rank.

    Time is logarithmic where the first drop would be squeezed against the left.
    """
    drops, end = found["drop_time"].values, float(found["time"][-1])
    log = drops.size > 0 and float(drops[0]) < EARLY * end
    with style():
        figure = Figure(figsize=(COLUMN * 1.6, COLUMN * 1.65))
        panels = figure.subplots(
            4, 1, sharex=True, gridspec_kw={"height_ratios": (3, 0.45, 1.6, 1.2)}
        )
        plot_stages(panels[0], found)
        plot_algorithms(panels[1], found)
        _alignment(panels[2], found)
        panels[3].plot(found["time"], found["effective_rank"], color=COLOURS[0])
        panels[3].set_ylabel("effective\nrank")
        panels[3].set_ylim(0, None)
        panels[3].set_xlabel(found["time"].attrs.get("long_name", "time"))
        times = found["time"].values
        if log:
            panels[3].set_xscale("log")
        panels[3].set_xlim(times[times > 0][0] if log else 0, times[-1])
        panels[0].set_title(title)
        figure.align_ylabels()
    return figure


def plot_stages(axes: Axes, found: xr.Dataset) -> Axes:
    """The loss over shaded plateaus, with dashed levels L(M_m) and the algorithm on each."""
    axes.plot(found["time"], found["loss"], color=COLOURS[0], zorder=3)
    _levels(axes, found["level_theory"].values)
    top = float(np.nanmax(found["loss"]))
    for i in range(found.sizes["stage"]):
        start, end = float(found["start"][i]), float(found["end"][i])
        axes.axvspan(start, end, color=SHADES[i % 2], linewidth=0, zorder=-1)
    axes.set_ylabel("loss")
    axes.set_ylim(0, 1.08 * top)
    return axes


def _levels(axes: Axes, levels: np.ndarray) -> None:
    name = (
        (lambda m: ("L(0)", "L_*")[m]) if len(levels) == 2 else (lambda m: rf"L(\mathcal{{M}}_{m})")
    )
    for m, level in enumerate(levels):
        axes.axhline(level, **{**THEORY, "linewidth": 0.6, "color": "0.45"}, zorder=0)
        axes.annotate(
            f"${name(m)}$", (1, level), xycoords=("axes fraction", "data"), xytext=(3, 0),
            textcoords="offset points", va="center", fontsize=7, annotation_clip=False,
        )  # fmt: skip


def plot_algorithms(axes: Axes, found: xr.Dataset) -> Axes:
    """A strip coloured by the best match, paler where its margin is small."""
    names = found["algorithm"].values
    seen = list(dict.fromkeys(names.tolist()))
    times = found["time"].values
    for i, name in enumerate(seen):
        colour = _PALE[i % len(_PALE)]
        axes.bar(0, 0, color=colour, label=name)
        for k in np.flatnonzero(names[:-1] == name):
            shade = 0.25 + 0.75 * float(found["margin"][k])
            axes.axvspan(times[k], times[k + 1], color=colour, alpha=shade, linewidth=0)
    axes.set_yticks([])
    axes.set_ylabel("nearest\nalgorithm", rotation=0, ha="right", va="center")
    columns = 5 if len(seen) < 6 and max(map(len, seen)) < 16 else 3
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.05), ncols=columns, fontsize=6.5,
        handlelength=1.0, columnspacing=1.2,
    )  # fmt: skip
    return axes


def _alignment(axes: Axes, found: xr.Dataset) -> None:
    if "alignment" in found:
        for d in range(found.sizes["component"]):
            curve = found["alignment"][:, d]
            if bool(np.isfinite(curve).all()):
                axes.plot(
                    found["time"], curve, color=_PALE[d % len(_PALE)], label=f"$e_{{{d + 1}}}$"
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
) -> Figure:
    """Heat maps layer x head at some steps, one row a circuit; curves over all steps below."""
    steps = data["step"].values
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(moments, len(steps))).round().astype(int))
    circuits = data["circuit"].values
    values = data[measure].values
    limits = (np.nanmin(values), np.nanmax(values)) if np.isfinite(values).any() else (0, 1)
    with style():
        figure = Figure(figsize=(COLUMN * 2, COLUMN * 1.65))
        grid = figure.add_gridspec(3, len(chosen), height_ratios=(1, 1, 1.3))
        image, panels = None, []
        for row, circuit in enumerate(circuits):
            for column, k in enumerate(chosen):
                panel = figure.add_subplot(grid[row, column])
                image = panel.imshow(
                    data[measure].sel(circuit=circuit).values[k], aspect="auto",
                    vmin=limits[0], vmax=limits[1], cmap="viridis",
                )  # fmt: skip
                _ticks(panel, data, column == 0, row == len(circuits) - 1, str(circuit))
                if row == 0:
                    panel.set_title(f"step {steps[k]}")
                panels.append(panel)
        assert image is not None
        bar = figure.colorbar(image, ax=panels, pad=0.01, aspect=30)
        bar.set_label(data[measure].attrs.get("long_name", measure))
        _curves(figure.add_subplot(grid[2, :]), data, measure)
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
    for mark in data["mark"].values if "mark" in data else ():
        axes.axvline(mark, color="0.8", linewidth=0.6, zorder=0)
    if len(steps) > 2 and steps[-1] > 20 * max(steps[1], 1):
        axes.set_xscale("symlog", linthresh=max(steps[1], 1), linscale=0.4)
    axes.set_xlim(steps[0], steps[-1] if len(steps) > 1 else steps[0] + 1)
    axes.set_xlabel("step")
    axes.set_ylabel("mean over heads")
    axes.legend(ncols=2, fontsize=6, loc="best")


def _layer_colours(layers: int) -> Sequence[str]:
    if layers <= 6:
        return COLOURS[:layers]
    return [f"{0.8 - 0.75 * j / (layers - 1):.3f}" for j in range(layers)]


def curve_figure(found: xr.Dataset, *, title: str = "") -> Figure:
    """Somebody's loss curve with its stages, the theory's levels and the predicted drops."""
    with style():
        figure = Figure(figsize=(COLUMN * 1.5, COLUMN * 0.95))
        axes = figure.subplots()
        plot_stages(axes, found)
        if "predicted" in found:
            finite = found["predicted"].values[np.isfinite(found["predicted"].values).all(axis=1)]
            for low, middle, high in finite:
                axes.axvspan(low, high, color=COLOURS[1], alpha=0.18, linewidth=0)
                label = f"next drop, 10-90% of {found.attrs['starts']} starts"
                axes.axvline(middle, color=COLOURS[1], linewidth=0.8, label=label)
                axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0))
        axes.set_xlabel("step")
        axes.set_xlim(0, None)
        axes.set_title(title, loc="left")
    return figure
