"""A noisy curve as straight pieces: the local slope at a scale that the noise itself decides."""

import dataclasses

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from iclflow.diagnostics.noise import point_noise

BINS = 128  # equal stretches of the clock to begin with
FALL = 0.01  # of the range: the fall in a bin above which it is halved
SWEEPS = 3  # of moving knots


@dataclasses.dataclass(frozen=True)
class Binned:
    """A curve averaged over bins of the clock `x`."""

    x: Float[np.ndarray, " B"]
    y: Float[np.ndarray, " B"]
    noise: Float[np.ndarray, " B"]  # standard deviation of y around the curve
    width: Float[np.ndarray, " B"]  # of the bin in the clock: its weight in a median
    time: Float[np.ndarray, " B"]
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
    time: Float[np.ndarray, " T"],
    x: Float[np.ndarray, " T"],
    y: Float[np.ndarray, " T"],
    resolution: int | None = None,
) -> Binned:
    """Averages in bins of the clock; bins without a point are left out.

    128 equal ones, each halved as long as its halves differ by more than 1% of the range and 4
    standard errors: as fine as the points allow where the loss moves. No bin has fewer points
    than the noise remembers. With `resolution`, that many equal ones instead.
    """
    deviation, memory = point_noise(x, y)
    # of an AR(1) noise that is down to a fifth after `memory` points
    variance = deviation**2 * (1 if memory == 1 else 1.5 * memory)
    shortest = 1 if memory == 1 else 3 * memory
    first = np.searchsorted(x, np.linspace(x[0], x[-1], (resolution or BINS) + 1)[1:-1])
    starts = np.unique([0, *first[first < x.size]])
    if resolution is None:
        starts = _halved(x, y, variance, _thinned(starts, x.size, shortest), shortest)
    count = np.diff([*starts, x.size])
    at, mean_x, mean_y, noise = (
        np.add.reduceat(values, starts) / count for values in (time, x, y, variance)
    )
    edges = np.concatenate([x[:1], (x[starts[1:]] + x[starts[1:] - 1]) / 2, x[-1:]])
    # one of a few points far apart does not weigh more than one of many
    width = np.minimum(np.diff(edges), (x[-1] - x[0]) / BINS)
    smooth = scipy.ndimage.median_filter(mean_y, 5, mode="nearest")
    return Binned(mean_x, mean_y, np.sqrt(noise / count), width, at, float(np.ptp(smooth)))


def _thinned(starts: Int[np.ndarray, " B"], size: int, shortest: int) -> Int[np.ndarray, " C"]:
    """Those starts that leave every bin at least `shortest` points."""
    kept = [0]
    for start in starts[1:]:
        if start - kept[-1] >= shortest and size - start >= shortest:
            kept.append(int(start))
    return np.array(kept)


def _halved(
    x: Float[np.ndarray, " T"],
    y: Float[np.ndarray, " T"],
    variance: Float[np.ndarray, " T"],
    starts: Int[np.ndarray, " B"],
    shortest: int,
) -> Int[np.ndarray, " C"]:
    """Bins halved on the clock as long as the means of the halves differ."""
    sums = np.concatenate([np.zeros((2, 1)), np.cumsum([y, variance], axis=1)], axis=1)
    means = np.diff(sums[0, [*starts, x.size]]) / np.diff([*starts, x.size])
    span = np.ptp(scipy.ndimage.median_filter(means, 5, mode="nearest"))
    while True:
        ends = np.concatenate([starts[1:], [x.size]])
        cuts = np.searchsorted(x, (x[starts] + x[ends - 1]) / 2, side="right")
        wide = np.minimum(cuts - starts, ends - cuts) >= shortest
        low, cuts, high = starts[wide], cuts[wide], ends[wide]
        left, right = cuts - low, high - cuts
        first = (sums[:, cuts] - sums[:, low]) / left
        second = (sums[:, high] - sums[:, cuts]) / right
        error = np.sqrt(first[1] / left + second[1] / right)
        chosen = np.abs(first[0] - second[0]) > np.maximum(FALL * span, 4 * error)
        if not chosen.any():
            return starts
        starts = np.sort(np.concatenate([starts, cuts[chosen]]))


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

    pairs = _pairs(x.size)
    alone = np.sum(bends**2, axis=0)
    both = np.sum((bends[:, pairs[:, 0]] - bends[:, pairs[:, 1]]) ** 2, axis=0)

    def gains(knots: list[int], paired: bool = False) -> tuple[np.ndarray, float]:
        """How much each further knot (or pair) would lower the misfit of these, and that misfit."""
        basis = np.linalg.qr(np.concatenate([line, bends[:, knots]], axis=1))[0]
        rest = scaled - basis @ (basis.T @ scaled)
        inside, slope, size = basis.T @ bends, rest @ bends, alone
        if paired:
            inside, slope = (v[..., pairs[:, 0]] - v[..., pairs[:, 1]] for v in (inside, slope))
            size = both
        free = size - np.sum(inside**2, axis=0)
        usable = free > 1e-9 * size
        gain = np.where(usable, slope**2 / np.where(usable, free, 1), 0)
        return gain, float(rest @ rest)

    knots: list[int] = []
    while len(knots) < x.size - 3:
        gain, _ = gains(knots)
        if gain.max() > penalty:
            knots.append(int(np.argmax(gain)))
            continue
        gain, _ = gains(knots, paired=True)  # a small drop needs two knots at once
        if gain.size == 0 or gain.max() <= 2 * penalty:
            break
        knots = list({*knots, *pairs[int(np.argmax(gain))].tolist()})
    _, misfit = gains(knots)
    for _ in range(SWEEPS):
        before = misfit + penalty * len(knots)
        for knot in list(knots):
            others = [k for k in knots if k != knot]
            gain, without = gains(others)
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
