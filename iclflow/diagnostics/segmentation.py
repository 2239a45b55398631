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
    return Binned(mean_x, mean_y, local_noise(mean_x, mean_y), float(np.ptp(smooth)))


def local_noise(x: Float[np.ndarray, " B"], y: Float[np.ndarray, " B"]) -> Float[np.ndarray, " B"]:
    """Standard deviation of the noise near each bin.

    1.4826 times the running median of |yᵦ - cubic through its four neighbours|, divided by the
    factor by which that difference amplifies independent noise: a cubic follows drops of a few
    bins, and a median does not see the bins where it fails. The larger of the values just before
    and just after a bin is used, since noise may change together with the loss in a drop.
    """
    if y.size < 6:
        return np.zeros_like(y)
    offsets = (-2, -1, 1, 2)
    centre = np.arange(2, y.size - 2)
    apart, amplified = y[centre].copy(), np.ones(centre.size)
    for j in offsets:
        weight = np.ones(centre.size)  # Lagrange's polynomial of neighbour j at the centre
        for k in offsets:
            if k != j:
                weight *= (x[centre] - x[centre + k]) / (x[centre + j] - x[centre + k])
        apart -= weight * y[centre + j]
        amplified += weight**2
    apart = np.abs(apart) / np.sqrt(amplified)
    window = min(WINDOW, apart.size)
    typical = median_filter(apart, window, mode="reflect")
    here = np.arange(apart.size)
    before = typical[(here - window // 2).clip(min=0)]
    after = typical[(here + window // 2).clip(max=apart.size - 1)]
    return 1.4826 * np.pad(np.maximum(before, after), 2, mode="edge")


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
