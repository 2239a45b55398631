"""The schedule of statements: an order with few live values, because there are few registers."""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from iclflow.runs.fused.values import Multiplied, Statement


def scheduled(
    statements: list[Statement], places: Mapping[str, str], kinds: Mapping[str, str]
) -> list[Statement]:
    """The statements in an order that keeps few values live; loads come before the first use.

    The choice is greedy: next comes the statement that frees most values and begins fewest. Among
    equals the one that uses the newest value comes first.

    - `places`: where values that exist already are stored. A store to such a place comes after
      all statements that read its old value. Stores that exchange values wait for each other;
      they come last, after all the old values are loaded.
    - `kinds`: the types of the values that are loaded.
    """
    readers: dict[str, set[int]] = {}
    for n, statement in enumerate(statements):
        for name in statement.reads:
            readers.setdefault(name, set()).add(n)
    stored = {place: name for name, place in places.items()}
    defined = {s.name: n for n, s in enumerate(statements) if s.kind}
    waits = [{defined[name] for name in s.reads if name in defined} for s in statements]
    for n, s in enumerate(statements):
        if not s.kind:
            waits[n] |= readers.get(stored.get(s.name, ""), set()) - {n}
    allows: list[list[int]] = [[] for _ in statements]
    for n, before in enumerate(waits):
        for m in before:
            allows[m].append(n)
    left, ready = [len(w) for w in waits], {n for n, w in enumerate(waits) if not w}
    uses = {name: len(found) for name, found in readers.items()}
    since: dict[str, int] = {}  # name -> when it was first live
    found: list[Statement] = []

    def cost(n: int) -> tuple[int, int, int]:
        reads = statements[n].reads
        begins = (statements[n].name in uses) + sum(name not in since for name in reads)
        frees = sum(name in since and uses[name] == 1 for name in reads)
        return begins - frees, -max((since.get(name, -1) for name in reads), default=-1), n

    def load(n: int) -> None:
        for name in statements[n].reads:
            if name in places and name not in since:
                found.append(Statement(name, kinds[name], places[name]))
            since.setdefault(name, len(found))

    done: set[int] = set()
    while ready:
        n = min(ready, key=cost)
        ready.remove(n)
        load(n)
        for name in statements[n].reads:
            uses[name] -= 1
        found.append(statements[n])
        since[statements[n].name] = len(found)
        done.add(n)
        for m in allows[n]:
            left[m] -= 1
            if not left[m]:
                ready.add(m)
    rest = [n for n in range(len(statements)) if n not in done]
    assert not any(statements[n].kind for n in rest), "a value waits for a store"
    for n in rest:
        load(n)
    return [*found, *(statements[n] for n in rest)]


class Segment(NamedTuple):
    """Statements up to a product with a shared matrix, or to the end."""

    lines: list[Statement]
    product: Multiplied | None
    kept: list[str]  # values of these lines that later segments read


def segments(text: list[Statement | Multiplied], last: list[Statement]) -> list[Segment]:
    """The text cut after its products with a matrix; `last` are the stores at its end."""
    cuts = [n for n, line in enumerate(text) if isinstance(line, Multiplied)]
    found = []
    for begin, end in pairwise([-1, *cuts, len(text)]):
        lines = [line for line in text[begin + 1 : end] if isinstance(line, Statement)]
        later = {name for line in [*text[end + 1 :], *last] for name in line.reads}
        product = text[end] if end < len(text) else None
        assert not isinstance(product, Statement)
        kept = [line.name for line in lines if product is not None and line.name in later]
        found.append(Segment(lines, product, kept))
    return found
