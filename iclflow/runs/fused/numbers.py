"""Numbers instead of arrays: what a compiler of loops needs, everything in registers."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np


class Arithmetic(NamedTuple):
    """What a backend does with numbers, besides the operators of Python."""

    multiply_add: Callable[[Any, Any, Any], Any]  # x y + z
    choose: Callable[[Any, Any, Any], Any]  # condition, if true, if false
    sqrt: Callable[[Any], Any]
    power: Callable[[Any, Any], Any]
    cast: Callable[[Any, Any], Any]  # number, dtype
    multiply: Callable[["Table", list[Any]], list[Any]] | None = None  # a row of numbers, times it


class Table(NamedTuple):
    """A matrix that all runs share, too large for each entry to be a number of the program."""

    leaf: int
    shape: tuple[int, ...]


class Number:
    """One entry of an array: a backend's number, or a Python one, which is folded away."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def known(self) -> bool:
        """Whether the value is there already."""
        return isinstance(self.value, (bool, int, float))


class Product(Number):
    """x y, not computed until it is known whether something is added to it."""

    __slots__ = ("factors", "found")

    def __init__(self, x: Any, y: Any) -> None:
        self.factors, self.found = (x, y), None

    @property
    def value(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The product."""
        if self.found is None:
            self.found = self.factors[0] * self.factors[1]
        return self.found

    known = False  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]


def constants(array: Any) -> np.ndarray:
    """An array of known values as numbers."""
    return NUMBERS(np.asarray(array).astype(object))


def _wrap(value: Any) -> Number:
    return value if isinstance(value, Number) else Number(value)


def elements(function: Callable[..., Any], count: int) -> Callable[..., np.ndarray]:
    """A function of numbers, entry by entry; always an array, also without axes."""
    each = np.frompyfunc(function, count, 1)

    def apply(*arrays: np.ndarray) -> np.ndarray:
        found = each(*arrays)
        if isinstance(found, np.ndarray):
            return found
        whole = np.empty((), object)
        whole[()] = found
        return whole

    return apply


NUMBERS = elements(_wrap, 1)


def add(arithmetic: Arithmetic, a: Number, b: Number) -> Number:
    """a + b; of a product and a sum, one operation."""
    for one, other in ((a, b), (b, a)):
        if one.known and not one.value:
            return other
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Product):
            return Number(arithmetic.multiply_add(*one.factors, other.value))
    return Number(a.value + b.value)


def subtract(a: Number, b: Number) -> Number:
    """a - b."""
    if b.known and not b.value:
        return a
    return Number(-b.value if a.known and not a.value else a.value - b.value)


def multiply(a: Number, b: Number) -> Number:
    """a b, for now as it stands."""
    for one, other in ((a, b), (b, a)):
        if one.known and not one.value:
            return Number(0.0)
        if one.known and one.value == 1:
            return other
        if one.known and one.value == -1:
            return Number(-other.value)
    return Number(a.value * b.value) if a.known and b.known else Product(a.value, b.value)


def total(arithmetic: Arithmetic, numbers: Iterable[Number]) -> Number:
    """The sum, from the left."""
    return functools.reduce(functools.partial(add, arithmetic), numbers, Number(0.0))
