"""Floating-point operations of a training step, counted: of arrays, and of a fused loop."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend import core

from iclflow.runs.fused.engine import Fused
from iclflow.runs.fused.program import write
from iclflow.runs.fused.rules import live
from iclflow.runs.fused.values import Multiplied

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


def fused_operations(fused: Fused, parts: tuple[Any, Any, Any], record: dict[str, Any]) -> int:
    """The operations of a step in the fused loop, which leaves out what is zero for all runs."""
    program = fused.program(parts, record)
    found = 0
    for line in write(program, fused.zeros(parts, record)).step:
        if isinstance(line, Multiplied):
            found += 2 * len(line.inputs) * len(line.outputs)
        else:
            found += line.operations
    return found
