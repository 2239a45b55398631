"""Runs of one shape trained together: compiled segments, progress, interruption."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray

from iclflow.dynamics import AbstractDynamics, Descent, DescentState, sharpness
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.results.trajectory import Trajectory
from iclflow.runs.labels import INTERRUPTED, outcome
from iclflow.runs.record import measure_after
from iclflow.runs.record.quantities import MODELS

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


@dataclasses.dataclass(frozen=True)
class Together:
    """Runs that advance together: stacked losses and dynamics, or one that all of them share."""

    losses: Any
    dynamics: Any
    loss_axis: Any = None  # as in `eqx.filter_vmap`
    dynamics_axis: Any = None

    def start(self, models: AbstractModel, keys: Key[Array, " runs"]) -> Any:
        """The state of all runs, before the first step."""
        axes = (self.loss_axis, eqx.if_array(0), self.dynamics_axis, eqx.if_array(0))
        return _one_clock(_start(self.losses, models, self.dynamics, keys, axes))

    def advance(self, state: Any, marks: np.ndarray, record: dict) -> Trajectory:
        """All runs to the last mark; the record is [run, time, ...], the state goes on."""
        axis: Any = eqx.if_array(0)
        if isinstance(state, DescentState):
            axis = eqx.tree_at(lambda s: (s.run, s.step), state, (axis, None))
        axes = (self.loss_axis, axis, self.dynamics_axis)
        run = _advance(self.losses, state, self.dynamics, marks, record, axes)
        jax.block_until_ready(run)
        return eqx.tree_at(lambda r: r.state, run, _one_clock(run.state))


def _one_clock(state: Any) -> Any:
    """One step counter for the whole batch keeps the inner loop free of per-run tests."""
    return DescentState(state.run, state.step[0]) if isinstance(state, DescentState) else state


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


@eqx.filter_jit
def _after(losses, models, dynamics, names, axes) -> Any:
    def one(loss: Any, models: Any, how: Any) -> Any:
        return measure_after(names, models, loss, getattr(how, "rate", None))

    return eqx.filter_vmap(one, in_axes=axes)(losses, models, dynamics)


def train_together(
    group: list[Run],
    marks: np.ndarray,
    record: dict,
    report: Callable[[float], None] | None,
    after: tuple[str, ...] = (),
) -> BatchResult:
    """Train the runs of one group to the last mark, or to where Ctrl-C stops them.

    `after` names what is measured at the end from the models at the marks.
    """
    losses, loss_axis = _stack([run.loss for run in group])
    dynamics, dynamics_axis = _stack([run.dynamics for run in group])
    models = jax.tree.map(lambda *a: jnp.stack(a), *[run.model for run in group])
    keys = jnp.stack([run.key for run in group])
    together = Together(losses, dynamics, loss_axis, dynamics_axis)
    state = together.start(models, keys)
    size = -(-len(marks) // SEGMENTS)
    pieces, interrupted, done = [], False, 0
    try:
        for begin in range(0, len(marks), size):
            segment = marks[begin : begin + size]
            padded = np.concatenate([segment, np.repeat(segment[-1:], size - len(segment))])
            run = together.advance(state, padded, record)
            state = run.state
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
    if after:
        axes = (loss_axis, eqx.if_array(0), dynamics_axis)
        measured = _after(losses, joined.pop(MODELS), dynamics, after, axes)
        joined |= {name: np.asarray(values) for name, values in measured.items()}
    clocks = np.stack([_clock(run.dynamics, marks) for run in group])
    edge = np.asarray(_sharpness(losses, state.model, (loss_axis, eqx.if_array(0))))
    return BatchResult(group, joined, clocks, ended[0], ended[1], edge, interrupted)


def _clock(dynamics: AbstractDynamics, marks: np.ndarray) -> np.ndarray:
    if not isinstance(dynamics, Descent):
        return marks
    return marks * (2 * float(dynamics.rate) if dynamics.optimiser.keeps_time else np.nan)
