"""Measured speeds: runs·steps a second by training and engine, and how costs grow."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from iclflow.plots.style import COLOURS, COLUMN, style

COUNTED = {"color": "black", "linewidth": 1.2}  # what the operations say, as theory does
ROOM = 0.6  # of a line, that the machines share


def bench_figure(measured: list[dict[str, Any]]) -> Figure:
    """Speeds beside exponents, a colour a machine; what `iclflow bench --out` wrote."""
    rows = max(len(_names(measured, "rows", _training)), len(_names(measured, "exponents", _line)))
    with style():
        figure = Figure(figsize=(2.08 * COLUMN, 0.7 + 0.27 * rows))
        left, right = figure.subplots(1, 2, width_ratios=(1.4, 1))
        plot_speeds(left, measured)
        plot_exponents(right, measured)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    return figure


def plot_speeds(axes: Axes, measured: list[dict[str, Any]]) -> Axes:
    """One line a training and engine: runs·steps a second, and the share of the peak."""
    names = _names(measured, "rows", _training)
    for number, found in enumerate(measured):
        for row in found["rows"]:
            place = names.index(_training(row)) + _shift(number, len(measured))
            look = {"marker": "o", "markersize": 3.5, "color": _colour(number)}
            axes.plot(row["steps_per_second"], place, linestyle="none", **look)
            share = f"{100 * row['of_peak']:.2g}%"
            where = {"xytext": (5, -0.5), "textcoords": "offset points", "va": "center"}
            axes.annotate(share, (row["steps_per_second"], place), fontsize=5, **where)
        axes.plot([], [], linewidth=4, color=_colour(number), label=_machine(found["machine"]))
    axes.plot([], [], label="operations counted", **COUNTED)
    axes.set(xscale="log", xlabel="runs · steps a second (share of the peak)")
    axes.set_xmargin(0.1)
    return _listed(axes, names)


def plot_exponents(axes: Axes, measured: list[dict[str, Any]]) -> Axes:
    """One line a size: the fitted exponent and its error; that of its operations in black."""
    names = _names(measured, "exponents", _line)
    for number, found in enumerate(measured):
        for line in found["exponents"]:
            row = names.index(_line(line))
            place = row + _shift(number, len(measured))
            look = {"fmt": "o", "markersize": 3, "color": _colour(number), "elinewidth": 0.8}
            axes.errorbar(line["exponent"], place, xerr=line["error"], **look)
            ends = (row - ROOM / 2, row + ROOM / 2)
            axes.plot([line["exponent_of_operations"]] * 2, ends, **COUNTED)
    axes.set(xlabel="exponent of cost")
    axes.set_xlim(left=0)
    return _listed(axes, names)


def _listed(axes: Axes, names: list[str]) -> Axes:
    """Lines of a list, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="x", linewidth=0.3, color="0.85")
    axes.tick_params(axis="y", length=0)
    return axes


def _names(measured: list[dict[str, Any]], part: str, name: Any) -> list[str]:
    return list(dict.fromkeys(name(row) for found in measured for row in found[part]))


def _training(row: dict[str, Any]) -> str:
    shown = ("R",) if row["level"] == "moments" else ("R", "P")  # moments: any P costs the same
    sizes = "".join(f" {k}={row['sizes'][k]:,}" for k in shown if k in row["sizes"])
    engine = "" if row["engine"] == row["level"] else f", {row['engine']}"
    return f"{row['level']} {row['model']}{sizes}{engine}"


def _line(line: dict[str, Any]) -> str:
    return f"{line['size']}: {line['level']} {line['model']}"


def _shift(number: int, count: int) -> float:
    return ROOM * ((number + 0.5) / count - 0.5)


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _machine(machine: dict[str, Any]) -> str:
    cores = f", {machine['cores']} cores" if machine["backend"] == "cpu" else ""
    return f"{machine['device']}{cores}, {machine['precision']} precision"
