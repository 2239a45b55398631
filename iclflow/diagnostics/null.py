"""The null hypothesis of a drop: a curve whose rate has no maximum there."""

import numpy as np
import scipy
from jaxtyping import Float

from iclflow.diagnostics.segmentation import Binned, Pieces

FREEDOM = 3.0  # bins for a degree of freedom of the noise, a median of correlated residuals


def drop_p_values(
    binned: Binned,
    y: Float[np.ndarray, " B"],
    sigma: Float[np.ndarray, " B"],
    pieces: Pieces,
    peaks: list[int],
    contrast: float,
) -> list[float]:
    """How often a curve without this drop would show one, for each.

    Without the drop the loss is convex, or concave, or first convex and then concave on the clock
    (power laws, straight lines, the flanks of the neighbours): its rate has no maximum in between.
    So a drop has to bend down before its steepest piece and up after it. Each bend is the slope
    that one knot adds to a straight line from the slowest piece to the steepest, in standard
    errors; the smaller of the two counts, times the number of bins (the places looked at).
    """
    count, knots, bounds = binned.x.size, pieces.knots, [-1, *peaks, pieces.rate.size]
    found = []
    for i, peak in enumerate(peaks):
        before, after = pieces.rate[bounds[i] + 1 : peak], pieces.rate[peak + 1 : bounds[i + 2]]
        limit = contrast * pieces.rate[peak]
        if before.size == 0 or before.min() > limit:
            found.append(1.0)  # falling from the start: no plateau that it could leave
            continue
        slow = bounds[i] + 1 + int(np.argmin(before))
        bends = [-_bend(binned.x, y, sigma, int(knots[slow]), int(knots[peak + 1]), -1)]
        if after.size and after.min() <= limit:
            slow = peak + 1 + int(np.argmin(after))
            bends.append(-_bend(binned.x, y, sigma, int(knots[peak]), int(knots[slow + 1]), 1))
        elif i < len(peaks) - 1 or not _stopped_early(binned, pieces, bounds[i], slow):
            found.append(1.0)
            continue
        found.append(min(1.0, count * float(scipy.special.stdtr(count / FREEDOM, max(bends)))))
    return found


def _bend(
    x: Float[np.ndarray, " B"],
    y: Float[np.ndarray, " B"],
    sigma: Float[np.ndarray, " B"],
    low: int,
    high: int,
    sign: int,
) -> float:
    """The largest bend of this sign between two bins, in standard errors."""
    inside = slice(low, high + 1)
    weight, place = 1 / sigma[inside], x[inside] - x[low]
    basis = np.linalg.qr(np.stack([weight, weight * place], axis=1))[0]
    bends = np.maximum(place[:, None] - place[None, 1:-1], 0) * weight[:, None]
    bends -= basis @ (basis.T @ bends)
    size = np.sqrt(np.sum(bends**2, axis=0))
    return float(np.max(sign * (y[inside] * weight) @ bends / size, initial=0.0))


def _stopped_early(binned: Binned, pieces: Pieces, previous: int, slow: int) -> bool:
    """Whether a fall at the end is that of a drop: its plateau is longer, on any clock.

    A loss that goes on falling as a power of time is no drop, though on a log clock all of its
    fall is at the end.
    """
    begin, fit = int(pieces.knots[previous + 1]), pieces.fit
    level = fit[pieces.middle(slow)]
    leaves = int(np.flatnonzero(fit >= level - 0.1 * (level - fit[-1]))[-1])
    return all(c[leaves] - c[begin] >= c[-1] - c[leaves] for c in (binned.x, binned.time))
