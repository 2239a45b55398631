"""When a curve makes its move, or crosses a level: one definition each."""

from typing import Any

import numpy as np


def change_time(time: Any, values: Any, *, since: float = 0.0, left: float = 0.5) -> float:
    """The last time at which |f(t) - f(end)| is `left` of its largest value from `since` on.

    With left = ½ the half-change time: for a curve that goes from one level to another, rising or
    falling, it is where it crosses the middle; for one that first goes away from its end, where
    half of the way back is left. Later the curve stays closer to its end than that. Linear between
    saved times; NaN for a curve that does not change, or with fewer than two finite values.
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
