"""A sweep: one variable against another, with the spread over seeds, and the map of regimes."""

from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from iclflow.plots.style import BENEATH, COLOURS, COLUMN, PAPER, TIME, mode_colour, style, theory_of

WIDE = 20  # times: from here on an axis is logarithmic
MARKS = "o^sDv"
STROKES = ("-", "--", "-.", ":")


def sweep_figure(data: xr.Dataset, *, title: str = "") -> Figure:
    """What `sweeps.look` found, as lines with bands or as points; theory dashed."""
    with style():
        figure = Figure(figsize=(COLUMN * 1.35, COLUMN * 0.85))
        plot_sweep(figure.subplots(), data)
        figure.axes[0].set_title(title)
    return figure


def laws_figure(data: xr.Dataset, *, title: str = "") -> Figure:
    """Distribution functions of each drop time: simulated, theory dashed, (73) dotted."""
    strokes = {"simulated": ("-", 1.4), "theory": ((0, (4, 3)), 1.0), "(73)": (":", 1.0)}
    with style():
        figure = Figure(figsize=(COLUMN * 1.35, COLUMN * 0.85))
        axes = figure.subplots()
        for drop in range(data.sizes["drop_number"]):
            for source, (stroke, width) in strokes.items():
                law = data["law"].sel(source=source).isel(drop_number=drop).values
                colour = mode_colour(drop) if source != "theory" else "black"
                name = f"$t_{drop + 1}$" if source == "simulated" else None
                line = {"color": colour, "linewidth": width, "label": name}
                axes.plot(data["time"].values, law, linestyle=stroke, **line)
        for source in ("theory", "(73)"):
            axes.plot([], [], linestyle=strokes[source][0], color="black", label=source)
        axes.set(xlabel=TIME, ylabel="share of starts past the drop", title=title, ylim=(0, 1.02))
        axes.set_xlim(0, float(data["time"][-1]))
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def plot_sweep(axes: Axes, data: xr.Dataset) -> Axes:
    """Median and 10-90% of a variable along an axis, or one point per run."""
    data = data.transpose("colour", "kind", "x", "point", ..., missing_dims="ignore")
    about = data.attrs
    single = data.sizes["colour"] == 1
    text = data["x"].dtype.kind in "OUT"
    x = np.arange(data.sizes["x"]) if text else data["x"].values
    order = np.argsort(x) if x.ndim == 1 else x
    for c in range(data.sizes["colour"]):
        for k in range(data.sizes["kind"]):
            colour = COLOURS[(k if single else c) % len(COLOURS)]
            name = _name(data, c, k, single)
            if "middle" not in data:
                points = x[c, k], data["y"].values[c, k]
                mark = {"marker": MARKS[k % len(MARKS)], "markersize": 2.5, "linestyle": "none"}
                axes.plot(*points, alpha=0.6, color=colour, label=name, **mark)
                continue
            low, middle, high = (data[n].values[c, k][order] for n in ("low", "middle", "high"))
            stroke = "-" if single else STROKES[k % len(STROKES)]
            axes.fill_between(x[order], low, high, color=colour, alpha=0.18, linewidth=0)
            if np.isfinite(middle).any():  # else no run had this drop
                mark = {"marker": "o", "markersize": 2.5}
                if "theory" not in data:
                    axes.plot(x[order], middle, stroke, color=colour, label=name, **mark)
                else:
                    axes.plot(x[order], middle, color=colour, **BENEATH)
                    axes.plot(x[order], middle, color=colour, label=name, linestyle="", **mark)
                    said = data["theory"].values[c, k][order]
                    axes.plot(x[order], said, **{**theory_of(colour), "zorder": 5})
    if "theory" in data:
        axes.plot([], [], label="theory", **theory_of("0.3"))
    if "formula" in data:
        axes.plot(x[order], data["formula"].values[order], label="fastest of $H$", **PAPER)
    axes.set_xlabel(about["x_label"])
    axes.set_ylabel(about["y_label"])
    if text:
        axes.set_xticks(x, [str(value) for value in data["x"].values], rotation=30, ha="right")
    elif _wide(x):
        axes.set_xscale("log")
    elif x.dtype.kind in "iu":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if _wide(data["middle" if "middle" in data else "y"].values):
        axes.set_yscale("log")
    if axes.get_legend_handles_labels()[1]:
        beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        axes.legend(title=about["colour"] or None, fontsize=6, **beside)
    return axes


def _name(data: xr.Dataset, colour: int, kind: int, single: bool) -> str | None:
    what = data.attrs["kind"]
    own = f"{what} {kind + 1}" if what and data.sizes["kind"] > 1 else ""
    name = own if single else str(data["colour"].values[colour])
    if not single and own:
        name = f"{name}, {own}"
    return name or None


def _wide(values: Any) -> bool:
    finite = np.asarray(values)[np.isfinite(values)]
    return bool(finite.size and finite.min() > 0 and finite.max() > WIDE * finite.min())


PLACES = {"monotone": "o", "catapult": "P", "periodic": "s", "chaotic": "^", "divergent": "X"}
RANGE = (1e-3, 1.0)  # of the colours


def atlas_figure(data: xr.Dataset, *, title: str = "") -> Figure:
    """One assumption per row, broken more to the right; beside it, rates past stability."""
    with style():
        if "lyapunov" in data:
            figure = Figure(figsize=(2.4 * COLUMN, 1.05 * COLUMN))
            left, right = figure.subplots(1, 2, width_ratios=(2.1, 1))
            plot_exponents(right, data)
        else:
            figure = Figure(figsize=(1.6 * COLUMN, 1.05 * COLUMN))
            left = figure.subplots()
        plot_atlas(left, data)
        left.set_title(title)
    return figure


def plot_atlas(axes: Axes, data: xr.Dataset) -> Axes:
    """The median error of the drop times, a square a case; grey where no drop was seen."""
    labels = data["label"].values.tolist()
    rows = list(dict.fromkeys(labels))
    norm, colours = LogNorm(*RANGE), mpl.colormaps["cividis"]
    for row, label in enumerate(rows):
        for column, case in enumerate(i for i, name in enumerate(labels) if name == label):
            error, strength = float(data["error"][case]), str(data["strength"].values[case])
            known = np.isfinite(error)
            colour = colours(norm(np.clip(error, *RANGE))) if known else "0.8"
            dark = known and norm(np.clip(error, *RANGE)) < 0.55
            axes.add_patch(Rectangle((column, row), 0.96, 0.9, facecolor=colour))
            text = f"{strength}\n{_percent(error)}" if known else f"{strength}\nno drop"
            axes.text(
                column + 0.48, row + 0.45, text, ha="center", va="center", fontsize=5,
                color="white" if dark else "black",
            )  # fmt: skip
    axes.set_yticks(np.arange(len(rows)) + 0.45, rows)
    axes.set_xticks([])
    axes.set(xlim=(0, max(labels.count(label) for label in rows)), ylim=(len(rows), 0))
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel("broken more strongly →")
    bar = ScalarMappable(norm, colours)
    axes.figure.colorbar(bar, ax=axes, shrink=0.8, label="error of the drop times")
    return axes


def plot_exponents(axes: Axes, data: xr.Dataset) -> Axes:
    """The largest Lyapunov exponent per step against the rate, one mark per run, by its regime."""
    chosen = data["label"].values == "rate"
    rates = data["strength"].values[chosen].astype(float)
    exponents, kinds = (data[n].values[chosen] for n in ("lyapunov", "regime"))
    top = np.nanmax(exponents, initial=0.1)
    for number, (kind, mark) in enumerate(PLACES.items()):
        where = np.argwhere(kinds == kind)
        if not len(where):
            continue
        x = [rates[i] for i, _ in where]
        y = [exponents[i, j] if np.isfinite(exponents[i, j]) else 1.15 * top for i, j in where]
        axes.plot(x, y, mark, markersize=3.5, alpha=0.7, color=COLOURS[number], label=kind)
    axes.axhline(0, color="0.6", linewidth=0.6)
    axes.set(xlabel=r"rate $\eta$", ylabel="Lyapunov exponent per step")
    axes.legend(loc="upper left", fontsize=6)
    return axes


def _percent(error: float) -> str:
    digits = 0 if error >= 0.095 else 1 if error >= 0.0095 else 2
    return f"{error:.{digits}%}"
