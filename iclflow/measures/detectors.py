"""Other marks of the drops: curvature of a curve, of its autocorrelation, of a weight norm.

They follow Mainali & Teixeira (2025) and stand beside `find_stages` for comparison: each returns
a curve whose peaks mark drops, without levels, durations or confidence.
"""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from iclflow.measures.stages import Clock


@dataclasses.dataclass(frozen=True)
class Curvature:
    """A second derivative over time (or lag).

    - `time`, `value`: the grid, and the derivative on it.
    """

    time: Float[np.ndarray, " G"]
    value: Float[np.ndarray, " G"]

    def peaks(self, prominence: float = 0.05, count: int | None = None) -> Float[np.ndarray, " P"]:
        """Times of the maxima that stand out by `prominence` of the range, in order of time.

        With `count`, the most prominent ones only.
        """
        scale = float(np.ptp(self.value)) or 1.0
        from scipy.signal import find_peaks

        where, facts = find_peaks(self.value, prominence=prominence * scale)
        if count is not None:
            where = np.sort(where[np.argsort(-facts["prominences"])[:count]])
        return self.time[where]


def time_curvature(
    time: Any, values: Any, *, clock: Clock = Clock.LOG, points: int = 400, window: int = 21
) -> Curvature:
    """d²f/dx² with x = t or ln t: a cubic Savitzky-Golay filter on an even grid of the clock.

    With `Clock.LOG` and the loss this is the baseline d²L/d(ln t)²: lowest where a drop begins,
    highest where it ends. With a weight norm ‖M(t)‖_F it is the norm curvature.

    - `time`, `values`: the curve.
    - `clock`: whether the derivative is over t or over ln t.
    - `points`: of the even grid that the curve is interpolated on.
    - `window`: how many of them the filter takes at a time.

    >>> import numpy as np, iclflow as icl
    >>> time = np.linspace(0, 10, 400)
    >>> loss = 1 / (1 + np.exp(8 * (time - 4)))
    >>> found = icl.measures.time_curvature(time, loss, clock=icl.measures.Clock.LINEAR)
    >>> bool(found.time[np.argmin(found.value)] < 4 < found.time[np.argmax(found.value)])
    True
    """
    times, curve = _curve(time, values)
    if clock is Clock.LOG:
        times, curve = times[times > 0], curve[times > 0]
    grid, spacing = _grid(clock(times), points, window)
    smooth = _second_derivative(np.interp(grid, clock(times), curve), window, spacing)
    return Curvature(np.exp(grid) if clock is Clock.LOG else grid, np.asarray(smooth))


def autocorrelation(
    time: Any, loss: Any, points: int | None = None
) -> tuple[Float[np.ndarray, " G"], Float[np.ndarray, " G"]]:
    """Lags, and A(lag) = mean over t of L(t) L(t + lag), by FFT; the last 10% of lags dropped.

    The mean is over the pairs that exist. Curves on an uneven grid are first interpolated on
    `points` even times (as many as the curve has, if omitted).

    - `time`, `loss`: the curve.

    >>> import numpy as np, iclflow as icl
    >>> lags, found = icl.measures.autocorrelation(np.arange(100.0), np.ones(100))
    >>> len(lags), bool(np.allclose(found, 1))
    (90, True)
    """
    times, curve = _curve(time, loss)
    count = times.size if points is None else points
    even = np.linspace(times[0], times[-1], count)
    curve = np.interp(even, times, curve)
    transform = np.fft.rfft(curve, 2 * count)
    total = np.fft.irfft(transform * transform.conj(), 2 * count)[:count]
    keep = max(4, int(0.9 * count))
    return (even - even[0])[:keep], (total / np.arange(count, 0, -1))[:keep]


def autocorrelation_curvature(
    time: Any,
    loss: Any,
    *,
    clock: Clock = Clock.LINEAR,
    points: int | None = None,
    window: int = 11,
) -> Curvature:
    """A″(lag), whose peaks mark the drops; d²A/d(ln lag)² on a log clock, better in noise.

    - `time`, `loss`: the curve.
    - `clock`: whether the derivative is over the lag or over its logarithm.
    - `points`: as in `autocorrelation`.
    - `window`: how many points the filter of the derivative takes at a time.

    >>> import numpy as np, iclflow as icl
    >>> time = np.linspace(0, 10, 400)
    >>> loss = 1 / (1 + np.exp(8 * (time - 4)))
    >>> found = icl.measures.autocorrelation_curvature(time, loss)
    >>> bool(abs(found.time[np.argmax(found.value)] - 4) < 1)
    True
    """
    lags, values = autocorrelation(time, loss, points)
    if clock is Clock.LOG:
        return time_curvature(lags, values, clock=clock, window=max(window, 21))
    if lags.size < window:
        raise ValueError(f"the filter needs at least {window} lags, got {lags.size}")
    smooth = _second_derivative(values, window, lags[1] - lags[0])
    return Curvature(lags, np.asarray(smooth))


def _curve(time: Any, values: Any) -> tuple[np.ndarray, np.ndarray]:
    times, curve = np.asarray(time, dtype=float), np.asarray(values, dtype=float)
    if times.ndim != 1 or times.shape != curve.shape:
        raise ValueError(
            f"a curve needs one time for each value, got shapes {times.shape} and {curve.shape}"
        )
    keep = np.isfinite(times) & np.isfinite(curve)
    if keep.sum() < 4:
        raise ValueError(f"a curvature needs at least 4 finite points, got {keep.sum()}")
    return times[keep], curve[keep]


def _grid(reading: np.ndarray, points: int, window: int) -> tuple[np.ndarray, float]:
    if points < window:
        raise ValueError(f"the filter needs at least {window} points, got {points}")
    grid = np.linspace(reading[0], reading[-1], points)
    return grid, float(grid[1] - grid[0])


def _second_derivative(
    values: Float[np.ndarray, " T"], window: int, spacing: float
) -> Float[np.ndarray, " T"]:
    """By local cubics over `window` points (Savitzky-Golay)."""
    from scipy.signal import savgol_filter  # slow to import, and seldom needed

    return np.asarray(savgol_filter(values, window, 3, deriv=2, delta=spacing))
