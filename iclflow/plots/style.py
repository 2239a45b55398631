"""One matplotlib style, made for print and safe for colour-blind readers."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib import figure as mpl_figure
from matplotlib.rcsetup import cycler

# Okabe and Ito's palette without yellow, darkest contrast first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
THEORY = {"color": "black", "linestyle": (0, (4, 3)), "linewidth": 1.0}
# A run whose own theory lies on top of it: pale and broad, under dashes of the same colour.
BENEATH: dict[str, Any] = {"linewidth": 2.6, "alpha": 0.4, "solid_capstyle": "butt"}
PAPER = {"color": "0.45", "linestyle": ":", "linewidth": 1.2}  # a paper's theory beside another
COLUMN = 3.4  # inches: one column of a two-column page
HEAT = "RdBu_r"  # of matrices, white at zero

# What axes are called.
TIME = r"training time $t/\tau$"
LOSS = r"loss $\mathbb{E}(y_q - \hat{y}_q)^2$"
HALF_LOSS = r"loss $\frac{1}{2}\mathbb{E}|y_q - \hat{y}_q|^2$"  # the second paper's

STYLE: dict[Any, Any] = {
    "figure.dpi": 200,
    "savefig.dpi": 300,
    "figure.constrained_layout.use": True,
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "axes.prop_cycle": cycler(color=COLOURS),
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}


class Picture(mpl_figure.Figure):
    """A figure that a notebook shows, whatever its backend."""

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=150)
        return picture.getvalue()


def theory_of(colour: Any) -> dict[str, Any]:
    """The look of a theory that belongs to the run, or the mode, of one colour."""
    return {**THEORY, "color": colour}


def mode_colour(mode: int) -> str:
    """Colours of modes: neighbours differ in lightness too."""
    return COLOURS[(0, 2, 4, 1, 3, 5)[mode % 6]]


@contextmanager
def style() -> Iterator[None]:
    """The style, for the figures made inside."""
    with mpl.rc_context(STYLE):
        yield


def side_by_side(data: Any, *panels: Callable[..., Any], height: float) -> Picture:
    """A figure of two columns' width, its height in columns, each panel drawn by its function."""
    with style():
        figure = Picture(figsize=(2.08 * COLUMN, height * COLUMN))
        for axes, draw in zip(figure.subplots(1, len(panels)), panels, strict=True):
            draw(axes, data)
    return figure
