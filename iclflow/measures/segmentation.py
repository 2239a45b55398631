"""A noisy curve as straight pieces: the local slope at a scale that the noise itself decides.

First the noise of the curve: its size at each point, its tails, and for how many points it
persists. Then averages in bins of the clock, and the continuous line of few straight pieces.
"""

import dataclasses

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

LEVEL = 15  # points over which the loss that the noise may follow is taken
LONG = 16  # points: a memory that is believed without seeing its end
MISFIT = 5e-4  # of the range: deviations from straight pieces that are not noise
SAMPLE = 4000  # points from which the memory of the noise is read
TAIL = 4.0  # standard deviations: a point farther out than this counts as one of these
SLACK = 1.08  # by which tails may raise the deviation before it counts: the p-value has room for it
WINDOW = 101  # points over which the noise is taken as constant
BINS = 128  # equal stretches of the clock to begin with
FALL = 0.01  # of the range: the fall in a bin above which it is halved
SWEEPS = 3  # of moving knots


def point_noise(
    x: Float[np.ndarray, " T"], y: Float[np.ndarray, " T"]
) -> tuple[Float[np.ndarray, " T"], int]:
    """Standard deviation of the noise of each point, and the points for which it persists.

    The deviation is |y|^α times a slow function: 1.4826 times the running median of the distance
    from the cubic through four neighbours. α is 0 (noise of constant size), ½ or 1 (noise
    proportional to the loss), whichever makes that function most even: noise that changes
    suddenly, together with the loss in a drop, is then followed all the same. Noise with heavier
    tails than the normal law is larger than its median says: the deviation is raised to the root
    mean square of the distances, of which none counts for more than TAIL deviations. A rise by less
    than SLACK is left out, because p-values times the number of places are too large anyway.

    The neighbours are as far apart as the noise persists.
    """
    if y.size < 6:
        return np.zeros_like(y), 1
    level = scipy.ndimage.median_filter(np.abs(y), LEVEL, mode="nearest")
    level = np.maximum(level, 1e-6 * float(level.max()) or 1.0)
    lag = _memory(x, y)
    near, weights = _cubic(x, lag)
    apart = np.abs(np.sum(weights * y[near], axis=0))
    best, unevenness, tails = np.zeros_like(y), np.inf, 1.0
    for power in (0.0, 0.5, 1.0):
        shape = level**power
        ratio = apart / np.sqrt(np.sum((weights * shape[near]) ** 2, axis=0))
        typical = scipy.ndimage.median_filter(ratio, min(WINDOW, ratio.size), mode="reflect")
        spread = np.log(np.maximum(typical, 1e-300))
        if np.ptp(spread) < unevenness:
            unevenness = float(np.ptp(spread))
            best = 1.4826 * np.pad(typical, 2 * lag, mode="edge") * shape
            far = np.minimum(ratio, TAIL * 1.4826 * typical) / (
                1.4826 * np.maximum(typical, 1e-300)
            )
            tails = max(1.0, float(np.sqrt(np.mean(far**2))))
    best = max(1.0, tails / SLACK) * best
    return best, 1 if np.median(best) < MISFIT * np.ptp(y) else lag


def clip_outliers(
    y: Float[np.ndarray, " T"], deviation: Float[np.ndarray, " T"]
) -> Float[np.ndarray, " T"]:
    """The curve with every point within TAIL standard deviations of the median of five neighbours.

    A mean of noise with heavy tails is thus about as certain as its deviation says. A point of a
    decreasing curve is the median of its neighbours, so that a clean drop stays what it is, however
    steep it is.
    """
    middle = scipy.ndimage.median_filter(y, 5, mode="nearest")
    return np.clip(y, middle - TAIL * deviation, middle + TAIL * deviation)


def _memory(x: Float[np.ndarray, " T"], y: Float[np.ndarray, " T"]) -> int:
    """The points for which the noise persists: 1, 2, 4, ...

    The distance from the cubic through neighbours so far apart does not change for independent
    noise; for noise with a memory it grows at most by √2 each time until they exceed it, for a
    curve without noise far more. It has to stay for two doublings: in a curve of few memories one
    may be chance. The search goes on up to a sixteenth of the curve. Noise that has not ended
    there leaves few bins, and only drops far larger than the noise are told from it.
    """

    def distance(lag: int) -> float:
        near, weights = _cubic(x, lag, at_most=SAMPLE)
        size = np.sqrt(np.sum(weights**2, axis=0))
        return float(np.median(np.abs(np.sum(weights * y[near], axis=0)) / size))

    chance = max(0.14, 3 / y.size**0.5)  # by which two medians may differ
    lag, now, after = 1, distance(1), distance(2) if y.size > 16 else np.inf
    while y.size >= 16 * lag and after <= 2 * now:
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
    y = clip_outliers(y, deviation)
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
