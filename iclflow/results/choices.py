"""Words in messages: the names there are and the nearest, and others' words made harmless."""

import difflib
from collections.abc import Collection
from typing import Any


def require_choice(name: str, value: Any, allowed: Collection[str]) -> None:
    """Raise `ValueError` with the nearest name unless `value` is one of those allowed."""
    if value not in allowed:
        # The nearest name comes first: the list of all of them may be cut where a line ends.
        near = nearest(str(value), allowed)
        raise ValueError(f"unknown {name} {value!r}{near}; there are {', '.join(allowed)}")


def nearest(value: str, allowed: Collection[str]) -> str:
    """A part of a message: "; did you mean 'x'?", or nothing where no name is near."""
    found = difflib.get_close_matches(value, allowed, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def printable(text: Any) -> str:
    r"""A text in which no character can steer the terminal: control characters are escaped.

    Names of tensors, columns and files are others' words. Without this a name could move the
    cursor, change colours or rewrite a line that has been printed.

    >>> from iclflow.results.choices import printable
    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in str(text))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
