"""A traced function of small arrays, evaluated on single numbers: straight-line arithmetic.

The step of a run is not written again for a fused loop: its jaxpr is, and every entry of an array
becomes a `Number` (one run a lane, no arrays at all).
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from iclflow.runs.fused.numbers import (
    Arithmetic,
    Number,
    Table,
    add,
    constants,
    elements,
    multiply,
    subtract,
    total,
)


def unsupported(jaxpr: Any, tables: Collection[Any] = ()) -> str | None:
    """None, or the first operation of a jaxpr that has no rule here.

    - `tables`: those of its arguments that are tables; a vector may be multiplied by them.
    """
    for equation in live(jaxpr):
        name = equation.primitive.name
        given = [not isinstance(v, core.Literal) and v in tables for v in equation.invars]
        if name in INLINE:
            inner = _inner(equation).jaxpr
            found = unsupported(inner, set(itertools.compress(inner.invars, given)))
        elif any(given):
            found = None if _is_product(equation, given) else f"{name} of a large shared array"
        else:
            found = None if name in RULES else name
        if found is not None:
            return found
    return None


def _is_product(equation: Any, tables: list[bool]) -> bool:
    """Whether it is the product of numbers and one table."""
    if equation.primitive.name != "dot_general" or sum(tables) > 1:
        return False
    over, batch = equation.params["dimension_numbers"]
    return over[tables.index(True)] == (0,) and batch == ((), ())


def evaluate(
    jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], arithmetic: Arithmetic
) -> list[Any]:
    """The outputs of a jaxpr on object arrays of `Number`; of what nothing reads, None."""
    env: dict[Any, Any] = {}
    env.update(zip(jaxpr.constvars, map(constants, consts), strict=True))
    env.update(zip(jaxpr.invars, arguments, strict=True))

    def read(variable: Any) -> Any:
        literal = isinstance(variable, core.Literal)
        return constants(variable.val) if literal else env[variable]

    for equation in live(jaxpr):
        inputs = [read(v) for v in equation.invars]
        if equation.primitive.name in INLINE:
            inner = _inner(equation)
            outputs = evaluate(inner.jaxpr, inner.consts, inputs, arithmetic)
        else:
            rule = RULES[equation.primitive.name]
            outputs = rule(arithmetic, equation, *inputs)
            outputs = outputs if isinstance(outputs, list) else [outputs]
        env.update(zip(equation.outvars, outputs, strict=True))
    return [read(v) for v in jaxpr.outvars]


def live(jaxpr: Any) -> list[Any]:
    """The equations that the outputs depend on."""
    needed = {v for v in jaxpr.outvars if not isinstance(v, core.Literal)}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            kept.append(equation)
            needed |= {v for v in equation.invars if not isinstance(v, core.Literal)}
    return kept[::-1]


def _binary(function: Callable[[Any, Any], Any]) -> Callable[..., np.ndarray]:
    return _folding(lambda a, b: Number(function(a.value, b.value)))


def _folding(function: Callable[[Number, Number], Number]) -> Callable[..., np.ndarray]:
    apply = elements(function, 2)
    return lambda _, equation, a, b: apply(a, b)


def _add(arithmetic: Arithmetic, _: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return elements(functools.partial(add, arithmetic), 2)(a, b)


def _not(a: Any) -> Any:
    return not a if isinstance(a, bool) else ~a


def _integer_power(_: Arithmetic, equation: Any, a: np.ndarray) -> np.ndarray:
    y = equation.params["y"]

    def power(number: Number) -> Number:
        product = functools.reduce(multiply, [number] * abs(y))
        return product if y >= 0 else Number(1.0 / product.value)

    return elements(power, 1)(a)


def _select(arithmetic: Arithmetic, _: Any, condition: np.ndarray, *cases: np.ndarray) -> Any:
    def choose(condition: Number, no: Number, yes: Number) -> Number:
        if condition.known:
            return yes if condition.value else no
        same = no is yes or (no.known and yes.known and no.value == yes.value)
        return no if same else Number(arithmetic.choose(condition.value, yes.value, no.value))

    return elements(choose, 3)(condition, *cases)


def _cast(arithmetic: Arithmetic, equation: Any, a: np.ndarray) -> np.ndarray:
    dtype, before = equation.params["new_dtype"], equation.invars[0].aval.dtype
    if dtype == before:
        return a
    kind = float if jnp.issubdtype(dtype, jnp.floating) else int

    def cast(number: Number) -> Number:
        if number.known:
            return Number(kind(number.value))
        return Number(arithmetic.cast(number.value, dtype))

    return elements(cast, 1)(a)


def _power(arithmetic: Arithmetic, _: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return elements(lambda x, y: Number(arithmetic.power(x.value, y.value)), 2)(a, b)


def _sqrt(arithmetic: Arithmetic, _: Any, a: np.ndarray) -> np.ndarray:
    def sqrt(x: Number) -> Number:
        return Number(math.sqrt(x.value) if x.known else arithmetic.sqrt(x.value))

    return elements(sqrt, 1)(a)


def _broadcast(_: Arithmetic, equation: Any, a: np.ndarray) -> np.ndarray:
    shape = equation.params["shape"]
    places = equation.params["broadcast_dimensions"]
    inner = [1] * len(shape)
    for place, size in zip(places, a.shape, strict=True):
        inner[place] = size
    return np.broadcast_to(a.reshape(inner), shape)


def _slice(_: Arithmetic, equation: Any, a: np.ndarray) -> np.ndarray:
    start, limit = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * a.ndim
    return a[tuple(slice(*part) for part in zip(start, limit, strides, strict=True))]


def _split(_: Arithmetic, equation: Any, a: np.ndarray) -> list[np.ndarray]:
    ends = np.cumsum(equation.params["sizes"])[:-1]
    return np.split(a, ends, equation.params["axis"])


def _reduce_sum(arithmetic: Arithmetic, equation: Any, a: np.ndarray) -> np.ndarray:
    axes = equation.params["axes"]
    kept = [i for i in range(a.ndim) if i not in axes]
    rows = a.transpose(*kept, *axes).reshape([a.shape[i] for i in kept] + [-1])
    return _rows(functools.partial(total, arithmetic), rows)


def _rows(function: Callable[[Any], Number], rows: np.ndarray) -> np.ndarray:
    """A function of the last axis."""
    found = np.empty(rows.shape[:-1], object)
    for index in np.ndindex(found.shape):
        found[index] = function(rows[index])
    return found


def _product(arithmetic: Arithmetic, equation: Any, a: Any, b: Any) -> np.ndarray:
    """Numbers times a table, one product a row of numbers."""
    assert arithmetic.multiply is not None, "this backend knows no tables"
    (over_a, over_b), _ = equation.params["dimension_numbers"]
    table, numbers, over = (a, b, over_b) if isinstance(a, Table) else (b, a, over_a)
    rows = np.moveaxis(numbers, over[0], -1)
    found = np.empty((*rows.shape[:-1], table.shape[1]), object)
    for index in np.ndindex(rows.shape[:-1]):
        values = arithmetic.multiply(table, [n.value for n in rows[index]])
        found[index] = [Number(value) for value in values]
    return np.moveaxis(found, -1, 0) if table is a else found


def _dot(arithmetic: Arithmetic, equation: Any, a: Any, b: Any) -> np.ndarray:
    if isinstance(a, Table) or isinstance(b, Table):
        return _product(arithmetic, equation, a, b)
    (over_a, over_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
    free_a = [i for i in range(a.ndim) if i not in (*over_a, *batch_a)]
    free_b = [i for i in range(b.ndim) if i not in (*over_b, *batch_b)]
    inner = math.prod(a.shape[i] for i in over_a)
    batch = [a.shape[i] for i in batch_a]
    left = a.transpose(*batch_a, *free_a, *over_a).reshape(math.prod(batch), -1, inner)
    right = b.transpose(*batch_b, *free_b, *over_b).reshape(math.prod(batch), -1, inner)
    found = np.empty((left.shape[0], left.shape[1], right.shape[1]), object)
    for n, i, j in np.ndindex(found.shape):
        pairs = zip(left[n, i], right[n, j], strict=True)
        found[n, i, j] = total(arithmetic, [multiply(x, y) for x, y in pairs])
    return found.reshape(*batch, *(a.shape[i] for i in free_a), *(b.shape[i] for i in free_b))


def _linear(arithmetic: Arithmetic, equation: Any, *inputs: np.ndarray) -> np.ndarray:
    """Gather or scatter-add at known places: each output is a sum of a few inputs."""
    operand, index, *updates = inputs
    where = elements(lambda n: n.value, 1)(index).astype(int)
    entries = np.concatenate([operand.ravel(), *(u.ravel() for u in updates)])

    def apply(flat: Any) -> Any:
        parts = jnp.split(flat, [operand.size]) if updates else [flat]
        shaped = [p.reshape(like.shape) for p, like in zip(parts, (operand, *updates), strict=True)]
        return equation.primitive.bind(
            shaped[0], jnp.asarray(where), *shaped[1:], **equation.params
        )

    with jax.ensure_compile_time_eval():
        matrix = np.asarray(jax.vmap(apply, out_axes=-1)(jnp.eye(len(entries))))

    def combined(row: Any) -> Number:
        terms = [multiply(entries[i], Number(float(row[i]))) for i in np.flatnonzero(row)]
        return total(arithmetic, terms)

    return _rows(combined, matrix)


def _inner(equation: Any) -> Any:
    found = equation.params[INLINE[equation.primitive.name]]
    return found if hasattr(found, "consts") else core.ClosedJaxpr(found, ())


INLINE = {"jit": "jaxpr", "custom_jvp_call": "call_jaxpr", "closed_call": "call_jaxpr"}
RULES: dict[str, Callable[..., Any]] = {
    "add": _add,
    "add_any": _add,
    "sub": _folding(subtract),
    "mul": _folding(multiply),
    "div": _binary(operator.truediv),
    "neg": lambda _, equation, a: elements(lambda n: subtract(Number(0.0), n), 1)(a),
    "integer_pow": _integer_power,
    "pow": _power,
    "sqrt": _sqrt,
    "lt": _binary(operator.lt),
    "eq": _binary(operator.eq),
    "and": _binary(operator.and_),
    "not": lambda _, equation, a: elements(lambda n: Number(_not(n.value)), 1)(a),
    "select_n": _select,
    "convert_element_type": _cast,
    "transpose": lambda _, equation, a: a.transpose(equation.params["permutation"]),
    "reshape": lambda _, equation, a: a.reshape(equation.params["new_sizes"]),
    "squeeze": lambda _, equation, a: a.reshape(equation.outvars[0].aval.shape),
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda _, equation, *a: np.concatenate(a, equation.params["dimension"]),
    "slice": _slice,
    "split": _split,
    "reduce_sum": _reduce_sum,
    "dot_general": _dot,
    "gather": _linear,
    "scatter-add": _linear,
}
