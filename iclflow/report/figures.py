"""The table of figures, by name. Imports no science."""

from collections.abc import Sequence

from iclflow.experiments.entry import Figure
from iclflow.report.papers import PAPERS
from iclflow.results.choices import require_choice

FIGURES: dict[str, Figure] = {figure.name: figure for paper in PAPERS for figure in paper.figures}


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
