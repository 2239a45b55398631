"""A traced function of small arrays, written on single values: straight-line arithmetic.

The step of a run is not written a second time for a fused loop. Its jaxpr is evaluated entry by
entry: every entry of an array becomes a typed value, and every operation has a rule here that
writes what JAX defines for it, for each type. Whatever has no rule raises `CannotFuse`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from iclflow.runs.fused.values import (
    TYPES,
    CannotFuse,
    Constant,
    Matrix,
    Text,
    Value,
    constants,
    is_float,
    literal,
)


def evaluate(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any], text: Text) -> list[Any]:
    """Write a jaxpr into `text`; its outputs are arrays of values, None where nothing reads them.

    - `arguments`: arrays of values, or `Matrix` for a shared matrix.
    """
    env: dict[Any, Any] = dict(zip(jaxpr.invars, arguments, strict=True))
    used = {v for e in live(jaxpr) for v in e.invars if not isinstance(v, core.Literal)}
    used |= {v for v in jaxpr.outvars if not isinstance(v, core.Literal)}
    for variable, value in zip(jaxpr.constvars, consts, strict=True):
        if variable in used:
            env[variable] = constants(_typed(value, getattr(variable.aval, "dtype", None)))

    def read(variable: Any) -> Any:
        if isinstance(variable, core.Literal):
            kind: Any = variable.aval
            return constants(_typed(variable.val, kind.dtype))
        return env[variable]

    for equation in live(jaxpr):
        inputs, name = [read(v) for v in equation.invars], equation.primitive.name
        if name in INLINE:
            inner = equation.params[INLINE[name]]
            body, given = (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, ())
            outputs = evaluate(body, given, inputs, text)
        else:
            outputs = _written(text, equation, inputs)
        env.update(zip(equation.outvars, outputs, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _written(text: Text, equation: Any, inputs: list[Any]) -> list[Any]:
    """The outputs of one equation."""
    name = equation.primitive.name
    matrices = [isinstance(a, Matrix) for a in inputs]
    if any(matrices):
        if name != "dot_general":
            raise CannotFuse(f"it has no rule for {name} of a large shared matrix")
        return [_matrix_product(text, equation, *inputs)]
    if all(isinstance(v, Constant) for a in inputs for v in a.ravel()):
        return _folded(equation, inputs)
    if name not in RULES:
        raise CannotFuse(f"it has no rule for {name}")
    for variable in (*equation.invars, *equation.outvars):
        _supported(variable.aval.dtype)
    found = RULES[name](text, equation, *inputs)
    found = found if isinstance(found, list) else [found]
    return [a if isinstance(a, np.ndarray) else _each(lambda v: v, np.asarray(a)) for a in found]


def _folded(equation: Any, inputs: list[Any]) -> list[Any]:
    """An operation on numbers that are known: JAX itself computes it."""
    known = []
    for array, variable in zip(inputs, equation.invars, strict=True):
        _supported(variable.aval.dtype)
        whole = np.empty(array.shape, variable.aval.dtype)
        for index in np.ndindex(array.shape):
            whole[index] = array[index].value
        known.append(jnp.asarray(whole))
    for variable in equation.outvars:
        _supported(variable.aval.dtype)
    with jax.ensure_compile_time_eval():
        found = equation.primitive.bind(*known, **equation.params)
    found = found if equation.primitive.multiple_results else [found]
    return [constants(np.asarray(a)) for a in found]


def _typed(value: Any, dtype: Any) -> np.ndarray:
    _supported(dtype)
    return np.asarray(value, dtype)


def _supported(dtype: Any) -> None:
    name = getattr(dtype, "name", str(dtype))
    if name not in TYPES:
        raise CannotFuse(f"it has no rule for numbers of type {name}")


def live(jaxpr: Any) -> list[Any]:
    """The equations that the outputs depend on."""
    needed = {v for v in jaxpr.outvars if not isinstance(v, core.Literal)}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            kept.append(equation)
            needed |= {v for v in equation.invars if not isinstance(v, core.Literal)}
    return kept[::-1]


def _each(function: Callable[..., Value], *arrays: np.ndarray) -> np.ndarray:
    """A function of values, entry by entry; the result is an array, also without axes."""
    wide = np.broadcast_arrays(*arrays)
    found = np.empty(wide[0].shape, object)
    for index in np.ndindex(found.shape):
        found[index] = function(*(a[index] for a in wide))
    return found


def _method(name: str) -> Callable[..., np.ndarray]:
    """The rule of an operation that `Text` knows."""
    return lambda text, equation, *arrays: _each(getattr(text, name), *arrays)


def _form(
    form: str, whole: str | None = None, spreads: int = 0, operations: int = 0
) -> Callable[..., np.ndarray]:
    """The rule of an expression, with the type of its inputs as `kind`.

    - `whole`: the expression for integers and bools, where it is another.
    """

    def rule(text: Text, equation: Any, *arrays: np.ndarray) -> np.ndarray:
        given, dtype = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
        real = is_float(given)
        words = (form if real or whole is None else whole).replace("KIND", given.name)
        count = operations if real else 0
        write = functools.partial(text.write, dtype, words, spreads=spreads, operations=count)
        return _each(write, *arrays)

    return rule


def _not(text: Text, equation: Any, a: np.ndarray) -> np.ndarray:
    dtype = equation.outvars[0].aval.dtype
    form = "!{}" if dtype.name == "bool" else f"{dtype.name}(~{{}})"
    return _each(functools.partial(text.write, dtype, form), a)


def _sign(text: Text, equation: Any, a: np.ndarray) -> np.ndarray:
    dtype = equation.outvars[0].aval.dtype
    n = dtype.name
    if is_float(dtype):  # NaN stays NaN, and a zero keeps its sign
        form = f"{{0}} > 0 ? {n}(1) : {{0}} < 0 ? {n}(-1) : {{0}}"
    else:
        signed = np.issubdtype(dtype, np.signedinteger)
        form = f"{{0}} == 0 ? {n}(0) : " + (f"{{0}} < 0 ? {n}(-1) : " * signed) + f"{n}(1)"
    return _each(functools.partial(text.write, dtype, form), a)


def _absolute(text: Text, equation: Any, a: np.ndarray) -> np.ndarray:
    dtype = equation.outvars[0].aval.dtype
    if is_float(dtype):
        return _each(lambda v: text.write(dtype, "absolute({})", v, spreads=1), a)
    if not np.issubdtype(dtype, np.signedinteger):
        return a
    return _each(lambda v: text.write(dtype, "{0} < 0 ? {1} : {0}", v, text.negate(v)), a)


def _integer_power(text: Text, equation: Any, a: np.ndarray) -> np.ndarray:
    """By repeated squares, as JAX does it."""
    y, dtype = equation.params["y"], equation.outvars[0].aval.dtype

    def power(value: Value) -> Value:
        found, square, left = None, value, abs(y)
        while left:
            if left & 1:
                found = square if found is None else text.multiply(found, square)
            left >>= 1
            if left:
                square = text.multiply(square, square)
        one = Constant(np.ones((), dtype)[()])
        if found is None:
            return one
        return text.write(dtype, "{} / {}", one, found, operations=1) if y < 0 else found

    return _each(power, a)


def _power(text: Text, equation: Any, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Both arguments with the type of the result: other overloads would be ambiguous."""
    dtype = equation.outvars[0].aval.dtype
    if not is_float(dtype):
        raise CannotFuse("it has no rule for pow of integers")
    form = f"pow({dtype.name}({{}}), {dtype.name}({{}}))"
    return _each(functools.partial(text.write, dtype, form, operations=1), a, b)


def _select(text: Text, equation: Any, which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    """The case of a number; one that is too small or too large takes the first or the last."""
    dtype = equation.outvars[0].aval.dtype

    def choose(condition: Any, *values: Any) -> Value:
        if isinstance(condition, Constant):
            return values[min(max(int(condition.value), 0), len(values) - 1)]
        if all(value is values[0] for value in values):
            return values[0]
        if condition.dtype.name == "bool":
            return text.write(dtype, "{0} ? {2} : {1}", condition, *values)
        tests = [f"{{0}} < {n} ? {{{n}}} : " for n in range(1, len(values))]
        return text.write(dtype, "".join(tests) + f"{{{len(values)}}}", condition, *values)

    return _each(choose, which, *cases)


def _cast(text: Text, equation: Any, a: np.ndarray) -> np.ndarray:
    before, after = equation.invars[0].aval.dtype, equation.params["new_dtype"]
    return a if before == after else _each(lambda v: convert(text, v, after), a)


def convert(text: Text, value: Any, dtype: Any) -> Value:
    """A value as another type: reals are rounded, or saturate as integers; NaN becomes 0."""
    before, after = value.dtype, np.dtype(dtype)
    if before == after:
        return value
    if after.name == "bool":
        return text.write(after, "{} != 0", value)
    if is_float(before) and not is_float(after):
        info = np.iinfo(after)
        low, high = (literal(after.type(n)) for n in (info.min, info.max))
        return text.write(after, f"saturate<{after.name}>({{}}, {low}, {high})", value)
    spreads = int(is_float(before))
    return text.write(after, f"{after.name}({{}})", value, spreads=spreads)


def _broadcast(_: Text, equation: Any, a: np.ndarray) -> np.ndarray:
    shape, places = equation.params["shape"], equation.params["broadcast_dimensions"]
    inner = [1] * len(shape)
    for place, size in zip(places, a.shape, strict=True):
        inner[place] = size
    return np.broadcast_to(a.reshape(inner), shape)


def _pad(text: Text, equation: Any, array: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Values around and between those of an array; negative widths take some away."""
    for axis, (low, high, inside) in enumerate(equation.params["padding_config"]):
        shape, size = list(array.shape), array.shape[axis]
        shape[axis] = max(0, size + max(0, size - 1) * inside)
        wide = np.full(shape, value.item(), object)
        wide[(slice(None),) * axis + (slice(None, None, inside + 1),)] = array
        ends = [(0, 0)] * array.ndim
        ends[axis] = (max(0, low), max(0, high))
        wide = np.pad(wide, ends, constant_values=value.item())
        chosen = slice(max(0, -low), wide.shape[axis] - max(0, -high))
        array = wide[(slice(None),) * axis + (chosen,)]
    return array


def _slice(_: Text, equation: Any, a: np.ndarray) -> np.ndarray:
    start, limit = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * a.ndim
    return a[tuple(slice(*part) for part in zip(start, limit, strides, strict=True))]


def _split(_: Text, equation: Any, a: np.ndarray) -> list[np.ndarray]:
    ends = np.cumsum(equation.params["sizes"])[:-1]
    return np.split(a, ends, equation.params["axis"])


def _reduction(combine: Callable[[Text, Any, list[Any]], Value]) -> Callable[..., np.ndarray]:
    """The rule of a function of the entries along some axes."""

    def rule(text: Text, equation: Any, a: np.ndarray) -> np.ndarray:
        axes, dtype = equation.params["axes"], equation.outvars[0].aval.dtype
        kept = [i for i in range(a.ndim) if i not in axes]
        shape = [a.shape[i] for i in kept]
        rows = a.transpose(*kept, *axes).reshape(*shape, math.prod(a.shape[i] for i in axes))
        found = np.empty(shape, object)
        for index in np.ndindex(found.shape):
            found[index] = combine(text, dtype, list(rows[index]))
        return found

    return rule


def _folding(form: str, first: Callable[[Any], Any]) -> Callable[[Text, Any, list[Any]], Value]:
    """A reduction by an expression of two values; `first` is the result of no values."""

    def combine(text: Text, dtype: Any, row: list[Any]) -> Value:
        words = form.replace("KIND", dtype.name)
        if not row:
            return Constant(np.asarray(first(dtype), dtype)[()])
        return functools.reduce(functools.partial(text.write, dtype, words), row)

    return combine


def _product_of(text: Text, dtype: Any, row: list[Any]) -> Value:
    return functools.reduce(text.multiply, row, Constant(np.ones((), dtype)[()]))


def _dot(text: Text, equation: Any, a: Any, b: Any) -> np.ndarray:
    dtype = equation.outvars[0].aval.dtype
    if dtype.name == "bool" or any(
        is_float(v.aval.dtype) != is_float(dtype) for v in equation.invars
    ):
        raise CannotFuse("it has no rule for dot_general of these types")
    a, b = (_each(lambda v: convert(text, v, dtype), array) for array in (a, b))
    (over_a, over_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
    free_a = [i for i in range(a.ndim) if i not in (*over_a, *batch_a)]
    free_b = [i for i in range(b.ndim) if i not in (*over_b, *batch_b)]
    inner = math.prod(a.shape[i] for i in over_a)
    batch = [a.shape[i] for i in batch_a]
    outer_a, outer_b = [a.shape[i] for i in free_a], [b.shape[i] for i in free_b]
    sizes = math.prod(batch), math.prod(outer_a), math.prod(outer_b)
    left = a.transpose(*batch_a, *free_a, *over_a).reshape(sizes[0], sizes[1], inner)
    right = b.transpose(*batch_b, *free_b, *over_b).reshape(sizes[0], sizes[2], inner)
    found = np.empty(sizes, object)
    for n, i, j in np.ndindex(found.shape):
        pairs = zip(left[n, i], right[n, j], strict=True)
        found[n, i, j] = text.total((text.multiply(x, y) for x, y in pairs), dtype)
    return found.reshape([*batch, *outer_a, *outer_b])


def _matrix_product(text: Text, equation: Any, a: Any, b: Any) -> np.ndarray:
    """Values times a shared matrix, one product per row of values."""
    (over_a, over_b), batch = equation.params["dimension_numbers"]
    if isinstance(a, Matrix) and isinstance(b, Matrix):
        raise CannotFuse("it has no rule for the product of two large shared matrices")
    matrix, values, over = (a, b, over_b) if isinstance(a, Matrix) else (b, a, over_a)
    dtypes = {np.dtype(v.aval.dtype) for v in (*equation.invars, *equation.outvars)}
    along = over_a if matrix is a else over_b
    if along != (0,) or batch != ((), ()) or len(dtypes) > 1:
        raise CannotFuse("it has no rule for this product with a large shared matrix")
    rows = np.moveaxis(values, over[0], -1)
    found = np.empty((*rows.shape[:-1], matrix.shape[1]), object)
    for index in np.ndindex(rows.shape[:-1]):
        found[index] = text.multiply_matrix(matrix, list(rows[index]))
    return np.moveaxis(found, -1, 0) if matrix is a else found


def _places(index: np.ndarray, dtype: Any) -> Any:
    """Indices that are known while the loop is written."""
    if not all(isinstance(v, Constant) for v in index.ravel()):
        raise CannotFuse("it has no rule for indices that are known only when it runs")
    return jnp.asarray(np.asarray([v.value for v in index.ravel()], dtype).reshape(index.shape))


def _gather(_: Text, equation: Any, operand: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The gather of the numbers 1, 2, … says which entry goes where; 0 is a place outside."""
    where = _places(index, equation.invars[1].aval.dtype)
    number = jnp.arange(1, operand.size + 1, dtype=jnp.int32).reshape(operand.shape)
    with jax.ensure_compile_time_eval():
        chosen = np.asarray(
            equation.primitive.bind(number, where, **(equation.params | {"fill_value": 0}))
        )
    dtype, given = equation.outvars[0].aval.dtype, equation.params["fill_value"]
    if given is None:
        given = np.nan if is_float(dtype) else True if dtype.name == "bool" else _extreme(dtype)
    outside = Constant(np.asarray(given, dtype)[()])
    flat = operand.ravel()
    found = np.empty(chosen.shape, object)
    for place in np.ndindex(chosen.shape):
        found[place] = flat[chosen[place] - 1] if chosen[place] else outside
    return found


def _extreme(dtype: Any) -> int:
    info = np.iinfo(dtype)
    return info.max if info.min == 0 else info.min


def _scatter_add(text: Text, equation: Any, *inputs: np.ndarray) -> np.ndarray:
    """Each entry of the result is a sum of entries; a scatter of unit vectors says of which."""
    operand, index, updates = inputs
    dtype = equation.outvars[0].aval.dtype
    if dtype.name == "bool":
        raise CannotFuse("it has no rule for scatter-add of bools")
    where = _places(index, equation.invars[1].aval.dtype)
    units = jnp.eye(updates.size, dtype=dtype).reshape(*updates.shape, updates.size)
    base = jnp.zeros(operand.shape, dtype)

    def apply(unit: Any) -> Any:
        return equation.primitive.bind(base, where, unit, **equation.params)

    with jax.ensure_compile_time_eval():
        chosen = np.asarray(jax.vmap(apply, in_axes=-1, out_axes=-1)(units))
    flat = updates.ravel()
    found = np.empty(operand.shape, object)
    for place in np.ndindex(operand.shape):
        terms = [flat[i] for i in np.flatnonzero(chosen[place])]
        found[place] = text.total([operand[place], *terms], dtype)
    return found


def _lowest(dtype: Any) -> Any:
    return -np.inf if is_float(dtype) else False if dtype.name == "bool" else np.iinfo(dtype).min


def _highest(dtype: Any) -> Any:
    return np.inf if is_float(dtype) else True if dtype.name == "bool" else np.iinfo(dtype).max


def _compared(sign: str) -> Callable[..., np.ndarray]:
    return _form(f"{{}} {sign} {{}}")


# Functions that the rules use, for C++ and CUDA alike; `multiply_add` is each engine's own. JAX
# defines division by a zero integer, and what is left of it; a maximum with NaN is NaN.
FUNCTIONS = """
template <class T> FUNCTION T divide(T a, T b) {
    return b == T(0) ? T(-1) : T(-1) < T(0) && b == T(-1) ? T(0ULL - (unsigned long long) a) : T(a / b);
}
template <class T> FUNCTION T remain(T a, T b) {
    return b == T(0) ? a : T(-1) < T(0) && b == T(-1) ? T(0) : T(a % b);
}
template <class T> FUNCTION T larger(T a, T b) { return a != a || a > b ? a : b; }
template <class T> FUNCTION T smaller(T a, T b) { return a != a || a < b ? a : b; }
template <class T> FUNCTION bool finite_(T a) { return a - a == T(0); }
template <class To, class From> FUNCTION To saturate(From x, To low, To high) {
    return x != x ? To(0) : x <= From(low) ? low : x >= From(high) ? high : To(x);
}
"""  # noqa: E501

INLINE = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
RULES: dict[str, Callable[..., Any]] = {
    "add": _method("add"),
    "add_any": _method("add"),
    "sub": _method("subtract"),
    "mul": _method("multiply"),
    "neg": _method("negate"),
    "div": _form("{} / {}", "divide<KIND>({}, {})", spreads=1, operations=1),
    "rem": _form("remainder_of({}, {})", "remain<KIND>({}, {})", operations=1),
    "square": lambda text, equation, a: _each(lambda v: text.multiply(v, v), a),
    "integer_pow": _integer_power,
    "pow": _power,
    "sqrt": _form("sqrt({})", spreads=1, operations=1),
    "abs": _absolute,
    "sign": _sign,
    "max": _form("larger<KIND>({}, {})"),
    "min": _form("smaller<KIND>({}, {})"),
    "is_finite": _form("finite_({})"),
    "lt": _compared("<"),
    "le": _compared("<="),
    "gt": _compared(">"),
    "ge": _compared(">="),
    "eq": _compared("=="),
    "ne": _compared("!="),
    "and": _form("KIND({} & {})"),
    "or": _form("KIND({} | {})"),
    "xor": _form("KIND({} ^ {})"),
    "not": _not,
    "select_n": _select,
    "convert_element_type": _cast,
    "copy": lambda text, equation, a: a,
    "transpose": lambda text, equation, a: a.transpose(equation.params["permutation"]),
    "reshape": lambda text, equation, a: a.reshape(equation.params["new_sizes"]),
    "squeeze": lambda text, equation, a: a.reshape(equation.outvars[0].aval.shape),
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda text, equation, *a: np.concatenate(a, equation.params["dimension"]),
    "rev": lambda text, equation, a: np.flip(a, equation.params["dimensions"]),
    "slice": _slice,
    "pad": _pad,
    "split": _split,
    "reduce_sum": _reduction(lambda text, dtype, row: text.total(row, dtype)),
    "reduce_prod": _reduction(_product_of),
    "reduce_max": _reduction(_folding("larger<KIND>({}, {})", _lowest)),
    "reduce_min": _reduction(_folding("smaller<KIND>({}, {})", _highest)),
    "reduce_and": _reduction(_folding("KIND({} & {})", _highest)),
    "reduce_or": _reduction(_folding("KIND({} | {})", lambda dtype: False)),
    "dot_general": _dot,
    "gather": _gather,
    "scatter-add": _scatter_add,
}
