"""The loss over training, with the theory's levels and curves."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from iclflow.plots.style import BENEATH, COLOURS, COLUMN, LOSS, TIME, Picture, style, theory_of

LEVEL: dict[str, Any] = {"color": "0.5", "linewidth": 0.8, "linestyle": (0, (1, 1.6)), "zorder": 0}
LINE_HEIGHT = 1.15  # of a name, times its font size


def level_name(m: int, count: int) -> str:
    """L(M_m); where there are two levels only, L(0) and the least loss L_*."""
    return rf"$L(\mathcal{{M}}_{{{m}}})$" if count != 2 else (r"$L(\mathbf{0})$", r"$L_*$")[m]


def plot_levels(
    axes: Axes,
    levels: Any,
    *,
    which: Iterable[int] | None = None,
    names: bool = True,
    fontsize: float = 6.5,
    **look: Any,
) -> None:
    """Lines at levels, largest first, with names at the right edge; set the y-limits before.

    - `which`: the levels drawn; all if not said.
    - `names`: from the top those that do not run into one another; the last one always, which the
      one above it may push down a little.
    """
    drawn = list(range(len(levels)) if which is None else which)
    for m in drawn:
        axes.axhline(float(levels[m]), **{**LEVEL, **look})
    if not names or not drawn:
        return
    low, high = axes.get_ylim()
    points = 72 * axes.get_window_extent().height / axes.figure.dpi
    room = LINE_HEIGHT * fontsize * (high - low) / points
    *others, last = drawn
    places, above = {last: float(levels[last])}, float("inf")
    for m in others:
        level = float(levels[m])
        gap = level - float(levels[last])
        if above - level < room or gap < room / 2:
            continue
        places[m] = above = level
        if gap < room:
            places[m] += (room - gap) / 2
            places[last] -= (room - gap) / 2
    for m, place in places.items():
        axes.annotate(
            level_name(m, len(levels)), (1, place), xycoords=("axes fraction", "data"),
            xytext=(3, 0), textcoords="offset points", va="center", fontsize=fontsize,
            annotation_clip=False,
        )  # fmt: skip


def loss_figure(
    runs: Any,
    *,
    levels: Any = (),
    theory: Any = None,
    title: str = "",
) -> Picture:
    """One panel: the loss of every seed, theory dashed.

    - `runs`: a Dataset of `sweep`, or the Trajectory of one `simulate`.
    - `levels`: losses of the plateaus, dotted.
    - `theory`: anything with a `time` and a `loss`: a Dataset, a Trajectory, a prediction.

    >>> import numpy as np, xarray as xr, iclflow as icl
    >>> runs = xr.Dataset({"loss": (("seed", "time"), np.ones((2, 5)))}, {"time": np.arange(5.0)})
    >>> figure = icl.plots.loss(runs, levels=[1.0, 0.2])
    >>> len(figure.axes)
    1
    """
    with style():
        figure = Picture(figsize=(COLUMN * 1.35, COLUMN * 0.85))
        plot_loss(figure.subplots(), runs, levels=levels, theory=theory)
        figure.axes[0].set_title(title)
    return figure


def plot_loss(
    axes: Axes,
    runs: Any,
    *,
    levels: Any = (),
    theory: Any = None,
) -> Axes:
    """Loss against t/τ (steps for optimisers with no clock), dotted levels L(M_m).

    The theory of a run is dashed in the colour of the run. The first four test losses are thin
    lines in the colour of the run, each with dashes of its own.

    - `runs`: a Dataset of `sweep`, or the Trajectory of one `simulate`. More seeds than there are
      colours (seven) are drawn as one pale bundle.
    """
    if not isinstance(runs, xr.Dataset):  # a Trajectory
        if "loss" not in getattr(runs, "record", ()) or np.ndim(runs.loss) != 1:
            raise ValueError("plots.loss needs one run that recorded its loss: record=('loss',)")
        clocks = {"time": ("time", np.asarray(runs.time)), "step": ("time", np.asarray(runs.step))}
        runs = xr.Dataset({"loss": ("time", np.asarray(runs.loss))}, clocks)
    timed = "time" in runs.coords and bool(np.all(np.isfinite(runs["time"])))
    timed = timed and runs["time"].attrs.get("long_name") != "training steps"
    clock = runs["time" if timed else "step"]
    count = runs.sizes.get("seed", 1)
    ordered = runs["loss"].transpose("seed", ..., "time", missing_dims="ignore")
    losses = ordered.values.reshape(count, -1)
    predicted = np.zeros((0, 0)) if theory is None else np.atleast_2d(np.asarray(theory.loss))
    # More runs than there are colours are one pale bundle; those with a theory lie on top of it.
    own = count if count <= len(COLOURS) else len(predicted) if len(predicted) < count else 0
    if own < count:
        axes.plot(clock.values, losses[own:].T, color="0.55", linewidth=0.6, alpha=0.35, zorder=1)
        name = f"{count - own:,} more seeds" if own else f"{count:,} seeds"
        axes.plot([], [], color="0.55", linewidth=0.8, label=name)
    for i, curve in enumerate(losses[:own]):
        label = None if count == 1 else f"seed {runs['seed'].values[i]}"
        colour = COLOURS[i % len(COLOURS)]
        look = BENEATH if i < len(predicted) else {}
        axes.plot(clock.values, curve, color=colour, label=label, **look)
    if theory is not None:
        for i, curve in enumerate(predicted):  # the first is that of the first run
            look = theory_of(COLOURS[i % len(COLOURS)] if i < own else "0.3")
            axes.plot(np.asarray(theory.time), curve, **look)
        axes.plot([], [], label="theory", **theory_of("0.3"))
    tested = "test_loss" in runs
    if tested:
        _plot_tests(axes, clock.values, runs["test_loss"])
    end = float(clock.values[-1])
    axes.set_xlabel(TIME if timed else "training steps")
    axes.set_ylabel(LOSS)
    axes.set_xlim(0, end)
    axes.set_ylim(0, None)
    plot_levels(axes, levels, fontsize=7)
    if count > 1 or theory is not None or tested:
        axes.legend(ncols=3, loc="upper right", bbox_to_anchor=(1.0, 0.94))
    if timed and "step" in runs.coords and not np.array_equal(runs["step"], runs["time"]):
        # Under a schedule the two clocks are not proportional.
        steps, times = (np.append(runs[n].values, 2 * runs[n].values[-1]) for n in ("step", "time"))
        there, back = lambda t: np.interp(t, times, steps), lambda s: np.interp(s, steps, times)
        top = axes.secondary_xaxis("top", functions=(there, back))
        top.set_xlabel("training steps")
    return axes


DASHES = ((0, (6, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 3)))


def _plot_tests(axes: Axes, clock: np.ndarray, tests: xr.DataArray) -> None:
    """Test losses by name and length, each with dashes of its own, in the colours of the runs.

    Of more runs than there are colours the mean is drawn, in grey.
    """
    if tests.sizes.get("seed", 1) > len(COLOURS):
        tests = tests.mean("seed", keep_attrs=True).expand_dims("seed")
    elif "seed" not in tests.dims:
        tests = tests.expand_dims("seed")
    single = tests.sizes["seed"] == 1
    others = [dim for dim in tests.dims if dim not in ("seed", "time")]
    cases = tests.stack(case=others) if others else tests.expand_dims("case")
    for case, dashes in zip(cases.transpose("case", "seed", "time"), DASHES, strict=False):
        for i, row in enumerate(case.values):
            colour = "0.35" if single else COLOURS[i]
            axes.plot(clock, row, color=colour, linewidth=0.8, linestyle=dashes, zorder=1)
        said = [str(case[dim].item()) for dim in others if tests.sizes[dim] > 1]
        name = f"test: {', '.join(said)}" if said else "test"
        axes.plot([], [], color="0.35", linewidth=0.8, linestyle=dashes, label=name)
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the names above the curves
