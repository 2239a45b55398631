"""The limit of vanishing initial weights: drops as jumps, for one start or a million.

With weights θ = ε θ̃ and ε → 0, ε times the time of each drop has a limit that depends on the
direction θ̃ alone: plateaus are the dormant heads' closed form, drops take no time. Since dormant
times scale exactly as 1/ε, the limit is given here on the clock t/τ of the weights themselves.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from jaxtyping import Float, Int

from iclflow.losses import Population
from iclflow.models import AbstractModel
from iclflow.tasks.task import Task
from iclflow.theory.drops.base import Curve, Times
from iclflow.theory.drops.dormant import DormantHeads
from iclflow.theory.drops.quadratic import separate_weights
from iclflow.theory.fixed_points.modes import Modes

TIED = 1e-9  # relative difference below which two modes count as equal


@dataclasses.dataclass(frozen=True)
class Frame:
    """The modes of a commuting task, largest drop first, in a basis that may be turned.

    Equal modes (a degenerate eigenvalue) have no preferred basis: the head that learns one of them
    chooses the direction, and the basis is turned so that the direction is a basis vector.
    """

    basis: Float[np.ndarray, "D r"]  # columns e_d
    g: Float[np.ndarray, " r"]
    m: Float[np.ndarray, " r"]  # g/(λ b), the weight of a learned mode
    groups: tuple[tuple[int, ...], ...]  # modes equal in both g and σ

    @classmethod
    def of(cls, modes: Modes) -> Self:
        """The frame of a commuting task (else `ValueError`)."""
        g, drops = np.asarray(modes.g, float), np.asarray(modes.drops, float)
        groups: list[list[int]] = []
        for d in range(len(g)):
            same = [
                group
                for group in groups
                if abs(g[group[0]] - g[d]) <= TIED * g[d]
                and abs(drops[group[0]] - drops[d]) <= TIED * drops[d]
            ]
            if same:
                same[0].append(d)
            else:
                groups.append([d])
        m = g / np.asarray(modes.eigenvalue * modes.b, float)
        return cls(np.asarray(modes.right, float), g, m, tuple(tuple(group) for group in groups))

    def turned(
        self, weights: Float[np.ndarray, "R r"], open_modes: Sequence[int], count: int
    ) -> Self:
        """The frame with equal modes turned to the directions in which a head grows.

        - `weights`: p = k + q of the head's R pairs along the modes.
        - `open_modes`: those that are not learned.
        - `count`: how many the head learns, in order of gain. Pairs may be rotated among each
          other, so the first one carries the first mode, the second one what is left of the next
          one, and so on. Among equal modes they carry the singular vectors.
        """
        rest, taken, basis, open_set = weights, 0, self.basis.copy(), set(open_modes)
        for group in sorted(self.groups, key=lambda group: -self.g[group[0]]):
            members = [d for d in group if d in open_set]
            take = min(len(members), count - taken, rest.shape[0])
            if take <= 0:
                continue
            left, _, right = np.linalg.svd(rest[:, members])
            if len(members) > 1:
                basis[:, members] = basis[:, members] @ right.T
            taken, rest = taken + take, left[:, take:].T @ rest
        return dataclasses.replace(self, basis=basis)


@dataclasses.dataclass(frozen=True)
class VanishingLimit:
    """n escapes in order; each takes the loss down by up to R modes at once.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> start = icl.Separate.initialiser(task, heads=3, scale=0.01)(jax.random.key(0))
    >>> found = icl.theory.vanishing_limit(task, start)
    >>> len(found.times), len(found.levels)
    (2, 3)
    """

    times: Float[np.ndarray, " n"]  # t/τ of each escape, the sum of blow-up times
    heads: Int[np.ndarray, " n"]  # which head escapes
    learned: Int[np.ndarray, " n"]  # how many modes are learned after it
    levels: Float[np.ndarray, " n+1"]  # the plateaus before, between and after
    gaps: tuple[Float[np.ndarray, " _"], ...]  # see `in_head_gaps`, one array for each escape
    ended: str  # why there are no more drops

    def at(self, times: Times) -> Curve:
        """The loss as a step function of t/τ."""
        saves = np.atleast_1d(np.asarray(times, float))
        return Curve(saves, self.levels[np.searchsorted(self.times, saves, side="right")])


def in_head_gaps(
    g: Float[np.ndarray, " k"], m: Float[np.ndarray, " k"]
) -> Float[np.ndarray, " k-1"]:
    """How the gaps between drops inside one head grow, for each factor e in 1/ε.

    `t_{r+1} - t_r = (τ/V_r)(1/g_{r+1} - 1/g_r) ln(1/ε) + O(1)`, V_r = (m_1 + … + m_r)^(1/3).

    - `g`, `m`: gain and m of the modes that the head learns, in their order.

    >>> import numpy as np, iclflow as icl
    >>> gaps = icl.theory.in_head_gaps(np.asarray([0.36, 0.09]), np.asarray([1.0, 1.0]))
    >>> gaps.round(3).tolist()
    [8.333]
    """
    speed = np.cumsum(m)[:-1] ** (1 / 3)
    return np.diff(1 / g) / speed


def vanishing_limit(source: Task | Population | Modes, model: AbstractModel) -> VanishingLimit:
    """The limit ε → 0 along the direction of the given weights.

    On each plateau the head with the smallest blow-up time escapes and learns, at once on this
    clock, min(R, what is left) modes; the plateaus are the sets of largest drops (E1).

    - `source`: the task, its population or its modes.
    - `model`: separate key and query; only the direction of its weights matters.

    >>> import jax, numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> start = icl.Separate.initialiser(task, heads=3, scale=0.01)(jax.random.key(0))
    >>> bool(np.all(np.diff(icl.theory.vanishing_limit(task, start).times) > 0))
    True
    """
    modes, (values, keys, queries) = Modes.of(source), separate_weights(model)
    rank, names = keys.shape[1], np.arange(len(values))
    frame = Frame.of(modes) if modes.commuting else None
    drops, learned, now = np.asarray(modes.drops, float), 0, 0.0
    found: list[tuple[float, int, int]] = []
    gaps, ended = [], "every mode is learned"
    while learned < modes.rank:
        left, gains, right = residual_basis(modes, frame, learned)
        k, q = keys @ left, queries @ right
        dormant = DormantHeads(values, k + q, k - q, gains)
        times, signs = dormant.blow_up()
        if len(names) == 0 or not np.isfinite(times.min()):
            ended = "no head that is left ever escapes" if len(names) else "no head is left"
            break
        winner = int(np.argmin(times))
        wait, keep = float(times[winner]), np.arange(len(names)) != winner
        count = min(rank, modes.rank - learned)
        if frame is not None:
            members = range(learned, learned + count)
            chosen = np.asarray(members)[np.argsort(-frame.g[list(members)], kind="stable")]
            gaps.append(in_head_gaps(frame.g[chosen], frame.m[chosen]))
            # Among equal modes the head's own direction is learned: turn the basis to it.
            weights = (dormant.sums if signs[winner] > 0 else dormant.differences)[winner]
            along = weights @ left.T @ frame.basis
            frame = frame.turned(along, range(learned, modes.rank), count)
        else:
            _require_apart(drops, learned + count)
            gaps.append(np.zeros(0))
        others = dormant.only(keep)
        others = others.after(min(wait, _before(others)))
        values = others.values
        keys = (others.sums + others.differences) / 2 @ left.T + keys[keep] @ off_span(left)
        queries = (others.sums - others.differences) / 2 @ right.T + queries[keep] @ off_span(right)
        now, learned = now + wait, learned + count
        found.append((now, int(names[winner]), learned))
        names = names[keep]
    level = float(modes.power) - np.concatenate([[0.0], np.cumsum(drops)])
    return VanishingLimit(
        times=np.asarray([time for time, _, _ in found], float),
        heads=np.asarray([head for _, head, _ in found], int),
        learned=np.asarray([count for _, _, count in found], int),
        levels=level[[0, *(count for _, _, count in found)]],
        gaps=tuple(gaps),
        ended=ended,
    )


def residual_basis(
    modes: Modes, frame: Frame | None, learned: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Left vectors, gains and right vectors of A_S on the plateau of the largest drops."""
    if frame is not None:
        open_modes = slice(learned, None)
        return frame.basis[:, open_modes], frame.g[open_modes], frame.basis[:, open_modes]
    gains = modes.gains(range(learned))
    return np.asarray(gains.left), np.asarray(gains.values), np.asarray(gains.right)


def off_span(vectors: np.ndarray) -> np.ndarray:
    """The projection off the span of orthonormal columns: there the weights are frozen (E6)."""
    return np.eye(len(vectors)) - vectors @ vectors.T


def _before(heads: DormantHeads) -> float:
    """Just before the first blow-up: two heads of equal times escape one after the other."""
    return (1 - 1e-9) * float(heads.blow_up()[0].min(initial=np.inf))


def _require_apart(drops: np.ndarray, count: int) -> None:
    if count < len(drops) and np.isclose(drops[count - 1], drops[count], rtol=TIED, atol=0):
        raise ValueError(
            f"modes {count - 1} and {count} have equal drops and no common eigenvectors, so the "
            f"limit does not say which is learned; perturb the task"
        )


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
