"""Measured speeds: runs·steps per second by training and engine, and how costs grow."""

import datetime
from typing import Any

from matplotlib import dates, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from iclflow.plots.style import COLOURS, COLUMN, style

COUNTED = {"color": "black", "linewidth": 1.2}  # what the operations say, as theory does
ROOM = 0.6  # of a line, that the machines share
ENGINES = {"vmap": "-", "fused": "--", "literal": ":"}


def bench_figure(measured: list[dict[str, Any]]) -> Figure:
    """Speeds beside exponents, one colour per machine; what `iclflow bench --out` wrote."""
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
    """One line per training and engine: runs·steps per second, and the share of the peak."""
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
    axes.set(xscale="log", xlabel="runs · steps per second (share of the peak)")
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


def history_figure(measured: list[dict[str, Any]]) -> Figure:
    """Speeds of one machine over time, one column per level; below, as multiples of literal ones.

    A hollow marker is a measurement beside other work: a load above the number of cores.
    """
    if len(machines := {_machine(found["machine"]) for found in measured}) > 1:
        raise ValueError(f"a history is of one machine, not of {len(machines)}: {machines}")
    measured = sorted(measured, key=lambda found: datetime.datetime.fromisoformat(found["date"]))
    rows = [row for found in measured for row in found["rows"]]
    models = list(dict.fromkeys(map(_model, rows)))
    levels = list(dict.fromkeys(row["level"] for row in rows if row["over_literal"] != 1))
    with style():
        figure = Figure(figsize=(2.08 * COLUMN, 1.2 * COLUMN))
        panels = figure.subplots(2, len(levels), sharex=True, squeeze=False)
        for column, level in zip(panels.T, levels, strict=True):
            column[0].set_title(level)
            # The yardstick computes what the last level does, and stands beside it.
            shown = (level, "literal") if level == levels[-1] else (level,)
            _plot_history(column[0], measured, "steps_per_second", shown, models)
            _plot_history(column[1], measured, "over_literal", (level,), models)
        panels[0, 0].set_ylabel("runs · steps per second")
        panels[1, 0].set_ylabel("multiple of the literal speed")
        for number, model in enumerate(models):
            panels[0, 0].plot([], [], linewidth=4, color=_colour(number), label=model)
        for engine in dict.fromkeys(row["engine"] for row in rows):
            panels[0, 0].plot([], [], ENGINES[engine], color="0.3", label=engine)
        look = {"marker": "o", "markersize": 3.5, "linestyle": "none", "color": "0.3"}
        panels[0, 0].plot([], [], markerfacecolor="white", label="beside other work", **look)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4)
    return figure


def _plot_history(
    axes: Axes, measured: list[dict[str, Any]], value: str, levels: tuple[str, ...], models: list
) -> None:
    lines: dict[tuple[str, str], list[tuple[Any, float, bool]]] = {}
    for found in measured:
        date, machine = datetime.datetime.fromisoformat(found["date"]), found["machine"]
        busy = (machine["load_before"] or 0) > machine["cores"]
        for row in found["rows"]:
            if row["level"] in levels:
                point = (date, row[value], busy)
                lines.setdefault((_model(row), row["engine"]), []).append(point)
    for (model, engine), points in lines.items():
        look: dict[str, Any] = {"color": _colour(models.index(model)), "markersize": 3.5}
        axes.plot([p[0] for p in points], [p[1] for p in points], ENGINES[engine], **look)
        for date, height, busy in points:
            axes.plot(date, height, "o", markerfacecolor="white" if busy else None, **look)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.EngFormatter(sep=""))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.xaxis.set_major_locator(locator := dates.AutoDateLocator(minticks=2, maxticks=4))
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    axes.set_xmargin(0.1)
    axes.grid(axis="y", linewidth=0.3, color="0.85")


def _model(row: dict[str, Any]) -> str:
    rank = f" R={row['sizes']['R']}" if "R" in row["sizes"] else ""
    return f"{row['model']}{rank}"


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
