"""A noisy curve as straight pieces: the local slope at a scale that the noise itself decides."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.ndimage import median_filter

WINDOW = 15  # bins over which the noise is taken as constant
SWEEPS = 3  # of moving knots


@dataclasses.dataclass(frozen=True)
class Binned:
    """A curve averaged over bins of equal width in the clock `x`."""

    x: Float[np.ndarray, " B"]
    y: Float[np.ndarray, " B"]
    noise: Float[np.ndarray, " B"]  # standard deviation of y around the curve
    range: float  # largest minus smallest loss, spikes of one or two bins left out


@dataclasses.dataclass(frozen=True)
class Pieces:
    """A continuous curve of straight pieces, the i-th from bin `knots[i]` to `knots[i + 1]`."""

    knots: Int[np.ndarray, " K"]
    rate: Float[np.ndarray, " S"]  # loss lost per unit of the clock
    fit: Float[np.ndarray, " B"]

    def middle(self, piece: int) -> int:
        """The bin in the middle of a piece."""
        return int(self.knots[piece] + self.knots[piece + 1]) // 2

    def slow(self, low: int, high: int, limit: float) -> Bool[np.ndarray, " B"]:
        """The bins of those pieces from `low` up to `high` that fall no faster than `limit`."""
        chosen = np.zeros(self.fit.size, bool)
        for piece in range(low, high):
            if self.rate[piece] <= limit:
                chosen[self.knots[piece] : self.knots[piece + 1] + 1] = True
        return chosen


def bin_curve(
    x: Float[np.ndarray, " T"], y: Float[np.ndarray, " T"], resolution: int = 128
) -> Binned:
    """Averages in at most `resolution` bins; bins without a point are left out."""
    width = (x[-1] - x[0]) / resolution
    label = np.zeros(x.size, int) if width <= 0 else np.floor((x - x[0]) / width).astype(int)
    _, label, count = np.unique(
        label.clip(max=resolution - 1), return_inverse=True, return_counts=True
    )
    mean_x = np.bincount(label, x) / count
    mean_y = np.bincount(label, y) / count
    smooth = median_filter(mean_y, 5, mode="nearest")
    return Binned(mean_x, mean_y, local_noise(mean_x, mean_y, count), float(np.ptp(smooth)))


def local_noise(
    x: Float[np.ndarray, " B"], y: Float[np.ndarray, " B"], count: Int[np.ndarray, " B"]
) -> Float[np.ndarray, " B"]:
    """Standard deviation of the noise in each bin: |y|^α count^(-1/2) times a slow function.

    The slow function is 1.4826 times the running median of |yᵦ - cubic through its four
    neighbours| over the size which that would have for independent noise: a cubic follows drops
    of a few bins, and a median does not see the bins where it fails. α is 0 (noise of constant
    size), ½ or 1 (noise proportional to the loss), whichever makes that function most even: noise
    that changes suddenly, together with the loss in a drop, is then followed all the same.
    """
    if y.size < 6:
        return np.zeros_like(y)
    centre, offsets = np.arange(2, y.size - 2), (-2, -1, 1, 2)
    weights = np.zeros((5, centre.size))
    weights[2] = 1
    for j in offsets:  # Lagrange's polynomial of neighbour j at the centre
        factors = [
            (x[centre] - x[centre + k]) / (x[centre + j] - x[centre + k]) for k in offsets if k != j
        ]
        weights[j + 2] = -np.prod(factors, axis=0)
    near = centre + np.arange(-2, 3)[:, None]
    apart = np.abs(np.sum(weights * y[near], axis=0))
    level = median_filter(np.abs(y), 5, mode="nearest")
    level = np.maximum(level, 1e-6 * float(level.max()) or 1.0)
    best, unevenness = np.zeros_like(y), np.inf
    for power in (0.0, 0.5, 1.0):
        shape = level**power / np.sqrt(count)
        ratio = apart / np.sqrt(np.sum((weights * shape[near]) ** 2, axis=0))
        typical = median_filter(ratio, min(WINDOW, ratio.size), mode="reflect")
        spread = np.log(np.maximum(typical, 1e-300))
        if np.ptp(spread) < unevenness:
            unevenness = float(np.ptp(spread))
            best = 1.4826 * np.pad(typical, 2, mode="edge") * shape
    return best


def straight_pieces(
    x: Float[np.ndarray, " B"],
    y: Float[np.ndarray, " B"],
    sigma: Float[np.ndarray, " B"],
    penalty: float,
) -> Pieces:
    """A continuous piecewise straight line with few knots: Σ((y - line)/σ)² + `penalty` · knots.

    Knots are added where they help most, one by one or in pairs, then each is moved to its best
    place or removed, until nothing improves. All places are tried at once, by projection.
    """
    weight = 1 / sigma
    scaled = y * weight
    span = max(float(np.ptp(x)), 1e-300)
    line = np.stack([np.ones_like(x), (x - x[0]) / span], axis=1) * weight[:, None]
    bends = np.maximum(x[:, None] - x[None, :], 0) / span * weight[:, None]
    bends[:, [0, -1]] = 0.0  # no knot at the ends

    def gains(knots: list[int], trials: np.ndarray) -> tuple[np.ndarray, float]:
        """How much each further column would lower the misfit of these knots, and that misfit."""
        basis = np.linalg.qr(np.concatenate([line, bends[:, knots]], axis=1))[0]
        rest = scaled - basis @ (basis.T @ scaled)
        inside = basis.T @ trials
        size = np.einsum("bk,bk->k", trials, trials)
        free = size - np.einsum("kb,kb->b", inside, inside)
        usable = free > 1e-9 * size
        gain = np.where(usable, (rest @ trials) ** 2 / np.where(usable, free, 1), 0)
        return gain, float(rest @ rest)

    knots: list[int] = []
    pairs = _pairs(x.size)
    ramps = bends[:, pairs[:, 0]] - bends[:, pairs[:, 1]]
    while len(knots) < x.size - 3:
        gain, _ = gains(knots, bends)
        if gain.max() > penalty:
            knots.append(int(np.argmax(gain)))
            continue
        gain, _ = gains(knots, ramps)  # a small drop needs two knots at once
        if gain.size == 0 or gain.max() <= 2 * penalty:
            break
        knots = list({*knots, *pairs[int(np.argmax(gain))].tolist()})
    _, misfit = gains(knots, bends)
    for _ in range(SWEEPS):
        before = misfit + penalty * len(knots)
        for knot in list(knots):
            others = [k for k in knots if k != knot]
            gain, without = gains(others, bends)
            best = int(np.argmax(gain))
            knots = [*others, best] if gain[best] > penalty else others
            misfit = without - gain[best] if gain[best] > penalty else without
        if misfit + penalty * len(knots) >= before - 1e-3:
            break
    places = np.array([0, *sorted(knots), x.size - 1])
    design = np.concatenate([line, bends[:, knots]], axis=1)
    fit = design @ np.linalg.lstsq(design, scaled, rcond=None)[0] / weight
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = -np.diff(fit[places]) / np.diff(x[places])
    return Pieces(places, np.nan_to_num(rate), fit)


def _pairs(count: int) -> Int[np.ndarray, "P 2"]:
    """Two knots at a distance of 1, 2, 4, ... bins, everywhere but at the ends."""
    widths = [2**i for i in range(12) if 2**i <= count // 4]
    found = [(k, k + w) for w in widths for k in range(1, count - 1 - w)]
    return np.array(found, int).reshape(-1, 2)
