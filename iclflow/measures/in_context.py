"""Which drop of a loss is in-context learning: the share of a fall that late positions have alone.

A model that learns something about its data as a whole (how often each token occurs, say) gets
better at all positions of the context alike. A model that learns from its context gets better at
late positions, which have much context, and not at early ones. So the fall of the late loss over a
drop is divided into what the early loss falls too and the rest, which is the rise of the in-context
score early - late (Olsson et al. 2022, with the sign turned).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy
from jaxtyping import Float

from iclflow.measures.segmentation import MISFIT, clip_outliers, point_noise

LEAST = 0.1  # share of the fall: a drop with less of it alone is one that all positions have
FEW = 3  # points that a level is taken from, at least
TINY = 1e-300
PART = 0.1  # of the positions are early, and as many late


@dataclasses.dataclass(frozen=True)
class InContext:
    """How much of one drop late positions have alone.

    - `share`: (fall of the late loss - fall of the early loss) / fall of the late loss. It is 1
      where only late positions fall, 0 where early ones fall as much, and negative where they fall
      more. NaN where the late loss does not fall.
    - `error`: the standard error of the share, from the noise of the two curves about their levels.
    - `p_value`: how often curves under the null hypothesis would show this (one-sided, Student's
      t). The null hypothesis is that all positions fall together, with a share of at most a tenth,
      or that late positions are no better than early ones after the drop, by at most a tenth of
      the fall. The second part is for starts at which late predictions are worse: they fall more
      at first without any use of the context.
    - `early`, `late`: the falls of the two losses.
    - `advantage`: early - late after the drop, by how much the context helps then.
    - `label`: whether the null hypothesis is rejected, so that the drop is in-context learning.
    """

    share: float
    error: float
    p_value: float
    early: float
    late: float
    advantage: float
    label: bool

    def __str__(self) -> str:
        if np.isnan(self.share):
            return "no in-context learning, late positions do not fall"
        verdict = "in-context learning" if self.label else "no in-context learning"
        text = (
            f"{verdict}, late positions have {self.share:.1%} ± {self.error:.1%} of their fall "
            f"alone (p = {self.p_value:.1g})"
        )
        useless = self.share > LEAST and self.advantage <= LEAST * self.late
        return text + useless * " but are no better than early ones after it"


class ByPosition(NamedTuple):
    """Three curves [T] of a table of losses by position.

    - `early`, `late`: the means over the early and over the late positions.
    """

    loss: Float[np.ndarray, " T"]  # the mean over all positions
    early: Float[np.ndarray, " T"]
    late: Float[np.ndarray, " T"]


def by_position(losses: Any, *, part: float = PART) -> ByPosition:
    """The mean, early and late loss of a table [T, K] of losses at K positions of the context.

    - `losses`: a row per time, the columns in the order of the positions.
    - `part`: the share of the positions that count as early, and as late: the first and the last
      tenth, at least one of each.

    >>> from iclflow.measures import by_position
    >>> by_position([[3.0, 2.0, 1.0], [3.0, 1.0, 0.5]]).late.tolist()
    [1.0, 0.5]
    """
    table = np.asarray(losses, float)
    if table.ndim != 2 or table.shape[1] < 2:
        raise ValueError(
            f"losses by position need a row per time and two positions or more, got shape "
            f"{table.shape}"
        )
    if not 0 < part <= 0.5:
        raise ValueError(f"part is a share of the positions up to 0.5, got {part}")
    count = max(1, round(part * table.shape[1]))
    means = table.mean(axis=1), table[:, :count].mean(axis=1), table[:, -count:].mean(axis=1)
    return ByPosition(*means)


def in_context_share(
    x: Float[np.ndarray, " T"],
    early: Float[np.ndarray, " T"],
    late: Float[np.ndarray, " T"],
    before: tuple[float, float],
    after: tuple[float, float],
    *,
    least: float = LEAST,
    false_alarms: float = 0.01,
) -> InContext:
    """The share of a fall from one stretch of the clock to another that late positions have alone.

    - `x`: the clock's readings of the points.
    - `early`, `late`: the losses at early and late positions.
    - `before`, `after`: the two stretches between which the fall is taken. One with fewer than
      three points is widened to the nearest three.
    - `least`: the null hypothesis is a share of at most this, or as small an advantage of late
      positions afterwards.
    - `false_alarms`: the p-value from which on the drop has no label.

    With a share ρ the curve (1 - ρ) late - early has the same level before and after. So the null
    hypothesis is a statement about one curve, whose noise contains what the noises of the two
    losses have in common. Both parts of the hypothesis have to be rejected, so the larger of their
    two p-values counts.
    """
    windows = _points(x, before), _points(x, after)
    falls = [float(c[windows[0]].mean() - c[windows[1]].mean()) for c in (early, late)]
    misfit = MISFIT * max(abs(falls[0]), abs(falls[1]))
    if not falls[1] > 2 * _levels(x, late, windows, misfit)[1]:
        after_it = float(np.mean((early - late)[windows[1]]))
        return InContext(np.nan, np.nan, 1.0, falls[0], falls[1], after_it, False)
    share = 1 - falls[0] / falls[1]
    error = _levels(x, (1 - share) * late - early, windows, misfit)[1] / falls[1]
    levels, deviation, freedom = _levels(x, (1 - least) * late - early, windows, misfit)
    together = scipy.special.stdtr(freedom, (levels[1] - levels[0]) / max(deviation, TINY))
    levels, deviation, freedom = _levels(x, early - late, windows[1:], misfit)
    useless = scipy.special.stdtr(freedom, (least * falls[1] - levels[0]) / max(deviation, TINY))
    p_value = float(max(together, useless))
    label = p_value <= false_alarms
    return InContext(share, error, p_value, falls[0], falls[1], levels[0], label)


def _points(x: Float[np.ndarray, " T"], stretch: tuple[float, float]) -> np.ndarray:
    """The indices of the points inside a stretch, or of those nearest to its middle."""
    inside = np.flatnonzero((x >= stretch[0]) & (x <= stretch[1]))
    if inside.size >= FEW:
        return inside
    distance = np.maximum(stretch[0] - x, 0) + np.maximum(x - stretch[1], 0)
    return np.sort(np.argsort(distance, kind="stable")[:FEW])


def _levels(
    x: Float[np.ndarray, " T"],
    curve: Float[np.ndarray, " T"],
    windows: Sequence[np.ndarray],
    misfit: float,
) -> tuple[list[float], float, float]:
    """The levels of a curve in some windows, the standard error of their sum, its freedom.

    The noise is that of the stage detector: its size may change along the curve, and points within
    its memory count as one. A level is known to `misfit` at best.
    """
    deviation, memory = point_noise(x, curve)
    curve = clip_outliers(curve, deviation)
    alike = 1.0 if memory == 1 else 1.5 * memory
    counts = [max(window.size / alike, 1.0) for window in windows]
    variances = [
        misfit**2 + float(np.mean(deviation[window] ** 2)) / count
        for window, count in zip(windows, counts, strict=True)
    ]
    levels = [float(curve[window].mean()) for window in windows]
    return levels, float(np.sqrt(sum(variances))), max(sum(counts) - len(windows), 1.0)
