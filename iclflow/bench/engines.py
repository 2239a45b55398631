"""A job as functions of a number of steps, one per engine, and the operations of each.

The yardstick is attention as it is written (5), the whole map of every prompt, and autograd.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jaxtyping import Array, Float

from iclflow.bench.jobs import LITERAL, SOFTMAX, Job
from iclflow.dynamics import Descent
from iclflow.losses import Sequences
from iclflow.models import AbstractModel
from iclflow.runs.device import one_clock, vmapped
from iclflow.runs.fused.engine import VMAP, Fused, why_not
from iclflow.runs.fused.program import write
from iclflow.runs.fused.rules import live
from iclflow.runs.fused.values import Multiplied
from iclflow.tasks.base import Prompt


class Weights(NamedTuple):
    """W^V and W^{KQ} of every head, whole; rows and columns that never matter are zero."""

    value: Float[Array, "H T T"]
    key_query: Float[Array, "H T T"]


def literal_weights(model: AbstractModel) -> Weights:
    """The whole matrices of an attention layer."""
    attention = model.as_attention()
    assert attention is not None, "the yardstick is attention"
    rows, columns = attention.value_rows(), attention.key_query()
    missing = rows.shape[2] - rows.shape[1]
    value = jnp.pad(rows, ((0, 0), (missing, 0), (0, 0)))
    return Weights(value, jnp.pad(columns, ((0, 0), (0, 0), (0, rows.shape[1]))))


def literal_loss(weights: Weights, prompts: Prompt, softmax: bool) -> Float[Array, ""]:
    """Mean |y_q - ŷ_q|², ŷ_q at the bottom right of X + Σᵢ W^Vᵢ X A(Xᵀ W^{KQ}ᵢ X) (5).

    A divides by the number of pairs N, or is the softmax over each column.
    """

    def error(prompt: Prompt) -> Float[Array, ""]:
        x = prompt.tokens.T

        def head(value: Array, key_query: Array) -> Array:
            scores = x.T @ key_query @ x
            shares = jax.nn.softmax(scores, axis=0) if softmax else scores / prompt.divisor
            return value @ x @ shares

        output = x + jnp.sum(jax.vmap(head)(*weights), axis=0)
        target = prompt.target
        return jnp.sum((target - output[-target.shape[0] :, -1]) ** 2)

    return jnp.mean(jax.vmap(error)(prompts))


@functools.partial(jax.jit, static_argnames="softmax")
def train(weights: Weights, prompts: Prompt, rate: Any, steps: Any, softmax: bool) -> Weights:
    """Gradient descent on `literal_loss`, one run."""

    def step(_: Any, now: Weights) -> Weights:
        gradient = jax.grad(literal_loss)(now, prompts, softmax)
        return jax.tree.map(lambda w, g: w - rate * g, now, gradient)

    return jax.lax.fori_loop(0, steps, step, weights)


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


RATE = 1e-3  # small: no run converges, or has numbers too small to be normal
RECORD = {"loss": lambda model, loss: loss(model)}


class Loop(NamedTuple):
    """A training that can be made as long as is needed to time it."""

    run: Callable[[int], Any]  # steps -> when they are done
    operations: float  # of a step of one run


def loops(job: Job, fused: bool = True) -> dict[str, Loop]:
    """Engine -> the job's training by it; those that can do it on this machine."""
    loss, models, descent = job.loss(), job.models(), Descent(RATE)
    model = jax.tree.map(lambda a: a[0], models)
    if job.level == LITERAL:
        assert isinstance(loss, Sequences)
        prompts, softmax = loss.prompts, job.model == SOFTMAX
        weights = literal_weights(model)
        of = lambda w: literal_loss(w, prompts, softmax)  # noqa: E731
        run = lambda n: jax.block_until_ready(train(weights, prompts, RATE, n, softmax))  # noqa: E731
        return {LITERAL: Loop(run, step_operations(of, weights))}
    parts = (loss, descent, _start(loss, descent, models))
    plain = lambda n: vmapped(parts, (None, None), np.asarray([n]), RECORD)  # noqa: E731
    found = {VMAP: Loop(plain, step_operations(loss, model))}
    loop = Fused.of(*parts, (False, False))
    if fused and why_not(loop, parts, RECORD, job.runs, np.asarray([10**9])) is None:
        run = lambda n: loop.advance(parts, np.asarray([n]), RECORD)  # noqa: E731
        found["fused"] = Loop(run, fused_operations(loop, parts, RECORD))
    return found


@eqx.filter_jit
def _start(loss: Any, descent: Descent, models: Any) -> Any:
    """The runs before their first step, with one clock."""
    state = eqx.filter_vmap(lambda m: descent.init(loss, m, jax.random.key(0)))(models)
    return one_clock(descent, state)
