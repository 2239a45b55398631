"""The figures of a report by name, and the papers that they are of. No science is imported here."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from iclflow.experiments.base import Figure
from iclflow.experiments.figures import BY_NAME
from iclflow.results.messages import require_choice

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


@dataclasses.dataclass(frozen=True)
class Published:
    """What the published code needs for a figure on 2 CPU cores, in seconds.

    `note` says how our computation differs; where it is another problem than the published one
    (`alike` false) the two times stand side by side without a ratio.
    """

    label: str
    figures: tuple[str, ...]
    seconds: float
    note: str = ""
    alike: bool = True


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper, its figures in the order of the page, and times of its code."""

    title: str
    byline: str  # authors, place and year
    arxiv: str  # empty for results of our own
    about: str
    figures: tuple[Figure, ...]
    published: tuple[Published, ...] = ()


# What equations of our own say; claims name them by these labels.
DERIVED = {
    "E2": "Merged key and query from any small start: the projection s(0) = ¼|w₂ + W₁m̂|² of the "
    "initial weights on the growing direction m̂ takes the place of |w₂(0)|² in (15), and one "
    "reduced flow gives the whole drop for any Λ, with its time.",
    "E3": "Contexts of varying length: the loss averaged over lengths is the loss of the averaged "
    "moments, so that all formulas hold with these. Divided by the number of pairs, this is N "
    "replaced by the harmonic mean of the lengths.",
    "E6": "Components of a small head along directions that are already learned do not move: key "
    "and query each by itself, (k·e)[e; 0] + (q·e)[0; e] for the third term of (70).",
    "E7": "Heads of rank R conserve the whole R by R matrix KKᵀ - QQᵀ, of which (85) is the "
    "diagonal.",
}


def _figures(*names: str) -> tuple[Figure, ...]:
    return tuple(BY_NAME[name] for name in names)


_FLOW = "here by gradient flow with adaptive steps, not descent"

PAPERS = (
    Paper(
        "Training Dynamics of In-Context Learning in Linear Attention",
        "Y. Zhang, A. K. Singh, P. E. Latham and A. M. Saxe, ICML 2025",
        "2501.16265",
        "One layer of linear attention is trained to predict the label of a query from labelled "
        "examples in its prompt. With merged key and query it is a two-layer linear network, and "
        "learns in one abrupt drop of the loss. With separate ones it is a sum of three-layer "
        "networks, and learns in steps, one principal component of the inputs at a time.",
        _figures(
            "fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fig10",
            "fixed-points", "plateau-alignment", "v2-softmax", "v2-init", "v2-length",
            "zero-blocks",
        ),
        (
            Published("Fig. 1", ("fig1",), 26 * MINUTE),
            Published("Fig. 3a", ("fig3",), 2.9 * DAY),
            Published("Fig. 4", ("fig4",), 66 * DAY, _FLOW),
            Published("Fig. 9", ("fig9",), 73 * DAY, _FLOW),
            Published(
                "Figs 5 and 10", ("fig5", "fig10"), 3.4 * HOUR,
                "here in the population; only the 60% portion also on sampled sequences",
                alike=False,
            ),
        ),
    ),
    Paper(
        "Several layers of linear attention",
        "beyond the papers",
        "",
        "Each of L layers takes one step towards the solution of the prompt. Two layers learn each "
        "component twice, so their loss has up to twice as many drops, whose times are predicted "
        "too. Depth helps on the inputs of training and makes the model brittle on others. The "
        "formulas (D1) to (D20) are on the documentation's page on depth.",
        _figures(
            "depth-fig1", "depth-fig2", "depth-fig3", "depth-fig4", "depth-fig5", "depth-fig6",
        ),
    ),
    Paper(
        "Softmax attention in the population",
        "beyond the papers",
        "",
        "For Gaussian inputs the population loss of softmax attention is known to first order in "
        "1/N, in closed form. It shows how long softmax attention waits when its initial weights "
        "become small. The formulas (S1) to (S12) are on the documentation's page on softmax "
        "attention.",
        _figures("softmax-fig1"),
    ),
    Paper(
        "Exact Learning Dynamics of In-Context Learning in Linear Transformers and Its Application "
        "to Non-Linear Transformers",
        "N. Mainali and L. Teixeira, 2025",
        "2504.12916",
        "A linear transformer with vector outputs learns each eigenvector of the input covariance "
        "in its own time, and these times can be read off the loss and the weights. The same "
        "measures are taken of transformers that are not linear, while they learn to learn in "
        "context and while they grok.",
        _figures(
            "lt-fig1", "lt-fig2", "lt-fig3", "lt-fig4", "lt-blocks", "lt-fig5", "lt-fig6",
            "lt-fig7",
        ),
    ),
    Paper(
        "Transformers on pools of tasks",
        "beyond the papers; the setting of A. Raventós, M. Paul, F. Chen and S. Ganguli, 2023",
        "",
        "Trained on few tasks a transformer learns these tasks, trained on many it learns "
        "regression. How many are needed depends on how long it trains. Linear attention has no "
        "such transition.",
        _figures("diversity-fig1", "diversity-published"),
    ),
    Paper(
        "Numbers of other groups",
        "published with the code of seven groups, 2023 to 2026",
        "",
        "Tables that others computed or trained are recomputed here, cell by cell, with standard "
        "errors on both sides; each comparison is repeated with one deliberate mistake, which must "
        "fail.",
        _figures(*(figure.name for figure in BY_NAME.values() if figure.group == "field")),
    ),
)  # fmt: skip


FIGURES: dict[str, Figure] = {figure.name: figure for paper in PAPERS for figure in paper.figures}


def cover_file(out: Path, name: str) -> Path:
    """Where the cover of a figure goes in a report."""
    return out / "figures" / f"{name}-cover.png"


def choose(names: Sequence[str]) -> list[Figure]:
    """Figures by name in the table's order.

    `all`, or no name, is all of them but those of a group; a group's name is the figures in it.
    """
    groups = dict.fromkeys(figure.group for figure in FIGURES.values() if figure.group)
    known = [*FIGURES, "all", *groups]
    for name in names:
        require_choice("figure", name, known)
    wanted = set(names) or {"all"}
    return [f for f in FIGURES.values() if wanted & {f.name, f.group or "all"}]
