"""The table of figures: name -> experiment, claims, drawing and words. Imports no science."""

from collections.abc import Sequence

from iclflow.report.entries import Figure
from iclflow.report.first_paper import FIRST_PAPER
from iclflow.report.second_paper import SECOND_PAPER
from iclflow.results.choices import require_choice

FIGURES: dict[str, Figure] = {figure.name: figure for figure in (*FIRST_PAPER, *SECOND_PAPER)}


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
