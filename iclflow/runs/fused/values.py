"""Single numbers instead of arrays: typed values, and the statements that compute them.

Every value has the type of the array that it is an entry of, and every statement declares it. The
text therefore rounds, wraps and compares as JAX does, whatever types a program mixes.
"""

import math
from typing import Any, NamedTuple

import numpy as np

# The types that a fused loop knows, by their names in NumPy and in C++.
TYPES = {
    "bool": "bool",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned",
    "uint64": "unsigned long long",
    "float32": "float",
    "float64": "double",
}
LONGEST_TEXT = 100_000  # statements: no compiler finishes more in reasonable time


class CannotFuse(Exception):  # noqa: N818, an answer more often than an error
    """A fused loop cannot do what is asked; the message is the reason, and `vmap` can do it."""


class Statement(NamedTuple):
    """A line of the program.

    - `name`: the value that is computed, or the place in memory where it is stored.
    - `kind`: the type of a new value; empty for a store.
    - `reads`: the names of the values in the expression.
    - `spreads`: those of them whose infinity or NaN always makes the result infinite or NaN.
    - `operations`: the floating-point operations.
    """

    name: str
    kind: str
    expression: str
    reads: tuple[str, ...] = ()
    spreads: tuple[str, ...] = ()
    operations: int = 0


class Multiplied(NamedTuple):
    """A vector of values times a shared matrix: the one operation that is a loop of its own."""

    leaf: int  # the matrix
    kind: str
    inputs: list[str]  # expressions
    reads: tuple[str, ...]
    outputs: list[str]


class Matrix(NamedTuple):
    """A matrix that all runs share, too large for each entry to be a value of the program."""

    leaf: int
    shape: tuple[int, ...]
    dtype: Any


class Constant:
    """A value that is known while the program is written."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value  # a scalar of NumPy

    @property
    def dtype(self) -> Any:
        """The type of the value."""
        return self.value.dtype


class Name:
    """A value that the program computes, or reads from the state of a run."""

    __slots__ = ("dtype", "name")

    def __init__(self, name: str, dtype: Any) -> None:
        self.name, self.dtype = name, np.dtype(dtype)


class Product:
    """±a·b, kept lazy so that a following sum can become a fused multiply-add.

    - `zero`: whether one factor is known to be zero. A sum drops such a product, which is exact as
      long as the other factor is finite (see `Text.dropped`).
    - `sums`: the multiply-adds that contain it.
    """

    __slots__ = ("a", "b", "found", "negative", "sums", "zero")

    def __init__(self, a: Any, b: Any, zero: bool, negative: bool = False) -> None:
        self.a, self.b, self.zero, self.negative = a, b, zero, negative
        self.found: Name | None = None
        self.sums: list[str] = []

    @property
    def dtype(self) -> Any:
        """The type of the value."""
        return self.a.dtype


Value = Constant | Name | Product


def is_float(dtype: Any) -> bool:
    """Whether a type is of real numbers."""
    return np.issubdtype(dtype, np.floating)


def literal(value: Any) -> str:
    """A constant as it is written in C++, with its type."""
    name = value.dtype.name
    if name == "bool":
        return "true" if value else "false"
    if is_float(value.dtype):
        number = float(value)
        if math.isnan(number):
            return f"{name}(NOT_A_NUMBER)"
        if math.isinf(number):
            return f"{name}({'-' if number < 0 else ''}INFINITE)"
        return f"{name}({number!r})"
    number = int(value)
    if number == -(2**63):
        return "int64(-9223372036854775807LL - 1)"
    return f"{name}({number}{'ULL' if number >= 2**63 else 'LL'})"


class Text:
    """Statements in the order in which they are written, and the arithmetic that writes them.

    - `drops`: whether a sum drops products with a factor that is known to be zero. JAX says that
      0·∞ is NaN, so `dropped` collects the other factors: the caller must see to it that a run in
      which one of them is not finite is computed again without dropping. A zero that is dropped
      may also change the sign of a zero.
    """

    def __init__(self, drops: bool) -> None:
        """An empty text."""
        self.drops = drops
        self.lines: list[Statement | Multiplied] = []
        self.dropped: list[Name | Product] = []

    def operand(self, value: Any) -> str:
        """How a value is written inside an expression; a lazy product is computed first."""
        if isinstance(value, Constant):
            return literal(value.value)
        return (self._computed(value) if isinstance(value, Product) else value).name

    def write(
        self, dtype: Any, form: str, *values: Any, spreads: int = 0, operations: int = 0
    ) -> Name:
        """A new value: `form` with the values in its braces.

        - `spreads`: of the first so many values, infinity or NaN always reaches the result.
        """
        if len(self.lines) >= LONGEST_TEXT:
            raise CannotFuse(f"it needs more than {LONGEST_TEXT:,} operations per step")
        words = [self.operand(value) for value in values]
        names = [word for word, v in zip(words, values, strict=True) if not _known(v)]
        through = [
            word for word, v in zip(words[:spreads], values[:spreads], strict=True) if not _known(v)
        ]
        found = Name(f"t{len(self.lines)}", dtype)
        self.lines.append(
            Statement(
                found.name,
                found.dtype.name,
                form.format(*words),
                tuple(dict.fromkeys(names)),
                tuple(dict.fromkeys(through)),
                operations,
            )
        )
        return found

    def _computed(self, product: Product) -> Name:
        if product.found is None:
            form = "-{} * {}" if product.negative else "{} * {}"
            factors = (product.a, product.b)
            product.found = self.write(product.dtype, form, *factors, spreads=2, operations=1)
        return product.found

    def _drop(self, product: Product) -> None:
        for factor in (product.a, product.b):
            if isinstance(factor, Product) and factor.zero:
                self._drop(factor)
            elif not isinstance(factor, Constant):
                self.dropped.append(factor)

    def add(self, a: Value, b: Value) -> Value:
        """a + b; the sum with a product is one multiply-add."""
        if isinstance(a, Constant) and isinstance(b, Constant):
            return _folded(np.add, a, b)
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Constant) and self._neutral(one):
                return other
        if not is_float(a.dtype):
            return self._whole("+", a, b)
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Product) and one.zero:
                self._drop(one)
                return self._left(other)
        return self._sum(a, b, False)

    def _neutral(self, one: Constant) -> bool:
        """Whether adding it changes nothing: -0 + 0 is 0, so that of reals only -0 is neutral."""
        return bool(one.value == 0 and (not is_float(one.dtype) or np.signbit(one.value)))

    def _sum(self, a: Value, b: Value, minus: bool) -> Value:
        """a + b, or a - b, of reals."""
        if isinstance(a, Product):
            sign = ("-" if a.negative else "", "-" if minus else "")
            found = self.write(
                a.dtype,
                f"multiply_add({sign[0]}{{}}, {{}}, {sign[1]}{{}})",
                *(a.a, a.b, b),
                spreads=3,
                operations=2,
            )
            a.sums.append(found.name)
            return found
        if isinstance(b, Product):
            sign = "-" if b.negative != minus else ""
            form = f"multiply_add({sign}{{}}, {{}}, {{}})"
            found = self.write(a.dtype, form, b.a, b.b, a, spreads=3, operations=2)
            b.sums.append(found.name)
            return found
        form = "{} - {}" if minus else "{} + {}"
        return self.write(a.dtype, form, a, b, spreads=2, operations=1)

    def subtract(self, a: Value, b: Value) -> Value:
        """a - b."""
        if isinstance(a, Constant) and isinstance(b, Constant):
            return _folded(np.subtract, a, b)
        if isinstance(b, Constant) and b.value == 0 and not np.signbit(b.value):
            return a
        if not is_float(a.dtype):
            return self._whole("-", a, b)
        if isinstance(b, Product) and b.zero:
            self._drop(b)
            return a
        if isinstance(a, Product) and a.zero:
            self._drop(a)
            return self.subtract(zero(a.dtype), b)
        return self._sum(a, b, True)

    def negate(self, a: Value) -> Value:
        """-a."""
        if isinstance(a, Constant):
            return _folded(np.subtract, zero(a.dtype), a) if a.value else _negative_zero(a)
        if not is_float(a.dtype):
            return self._whole("-", zero(a.dtype), a)
        if isinstance(a, Product) and a.found is None:
            return Product(a.a, a.b, a.zero, not a.negative)
        return self.write(a.dtype, "-{}", a, spreads=1, operations=1)

    def multiply(self, a: Value, b: Value) -> Value:
        """a·b."""
        if isinstance(a, Constant) and isinstance(b, Constant):
            return _folded(np.multiply, a, b)
        real = is_float(a.dtype)
        for one, other in ((a, b), (b, a)):
            if isinstance(one, Constant) and one.value == 1:
                return other
            if isinstance(one, Constant) and one.value == -1 and real:
                return self.negate(other)
            if isinstance(one, Constant) and one.value == 0 and not real:
                return one
        if not real:
            return self._whole("*", a, b)
        infinite = any(isinstance(v, Constant) and not np.isfinite(v.value) for v in (a, b))
        return Product(a, b, self.drops and not infinite and (_is_zero(a) or _is_zero(b)))

    def _whole(self, sign: str, a: Value, b: Value) -> Name:
        """Whole numbers wrap round: C++ promises that of types without a sign alone."""
        name = a.dtype.name
        wide = "uint64" if a.dtype.itemsize == 8 else "uint32"
        return self.write(a.dtype, f"{name}({wide}({{}}) {sign} {wide}({{}}))", a, b)

    def total(self, values: Any, dtype: Any) -> Value:
        """The sum of values, from the left; zeros are left out, so that its zero has any sign."""
        found: Value | None = None
        for value in values:
            if isinstance(value, Constant) and value.value == 0:
                continue
            left = self._left(value) if found is None else self.add(found, value)
            found = None if isinstance(left, Constant) and left.value == 0 else left
        return zero(dtype) if found is None else found

    def _left(self, value: Value) -> Value:
        """What is left of a term of a sum: nothing of a product with zero."""
        if isinstance(value, Product) and value.zero:
            self._drop(value)
            return zero(value.dtype)
        return value

    def multiply_matrix(self, matrix: Matrix, values: list[Any]) -> list[Name]:
        """A row of values times a shared matrix."""
        names = [f"t{len(self.lines)}_{j}" for j in range(matrix.shape[1])]
        inputs = [self.operand(value) for value in values]
        names = [f"t{len(self.lines)}_{j}" for j in range(matrix.shape[1])]
        reads = [word for word, v in zip(inputs, values, strict=True) if not _known(v)]
        kind = np.dtype(matrix.dtype).name
        self.lines.append(Multiplied(matrix.leaf, kind, inputs, tuple(reads), names))
        return [Name(name, matrix.dtype) for name in names]


def _known(value: Any) -> bool:
    return isinstance(value, Constant)


def _is_zero(value: Value) -> bool:
    if isinstance(value, Constant):
        return bool(value.value == 0)
    return isinstance(value, Product) and value.zero


def _folded(function: Any, a: Constant, b: Constant) -> Constant:
    """The value of two constants; in arrays, which wrap and overflow without a warning."""
    with np.errstate(all="ignore"):
        return Constant(function(np.asarray([a.value]), np.asarray([b.value]))[0])


def _negative_zero(a: Constant) -> Constant:
    return Constant(np.negative(a.value)) if is_float(a.dtype) else a


def zero(dtype: Any) -> Constant:
    """Zero of a type."""
    return Constant(np.zeros((), dtype)[()])


def constants(array: Any) -> np.ndarray:
    """An array of known numbers as values."""
    array = np.asarray(array)
    found = np.empty(array.shape, object)
    for index in np.ndindex(array.shape):
        found[index] = Constant(array[index])
    return found


def names(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """The values `name_0`, `name_1`, … as the array that they are the entries of."""
    found = np.empty(math.prod(shape), object)
    for j in range(len(found)):
        found[j] = Name(f"{name}_{j}", dtype)
    return found.reshape(shape)
