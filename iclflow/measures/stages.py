"""Plateaus and drops of a loss curve, and when a curve makes its move or crosses a level.

A drop is a stretch of fast descent between two stretches in which the loss falls at most
`contrast` times as fast (per unit of the clock); a plateau is such a slow stretch. The slope is
that of the best piecewise straight line (`segmentation`), so its scale adapts to the noise. A
curve without a drop is convex, concave, or first convex and then concave on the clock: power laws,
straight lines, a fall that has begun before the curve does. A drop is kept if such a curve, with
noise of the size, tails and memory of this one, would show it in fewer than `false_alarms` cases.
"""

import dataclasses
import enum
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy
import xarray as xr
from jaxtyping import Bool, Float

from iclflow.measures.in_context import FEW, InContext, in_context_share
from iclflow.measures.segmentation import MISFIT, Binned, Pieces, bin_curve, straight_pieces

SHORT = 3  # bins a plateau needs for its level to be taken again
SIGNIFICANCE = 4.0  # standard errors between the levels before and after a drop
FREEDOM = 3.0  # bins for a degree of freedom of the noise, a median of correlated residuals


class Clock(enum.Enum):
    """The time in which a plateau is long: `LOG` treats every decade alike.

    >>> import iclflow as icl
    >>> [clock.name for clock in icl.measures.Clock]
    ['LOG', 'LINEAR']
    """

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
    """A slow stretch: from 90% of the drop before to 10% of the drop after.

    - `start`, `end`: in the time of the curve.
    - `confidence`: see `Stages`.
    """

    start: float
    end: float
    level: float  # median loss
    confidence: float


@dataclasses.dataclass(frozen=True)
class Drop:
    """A fast stretch. `time` is where the loss crosses halfway between the two levels.

    - `before`, `after`: the levels between which it falls.
    - `confidence`: see `Stages`.
    """

    time: float
    start: float  # 10% down
    end: float  # 90% down
    before: float
    after: float  # for an incomplete drop, the loss at the end of the curve
    complete: bool  # False if the curve ends before the loss levels off
    confidence: float
    p_value: float  # how often a curve without this drop would show one
    in_context: InContext | None = None  # with losses early and late in the context

    @property
    def size(self) -> float:
        """The loss lost in the drop."""
        return self.before - self.after


@dataclasses.dataclass(frozen=True)
class Stages:
    """The plateaus and drops of one curve, in order of time.

    Every drop has a plateau before it and, unless it is incomplete, one after it. Confidence is
    the share of resampled curves, each read with thresholds changed by up to a factor 1.5, in
    which the plateau or drop is found again; NaN without resampling.

    - `plateaus`, `drops`: the slow stretches and the fast ones.
    - `clock`: the time in which a plateau is long.

    >>> import numpy as np, iclflow as icl
    >>> t = np.linspace(0, 10, 200)
    >>> found = icl.measures.find_stages(t, 1 / (1 + np.exp(4 * (t - 5))), resamples=0)
    >>> len(found.drops), len(found.plateaus)
    (1, 2)
    """

    plateaus: tuple[Plateau, ...]
    drops: tuple[Drop, ...]
    noise: float  # median standard deviation of a bin's loss
    clock: Clock

    def at(self, time: float | int) -> int:
        """The number of drops whose middle has passed: the plateau one is on, or heading for."""
        return sum(drop.time <= time for drop in self.drops)

    def lines(self) -> list[str]:
        """One line for each plateau, and for each drop that is known by position."""
        return [
            f"plateau {i}: {p.start:.6g} to {p.end:.6g}, loss {p.level:.6g}, "
            f"confidence {p.confidence:.2f}"
            for i, p in enumerate(self.plateaus)
        ] + [
            f"drop {i + 1} at {d.time:.6g}: {d.in_context}"
            for i, d in enumerate(self.drops)
            if d.in_context is not None
        ]

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{i}</td><td>{p.start:.6g}</td><td>{p.end:.6g}</td><td>{p.level:.6g}</td>"
            f"<td>{p.confidence:.2f}</td></tr>"
            for i, p in enumerate(self.plateaus)
        )
        names = ("plateau", "start", "end", "loss", "confidence")
        header = "".join(f"<th>{name}</th>" for name in names)
        drops = ", ".join(f"{drop.time:.6g}" for drop in self.drops) or "none"
        return f"<b>Stages</b>, drops at: {drops}<table><tr>{header}</tr>{rows}</table>"


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


def find_stages(
    time: Any,
    loss: Any,
    *,
    early: Any = None,
    late: Any = None,
    clock: Clock = Clock.LOG,
    contrast: float = 0.5,
    smallest: float = 0.02,
    resamples: int = 20,
    resolution: int | None = None,
    false_alarms: float = 0.01,
    seed: int = 0,
) -> Stages:
    """Plateaus and drops of a loss recorded at increasing times.

    - `time`, `loss`: one value each per saved point; points that are not finite (after a run
      has stopped) are left out.
    - `early`, `late`: the losses at early and at late positions of the context, one value each per
      time. With both, every drop says how much of it is in-context learning (`Drop.in_context`).
      `by_position` takes them from a table of losses by position.
    - `contrast`: on a plateau the loss falls at most this many times as fast as in the drops
      beside it. Larger finds briefer plateaus.
    - `smallest`: a drop is at least this share of the range of the loss, and stands
      4 standard errors out of the noise.
    - `resamples`: curves drawn for the confidence (fit plus noise of the measured size).
    - `resolution`: bins of equal width; if omitted they are as narrow as the curve asks for.
    - `false_alarms`: the largest p-value of a drop, about the share of curves without one in which
      one is found. It is also the largest p-value with which a drop is called in-context learning.
    - `clock`: the time in which a plateau is long.
    - `seed`: of the curves that are drawn.

    >>> import numpy as np
    >>> from iclflow.measures import find_stages
    >>> time = np.arange(1, 2000.0)
    >>> late = 2 - 1 / (1 + np.exp(-(time - 1000) / 20))
    >>> stages = find_stages(time, late, early=np.full(1999, 2.0), late=late)
    >>> [(round(drop.time), drop.in_context.label) for drop in stages.drops]
    [(1000, True)]
    """
    _check_options(clock, contrast, smallest, false_alarms, resamples)
    times, losses = _checked(time, loss)
    sides = None
    if early is not None or late is not None:
        sides = _checked_sides(time, early, late)
    if times.size == 0:
        return Stages((), (), 0.0, clock)
    # a power of two, so that squares of huge or tiny losses stay in range and nothing is rounded
    unit = float(2.0 ** np.frexp(np.max(np.abs(losses)))[1].clip(-1000, 1000))
    losses = losses / unit
    x = clock(times)
    binned = bin_curve(times, x, losses, resolution)
    # Schwarz's criterion: a knot has two parameters, its place and its bend
    penalty = 2 * float(np.log(max(binned.x.size, 2)))
    thresholds = Thresholds(contrast, smallest, penalty, false_alarms)
    falls = find_falls(binned, binned.y, thresholds)
    drops, plateaus = timings(x, losses, binned, falls, contrast)
    found = np.zeros(len(drops)), np.zeros(len(plateaus))
    rng = np.random.default_rng(seed)
    for _ in range(resamples):
        drawn = falls.pieces.fit + binned.noise * rng.normal(size=binned.x.size)
        again = find_falls(binned, drawn, thresholds.jitter(rng))
        _count_found(found, binned.x, drops, plateaus, again)
    share = [f / resamples if resamples else np.full(f.shape, np.nan) for f in found]

    def at(reading: float) -> float:
        return float(times[0]) if reading <= x[0] else clock.inverse(reading)

    shares = _in_context_shares(x, clock, sides, drops, plateaus, false_alarms)
    return Stages(
        tuple(
            Plateau(at(p.start), at(p.end), p.level * unit, float(c))
            for p, c in zip(plateaus, share[1], strict=True)
        ),
        tuple(
            dataclasses.replace(
                d,
                time=at(d.time),
                start=at(d.start),
                end=at(d.end),
                before=d.before * unit,
                after=d.after * unit,
                confidence=float(c),
                in_context=i,
            )
            for d, c, i in zip(drops, share[0], shares, strict=True)
        ),
        float(np.median(binned.noise)) * unit,
        clock,
    )


def find_stages_of_runs(time: Any, losses: Any, **options: Any) -> list[Stages]:
    """`find_stages` of many curves on one time axis, [seeds, T].

    - `time`: the times of the saved points.
    - `losses`: a curve for every seed.
    - `options`: those of `find_stages`.

    >>> import numpy as np, iclflow as icl
    >>> t = np.linspace(0, 10, 200)
    >>> losses = [1 / (1 + np.exp(4 * (t - middle))) for middle in (4, 5, 6)]
    >>> [len(s.drops) for s in icl.measures.find_stages_of_runs(t, losses, resamples=0)]
    [1, 1, 1]
    """
    return [find_stages(time, loss, **options) for loss in np.atleast_2d(np.asarray(losses))]


def stages_dataset(found: Sequence[Stages], seeds: Sequence[int] | None = None) -> xr.Dataset:
    """Stages of many runs as one Dataset, padded with NaN to the run with the most.

    [seed, stage]: `start`, `end`, `level`, `confidence`; [seed, drop]: `drop_time`, `drop_start`,
    `drop_end`, `drop_size`, `drop_complete` (1 or 0), `drop_confidence`, `drop_p_value`, and with
    losses early and late `in_context_share`, `in_context_error`, `in_context_p_value`,
    `in_context_label` (1 or 0); [seed]: `stage_count`, `drop_count`, `noise`.

    - `found`: the stages of every run.
    - `seeds`: the labels of the runs; numbered if omitted.

    >>> import numpy as np, iclflow as icl
    >>> t = np.linspace(0, 10, 200)
    >>> losses = [1 / (1 + np.exp(4 * (t - middle))) for middle in (4, 5, 6)]
    >>> found = icl.measures.find_stages_of_runs(t, losses, resamples=0)
    >>> icl.measures.stages_dataset(found).drop_time.values.round(2).ravel().tolist()
    [4.0, 5.0, 6.0]
    """
    numbers = list(range(len(found))) if seeds is None else list(seeds)
    if len(numbers) != len(found):
        raise ValueError(f"{len(found)} runs need as many seeds, got {len(numbers)}")

    def padded(rows: Sequence[Sequence[Any]], field: str) -> np.ndarray:
        whole = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
        for row, items in zip(whole, rows, strict=True):
            row[: len(items)] = [np.nan if i is None else getattr(i, field) for i in items]
        return whole

    plateaus, drops = [s.plateaus for s in found], [s.drops for s in found]
    data: dict[str, Any] = {
        field: (("seed", "stage"), padded(plateaus, field))
        for field in ("start", "end", "level", "confidence")
    }
    for field in ("time", "start", "end", "size", "complete", "confidence", "p_value"):
        data[f"drop_{field}"] = (("seed", "drop_number"), padded(drops, field))
    sides = [[drop.in_context for drop in row] for row in drops]
    if any(side is not None for row in sides for side in row):
        for field in ("share", "error", "p_value", "label"):
            data[f"in_context_{field}"] = (("seed", "drop_number"), padded(sides, field))
    data["stage_count"] = ("seed", np.array([len(p) for p in plateaus], int))
    data["drop_count"] = ("seed", np.array([len(d) for d in drops], int))
    data["noise"] = ("seed", np.array([s.noise for s in found], float))
    dataset = xr.Dataset(data, coords={"seed": numbers})
    for name, variable in dataset.items():
        variable.attrs |= {"long_name": str(name).replace("_", " "), "units": "1"}
    return dataset


def _check_options(
    clock: Any, contrast: Any, smallest: Any, false_alarms: Any, resamples: Any
) -> None:
    """Refuse thresholds that are no thresholds; NaN would find nothing, without a word."""
    if not isinstance(clock, Clock):
        raise ValueError(f"clock must be Clock.LOG or Clock.LINEAR, got {clock!r}")
    for name, value in (
        ("contrast", contrast), ("smallest", smallest), ("false_alarms", false_alarms)
    ):  # fmt: skip
        if not 0 < value <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, got {value!r}")
    if isinstance(resamples, bool) or resamples != int(resamples) or resamples < 0:
        raise ValueError(f"resamples must be a whole number of at least 0, got {resamples!r}")


def _reals(name: str, values: Any) -> np.ndarray:
    """The values as floats; `ValueError` where they would lose an imaginary part."""
    found = np.asarray(values)
    if found.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be real numbers, got {found.dtype}")
    return found.astype(float)


def _checked(time: Any, loss: Any) -> tuple[np.ndarray, np.ndarray]:
    times, losses = _reals("times", time), _reals("losses", loss)
    if times.ndim != 1 or times.shape != losses.shape:
        raise ValueError(
            f"a loss curve needs one time for each loss, got shapes {times.shape} and "
            f"{losses.shape}; for many seeds use find_stages_of_runs"
        )
    if times.size and not np.isfinite(times).any():
        raise ValueError(
            "times must be numbers, got NaN only; a run without a clock has its steps, runs.step"
        )
    keep = np.isfinite(times) & np.isfinite(losses)
    times, losses = times[keep], losses[keep]
    if np.any(np.diff(times) <= 0):
        where = int(np.argmax(np.diff(times) <= 0))
        twice = times[where] == times[where + 1]
        said = f"{times[where]:g} " + ("twice" if twice else f"before {times[where + 1]:g}")
        usual = "keep one point of each time" if twice else "sort the curve"
        raise ValueError(f"times must increase, got {said}; {usual}")
    if times.size and times[0] < 0:
        raise ValueError(f"times must not be negative, got {times[0]:g}; count from the start")
    return times, losses


def _checked_sides(time: Any, early: Any, late: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times and losses at early and late positions, where both are finite."""
    if early is None or late is None:
        given = "late" if early is None else "early"
        raise ValueError(f"in-context learning needs early= and late= losses, got only {given}=")
    times, first, last = (_reals("losses", a) for a in (time, early, late))
    if not times.shape == first.shape == last.shape:
        raise ValueError(
            f"early and late need one loss for each time, got shapes {first.shape} and "
            f"{last.shape} for {times.shape}"
        )
    keep = np.isfinite(times) & np.isfinite(first) & np.isfinite(last)
    return times[keep], first[keep], last[keep]


def _in_context_shares(
    x: Float[np.ndarray, " T"],
    clock: Clock,
    sides: tuple[np.ndarray, np.ndarray, np.ndarray] | None,
    drops: Sequence[Drop],
    plateaus: Sequence[Plateau],
    false_alarms: float,
) -> list[InContext | None]:
    """What each drop (in readings of the clock) is by its early and late losses.

    The fall is taken from the second half of the plateau before to the first half of the plateau
    after. Where the curve ends in a drop, it is taken to the last fifth of the fall. A drop has
    None where the two losses are not known on both sides of it.
    """
    if sides is None or sides[0].size < 2 * SHORT:
        return [None] * len(drops)
    times, early, late = sides
    readings, found = clock(times), []
    for i, drop in enumerate(drops):
        if min(np.sum(readings <= drop.time), np.sum(readings >= drop.time)) < FEW:
            found.append(None)
            continue
        before = (plateaus[i].start + plateaus[i].end) / 2, drop.start
        if i + 1 < len(plateaus):
            after = drop.end, (plateaus[i + 1].start + plateaus[i + 1].end) / 2
        else:
            after = float(x[-1] - (x[-1] - drop.start) / 5), float(x[-1])
        options = {"false_alarms": false_alarms}
        found.append(in_context_share(readings, early, late, before, after, **options))
    return found


def _count_found(
    found: tuple[np.ndarray, np.ndarray],
    x: Float[np.ndarray, " B"],
    drops: Sequence[Drop],
    plateaus: Sequence[Plateau],
    falls: Falls,
) -> None:
    """Add one for each drop with a fall of the resampled curve inside it, plateaus likewise."""
    knots, peaks = x[falls.pieces.knots], np.array(falls.peaks, int)
    begin, end = knots[peaks], knots[peaks + 1]
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


def change_time(time: Any, values: Any, *, since: float = 0.0, left: float = 0.5) -> float:
    """The last time at which |f(t) - f(end)| is `left` of its largest value from `since` on.

    With left = ½ the half-change time: for a curve that goes from one level to another, rising or
    falling, it is where it crosses the middle; for one that first goes away from its end, where
    half of the way back is left. Later the curve stays closer to its end than that. Linear between
    saved times; NaN for a curve that does not change, or with fewer than two finite values.

    - `time`, `values`: the curve f.
    - `since`: the time from which the largest value is taken.
    - `left`: the share of it that is left at the time wanted.

    >>> import iclflow as icl
    >>> icl.measures.change_time([0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 0.0, 0.0])
    1.5
    """
    times, curve = np.asarray(time, float), np.asarray(values, float)
    if times.ndim != 1 or times.shape != curve.shape:
        raise ValueError(
            f"a curve needs one time for each value, got shapes {times.shape} and {curve.shape}"
        )
    if not 0 < left < 1:
        raise ValueError(f"left is a share between 0 and 1, got {left}")
    keep = np.isfinite(curve) & (times >= since)
    times, curve = times[keep], curve[keep]
    if times.size < 2:
        return float("nan")
    away = np.abs(curve - curve[-1])
    level = left * np.max(away)
    if level == 0:
        return float("nan")
    last = int(np.flatnonzero(away >= level)[-1])  # never the end, where `away` is 0
    share = (away[last] - level) / (away[last] - away[last + 1])
    return float(times[last] + share * (times[last + 1] - times[last]))


def first_crossing(time: Any, curve: Any, level: float) -> float:
    """When a falling curve first goes below a level, linear between saved times; NaN if never.

    NaN too for a curve that begins below.

    - `time`, `curve`: the saved times, and the curve at them.
    - `level`: the level.

    >>> import iclflow as icl
    >>> icl.measures.first_crossing([0.0, 1.0, 2.0], [1.0, 0.5, 0.0], 0.25)
    1.5
    """
    return float(first_crossings(time, curve, np.asarray([level]))[0])


def first_crossings(time: Any, curves: Any, levels: Any) -> np.ndarray:
    """`first_crossing` of many curves [..., T] and levels, [m] for all curves or [..., m].

    - `time`: the times of the points, [T] for all curves or [..., T].
    - `curves`: the values of the curves.
    - `levels`: the levels to be crossed from above; a list will do.

    >>> import iclflow as icl
    >>> curves = [[1.0, 0.5, 0.0], [1.0, 1.0, 0.0]]
    >>> icl.measures.first_crossings([0.0, 1.0, 2.0], curves, [0.75, 0.25]).tolist()
    [[0.5, 1.5], [1.25, 1.75]]
    """
    levels = np.asarray(levels, float)
    try:
        times, values = np.broadcast_arrays(np.asarray(time, float), np.asarray(curves, float))
        np.broadcast_shapes(values.shape[:-1], levels.shape[:-1])
    except ValueError:
        raise ValueError(
            f"times {np.shape(time)}, curves {np.shape(curves)} and levels {levels.shape} do not "
            f"go together; curves are [..., T], levels [m] or [..., m] with the same leading axes"
        ) from None
    if levels.ndim == 0:
        raise ValueError("levels must be a list, got a number; for one level use first_crossing")
    below = values[..., None, :] < levels[..., :, None]
    after = np.argmax(below, axis=-1)  # 0 where there is none, and where the curve begins below
    before = np.maximum(after - 1, 0)
    high, low = (np.take_along_axis(values, i, axis=-1) for i in (before, after))
    begin, end = (np.take_along_axis(times, i, axis=-1) for i in (before, after))
    share = (high - levels) / np.where(after > 0, high - low, 1.0)
    return np.where(after > 0, begin + share * (end - begin), np.nan)
