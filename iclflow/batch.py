"""Runs of one shape trained together: compiled segments, progress, interruption."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from iclflow.dataset import INTERRUPTED, outcome
from iclflow.dynamics import AbstractDynamics, Descent, DescentState, sharpness
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel

SEGMENTS = 12  # compiled pieces of a run, between which progress is shown and Ctrl-C works
SMALL = 4096  # numbers in a loss that is copied for each run rather than trained by itself


@dataclasses.dataclass
class Run:
    """One run: its place in the grid, and what it trains."""

    index: tuple[int, ...]
    loss: AbstractLoss
    model: AbstractModel
    dynamics: AbstractDynamics
    key: PRNGKeyArray


@dataclasses.dataclass
class BatchResult:
    """What the runs of one group recorded."""

    runs: list[Run]
    record: dict[str, Any]  # [run, time, ...]
    time: np.ndarray
    result: np.ndarray
    stopped: np.ndarray
    sharpness: np.ndarray  # of the loss at the last weights
    interrupted: bool


def group_runs(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs that can be trained together: the same loss arrays, shapes and static settings."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        small = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(run.loss, eqx.is_array)))
        shared = None if small <= SMALL else id(run.loss)
        parts = (run.loss, run.model, run.dynamics)
        arrays, static = eqx.partition(parts, eqx.is_array)
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(arrays))
        key = (shared, shapes, jax.tree.structure(arrays), str(jax.tree.leaves(static)))
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def _stack(trees: Sequence[Any]) -> tuple[Any, Any]:
    """Stacked trees and their vmap axes; one shared tree if all are the same object."""
    first = trees[0]
    if all(tree is first for tree in trees):
        return first, None
    arrays = [eqx.partition(tree, eqx.is_array)[0] for tree in trees]
    static = eqx.partition(first, eqx.is_array)[1]
    return eqx.combine(jax.tree.map(lambda *a: jnp.stack(a), *arrays), static), eqx.if_array(0)


@eqx.filter_jit
def _start(losses, models, dynamics, keys, axes) -> Any:
    def one(loss: Any, model: Any, how: Any, key: Any) -> Any:
        return how.start(loss, model, key)

    return eqx.filter_vmap(one, in_axes=axes)(losses, models, dynamics, keys)


@eqx.filter_jit
def _advance(losses, state, dynamics, marks, record, axes) -> Any:
    def one(loss: Any, state: Any, how: Any) -> Any:
        return how.advance(loss, state, marks, record)

    return eqx.filter_vmap(one, in_axes=axes)(losses, state, dynamics)


@eqx.filter_jit
def _sharpness(losses, models, axes) -> Any:
    return eqx.filter_vmap(lambda loss, model: sharpness(loss, model, 20), in_axes=axes)(
        losses, models
    )


def train_together(
    group: list[Run], marks: np.ndarray, record: dict, report: Callable[[float], None] | None
) -> BatchResult:
    """Train the runs of one group to the last mark, or to where Ctrl-C stops them."""
    losses, loss_axis = _stack([run.loss for run in group])
    dynamics, dynamics_axis = _stack([run.dynamics for run in group])
    models = jax.tree.map(lambda *a: jnp.stack(a), *[run.model for run in group])
    keys = jnp.stack([run.key for run in group])
    map_axis = eqx.if_array(0)
    state = _start(losses, models, dynamics, keys, (loss_axis, map_axis, dynamics_axis, map_axis))
    state_axis: Any = map_axis
    if isinstance(group[0].dynamics, Descent):
        # One step counter for the whole batch keeps the inner loop free of per-run tests.
        state = DescentState(state.run, state.step[0])
        state_axis = eqx.tree_at(lambda s: (s.run, s.step), state, (map_axis, None))
    size = -(-len(marks) // SEGMENTS)
    pieces, interrupted, done = [], False, 0
    try:
        for begin in range(0, len(marks), size):
            segment = marks[begin : begin + size]
            padded = np.concatenate([segment, np.repeat(segment[-1:], size - len(segment))])
            run = _advance(
                losses, state, dynamics, padded, record, (loss_axis, state_axis, dynamics_axis)
            )
            jax.block_until_ready(run.record)
            state = run.state
            if isinstance(state, DescentState):
                state = DescentState(state.run, state.step[0])
            count = len(segment)
            pieces.append(jax.tree.map(lambda a, n=count: np.asarray(a)[:, :n], run.record))
            ended = (outcome(run.result), np.asarray(run.stopped))
            done = begin + len(segment)
            if report is not None:
                report(float(segment[-1]))
    except KeyboardInterrupt:
        interrupted = True
        if not pieces:
            raise
    joined = jax.tree.map(lambda *a: np.concatenate(a, axis=1), *pieces)
    if interrupted:
        missing = len(marks) - done
        joined = jax.tree.map(
            lambda a: np.pad(
                a, [(0, 0), (0, missing)] + [(0, 0)] * (a.ndim - 2), constant_values=np.nan
            ),
            joined,
        )
        ended = (np.where(ended[0] == 0, INTERRUPTED, ended[0]), ended[1])
    clocks = np.stack([_clock(run.dynamics, marks) for run in group])
    edge = np.asarray(_sharpness(losses, state.model, (loss_axis, map_axis)))
    return BatchResult(group, joined, clocks, ended[0], ended[1], edge, interrupted)


def _clock(dynamics: AbstractDynamics, marks: np.ndarray) -> np.ndarray:
    if not isinstance(dynamics, Descent):
        return marks
    return marks * (2 * float(dynamics.rate) if dynamics.optimiser.keeps_time else np.nan)
