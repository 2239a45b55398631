"""Figs 1 (left) and 2, with numbers in them: one small prompt through attention and networks."""

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle

from iclflow.experiments.base import Claim, below
from iclflow.experiments.runs import finished, named
from iclflow.models import ConvNet, Separate
from iclflow.models.networks import cubic_features
from iclflow.plots.style import COLOURS, COLUMN, HEAT, Picture, style
from iclflow.results.messages import Progress
from iclflow.tasks.task import Task

SPECTRUM, CONTEXT, HEADS = (0.5, 0.3, 0.2), 4, 2


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """A prompt with D = 3, its features z, and a rank-one layer as convolutional networks."""
    found = {name: np.asarray(a) for name, a in _through(Task(SPECTRUM, CONTEXT)).items()}
    keys, queries, values = found["keys"], found["queries"], found["values"]
    size = keys.shape[1]
    # Row c of K holds the kernel at columns c D … c D + D - 1: kernel size D, stride D.
    matrices = np.stack([np.kron(np.eye(size), k[None, :]) for k in keys])
    hidden = np.einsum("hcf,f->hc", matrices, found["features"])
    if progress is not None:
        progress(1, 1)
    variables = named(
        {
            "tokens": (("token", "position"), found["tokens"].T, "prompt X"),
            "correlation": (("row",), found["correlation"], "β"),
            "query": (("column",), found["query"], "x_q"),
            "features": (("feature",), found["features"], "z = vec(β x_qᵀ)"),
            "keys": (("head", "row"), keys, "kernels k"),
            "queries": (("head", "column"), queries, "queries q"),
            "values": (("head",), values, "values v"),
            "matrices": (("head", "column", "feature"), matrices, "convolution matrices K"),
            "hidden": (("head", "column"), hidden, "K z"),
            "outputs": (("head",), values * np.sum(queries * hidden, axis=1), "v qᵀ K z"),
            "attention": ((), found["attention"], "prediction of the attention layer"),
            "network": ((), found["network"], "prediction of the networks"),
        }
    )
    settings = {"figure": "Fig. 2", "quick": quick, "size": size, "heads": HEADS}
    return finished(xr.Dataset(variables, {"head": np.arange(HEADS)}), settings)


@eqx.filter_jit
def _through(task: Task) -> dict[str, Array]:
    """A prompt, weights, and what the attention layer and the networks make of the prompt."""
    prompt = task.sample(jax.random.key(3))
    model = Separate.initialiser(task, heads=HEADS, scale=2.0)(jax.random.key(1))
    return {
        "tokens": prompt.tokens,
        "correlation": prompt.correlation[0],
        "query": prompt.query,
        "features": cubic_features(prompt)[0],
        "keys": model.keys[:, 0],
        "queries": model.queries[:, 0],
        "values": model.values[:, 0, 0],
        "attention": model(prompt)[0],
        "network": ConvNet.from_attention(model)(prompt)[0],
    }


def claims(data: xr.Dataset) -> list[Claim]:
    """The sum of three-layer networks is the attention layer."""
    return [
        below(
            "rank-one-is-convolution",
            "A rank-one layer predicts what the sum of its convolutional networks predicts",
            "Sec. 4.1, Fig. 2",
            abs(float(data["outputs"].sum() - data["attention"])),
            1e-12,
            "rounding; v qᵀ K z by matrices of kernels with stride D, attention by its definition",
            f"on the prompt that is drawn, where the prediction is {float(data['attention']):.3g}",
        )
    ]


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """One head of the two."""
    return {"rank-one-is-convolution": data.assign(outputs=data["outputs"].isel(head=[0]))}


INK = "0.25"


def cells(
    axes: Axes, values: np.ndarray, corner: tuple[float, float], cell: float, limit: float
) -> tuple[float, float]:
    """A matrix as coloured cells, its top left corner given; its centre is returned."""
    table, (x, y) = np.atleast_2d(values), corner
    colours = colormaps[HEAT](0.5 + 0.5 * np.clip(table / limit, -1, 1))
    for i, row in enumerate(colours):
        for j, colour in enumerate(row):
            place = (x + j * cell, y - (i + 1) * cell)
            axes.add_patch(
                Rectangle(place, cell, cell, facecolor=colour, edgecolor="0.6", linewidth=0.4)
            )
    rows, columns = table.shape
    return x + columns * cell / 2, y - rows * cell / 2


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """An arrow from one place to another."""
    style_ = {"arrowstyle": "-|>", "color": INK, "linewidth": 0.8, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style_)


def blank(axes: Axes, width: float, height: float) -> None:
    """No frame, no ticks, equal units."""
    axes.set_xlim(0, width)
    axes.set_ylim(0, height)
    axes.set_aspect("equal")
    axes.axis("off")


def draw_merged(axes: Axes) -> Axes:
    """Fig. 1, left: β x_qᵀ stacked to z, then a two-layer linear network of width H."""
    blank(axes, 10, 9)
    inputs = np.linspace(7.4, 1.6, 6)
    hidden = np.linspace(6.9, 2.1, 4)
    for a in inputs:
        for i, b in enumerate(hidden):
            axes.plot([3.0, 5.8], [a, b], color=COLOURS[0], alpha=0.25 + 0.12 * i, linewidth=0.6)
    for i, b in enumerate(hidden):
        axes.plot([5.8, 8.4], [b, 4.5], color=COLOURS[1], alpha=0.4 + 0.15 * i, linewidth=1.0)
    for a in inputs:
        axes.add_patch(Circle((3.0, a), 0.28, facecolor="0.88", edgecolor=INK, linewidth=0.7))
    for b in hidden:
        axes.add_patch(Circle((5.8, b), 0.3, facecolor="white", edgecolor=INK, linewidth=0.7))
    axes.add_patch(Circle((8.4, 4.5), 0.34, facecolor="white", edgecolor=INK, linewidth=0.7))
    text = {"ha": "center", "va": "center", "fontsize": 7}
    axes.text(0.9, 4.5, "$\\mathbf{z} =$\n" r"$\mathrm{vec}(\beta\,x_q^\top)$", **text)
    axes.text(9.3, 4.5, r"$\hat y_q$", **text)
    axes.text(4.4, 8.3, "$W_1$: rows $\\mathrm{vec}(U_i)^\\top$", color=COLOURS[0], **text)
    axes.text(8.0, 7.4, "$w_2$: values $v_i$", color=COLOURS[1], **text)
    axes.text(3.0, 0.8, "$D^2$ cubic\nfeatures", **text)
    axes.text(5.8, 0.8, "$H$ heads", **text)
    return axes


def draw(data: xr.Dataset) -> Picture:
    """Fig. 2 with the numbers of one prompt: a sum of three-layer convolutional networks."""
    with style():
        figure = Picture(figsize=(2.08 * COLUMN, 2.75))
        axes = figure.subplots()
        blank(axes, 31, 12.3)
        text = {"ha": "center", "va": "center", "fontsize": 8}
        limit = float(np.abs(data["tokens"]).max())
        centre = cells(axes, data["tokens"].values, (0.6, 8.6), 0.95, limit)
        axes.text(centre[0], 9.4, "prompt $X$", **text)
        axes.text(centre[0], 3.9, "label of the query: 0", **{**text, "fontsize": 6.5})

        largest = float(np.abs(data["features"]).max())
        correlation, query = data["correlation"].values, data["query"].values
        cells(axes, correlation[:, None], (7.4, 9.9), 0.8, float(np.abs(correlation).max()))
        cells(axes, query[:, None], (7.4, 5.9), 0.8, float(np.abs(query).max()))
        axes.text(7.8, 10.5, r"$\beta$", **text)
        axes.text(7.8, 6.5, r"$x_q$", **text)
        arrow(axes, (5.6, 7.0), (7.2, 8.4))
        arrow(axes, (5.6, 6.0), (7.2, 4.9))

        cells(axes, data["features"].values[:, None], (10.6, 9.7), 0.8, largest)
        axes.text(11.0, 11.2, "$\\mathbf{z} = \\mathrm{vec}$\n$(\\beta x_q^\\top)$", **text)
        arrow(axes, (8.4, 8.4), (10.4, 6.9))
        arrow(axes, (8.4, 4.9), (10.4, 5.6))

        strongest = float(np.abs(data["keys"]).max())
        for head, top in enumerate((11.0, 5.2)):
            _head(axes, data.isel(head=head), head, top, strongest)
            arrow(axes, (11.6, 6.1), (12.9, top - 2.5))
            arrow(axes, (27.0, top - 2.5), (28.4, 6.3 if head == 0 else 5.7))
        axes.add_patch(Circle((28.9, 6.0), 0.55, facecolor="white", edgecolor=INK, linewidth=0.8))
        axes.text(28.9, 6.0, "+", **text)
        axes.text(30.3, 6.0, r"$\hat y_q$", **text)
    return figure


def _head(axes: Axes, data: xr.Dataset, head: int, top: float, strongest: float) -> None:
    """One head: kernel with stride D, query, value."""
    text = {"ha": "center", "va": "center", "fontsize": 8}
    matrix = data["matrices"].values
    centre = cells(axes, matrix, (13.1, top - 1.3), 0.8, strongest)
    axes.text(centre[0], top - 0.7, f"$K_{head + 1}$: kernel $k_{head + 1}$, stride $D$", **text)
    hidden, query = data["hidden"].values, data["queries"].values
    cells(axes, hidden[:, None], (21.6, top - 1.3), 0.8, float(np.abs(hidden).max()))
    axes.text(22.0, top - 0.7, rf"$K_{head + 1}\mathbf{{z}}$", **text)
    cells(axes, query[:, None], (24.0, top - 1.3), 0.8, strongest)
    axes.text(24.4, top - 0.7, f"$q_{head + 1}$", **text)
    cells(axes, data["values"].values[None], (26.0, top - 2.1), 0.8, strongest)
    axes.text(26.4, top - 0.7, f"$v_{head + 1}$", **text)
    arrow(axes, (20.4, top - 2.5), (21.5, top - 2.5))
    axes.text(23.2, top - 2.5, "·", **{**text, "fontsize": 12})
    axes.text(25.4, top - 2.5, "·", **{**text, "fontsize": 12})
