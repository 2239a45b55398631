"""Plateaus and drops of a loss curve.

A drop is a stretch of fast descent between two stretches in which the loss falls at most
`contrast` times as fast (per unit of the clock); a plateau is such a slow stretch. The slope is
that of the best piecewise straight line (`segmentation`), so its scale adapts to the noise. A
curve without a drop is convex, concave, or first convex and then concave on the clock: power laws,
straight lines, a fall that has begun before the curve does. A drop is kept if such a curve, with
noise of the size and memory of this one, would show it in fewer than `false_alarms` cases.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from iclflow.diagnostics.falls import Falls, Thresholds, find_falls, timings
from iclflow.diagnostics.plateaus import Clock, Drop, Plateau, Stages
from iclflow.diagnostics.segmentation import bin_curve

__all__ = [
    "Clock",
    "Drop",
    "Plateau",
    "Stages",
    "find_stages",
    "find_stages_of_runs",
    "stages_dataset",
]


def find_stages(
    time: Any,
    loss: Any,
    *,
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
    - `contrast`: on a plateau the loss falls at most this many times as fast as in the drops
      beside it. Larger finds briefer plateaus.
    - `smallest`: a drop is at least this share of the range of the loss, and stands
      4 standard errors out of the noise.
    - `resamples`: curves drawn for the confidence (fit plus noise of the measured size).
    - `resolution`: bins of equal width; if omitted they are as narrow as the curve asks for.
    - `false_alarms`: the largest p-value of a drop, about the share of curves without one in which
      one is found.
    """
    times, losses = _checked(time, loss)
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
            )
            for d, c in zip(drops, share[0], strict=True)
        ),
        float(np.median(binned.noise)) * unit,
        clock,
    )


def find_stages_of_runs(time: Any, losses: Any, **options: Any) -> list[Stages]:
    """`find_stages` of many curves on one time axis, [seeds, T]."""
    return [find_stages(time, loss, **options) for loss in np.atleast_2d(np.asarray(losses))]


def stages_dataset(found: Sequence[Stages], seeds: Sequence[int] | None = None) -> xr.Dataset:
    """Stages of many runs as one Dataset, padded with NaN to the run with the most.

    [seed, stage]: `start`, `end`, `level`, `confidence`; [seed, drop]: `drop_time`, `drop_start`,
    `drop_end`, `drop_size`, `drop_complete` (1 or 0), `drop_confidence`, `drop_p_value`; [seed]:
    `stage_count`, `drop_count`, `noise`.
    """
    numbers = list(range(len(found))) if seeds is None else list(seeds)
    if len(numbers) != len(found):
        raise ValueError(f"{len(found)} runs need as many seeds, got {len(numbers)}")

    def padded(rows: Sequence[Sequence[Any]], field: str) -> np.ndarray:
        whole = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
        for row, items in zip(whole, rows, strict=True):
            row[: len(items)] = [getattr(item, field) for item in items]
        return whole

    plateaus, drops = [s.plateaus for s in found], [s.drops for s in found]
    data: dict[str, Any] = {
        field: (("seed", "stage"), padded(plateaus, field))
        for field in ("start", "end", "level", "confidence")
    }
    for field in ("time", "start", "end", "size", "complete", "confidence", "p_value"):
        data[f"drop_{field}"] = (("seed", "drop_number"), padded(drops, field))
    data["stage_count"] = ("seed", np.array([len(p) for p in plateaus], int))
    data["drop_count"] = ("seed", np.array([len(d) for d in drops], int))
    data["noise"] = ("seed", np.array([s.noise for s in found], float))
    dataset = xr.Dataset(data, coords={"seed": numbers})
    for name, variable in dataset.items():
        variable.attrs |= {"long_name": str(name).replace("_", " "), "units": "1"}
    return dataset


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
