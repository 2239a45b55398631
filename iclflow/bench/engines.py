"""A job as functions of a number of steps, one an engine, and the operations of each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from iclflow.bench.jobs import LITERAL, SOFTMAX, Job
from iclflow.bench.literal import literal_loss, literal_weights, train
from iclflow.bench.operations import fused_operations, step_operations
from iclflow.dynamics import Descent
from iclflow.losses import Sequences
from iclflow.runs.fused.engine import VMAP, Fused, why_not
from iclflow.runs.vmapped import one_clock, vmapped

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
