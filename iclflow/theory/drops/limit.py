"""The limit of vanishing initial weights: drops as jumps, on the clock ε t.

With weights θ = ε θ̃ and ε → 0, ε times the time of each drop has a limit that depends on the
direction θ̃ alone: plateaus are the dormant heads' closed form, drops take no time. Since dormant
times scale exactly as 1/ε, the limit is given here on the clock t/τ of the weights themselves.
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from iclflow.losses import Population
from iclflow.models import AbstractModel
from iclflow.tasks.task import Task
from iclflow.theory.drops.base import Curve, Times
from iclflow.theory.drops.dormant import DormantHeads
from iclflow.theory.drops.frame import TIED, Frame, separate_weights
from iclflow.theory.fixed_points.modes import Modes


@dataclasses.dataclass(frozen=True)
class VanishingLimit:
    """n escapes in order; each takes the loss down by up to R modes at once."""

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
    """
    speed = np.cumsum(m)[:-1] ** (1 / 3)
    return np.diff(1 / g) / speed


def vanishing_limit(source: Task | Population | Modes, model: AbstractModel) -> VanishingLimit:
    """The limit ε → 0 along the direction of the given weights.

    On each plateau the head with the smallest blow-up time escapes and learns, at once on this
    clock, min(R, what is left) modes; the plateaus are the sets of largest drops (E1).
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
            frame = frame.turned(frame.slots(along, range(learned, modes.rank), count)[2])
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
