"""The code behind a claim, as text: where it is settled, and the control that turns it round."""

import ast
import dataclasses
import importlib.util
from pathlib import Path

from iclflow.experiments.entry import Figure, Function


@dataclasses.dataclass(frozen=True)
class Code:
    """A module in lines, and where in it each claim is settled and controlled.

    `places` has for each claim the line of its claim and of its control, counted from one.
    """

    name: str
    lines: tuple[str, ...]
    places: dict[str, tuple[int, int]]

    @property
    def anchors(self) -> set[int]:
        """The lines that something links to."""
        return {line for pair in self.places.values() for line in pair}


def code_of(figure: Figure, ids: list[str]) -> Code | None:
    """The module that settles the claims of a figure; None where its file is not there."""
    claims, controls = figure.source.claims, figure.source.controls
    found = importlib.util.find_spec(claims.module)
    if found is None or found.origin is None or claims.module != controls.module:
        return None
    text = Path(found.origin).read_text(encoding="utf-8")
    where = [_lines(text, function) for function in (claims, controls)]
    lines = tuple(text.splitlines())
    places = {id: (_mention(lines, where[0], id), _mention(lines, where[1], id)) for id in ids}
    return Code(claims.module, lines, places)


def _lines(text: str, function: Function) -> range:
    """The lines of a function of a module, counted from one."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == function.name:
            return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(1, 2)


def _mention(lines: tuple[str, ...], within: range, id: str) -> int:
    """Where the claim is named: in the function, else in what it calls, else its first line."""
    quoted = f'"{id}"'
    for place in (within, range(1, len(lines) + 1)):
        for number in place:
            if quoted in lines[number - 1]:
                return number
    return within.start
