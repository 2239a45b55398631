"""Frames of a video: the weights of one run at one moment, beside its loss."""

from collections.abc import Callable

import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes

from iclflow.plots.losses import plot_levels
from iclflow.plots.style import COLOURS, HEAT, Picture, style

Update = Callable[[int], list[Artist]]  # frame number -> the artists that moved


def weights_film(run: xr.Dataset, *, dpi: int = 160, title: str = "") -> tuple[Picture, Update]:
    """A figure and the function that moves it to frame i of `run` and says what it moved.

    `run` is one run over dimension `time`, its weights in the eigenbasis of the input covariance:
    `loss`, `subspace_distance`, `subspace_speed`, `effective` (row, column), and `keys` and
    `queries` (part, component) or `merged` (part, row, column); `levels` (component) is drawn
    dotted where there. The speed is drawn over its largest value. Scales do not change during the
    film, and zero is white.
    """
    run = run.transpose(
        "time", "part", "head", "row", "column", "component", ..., missing_dims="ignore"
    )
    with style():
        figure = Picture(figsize=(8.0, 4.5), dpi=dpi, facecolor="white")
        grid = figure.add_gridspec(2, 3, height_ratios=(1.0, 1.15), width_ratios=(1, 1, 1))
        above = grid[0, :2].subgridspec(2, 1, height_ratios=(1.6, 1.0))
        loss = figure.add_subplot(above[0])
        updates = [_loss(loss, run), _turning(figure.add_subplot(above[1], sharex=loss), run)]
        loss.tick_params(labelbottom=False)
        if "keys" in run:
            updates.append(_directions(figure.add_subplot(grid[0, 2]), run))
            scale = max(_largest(run["keys"]), _largest(run["queries"]))
            for place, name in enumerate(("keys", "queries")):
                panel = figure.add_subplot(grid[1, place])
                heading = f"{name} along the eigenvectors"
                updates.append(_heads(panel, run[name], scale, heading))
        else:
            updates.append(_values(figure.add_subplot(grid[0, 2]), run))
            updates.append(_merged(figure.add_subplot(grid[1, :2]), run["merged"].values))
        updates.append(_effective(figure.add_subplot(grid[1, 2]), run["effective"].values))
        figure.suptitle(title, fontsize=9)
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)  # pyright: ignore
        for _ in range(2):  # colour bars settle at the second look
            figure.draw_without_rendering()
        figure.set_layout_engine("none")  # or every frame would be laid out afresh, and shake

    return figure, lambda i: [artist for move in updates for artist in move(i)]


def _loss(axes: Axes, run: xr.Dataset) -> Update:
    """The loss with a marker that moves along it."""
    clock, loss = run["time"].values, run["loss"].values
    axes.plot(clock, loss, color="0.75", linewidth=1.2)
    (past,) = axes.plot(clock[:1], loss[:1], color=COLOURS[0], linewidth=1.6)
    (marker,) = axes.plot(clock[:1], loss[:1], "o", color=COLOURS[0], markersize=5, clip_on=False)
    axes.set(xlim=(clock[0], clock[-1]), ylim=(0, None), ylabel="loss")
    if "levels" in run:
        plot_levels(axes, run["levels"].values)

    def update(i: int) -> list[Artist]:
        past.set_data(clock[: i + 1], loss[: i + 1])
        marker.set_data(clock[i : i + 1], loss[i : i + 1])
        return [past, marker]

    return update


def _turning(axes: Axes, run: xr.Dataset) -> Update:
    """The subspace distance to the last weights, and the speed, with a line that moves along."""
    clock, speed = run["time"].values, run["subspace_speed"].values
    fastest = np.nanmax(speed, initial=0.0) or 1.0
    axes.plot(clock, run["subspace_distance"].values, color=COLOURS[2], label="distance to end")
    axes.plot(clock, speed / fastest, color=COLOURS[1], linestyle=":", label="speed")
    now = axes.axvline(clock[0], color=COLOURS[0], linewidth=0.8)
    axes.set(ylim=(0, 1.05), yticks=[0, 1], ylabel="subspaces")
    axes.set_xlabel(str(run["time"].attrs.get("long_name", "training steps")))
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.9), fontsize=6.5, ncols=2)

    def update(i: int) -> list[Artist]:
        now.set_xdata([clock[i], clock[i]])
        return [now]

    return update


def _directions(axes: Axes, run: xr.Dataset) -> Update:
    """Where each key and query points: shares cos² of the eigenvectors, which add up to one."""
    keys, queries = (_shares(run[name].values) for name in ("keys", "queries"))
    count, components = keys.shape[1:]
    places = np.arange(count)
    bars = []
    for side, shares in ((-0.21, keys), (0.21, queries)):
        below = np.zeros(count)
        for d in range(components):
            drawn = axes.bar(
                places + side, shares[0, :, d], 0.36, bottom=below, linewidth=0,
                color=_colour(d), label=rf"$e_{{{d + 1}}}$" if side < 0 else None,
            )  # fmt: skip
            bars.append((drawn, shares, d))
            below = below + shares[0, :, d]
    axes.set(ylim=(0, 1), xlim=(-0.6, count - 0.4), yticks=[0, 1])
    axes.set_xticks(*_head_ticks(run["part"].values))
    axes.set_xlabel("head (left bar key, right bar query)")
    axes.set_ylabel(r"$\cos^2$ with $e_d$")
    axes.legend(
        ncols=min(components, 8), loc="lower center", bbox_to_anchor=(0.5, 1.0), handlelength=0.8,
        columnspacing=0.9, handletextpad=0.3,
    )  # fmt: skip

    def update(i: int) -> list[Artist]:
        for drawn, shares, d in bars:
            below = shares[i, :, :d].sum(axis=1)
            for bar, height, bottom in zip(drawn, shares[i, :, d], below, strict=True):
                bar.set_height(height)
                bar.set_y(bottom)
        return [bar for drawn, _, _ in bars for bar in drawn]

    return update


def _values(axes: Axes, run: xr.Dataset) -> Update:
    """Value weights as bars."""
    values = run["values"].values
    bars = axes.bar(np.arange(values.shape[1]), values[0], 0.7, color=COLOURS[0])
    top = 1.05 * _largest(run["values"])
    axes.set(ylim=(-top, top), ylabel=r"value weight $v_i$", xlabel="head")
    axes.set_xticks(np.arange(values.shape[1]), np.arange(1, values.shape[1] + 1))
    axes.axhline(0, color="black", linewidth=0.6)

    def update(i: int) -> list[Artist]:
        for bar, height in zip(bars, values[i], strict=True):
            bar.set_height(height)
        return list(bars)

    return update


def _heads(axes: Axes, found: xr.DataArray, scale: float, heading: str) -> Update:
    """Components of each head's vector along the eigenvectors."""
    weights = found.values
    update = _image(axes, weights, scale)
    components = weights.shape[2]
    axes.set_title(heading)
    axes.set_xticks(range(components), [rf"$e_{{{d + 1}}}$" for d in range(components)])
    axes.set_yticks(*_head_ticks(found["part"].values))
    axes.set_ylabel("head")
    return update


def _merged(axes: Axes, weights: np.ndarray) -> Update:
    """The matrices Uᵢ side by side."""
    time, count, size, _ = weights.shape
    gap = np.full((time, size, 1), np.nan)
    rows = [part for h in range(count) for part in (gap, weights[:, h])][1:]
    side = np.concatenate(rows, axis=2)
    update = _image(axes, side, float(np.nanmax(np.abs(weights))))
    axes.set_title(r"merged weights $U_i$ of each head, in the eigenbasis")
    axes.set_xticks(
        (size + 1) * np.arange(count) + (size - 1) / 2, [str(h + 1) for h in range(count)]
    )
    axes.set(yticks=[], xlabel="head")
    return update


def _effective(axes: Axes, weights: np.ndarray) -> Update:
    """The matrix that the whole layer applies."""
    update = _image(axes, weights, float(np.nanmax(np.abs(weights))))
    names = [rf"$e_{{{d + 1}}}$" for d in range(weights.shape[1])]
    axes.set_title("effective weights, all heads")
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(names)), names)
    axes.set_aspect("equal")
    return update


def _image(axes: Axes, weights: np.ndarray, scale: float) -> Update:
    """A heatmap symmetric about white zero, with its colour bar."""
    limit = scale or 1.0
    image = axes.imshow(weights[0], cmap=HEAT, vmin=-limit, vmax=limit, aspect="auto")
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.85, pad=0.02)
    bar.outline.set_linewidth(0.4)  # pyright: ignore[reportCallIssue]
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0)

    def update(i: int) -> list[Artist]:
        image.set_data(weights[i])
        return [image]

    return update


def _head_ticks(parts: np.ndarray) -> tuple[list[int], list[str]]:
    """A tick at the first pair of each head, ten at most; parts are `head` or `head.pair`."""
    first = [i for i, part in enumerate(parts) if str(part).partition(".")[2] in ("", "1")]
    shown = first[:: -(-len(first) // 10)]
    return shown, [str(parts[i]).partition(".")[0] for i in shown]


def _shares(vectors: np.ndarray) -> np.ndarray:
    """Squared cosines with the axes; a vector of zeros has none."""
    squares = vectors**2
    total = squares.sum(axis=-1, keepdims=True)
    return squares / np.where(total > 0, total, 1.0)


def _largest(weights: xr.DataArray) -> float:
    return float(np.nanmax(np.abs(weights.values))) or 1.0


def _colour(d: int) -> str:
    palette = (*COLOURS, "#F0E442")  # with the yellow that lines do without
    return palette[d] if d < 8 else f"{0.3 + 0.6 * (d % 5) / 4:.2f}"
