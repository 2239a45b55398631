"""The order of statements: one in which few numbers wait at a time, for there are few registers."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

NAME = re.compile(r"\b[tw]\d+(?:_\d+)?\b")


class Statement(NamedTuple):
    """A number, or a place in an array, and how it is computed."""

    name: str
    expression: str


def read_by(texts: Iterable[str]) -> set[str]:
    """The names of numbers in some expressions."""
    return {name for text in texts for name in NAME.findall(text)}


def ordered(statements: list[Statement], places: Mapping[str, str]) -> list[Statement]:
    """The statements in such an order; a number that lies in an array is loaded before it is used.

    Greedy: next comes what frees most and begins least; of equals, what uses the newest number.
    `benchmarks/order.py` measures what this is worth.

    - `places`: of numbers that are there already, where; a statement that writes there comes after
      all that read it.
    """
    reads = [read_by([s.expression]) for s in statements]
    readers: dict[str, set[int]] = {}
    for n, names in enumerate(reads):
        for name in names:
            readers.setdefault(name, set()).add(n)
    loaded = {place: name for name, place in places.items()}
    defined = {s.name: n for n, s in enumerate(statements) if s.name not in loaded}
    waits = [{defined[name] for name in names if name in defined} for names in reads]
    for n, s in enumerate(statements):
        waits[n] |= readers.get(loaded.get(s.name, ""), set()) - {n}
    allows: list[list[int]] = [[] for _ in statements]
    for n, before in enumerate(waits):
        for m in before:
            allows[m].append(n)
    left, ready = [len(w) for w in waits], {n for n, w in enumerate(waits) if not w}
    uses = {name: len(found) for name, found in readers.items()}
    since: dict[str, int] = {}  # name -> when it was first there
    found: list[Statement] = []

    def cost(n: int) -> tuple[int, int, int]:
        begins = (statements[n].name in uses) + sum(name not in since for name in reads[n])
        frees = sum(name in since and uses[name] == 1 for name in reads[n])
        return begins - frees, -max((since.get(name, -1) for name in reads[n]), default=-1), n

    while ready:
        n = min(ready, key=cost)
        ready.remove(n)
        for name in sorted(reads[n]):
            if places.get(name, name) != name and name not in since:
                found.append(Statement(name, places[name]))
            since.setdefault(name, len(found))
            uses[name] -= 1
        found.append(statements[n])
        since[statements[n].name] = len(found)
        for m in allows[n]:
            left[m] -= 1
            if not left[m]:
                ready.add(m)
    return found
