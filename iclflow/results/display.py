"""How objects show themselves, in a terminal and in a notebook: with what matters of them."""

import dataclasses
import enum
import html
from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import numpy as np

from iclflow.linalg import is_concrete

FEW = 8  # numbers of an array that is shown whole


class Displayed(eqx.Module):
    """A module that shows what a reader wants to know of it, on one line or as a table."""

    def shown(self) -> dict[str, Any]:
        """What is shown, by name; all fields unless a class knows better."""
        return _fields(self)

    def __repr__(self) -> str:
        return _line(self, _shown(self))

    def _repr_html_(self) -> str:
        rows = [(name, text(value)) for name, value in _shown(self).items()]
        return html_table(type(self).__name__, (), rows)


def short(module: Any) -> str:
    """`Name(field=value, ...)`, small arrays as numbers and large ones by their shape."""
    return _line(module, _fields(module))


def text(value: Any) -> str:
    """A value in a few characters: few numbers are shown, many by their shape.

    >>> import numpy as np
    >>> from iclflow.results.display import text
    >>> text(np.array([0.5, 0.25])), text(80_000), text(np.zeros((40, 3)))
    ('[0.5, 0.25]', '80000', 'f64[40,3](numpy)')
    """
    if isinstance(value, enum.Enum | Displayed | str):
        return str(value)
    if not is_concrete(value) or np.size(value) > FEW:
        return " ".join(eqx.tree_pformat(value).split())
    shown = {"separator": ", ", "formatter": {"float": "{:.6g}".format}}
    return " ".join(np.array2string(np.asarray(value), **shown).split())


def eigenvalues(values: Any) -> Any:
    """A spectrum to show: all of few eigenvalues, the first and the last of many."""
    if not is_concrete(values) or np.size(values) <= FEW:
        return values
    first = ", ".join(f"{v:.6g}" for v in np.asarray(values)[:3])
    return f"[{first}, …, {np.asarray(values)[-1]:.6g}] ({np.size(values)})"


def _line(module: Any, parts: dict[str, Any]) -> str:
    return f"{type(module).__name__}({', '.join(f'{n}={text(v)}' for n, v in parts.items())})"


def _fields(module: Any) -> dict[str, Any]:
    # A module that is being made does not have all of them.
    return {f.name: getattr(module, f.name, None) for f in dataclasses.fields(module) if f.repr}


def _shown(module: Displayed) -> dict[str, Any]:
    try:
        return module.shown()
    except AttributeError:  # it is being made
        return _fields(module)


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table for notebooks; an empty `header` leaves that row out."""
    lines = ["".join(f"<th>{html.escape(name)}</th>" for name in header)] if header else []
    lines += ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows]
    inside = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<b>{html.escape(title)}</b><table>{inside}</table>"
