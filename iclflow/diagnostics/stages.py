"""Plateaus and drops of a loss curve.

A drop is a stretch of fast descent between two stretches in which the loss falls at most
`contrast` times as fast (per unit of the clock); a plateau is such a slow stretch. The slope is
that of the best piecewise straight line (`segmentation`), so its scale adapts to the noise.
"""

import dataclasses
import enum
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import isotonic_regression

from iclflow.diagnostics.segmentation import Binned, Pieces, bin_curve, straight_pieces

MISFIT = 5e-4  # of the range: deviations from straight pieces that are not noise
SHORT = 3  # bins a plateau needs for its level to be taken again
SIGNIFICANCE = 4.0  # standard errors between the levels before and after a drop


class Clock(enum.Enum):
    """The time in which a plateau is long: `LOG` treats every decade alike."""

    LOG = "log"
    LINEAR = "linear"

    def __call__(self, time: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
        """The clock's reading; time 0 stands half the first positive time on a log clock."""
        if self is Clock.LINEAR:
            return time
        positive = time[time > 0]
        first = positive[0] if positive.size else 1.0
        return np.log(np.maximum(time, first / 2))

    def inverse(self, reading: float) -> float:
        """The time of a reading."""
        return float(reading if self is Clock.LINEAR else np.exp(reading))


@dataclasses.dataclass(frozen=True)
class Plateau:
    """A slow stretch: from 90% of the drop before to 10% of the drop after."""

    start: float
    end: float
    level: float  # median loss
    confidence: float


@dataclasses.dataclass(frozen=True)
class Drop:
    """A fast stretch. `time` is where the loss crosses halfway between the two levels."""

    time: float
    start: float  # 10% down
    end: float  # 90% down
    before: float
    after: float  # for an incomplete drop, the loss at the end of the curve
    complete: bool  # False if the curve ends before the loss levels off
    confidence: float

    @property
    def size(self) -> float:
        """The loss lost in the drop."""
        return self.before - self.after


@dataclasses.dataclass(frozen=True)
class Stages:
    """The plateaus and drops of one curve, in order of time.

    Every drop has a plateau before it (of no length if the curve starts by falling) and, unless
    it is incomplete, one after it. Confidence is the share of resampled curves, each read with
    thresholds changed by up to a factor 1.5, in which the plateau or drop is found again; NaN
    without resampling.
    """

    plateaus: tuple[Plateau, ...]
    drops: tuple[Drop, ...]
    noise: float  # median standard deviation of a bin's loss
    clock: Clock

    def at(self, time: float | int) -> int:
        """The number of drops whose middle has passed: the plateau one is on, or heading for."""
        return sum(drop.time <= time for drop in self.drops)

    def lines(self) -> list[str]:
        """One line for each plateau."""
        return [
            f"plateau {i}: {p.start:.6g} to {p.end:.6g}, loss {p.level:.6g}, "
            f"confidence {p.confidence:.2f}"
            for i, p in enumerate(self.plateaus)
        ]


@dataclasses.dataclass(frozen=True)
class _Thresholds:
    contrast: float
    smallest: float  # of the range
    penalty: float

    def jitter(self, rng: np.random.Generator) -> "_Thresholds":
        factors = 1.5 ** rng.uniform(-1, 1, 3)
        values = dataclasses.astuple(self)
        return _Thresholds(*(float(v * f) for v, f in zip(values, factors, strict=True)))


def find_stages(
    time: Any,
    loss: Any,
    *,
    clock: Clock = Clock.LOG,
    contrast: float = 0.35,
    smallest: float = 0.02,
    resamples: int = 20,
    resolution: int = 128,
    seed: int = 0,
) -> Stages:
    """Plateaus and drops of a loss recorded at increasing times.

    - `time`, `loss`: one value each per saved point; points that are not finite (after a run
      has stopped) are left out.
    - `contrast`: on a plateau the loss falls at most this many times as fast as in the drops
      beside it. Larger finds briefer plateaus.
    - `smallest`: a drop is at least this share of the range of the loss, and stands
      4 standard errors out of the noise.
    - `resamples`: curves drawn for the confidence (fit plus noise of the measured size).
    """
    times, losses = _checked(time, loss)
    if times.size == 0:
        return Stages((), (), 0.0, clock)
    x = clock(times)
    binned = bin_curve(x, losses, resolution)
    # Schwarz's criterion: a knot has two parameters, its place and its bend
    thresholds = _Thresholds(contrast, smallest, 2 * float(np.log(max(binned.x.size, 2))))
    pieces, peaks = _falls(binned, binned.y, thresholds)
    drops, plateaus = _timings(x, losses, binned, pieces, peaks, contrast)
    found = np.zeros(len(drops)), np.zeros(len(plateaus))
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        drawn = pieces.fit + binned.noise * rng.normal(size=binned.x.size)
        again, others = _falls(binned, drawn, thresholds.jitter(rng))
        _count_found(found, binned.x, drops, plateaus, again, others)
    share = [f / resamples if resamples else np.full(f.shape, np.nan) for f in found]

    def at(reading: float) -> float:
        return float(times[0]) if reading <= x[0] else clock.inverse(reading)

    return Stages(
        tuple(
            Plateau(at(p.start), at(p.end), p.level, float(c))
            for p, c in zip(plateaus, share[1], strict=True)
        ),
        tuple(
            dataclasses.replace(
                d, time=at(d.time), start=at(d.start), end=at(d.end), confidence=float(c)
            )
            for d, c in zip(drops, share[0], strict=True)
        ),
        float(np.median(binned.noise)),
        clock,
    )


def find_stages_of_runs(time: Any, losses: Any, **options: Any) -> list[Stages]:
    """`find_stages` of many curves on one time axis, [seeds, T]."""
    return [find_stages(time, loss, **options) for loss in np.atleast_2d(np.asarray(losses))]


def _checked(time: Any, loss: Any) -> tuple[np.ndarray, np.ndarray]:
    times, losses = np.asarray(time, dtype=float), np.asarray(loss, dtype=float)
    if times.ndim != 1 or times.shape != losses.shape:
        raise ValueError(
            f"a loss curve needs one time for each loss, got shapes {times.shape} and "
            f"{losses.shape}; for many seeds use find_stages_of_runs"
        )
    keep = np.isfinite(times) & np.isfinite(losses)
    times, losses = times[keep], losses[keep]
    if np.any(np.diff(times) <= 0):
        where = int(np.argmax(np.diff(times) <= 0))
        raise ValueError(
            f"times must increase, got {times[where]:g} before {times[where + 1]:g}; sort the curve"
        )
    if times.size and times[0] < 0:
        raise ValueError(f"times must not be negative, got {times[0]:g}; count from the start")
    return times, losses


def _falls(
    binned: Binned, y: Float[np.ndarray, " B"], thresholds: _Thresholds
) -> tuple[Pieces, list[int]]:
    """The fit to binned losses `y` and the steepest piece of each of its drops.

    Every local maximum of the rate is a candidate. Candidates between levels that hardly differ
    (noise, spikes) are given up first, the smallest first; then, of two neighbours between which
    the loss nowhere falls slowly enough, the slower one, which becomes part of the other.
    """
    rounding = 1e-12 * float(np.max(np.abs(y))) or 1.0
    sigma = np.sqrt(binned.noise**2 + (MISFIT * binned.range) ** 2 + rounding**2)
    pieces = straight_pieces(binned.x, y, sigma, thresholds.penalty)
    rate = np.concatenate([[-np.inf], pieces.rate, [-np.inf]])
    steepest = (rate[1:-1] > rate[:-2]) & (rate[1:-1] >= rate[2:]) & (rate[1:-1] > 0)
    peaks = [int(p) for p in np.flatnonzero(steepest)]
    while peaks:
        sizes = _relative_sizes(y, sigma, pieces, peaks, binned.range, thresholds)
        if sizes.min() < 1:
            del peaks[int(np.argmin(sizes))]
            continue
        quiet = [pieces.rate[a + 1 : b].min() for a, b in itertools.pairwise(peaks)]
        rates = pieces.rate[peaks]
        lower = [i + int(rates[i] >= rates[i + 1]) for i in range(len(quiet))]
        ratios = [q / rates[i] for q, i in zip(quiet, lower, strict=True)]
        if not ratios or max(ratios) <= thresholds.contrast:
            break
        del peaks[lower[int(np.argmax(ratios))]]
    return pieces, peaks


def _relative_sizes(
    y: Float[np.ndarray, " B"],
    sigma: Float[np.ndarray, " B"],
    pieces: Pieces,
    peaks: list[int],
    span: float,
    thresholds: _Thresholds,
) -> Float[np.ndarray, " K"]:
    """The size of each candidate drop over the size it needs to count."""
    bounds = [-1, *peaks, pieces.rate.size]
    sizes = np.zeros(len(peaks))
    for i, peak in enumerate(peaks):
        limit = thresholds.contrast * pieces.rate[peak]
        levels, errors = [], []
        for low, high in ((bounds[i] + 1, peak), (peak + 1, bounds[i + 2])):
            region = pieces.slow(low, high, limit)
            if region.any():
                levels.append(np.median(y[region]))
                errors.append(1.25 * sigma[region].mean() / np.sqrt(region.sum()))
            else:
                end = _turn(pieces, low, high, peak)
                levels.append(pieces.fit[end])
                errors.append(sigma[end])
        needed = max(thresholds.smallest * span, SIGNIFICANCE * float(np.hypot(*errors)))
        sizes[i] = (levels[0] - levels[1]) / needed
    return sizes


def _turn(pieces: Pieces, low: int, high: int, peak: int) -> int:
    """The bin where a drop turns into its neighbour, if there is no slow piece in between."""
    if low < high:
        return pieces.middle(low + int(np.argmin(pieces.rate[low:high])))
    return int(pieces.knots[peak] if low <= peak else pieces.knots[peak + 1])


def _slow_regions(
    pieces: Pieces, peaks: list[int], contrast: float
) -> list[Bool[np.ndarray, " B"]]:
    """For each gap before, between and after the drops, the bins where the loss falls slowly."""
    bounds = [-1, *peaks, pieces.rate.size]
    regions = []
    for i in range(len(peaks) + 1):
        limit = contrast * min(pieces.rate[p] for p in peaks[max(i - 1, 0) : i + 1])
        regions.append(pieces.slow(bounds[i] + 1, bounds[i + 1], limit))
    return regions


def _levels(
    y: Float[np.ndarray, " B"], pieces: Pieces, slow: list[Bool[np.ndarray, " B"]]
) -> list[float]:
    """The median loss of each slow region; of an empty first or last one, the fit at that end."""
    ends = [pieces.fit[0]] + [pieces.fit[-1]] * (len(slow) - 1)
    return [
        float(np.median(y[region])) if region.any() else float(end)
        for region, end in zip(slow, ends, strict=True)
    ]


def _timings(
    x: Float[np.ndarray, " T"],
    y: Float[np.ndarray, " T"],
    binned: Binned,
    pieces: Pieces,
    peaks: list[int],
    contrast: float,
) -> tuple[list[Drop], list[Plateau]]:
    """Levels and crossing times (clock readings), from the points themselves.

    The crossings are those of the decreasing curve nearest to the points between the middles of
    the neighbouring plateaus (isotonic regression): exact for clean curves, without a bandwidth
    for noisy ones. Levels and crossings are found in turn, twice.
    """
    if not peaks:
        return [], [Plateau(x[0], x[-1], float(np.median(binned.y)), np.nan)]
    slow = _slow_regions(pieces, peaks, contrast)
    complete = bool(slow[-1].any())
    values = _levels(binned.y, pieces, slow)
    if not slow[0].any():
        values[0] = float(isotonic_regression(y, increasing=False).x[0])
    if not complete:
        values[-1] = float(isotonic_regression(y, increasing=False).x[-1])
    middles = [float(np.mean(binned.x[r])) if r.any() else None for r in slow]
    cuts = [x[0]] + [m if m is not None else x[-1] for m in middles[1:-1]] + [x[-1]]
    drops: list[Drop] = []
    plateaus: list[Plateau] = []
    for _ in range(2):
        drops = []
        for i in range(len(peaks)):
            inside = (x >= cuts[i]) & (x <= cuts[i + 1])
            moments = _crossings(x[inside], y[inside], values[i], values[i + 1])
            last = i == len(peaks) - 1
            drops.append(
                Drop(*moments, values[i], values[i + 1], complete or not last, float("nan"))
            )
        edges = [x[0], *(t for d in drops for t in (d.start, d.end)), x[-1]]
        plateaus = []
        for i in range(len(peaks) + complete):
            start, end = edges[2 * i], max(edges[2 * i], edges[2 * i + 1])
            inside = (binned.x >= start) & (binned.x <= end)
            if inside.sum() >= SHORT:
                values[i] = float(np.median(binned.y[inside]))
            plateaus.append(Plateau(start, end, values[i], float("nan")))
    return drops, plateaus


def _crossings(
    x: Float[np.ndarray, " T"], y: Float[np.ndarray, " T"], before: float, after: float
) -> tuple[float, float, float]:
    """Where the nearest decreasing curve is 50%, 10% and 90% of the way down."""
    result = isotonic_regression(y, increasing=False)
    blocks = result.blocks
    middle = np.add.reduceat(x, blocks[:-1]) / np.diff(blocks)
    heights = result.x[blocks[:-1]]
    down = np.interp(
        [-(before - share * (before - after)) for share in (0.5, 0.1, 0.9)], -heights, middle
    )
    return float(down[0]), float(down[1]), float(down[2])


def _count_found(
    found: tuple[np.ndarray, np.ndarray],
    x: Float[np.ndarray, " B"],
    drops: Sequence[Drop],
    plateaus: Sequence[Plateau],
    pieces: Pieces,
    peaks: list[int],
) -> None:
    """Add one for each drop with a fall of the resampled curve inside it, plateaus likewise."""
    knots = x[pieces.knots]
    begin, end = knots[peaks], knots[np.array(peaks, int) + 1]
    for i, drop in enumerate(drops):
        # a drop may be narrower than a bin, so its steepest piece need only touch it
        found[0][i] += np.any((end >= drop.start) & (begin <= drop.end))
    middles = np.concatenate([[-np.inf], (begin + end) / 2, [np.inf]])
    for i, plateau in enumerate(plateaus):
        after = int(np.searchsorted(middles, (plateau.start + plateau.end) / 2))
        after = min(max(after, 1), middles.size - 1)
        starts = i == 0 or (after > 1 and end[after - 2] >= drops[i - 1].start)
        stops = i == len(drops) or (after <= begin.size and begin[after - 1] <= drops[i].end)
        found[1][i] += starts and stops
