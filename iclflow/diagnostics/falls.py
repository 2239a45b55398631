"""Drops in the straight pieces of a curve: which count, their levels and their crossings."""

import dataclasses
import itertools

import numpy as np
import scipy
from jaxtyping import Bool, Float

from iclflow.diagnostics.noise import MISFIT
from iclflow.diagnostics.null import drop_p_values
from iclflow.diagnostics.plateaus import Drop, Plateau
from iclflow.diagnostics.segmentation import Binned, Pieces, straight_pieces

SHORT = 3  # bins a plateau needs for its level to be taken again
SIGNIFICANCE = 4.0  # standard errors between the levels before and after a drop


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """What counts as a drop, and what a knot costs."""

    contrast: float
    smallest: float  # of the range
    penalty: float
    false_alarms: float  # p-value from which on a drop does not count

    def jitter(self, rng: np.random.Generator) -> "Thresholds":
        """Each changed by up to a factor 1.5."""
        factors = 1.5 ** rng.uniform(-1, 1, 4)
        values = dataclasses.astuple(self)
        return Thresholds(*(float(v * f) for v, f in zip(values, factors, strict=True)))


@dataclasses.dataclass(frozen=True)
class Falls:
    """The fit to a curve, the steepest piece of each of its drops, and their p-values."""

    pieces: Pieces
    peaks: list[int]
    p_values: list[float]


def find_falls(binned: Binned, y: Float[np.ndarray, " B"], thresholds: Thresholds) -> Falls:
    """Drops of binned losses `y`.

    Every local maximum of the rate is a candidate. Candidates between levels that hardly differ
    (noise, spikes) are given up first, the smallest first; then, of two neighbours between which
    the loss nowhere falls slowly enough, the slower one, which becomes part of the other; then
    those that a curve without a drop could have, the least significant first.
    """
    rounding = 1e-12 * float(np.max(np.abs(y))) or 1.0
    sigma = np.sqrt(binned.noise**2 + (MISFIT * binned.range) ** 2 + rounding**2)
    pieces = straight_pieces(binned.x, y, sigma, thresholds.penalty)
    rate = np.concatenate([[-np.inf], pieces.rate, [-np.inf]])
    steepest = (rate[1:-1] > rate[:-2]) & (rate[1:-1] >= rate[2:]) & (rate[1:-1] > 0)
    peaks = [int(p) for p in np.flatnonzero(steepest)]
    p_values: list[float] = []
    while peaks:
        sizes = _relative_sizes(y, sigma, pieces, peaks, binned, thresholds)
        if sizes.min() < 1:
            del peaks[int(np.argmin(sizes))]
            continue
        quiet = [pieces.rate[a + 1 : b].min() for a, b in itertools.pairwise(peaks)]
        rates = pieces.rate[peaks]
        lower = [i + int(rates[i] >= rates[i + 1]) for i in range(len(quiet))]
        ratios = [q / rates[i] for q, i in zip(quiet, lower, strict=True)]
        if ratios and max(ratios) > thresholds.contrast:
            del peaks[lower[int(np.argmax(ratios))]]
            continue
        p_values = drop_p_values(binned, y, sigma, pieces, peaks, thresholds.contrast)
        if max(p_values) <= thresholds.false_alarms:
            break
        del peaks[int(np.argmax(p_values))]
    return Falls(pieces, peaks, p_values if peaks else [])


def _relative_sizes(
    y: Float[np.ndarray, " B"],
    sigma: Float[np.ndarray, " B"],
    pieces: Pieces,
    peaks: list[int],
    binned: Binned,
    thresholds: Thresholds,
) -> Float[np.ndarray, " K"]:
    """The size of each candidate drop over the size it needs to count."""
    bounds = [-1, *peaks, pieces.rate.size]
    sizes = np.zeros(len(peaks))
    for i, peak in enumerate(peaks):
        limit = thresholds.contrast * pieces.rate[peak]
        levels, errors, span = [], [], binned.range
        for low, high in ((bounds[i] + 1, peak), (peak + 1, bounds[i + 2])):
            region = pieces.slow(low, high, limit)
            if region.any():
                levels.append(_median(y[region], binned.width[region]))
                errors.append(1.25 * sigma[region].mean() / np.sqrt(region.sum()))
            else:
                end = _turn(pieces, low, high, peak)
                levels.append(pieces.fit[end])
                errors.append(sigma[end])
                if len(peaks) == 1 and low > peak:
                    # The curve ends in its only drop: the range says nothing of its size to come.
                    span = max(span, abs(levels[0]))
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


def _levels(binned: Binned, pieces: Pieces, slow: list[Bool[np.ndarray, " B"]]) -> list[float]:
    """The median loss of each slow region; of an empty first or last one, the fit at that end."""
    ends = [pieces.fit[0]] + [pieces.fit[-1]] * (len(slow) - 1)
    return [
        _median(binned.y[region], binned.width[region]) if region.any() else float(end)
        for region, end in zip(slow, ends, strict=True)
    ]


def timings(
    x: Float[np.ndarray, " T"],
    y: Float[np.ndarray, " T"],
    binned: Binned,
    falls: Falls,
    contrast: float,
) -> tuple[list[Drop], list[Plateau]]:
    """Levels and crossing times (clock readings), from the points themselves.

    The crossings are those of the decreasing curve nearest to the points between the middles of
    the neighbouring plateaus (isotonic regression): exact for clean curves, without a bandwidth
    for noisy ones. Levels and crossings are found in turn, twice.
    """
    pieces, peaks = falls.pieces, falls.peaks
    if not peaks:
        return [], [Plateau(x[0], x[-1], _median(binned.y, binned.width), np.nan)]
    slow = _slow_regions(pieces, peaks, contrast)
    complete = bool(slow[-1].any())
    values = _levels(binned, pieces, slow)
    if not slow[0].any():
        values[0] = float(scipy.optimize.isotonic_regression(y, increasing=False).x[0])
    if not complete:
        values[-1] = float(scipy.optimize.isotonic_regression(y, increasing=False).x[-1])
    middles = [float(np.mean(binned.x[r])) if r.any() else None for r in slow]
    cuts = [x[0]] + [m if m is not None else x[-1] for m in middles[1:-1]] + [x[-1]]
    drops: list[Drop] = []
    plateaus: list[Plateau] = []
    for _ in range(2):
        drops = []
        for i, p_value in enumerate(falls.p_values):
            inside = (x >= cuts[i]) & (x <= cuts[i + 1])
            moments = _crossings(x[inside], y[inside], values[i], values[i + 1])
            last = i == len(peaks) - 1
            drops.append(
                Drop(*moments, values[i], values[i + 1], complete or not last, np.nan, p_value)
            )
        edges = [x[0], *(t for d in drops for t in (d.start, d.end)), x[-1]]
        plateaus = []
        for i in range(len(peaks) + complete):
            start, end = edges[2 * i], max(edges[2 * i], edges[2 * i + 1])
            inside = (binned.x >= start) & (binned.x <= end)
            if inside.sum() >= SHORT:
                values[i] = _median(binned.y[inside], binned.width[inside])
            plateaus.append(Plateau(start, end, values[i], float("nan")))
    return drops, plateaus


def _crossings(
    x: Float[np.ndarray, " T"], y: Float[np.ndarray, " T"], before: float, after: float
) -> tuple[float, float, float]:
    """Where the nearest decreasing curve is 50%, 10% and 90% of the way down."""
    result = scipy.optimize.isotonic_regression(y, increasing=False)
    ends = np.stack([result.blocks[:-1], result.blocks[1:] - 1], axis=1).reshape(-1)
    down = np.interp(
        [-(before - share * (before - after)) for share in (0.5, 0.1, 0.9)],
        -result.x[ends],
        x[ends],
    )
    return float(down[0]), float(down[1]), float(down[2])


def _median(values: Float[np.ndarray, " B"], weights: Float[np.ndarray, " B"]) -> float:
    """The value with half of the weight below it; the mean of both where it is exactly half."""
    order = np.argsort(values)
    share = np.cumsum(weights[order]) / max(float(np.sum(weights)), 1e-300)
    low, high = (int(np.searchsorted(share, 0.5 + e)) for e in (-1e-9, 1e-9))
    ranked = values[order]
    return float((ranked[min(low, values.size - 1)] + ranked[min(high, values.size - 1)]) / 2)
