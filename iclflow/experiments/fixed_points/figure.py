"""All fixed points: their losses as a lattice, ways out of them, and long contexts."""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from iclflow.plots.style import COLOURS, LOSS, THEORY, side_by_side

_PATH, _OFF = "black", COLOURS[1]


def draw(data: xr.Dataset) -> Figure:
    """(a) the lattice of fixed points, (b) how they are left, (c) against the context length."""
    return side_by_side(data, _lattice, _ways_out, _contexts, height=0.95)


def _lattice(axes: Axes, data: xr.Dataset) -> None:
    """L(M(S)) against |S|, joined to the sets with one mode more; (59) in white."""
    sets, loss = data["learned"].values, data["loss"].isel(rank=0).values
    visited, count = data["visited"].values, data["learned"].values.sum(axis=1)
    for i, small in enumerate(sets):
        for j, large in enumerate(sets):
            if count[j] == count[i] + 1 and np.all(large >= small):
                path = visited[i] and visited[j]
                colour, depth = (_PATH, 2) if path else ("0.85", 0)
                axes.plot(count[[i, j]], loss[[i, j]], color=colour, zorder=depth)
    for on, colour, label in ((True, _PATH, "visited"), (False, _OFF, "not visited")):
        which = visited == on
        axes.plot(
            count[which], loss[which], "o", color=colour, markersize=3.5, label=label, zorder=3
        )
    axes.plot(count, data["formula"], "_", color="white", markersize=3, zorder=4)
    names: dict[tuple[int, float], list[str]] = {}  # sets of the same loss share a label
    for size, level, members in zip(count, loss, sets, strict=True):
        name = "".join(str(d + 1) for d in np.flatnonzero(members)) or "∅"
        names.setdefault((int(size), round(float(level), 2)), []).append(name)
    for place, found in names.items():
        offset = {"xytext": (4, 1), "textcoords": "offset points"}
        axes.annotate(", ".join(found), place, fontsize=5.5, **offset)
    axes.set_xlim(-0.2, count.max() + 0.6)
    axes.set_ylim(0, 1.08 * loss.max())
    axes.set_xticks(range(count.max() + 1))
    axes.set_xlabel("modes learned $|S|$ (numbers: $S$)")
    axes.set_ylabel(LOSS)
    axes.set_title(r"(a) $L(\mathcal{M}(S))$ (59)", loc="left")
    axes.legend(loc="lower left", handletextpad=0.2)


def _ways_out(axes: Axes, data: xr.Dataset) -> None:
    """The fall of the loss along a way out, with slopes 2 and 3 beside."""
    saddles = data.sel(point=~data["learned"].all("component"))
    far = data["distance"].values
    for on, colour in ((False, _OFF), (True, _PATH)):
        falls = saddles["fall"].sel(point=saddles["visited"] == on).values
        axes.plot(far, falls.T, "o-", color=colour, markersize=2.5, linewidth=0.8)
        order = 3 if on else 2
        guide = 0.5 * falls[:, -1].min() if on else 2 * falls[:, -1].max()
        axes.plot(far, guide * (far / far[-1]) ** order, **THEORY)
        axes.plot(
            [],
            [],
            "o-",
            color=colour,
            markersize=2.5,
            label=f"{'path' if on else 'others'}, slope {order}",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(far, [f"{x:g}" for x in far])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("distance in weights")
    axes.set_ylabel("fall of the loss")
    axes.set_title("(b) leaving a fixed point", loc="left")
    axes.legend(loc="lower right")


def _contexts(axes: Axes, data: xr.Dataset) -> None:
    """Distance of losses and weights from their limits against N."""
    contexts = data["context"].values.astype(float)
    losses = abs(data["path_loss"] - data["path_limit"]).max("level").values
    curves = (
        (losses, "o", COLOURS[0], r"$L(\mathcal{M}_m)$ to $\sum_{d>m}\lambda_d$"),
        (data["weight_error"].values, "s", COLOURS[2], r"$M^*$ to $\Lambda^{-1}$, relative"),
    )
    for values, marker, colour, label in curves:
        axes.plot(contexts, values, marker, color=colour, markersize=4, label=label)
        axes.plot(contexts, values[-1] * contexts[-1] / contexts, **THEORY)
    axes.plot([], [], label=r"$\propto 1/N$", **THEORY)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("context length $N$")
    axes.set_ylabel("distance from the limit")
    axes.set_title("(c) long contexts", loc="left")
    axes.legend(loc="lower left")
