"""A job as functions of a number of steps, one an engine, and the operations of each."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from iclflow.bench.jobs import LITERAL, SOFTMAX, Job
from iclflow.bench.literal import literal_loss, literal_weights, train
from iclflow.dynamics import Descent
from iclflow.losses import Sequences
from iclflow.runs.fused.engine import VMAP, Fused, why_not
from iclflow.runs.fused.program import write
from iclflow.runs.fused.rules import live
from iclflow.runs.fused.values import Multiplied
from iclflow.runs.vmapped import one_clock, vmapped

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
