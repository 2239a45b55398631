"""Floating-point operations of a training step, counted: of arrays, and of a fused loop."""

import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from iclflow.runs.fused.engine import Fused
from iclflow.runs.fused.numbers import Arithmetic, Table
from iclflow.runs.fused.program import numbers_of
from iclflow.runs.fused.rules import live

ELEMENTWISE = {
    "add", "add_any", "sub", "mul", "div", "neg", "max", "exp", "log", "sqrt", "square",
    "integer_pow", "tanh",
}  # fmt: skip


def step_operations(loss: Callable[..., Any], weights: Any) -> float:
    """Of value and gradient of `loss` at `weights`, and two for the update of each weight.

    Counted in the traced program: a product and a sum are two operations, a function one.
    """
    arrays, static = eqx.partition(weights, eqx.is_inexact_array)
    traced = jax.make_jaxpr(jax.value_and_grad(lambda a: loss(eqx.combine(a, static))))(arrays)
    return count(traced.jaxpr) + 2 * sum(a.size for a in jax.tree.leaves(arrays))


def count(jaxpr: Any) -> float:
    """Operations on floating-point numbers in what the outputs need; known loops unrolled."""
    total = 0.0
    for equation in live(jaxpr):
        inner = [
            v for v in equation.params.values() if isinstance(v, core.ClosedJaxpr | core.Jaxpr)
        ]
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += times * sum(count(getattr(v, "jaxpr", v)) for v in inner)
        if not inner:
            total += _equation(equation)
    return total


def _equation(equation: Any) -> float:
    found, name = equation.outvars[0].aval, equation.primitive.name
    if not jnp.issubdtype(found.dtype, jnp.floating):
        return 0.0
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2.0 * found.size * math.prod(equation.invars[0].aval.shape[i] for i in contracted)
    if name in ("reduce_sum", "reduce_max"):
        return float(equation.invars[0].aval.size - found.size)
    return float(found.size) if name in ELEMENTWISE else 0.0


class _Counted:
    """A number of a fused loop that counts what is done with it."""

    def __init__(self, done: list[int]) -> None:
        self.done = done

    def _operation(self, *_: Any) -> "_Counted":
        self.done[0] += 1
        return self

    def _comparison(self, *_: Any) -> "_Counted":
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _operation
    __truediv__ = __rtruediv__ = __neg__ = _operation
    __lt__ = __and__ = __invert__ = __eq__ = _comparison  # pyright: ignore
    __hash__ = object.__hash__


def _any(*values: Any) -> _Counted:
    return next(v for v in values if isinstance(v, _Counted))


COUNTING = Arithmetic(
    multiply_add=lambda x, y, z: _any(x, y, z)._operation()._operation(),
    choose=lambda condition, yes, no: _any(condition, yes, no),
    sqrt=lambda x: x._operation(),
    power=lambda x, y: _any(x, y)._operation(),
    cast=lambda x, dtype: x,
    multiply=lambda table, numbers: [_sum(numbers) for _ in range(table.shape[1])],
)


def _sum(numbers: list[Any]) -> _Counted:
    """A product with a column of a table: two operations a number, were it zero or not."""
    found = _any(*numbers)
    found.done[0] += 2 * len(numbers)
    return found


def fused_operations(fused: Fused, parts: tuple[Any, Any, Any], record: dict[str, Any]) -> int:
    """Of a step as the fused loop does it: without what is zero for all runs."""
    program, done = fused.program(parts, record), [0]
    number = functools.partial(_Counted, done)
    values: list[Any] = []
    for i, (leaf, zeros) in enumerate(zip(program.leaves, fused.zeros(parts, record), strict=True)):
        if leaf.table:
            values.append(Table(i, leaf.shape))
            continue
        empty = np.frombuffer(zeros, bool) if zeros else np.zeros(leaf.size, bool)
        values.append(numbers_of([0.0 if e else number() for e in empty], leaf.shape))
    well, after = program.after(values, COUNTING)
    for entry in [well, *(entry for i in program.carried for entry in after[i].ravel())]:
        entry.value  # noqa: B018, products are computed where they are asked for
    return done[0]
