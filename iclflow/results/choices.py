"""A name that is not among those there are: say which there are, and the nearest."""

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
