"""Words of others on the terminal: what steers it is escaped."""

from typing import Any


def printable(text: Any) -> str:
    r"""A text in which no character can steer the terminal: control characters are escaped.

    Names of tensors, columns and files are others' words. Without this a name could move the
    cursor, change colours or rewrite a line that has been printed.

    >>> from iclflow.results.terminal import printable
    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in str(text))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
