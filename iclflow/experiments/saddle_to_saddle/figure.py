"""Figs 3 and 7: the staircase, its value weights, its keys, and its times."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from iclflow.plots.losses import plot_levels
from iclflow.plots.style import BENEATH, COLOURS, COLUMN, HEAT, TIME, Picture, style, theory_of


def draw_fig3(data: xr.Dataset) -> Picture:
    """(a) six seeds, the paper's window and the whole run; (b) value weights; (c) keys."""
    data = data.sel(source="sequences")
    with style():
        figure = Picture(figsize=(2.08 * COLUMN, 1.62 * COLUMN))
        top, bottom = np.ravel(figure.subfigures(2, 1, squeeze=False, height_ratios=(1, 0.62)))
        panels = top.subplots(1, 3, width_ratios=(1.0, 1.0, 1.0))
        window = 2 * data.attrs["rate"] * data.attrs["window"]
        plot_staircase(panels[0], data, legend=True)
        panels[0].set_xlim(0, window)
        panels[0].set_title("(a) the paper's window", loc="left")
        _name_worst(panels[0], data, window)
        plot_staircase(panels[1], data, names=True)
        panels[1].set_xscale("log")
        panels[1].set_xlim(0.4 * float(data["drop_time"].min()), float(data["time"][-1]))
        panels[1].axvspan(1e-9, window, color="0.93", zorder=-2, linewidth=0)
        panels[1].set_title("until every seed is done", loc="left")
        panels[1].set_ylabel("")
        plot_values(panels[2], data)
        panels[2].set_title("(b) value weights of one run", loc="left")
        plot_keys(bottom, data)
    return figure


def draw_cover(data: xr.Dataset) -> Picture:
    """The losses of every seed alone, each plateau named by what the model uses on it."""
    data = data.sel(source="sequences")
    last = data.sizes["level"] - 1
    names = ["nothing", "component 1", *(f"components 1–{m}" for m in range(2, last))]
    with style():
        figure = Picture(figsize=(2.08 * COLUMN, 0.62 * COLUMN))
        axes = plot_staircase(figure.subplots(), data)
        axes.set_xscale("log")
        axes.set_xlim(0.4 * float(data["drop_time"].min()), float(data["time"][-1]))
        for level, name in zip(data["levels"].values, [*names, "least squares"], strict=True):
            axes.annotate(
                name, (1.0, float(level)), xycoords=("axes fraction", "data"),
                xytext=(4, -4 if name == "least squares" else 0),  # the last two are close
                textcoords="offset points", va="center", fontsize=8,
            )  # fmt: skip
    return figure


def plot_staircase(
    axes: Axes, data: xr.Dataset, *, names: bool = False, legend: bool = False
) -> Axes:
    """Loss of every seed with its predicted staircase dashed, and the levels L(M_m) dotted."""
    time = data["time"].values
    for s in range(data.sizes["seed"]):
        colour = COLOURS[s % len(COLOURS)]
        axes.plot(time, data["loss"].values[s], color=colour, **BENEATH)
        axes.plot(time, data["staircase_loss"].values[s], **theory_of(colour))
    axes.plot([], [], color="0.3", label="simulation", **BENEATH)
    axes.plot([], [], label="predicted from $W(0)$", **theory_of("0.3"))
    axes.set_ylim(0, 1.08 * float(data["levels"][0]))
    plot_levels(axes, data["levels"].values, names=names)
    axes.set_xlabel(TIME)
    axes.set_ylabel("loss")
    if legend:
        axes.legend(loc="upper right", bbox_to_anchor=(1.0, 0.94), handlelength=1.6)
    return axes


def _name_worst(axes: Axes, data: xr.Dataset, window: float) -> None:
    """How far the worst of the predicted drops in the window is off."""
    measured, predicted = data["drop_time"].values, data["staircase_time"].values
    off = np.where(np.maximum(measured, predicted) < window, predicted / measured - 1, 0.0)
    seed, drop = np.unravel_index(np.nanargmax(np.abs(off)), off.shape)
    axes.annotate(
        f"worst: {abs(off[seed, drop]):.1%} {'late' if off[seed, drop] > 0 else 'early'}",
        (float(predicted[seed, drop]), float(data["levels"][drop : drop + 2].mean())),
        xytext=(0.98, 0.53), textcoords="axes fraction", fontsize=7, ha="right", va="center",
        arrowprops={"arrowstyle": "-", "linewidth": 0.6, "color": "0.3", "shrinkB": 1},
    )  # fmt: skip


def plot_values(axes: Axes, data: xr.Dataset) -> Axes:
    """Value weights of one run, and (26) for the head of each drop, dashed."""
    run = data.isel(seed=data.attrs["shown_seed"])
    end = 1.25 * float(run["drop_time"].max())
    shades = ("#08306b", "#08519c", "#2171b5", "#4292c6", "#6baed6")
    for i in range(run.sizes["head"]):
        axes.plot(run["time"], run["values"].values[:, i], color=shades[i % 5], linewidth=1.6)
    time = run["time"].values
    for d in range(run.sizes["component"]):
        shown = time > 0.6 * float(run["drop_time"][d])
        axes.plot(
            time[shown],
            run["value_course"].values[shown, d],
            color=COLOURS[1],
            linewidth=0.9,
            linestyle=(0, (4, 3)),
        )
    axes.axhline(0, color="0.8", linewidth=0.5, zorder=0)
    axes.plot([], [], color=shades[1], linewidth=1.6, label="simulation")
    axes.plot([], [], color=COLOURS[1], linewidth=0.9, linestyle=(0, (4, 3)), label="(26)")
    axes.set_xlim(0, end)
    axes.set_xlabel(TIME)
    axes.set_ylabel("$v_i$")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.28 * (high - low))
    axes.legend(loc="upper left", ncols=2, handlelength=1.6)
    return axes


def plot_keys(figure, data: xr.Dataset) -> None:
    """Keys of one run on every plateau, heads in order of learning, beside v_d e_d."""
    keys, theory = data["shown_keys"].values, data["shown_theory"].values
    limit = float(max(np.abs(keys).max(), np.abs(theory).max()))
    count = len(keys)
    panels = figure.subplots(1, count + 1, width_ratios=[1] * (count + 1))
    for m, axes in enumerate(panels):
        last = m == count
        image = axes.imshow(
            theory if last else keys[m], cmap=HEAT, vmin=-limit, vmax=limit, aspect="equal"
        )
        axes.set_xticks([])
        axes.spines[:].set_visible(False)
        axes.set_title(r"theory $v_d e_d$" if last else rf"on $\mathcal{{M}}_{m}$")
        names = [rf"$e_{d + 1}$" if last else f"{d + 1}" for d in range(len(theory))]
        names[data.sizes["component"] :] = ["0" if last else f"{len(theory)}"]
        axes.set_yticks(range(len(theory)), names)
        axes.tick_params(length=0, pad=1)
        axes.set_xlabel("input")
    panels[0].set_ylabel("head, in order of learning")
    panels[0].set_title(r"(c) keys on $\mathcal{M}_0$")
    figure.colorbar(image, ax=list(panels), shrink=0.8, pad=0.01, label="key weight")


def draw_fig7(data: xr.Dataset) -> Picture:
    """Fig. 7: the times t_1 … t_D on one run, and the durations against two predictions."""
    data = data.sel(source="sequences")
    with style():
        figure = Picture(figsize=(2.08 * COLUMN, 0.78 * COLUMN))
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        _marked_run(left, data)
        _durations(right, data)
    return figure


def _marked_run(axes: Axes, data: xr.Dataset) -> None:
    run = data.isel(seed=data.attrs["shown_seed"])
    times = run["drop_time"].values
    axes.plot(run["time"], run["loss"], color="black")
    for d, t in enumerate(times):
        axes.axvline(t, color=COLOURS[0], linewidth=0.8, zorder=0)
        axes.annotate(
            f"$t_{d + 1}$", (t, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 2),
            textcoords="offset points", ha="center", va="bottom", color=COLOURS[0],
        )  # fmt: skip
    axes.set_xlim(0, 1.2 * times[-1])
    axes.set_ylim(0, 1.08 * float(data["levels"][0]))
    plot_levels(axes, data["levels"].values, fontsize=7)
    axes.set_xlabel(TIME)
    axes.set_ylabel("loss")


def _durations(axes: Axes, data: xr.Dataset) -> None:
    """Predicted against measured durations of all plateaus of all seeds."""
    measured = np.diff(data["drop_time"].values, axis=1, prepend=0.0)
    ours = np.diff(data["staircase_time"].values, axis=1, prepend=0.0)
    paper = data["paper_duration"].values
    reach = np.array([0.6 * np.nanmin(measured), 1.6 * np.nanmax(measured)])
    axes.plot(reach, reach, color="0.6", linewidth=0.8, zorder=0)
    looks = ((paper, COLOURS[1], "x", r"paper, $\tau/(\lambda^2 v)$ (73)"),)
    looks += ((ours, COLOURS[0], "o", "predicted from $W(0)$"),)
    for values, colour, marker, label in looks:
        axes.plot(
            measured.ravel(), values.ravel(), linestyle="", marker=marker, color=colour,
            markersize=4, markerfacecolor="none", label=label,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*reach)
    axes.set_xlabel(r"measured duration $(t_{m+1} - t_m)/\tau$")
    axes.set_ylabel("predicted duration")
    axes.legend(loc="upper left", handletextpad=0.2)
