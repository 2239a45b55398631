"""A program on numbers written out: straight-line statements for a compiler of loops."""

import textwrap
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from iclflow.runs.fused.numbers import Arithmetic, Table
from iclflow.runs.fused.order import Statement, read_by
from iclflow.runs.fused.program import Program, numbers_of


class Multiplied(NamedTuple):
    """Numbers times an array that all runs share: the one operation that is a loop of its own."""

    table: Table
    inputs: list[str]
    outputs: list[str]

    @property
    def expression(self) -> str:
        """What is read."""
        return " ".join(self.inputs)


class Language(NamedTuple):
    """The forms in which languages differ."""

    choose: str
    no: str
    sqrt: str
    power: str
    cast: str
    place: str  # a room and a row of it


CPP = Language(
    choose="{0} ? {1} : {2}",
    no="!{0}",
    sqrt="sqrt({0})",
    power="pow({0}, {1})",
    cast="{1}({0})",
    place="{0}[{1}][lane]",
)
TYPES = {
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "int64": "long long",
    "uint32": "unsigned",
    "bool": "bool",
}


def type_names(real: str) -> str:
    """C++: the names of types as they are written here."""
    names = {name: kind for name, kind in TYPES.items() if name != kind}
    names |= {"real": TYPES[real], "whole": "long long"}
    return "\n".join(f"typedef {kind} {name};" for name, kind in names.items())


class Text:
    """Statements in the order in which they are computed."""

    def __init__(self, language: Language) -> None:
        """Empty."""
        self.language, self.lines = language, list[Statement | Multiplied]()

    def write(self, form: str, *values: Any) -> "Symbol":
        """A new number, the value of an expression."""
        found = Symbol(f"t{len(self.lines)}", self)
        self.lines.append(Statement(found.name, form.format(*map(name_of, values))))
        return found

    def multiply(self, table: Table, values: list[Any]) -> "list[Symbol]":
        """A row of numbers, times the table."""
        found = [Symbol(f"t{len(self.lines)}_{j}", self) for j in range(table.shape[1])]
        inputs = [name_of(value) for value in values]
        self.lines.append(Multiplied(table, inputs, [s.name for s in found]))
        return found

    def arithmetic(self) -> Arithmetic:
        """Operations that write themselves down here."""
        words, write = self.language, self.write
        return Arithmetic(
            multiply_add=lambda x, y, z: write("{} * {} + {}", x, y, z),
            choose=lambda condition, yes, no: write(words.choose, condition, yes, no),
            sqrt=lambda x: write(words.sqrt, x),
            power=lambda x, y: write(words.power, x, y),
            cast=lambda x, dtype: write(words.cast, x, np.dtype(dtype)),
            multiply=self.multiply,
        )


def _binary(sign: str, turned: bool = False) -> Any:
    def apply(self: "Symbol", other: Any) -> "Symbol":
        pair = (other, self) if turned else (self, other)
        return self.text.write(f"{{}} {sign} {{}}", *pair)

    return apply


class Symbol:
    """A number of the program that is being written: its name."""

    __slots__ = ("name", "text")
    __hash__ = object.__hash__

    def __init__(self, name: str, text: Text) -> None:
        self.name, self.text = name, text

    __add__, __radd__ = _binary("+"), _binary("+", True)
    __sub__, __rsub__ = _binary("-"), _binary("-", True)
    __mul__, __rmul__ = _binary("*"), _binary("*", True)
    __truediv__, __rtruediv__ = _binary("/"), _binary("/", True)
    __lt__, __and__ = _binary("<"), _binary("&")
    __eq__ = _binary("==")

    def __neg__(self) -> "Symbol":
        return self.text.write("-{}", self)

    def __invert__(self) -> "Symbol":
        return self.text.write(self.text.language.no, self)


def name_of(value: Any) -> str:
    """How a number is written; in single precision a bare literal would lift it out of it."""
    if isinstance(value, Symbol):
        return value.name
    if isinstance(value, np.dtype):
        return value.name
    return f"real({value!r})" if isinstance(value, float) else f"whole({value!r})"


class Written(NamedTuple):
    """A step and a look as statements."""

    arrays: dict[int, str]  # leaf -> name of its array
    step: list[Statement | Multiplied]
    well: str  # whether the step went well
    after: dict[str, str]  # number -> what it is after the step, of those that change
    look: list[Statement | Multiplied]
    seen: list[str]


def write(program: Program, zeros: tuple[bytes, ...], language: Language) -> Written:
    """The program in a language; entry j of the array `w` is the number `w_j`.

    - `zeros`: of each shared leaf, which numbers are zero and drop out.
    """
    arrays = {i: f"w{n}" for n, i in enumerate([*program.carried, *program.given])}

    def numbers(text: Text) -> list[Any]:
        values: list[Any] = [None] * len(program.leaves)
        values[program.clock] = numbers_of([Symbol("step", text)], ())
        for i, name in arrays.items():
            leaf = program.leaves[i]
            if leaf.table:
                values[i] = Table(i, leaf.shape)
                continue
            empty = np.frombuffer(zeros[i], bool) if zeros[i] else np.zeros(leaf.size, bool)
            entries = [0.0 if e else Symbol(f"{name}_{j}", text) for j, e in enumerate(empty)]
            values[i] = numbers_of(entries, leaf.shape)
        return values

    stepping, looking = Text(language), Text(language)
    well, after = program.after(numbers(stepping), stepping.arithmetic())
    seen = program.seen(numbers(looking), looking.arithmetic())
    new = {
        f"{arrays[i]}_{j}": name_of(n.value)
        for i in program.carried
        for j, n in enumerate(after[i].ravel())
    }
    changed = {name: value for name, value in new.items() if value != name}
    well, seen = name_of(well.value), [name_of(n.value) for n in seen]
    return Written(arrays, stepping.lines, well, changed, looking.lines, seen)


class Segment(NamedTuple):
    """Statements up to a product with a table, or to the end."""

    lines: list[Statement]
    product: Multiplied | None
    kept: list[str]  # numbers of these lines that later segments read


def segments(text: list[Statement | Multiplied], last: list[Statement]) -> list[Segment]:
    """The text cut after its products; `last`: what is done at its end."""
    cuts = [n for n, line in enumerate(text) if isinstance(line, Multiplied)]
    found = []
    for begin, end in pairwise([-1, *cuts, len(text)]):
        lines = [line for line in text[begin + 1 : end] if isinstance(line, Statement)]
        later = read_by(line.expression for line in [*text[end + 1 :], *last])
        product = text[end] if end < len(text) else None
        assert not isinstance(product, Statement)
        kept = [line.name for line in lines if product is not None and line.name in later]
        found.append(Segment(lines, product, kept))
    return found


def indented(lines: list[str], by: int) -> str:
    """The lines as a block of a program."""
    return textwrap.indent("\n".join(lines), " " * by)
