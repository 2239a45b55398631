"""Drop times of very many starts at once, in the limit of vanishing initial weights."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from iclflow.losses import Population
from iclflow.models import AbstractModel
from iclflow.tasks.task import Task
from iclflow.theory.drops.dormant import DormantHeads
from iclflow.theory.drops.frame import Frame
from iclflow.theory.drops.limit import off_span, residual_basis
from iclflow.theory.fixed_points.modes import Modes

PART = 512  # starts at a time
SHORT = 1e-9  # before the escape, relative: two heads may have equal times


@dataclasses.dataclass(frozen=True)
class ManyEscapes:
    """The escapes of n starts, in order; infinite where no head is left to escape."""

    times: Float[np.ndarray, "n m"]  # t/τ: the sum of blow-up times
    paper: Float[np.ndarray, "n m"]  # the sum of 1/(g |v|) (73), v of each head at its plateau


def many_escapes(source: Task | Population | Modes, models: AbstractModel) -> ManyEscapes:
    """`vanishing_limit` of starts that are stacked along the first axis, many times faster.

    All starts are on the same plateau at the same time, for each is scaled so that its next escape
    comes at time 1: weights times c have times over c. Needs modes of different drops.
    """
    modes = Modes.of(source)
    found: Any = models.as_attention()
    if found is None or not hasattr(found, "keys"):
        raise ValueError(
            f"escapes are those of separate key and query, got {type(models).__name__}"
        )
    drops = np.asarray(modes.drops, float)
    if np.any(np.isclose(drops[1:], drops[:-1], rtol=1e-9, atol=0)):
        raise ValueError("modes of equal drops have no fixed order; use vanishing_limit")
    arrays = [np.asarray(a, float) for a in (found.values[..., 0, 0], found.keys, found.queries)]
    parts = [
        _escapes(modes, *(a[begin : begin + PART] for a in arrays))
        for begin in range(0, len(arrays[0]), PART)
    ]
    return ManyEscapes(*(np.concatenate(rows) for rows in zip(*parts, strict=True)))


def _escapes(
    modes: Modes, values: np.ndarray, keys: np.ndarray, queries: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    frame = Frame.of(modes) if modes.commuting else None
    (starts, heads), rank = values.shape, keys.shape[2]
    count = min(heads, -(-modes.rank // rank))
    times, paper = np.full((2, starts, count), np.inf)
    now, said = np.zeros((2, starts))
    for number in range(count):
        left, gains, right = residual_basis(modes, frame, number * rank)
        k, q = keys @ left, queries @ right
        waits = _heads(values, k, q, gains, np.ones(starts)).blow_up()[0].reshape(starts, -1)
        winner = np.argmin(waits, axis=1)
        rows = np.arange(starts)
        wait, speed = waits[rows, winner], np.abs(values[rows, winner])
        with np.errstate(divide="ignore"):
            now, said = now + wait, said + 1 / (gains.max() * speed)
        times[:, number], paper[:, number] = now, said
        if number == count - 1:
            break
        keep = np.arange(waits.shape[1]) != winner[:, None]
        values, keys, queries, k, q = (
            a[keep].reshape(starts, -1, *a.shape[2:]) for a in (values, keys, queries, k, q)
        )
        unit = np.where(np.isfinite(wait), wait, 0.0)  # a start that is over no longer moves
        moved = _heads(values, k, q, gains, unit).after(1 - SHORT)
        scale = np.where(unit > 0, unit, 1.0)[:, None]
        shape, size = (*values.shape, rank, len(gains)), scale[..., None, None]
        values = moved.values.reshape(starts, -1) / scale
        sums, differences = (a.reshape(shape) / size for a in (moved.sums, moved.differences))
        keys = (sums + differences) / 2 @ left.T + keys @ off_span(left)
        queries = (sums - differences) / 2 @ right.T + queries @ off_span(right)
    return times, paper


def _heads(
    values: np.ndarray, k: np.ndarray, q: np.ndarray, gains: np.ndarray, scale: np.ndarray
) -> DormantHeads:
    """The heads of all starts in a row, those of each start times its scale."""
    wide = scale[:, None, None, None]
    sums, differences = ((wide * a).reshape(-1, *a.shape[2:]) for a in (k + q, k - q))
    return DormantHeads((scale[:, None] * values).ravel(), sums, differences, gains)
