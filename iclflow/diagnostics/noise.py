"""The noise of a curve: its size at each point, and for how many points it persists."""

import numpy as np
import scipy
from jaxtyping import Float, Int

LEVEL = 15  # points over which the loss that the noise may follow is taken
LONG = 16  # points: a memory that is believed without seeing its end
MISFIT = 5e-4  # of the range: deviations from straight pieces that are not noise
SAMPLE = 4000  # points from which the memory of the noise is read
WINDOW = 101  # points over which the noise is taken as constant


def point_noise(
    x: Float[np.ndarray, " T"], y: Float[np.ndarray, " T"]
) -> tuple[Float[np.ndarray, " T"], int]:
    """Standard deviation of the noise of each point, and the points for which it persists.

    The deviation is |y|^α times a slow function: 1.4826 times the running median of the distance
    from the cubic through four neighbours. α is 0 (noise of constant size), ½ or 1 (noise
    proportional to the loss), whichever makes that function most even: noise that changes
    suddenly, together with the loss in a drop, is then followed all the same.

    The neighbours are as far apart as the noise persists.
    """
    if y.size < 6:
        return np.zeros_like(y), 1
    level = scipy.ndimage.median_filter(np.abs(y), LEVEL, mode="nearest")
    level = np.maximum(level, 1e-6 * float(level.max()) or 1.0)
    lag = _memory(x, y)
    near, weights = _cubic(x, lag)
    apart = np.abs(np.sum(weights * y[near], axis=0))
    best, unevenness = np.zeros_like(y), np.inf
    for power in (0.0, 0.5, 1.0):
        shape = level**power
        ratio = apart / np.sqrt(np.sum((weights * shape[near]) ** 2, axis=0))
        typical = scipy.ndimage.median_filter(ratio, min(WINDOW, ratio.size), mode="reflect")
        spread = np.log(np.maximum(typical, 1e-300))
        if np.ptp(spread) < unevenness:
            unevenness = float(np.ptp(spread))
            best = 1.4826 * np.pad(typical, 2 * lag, mode="edge") * shape
    return best, 1 if np.median(best) < MISFIT * np.ptp(y) else lag


def _memory(x: Float[np.ndarray, " T"], y: Float[np.ndarray, " T"]) -> int:
    """The points for which the noise persists: 1, 2, 4, ...

    The distance from the cubic through neighbours so far apart does not change for independent
    noise; for noise with a memory it grows at most by √2 each time until they exceed it, for a
    curve without noise far more. It has to stay for two doublings: in a curve of few memories one
    may be chance.
    """

    def distance(lag: int) -> float:
        near, weights = _cubic(x, lag, at_most=SAMPLE)
        size = np.sqrt(np.sum(weights**2, axis=0))
        return float(np.median(np.abs(np.sum(weights * y[near], axis=0)) / size))

    chance = max(0.14, 3 / y.size**0.5)  # by which two medians may differ
    lag, now, after = 1, distance(1), distance(2) if y.size > 16 else np.inf
    while y.size >= 64 * lag and after <= 2 * now:
        later = distance(4 * lag)
        if after < (1 + chance) * now and later < (1 + 1.8 * chance) * now:
            return lag
        lag, now, after = 2 * lag, after, later
    return lag if lag >= LONG else 1  # no end in sight: a long memory, or the curve itself


def _cubic(
    x: Float[np.ndarray, " T"], lag: int, at_most: int | None = None
) -> tuple[Int[np.ndarray, "5 S"], Float[np.ndarray, "5 S"]]:
    """Points with their neighbours at ±lag, ±2 lag, and the weights of y minus their cubic."""
    step = 1 if at_most is None else -(-x.size // at_most)
    centre, offsets = np.arange(2 * lag, x.size - 2 * lag, step), (-2, -1, 1, 2)
    near = centre + lag * np.arange(-2, 3)[:, None]
    weights = np.ones((5, centre.size))
    for j in offsets:  # Lagrange's polynomial of neighbour j at the centre
        factors = [
            (x[near[2]] - x[near[k + 2]]) / (x[near[j + 2]] - x[near[k + 2]])
            for k in offsets
            if k != j
        ]
        weights[j + 2] = -np.prod(factors, axis=0)
    return near, weights
