"""A step and a look as loops over the runs of a block, side by side: what a CPU has vectors for."""

from collections.abc import Mapping
from typing import NamedTuple

from iclflow.runs.fused.order import Statement, ordered
from iclflow.runs.fused.program import Leaf, Program
from iclflow.runs.fused.writing import Language, Multiplied, Written, segments

LANES = 16  # runs side by side: a vector or two; a loop of eight is unrolled, not vectorised


class Product(NamedTuple):
    """All lanes of some numbers, a row each in one room, times a table, into another."""

    table: str
    x: str
    y: str


Loops = list[list[Statement] | Product]  # statements: a loop over the lanes


class Block(NamedTuple):
    """What is done with a block of runs, whose numbers lie in rooms, a row a number."""

    leaves: dict[str, Leaf]  # array -> leaf
    rooms: dict[str, int]  # of real numbers: name -> rows
    rows: dict[str, tuple[str, int]]  # array of the runs' own -> its room, and its first row there
    changing: list[str]  # arrays that a step changes
    step: Loops
    look: Loops  # into the room `seen`
    careful: bool  # a failed run is kept as it was (`alive`, `made`), or else counted as `bad`


def block(program: Program, written: Written, language: Language, careful: bool) -> Block:
    """The program for a block of runs."""
    leaves = {name: program.leaves[i] for i, name in written.arrays.items()}
    rows: dict[str, tuple[str, int]] = {}
    count = 0
    for name, leaf in leaves.items():
        if leaf.own and leaf.real:
            # One room, which nothing else can change, lets a compiler use vectors.
            rows[name], count = ("room", count), count + leaf.size
        elif leaf.own:
            rows[name] = (f"{name}_", 0)
    places = {
        f"{name}_{j}": language.place.format(room, first + j)
        for name, (room, first) in rows.items()
        for j in range(leaves[name].size)
    }
    stores, shown = _stores(written, places, language, careful)
    seen = enumerate(shown.format(number) for number in written.seen)
    shows = [Statement(language.place.format("seen", j), number) for j, number in seen]
    step, of_step = _loops(written, "s", written.step, stores, places, language)
    look, of_look = _loops(written, "l", written.look, shows, places, language)
    rooms = {"room": max(1, count), "seen": max(1, len(shows))} | of_step | of_look
    changing = [written.arrays[i] for i in program.carried]
    return Block(leaves, rooms, rows, changing, step, look, careful)


def _stores(
    written: Written, places: Mapping[str, str], language: Language, careful: bool
) -> tuple[list[Statement], str]:
    """What ends a step, and the form in which a number is shown."""
    after, choose = written.after.items(), language.choose.format
    if not careful:
        bad = Statement("bad[lane]", f"bad[lane] + ({choose(written.well, 'real(0)', 'real(1)')})")
        return [*(Statement(places[name], value) for name, value in after), bad], "{}"
    go = f"t{len(written.step)}"
    found = [Statement(go, f"alive[lane] & {written.well}"), Statement("alive[lane]", go)]
    found += [Statement(places[name], choose(go, value, name)) for name, value in after]
    found += [Statement("made[lane]", f"made[lane] + {go}")]
    return found, choose("alive[lane]", "{}", "real(nan)")


def _loops(
    written: Written,
    prefix: str,
    text: list[Statement | Multiplied],
    last: list[Statement],
    places: Mapping[str, str],
    language: Language,
) -> tuple[Loops, dict[str, int]]:
    """Statements as loops, cut at products, and the rooms that these need.

    - `last`: the stores at the end of the last loop.
    - `places`: of numbers that are in a room already, where.
    """
    found: Loops = []
    places, rooms = dict(places), dict[str, int]()
    for n, (lines, product, kept) in enumerate(segments(text, last)):
        if product is None:
            found.append(ordered([*lines, *last], places))
            continue
        x, y, k = (f"{prefix}{letter}{n}" for letter in "xyk")
        parts = {x: product.inputs, y: product.outputs, k: kept}
        put = [
            Statement(language.place.format(room, j), number)
            for room in (x, k)
            for j, number in enumerate(parts[room])
        ]
        found.append(ordered([*lines, *put], places))
        found.append(Product(written.arrays[product.table.leaf], x, y))
        rooms |= {room: max(1, len(names)) for room, names in parts.items()}
        for room in (y, k):
            places |= {v: language.place.format(room, j) for j, v in enumerate(parts[room])}
    return found, rooms
