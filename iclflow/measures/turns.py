"""Where a second signal turns: maxima and minima of a noisy record, with a confidence.

A loss hardly moves between two stages of training that a second signal tells apart: a learning
coefficient rises while a circuit is built and falls while it is simplified. Its turning points are
the borders.
"""

import dataclasses

import numpy as np

from iclflow.measures.small_drops import on_log_clock

LEAST = 0.1  # of the range: smaller bends are noise
LEVEL = 0.05  # of the range: how near to its last value a signal has settled


@dataclasses.dataclass(frozen=True)
class Turn:
    """A maximum or a minimum of a signal, or where it settles.

    - `time`, `value`: where it is, on the smoothed record.
    - `kind`: "maximum", "minimum", or "level": from here on it stays near its last value.
    - `confidence`: the share of records with other noise that have one within a factor 2.
    """

    time: float
    value: float
    kind: str
    confidence: float


def turns(
    time: np.ndarray,
    signal: np.ndarray,
    *,
    spread: np.ndarray | float | None = None,
    resamples: int = 400,
    seed: int = 0,
) -> list[Turn]:
    """The turning points of a signal on the logarithmic clock, and then where it settles.

    - `time`: steps, increasing.
    - `signal`: a learning coefficient, a norm, an eigenvalue: one number per time.
    - `spread`: the standard deviation of the noise of each; from what is left after smoothing if
      omitted.
    - `resamples`: how many records with other noise give the confidence.
    - `seed`: of that noise.

    >>> import numpy as np, iclflow as icl
    >>> time = np.geomspace(1, 1e5, 200)
    >>> signal = np.exp(-np.log10(time / 1000) ** 2)
    >>> found = icl.measures.turns(time, signal)
    >>> [(turn.kind, 900 < turn.time < 1100, turn.confidence) for turn in found]
    [('maximum', True, 1.0), ('level', False, 1.0)]
    """
    time, signal = np.asarray(time, float), np.asarray(signal, float)
    if time.ndim != 1 or signal.shape != time.shape:
        raise ValueError(f"a signal has one number per time, got {signal.shape} and {time.shape}")
    if len(time) < 8 or np.any(np.diff(time) <= 0):
        raise ValueError("at least 8 times are needed, and they must increase")
    if not np.isfinite(signal).all():
        raise ValueError("the signal must be finite, got NaN or inf; cut it before")
    clock, (smooth,) = on_log_clock(time, signal[None])
    if spread is None:
        positive = time > 0
        left = signal[positive] - np.interp(np.log(time[positive]), clock, smooth)
        spread = float(np.std(left))
    noise = np.broadcast_to(np.asarray(spread, float), time.shape)
    if not (np.isfinite(noise).all() and noise.min() >= 0):
        raise ValueError("the spread must be finite and at least 0")
    rng = np.random.default_rng(seed)
    others = signal + noise * rng.standard_normal((resamples, len(time)))
    again = [_turns(curve) for curve in on_log_clock(time, others)[1]] if resamples else []
    found = []
    for place, kind in _turns(smooth):
        near = [
            any(k == kind and abs(clock[p] - clock[place]) <= np.log(2) for p, k in one)
            for one in again
        ]
        share = float(np.mean(near)) if resamples else float("nan")
        found.append(Turn(float(np.exp(clock[place])), float(smooth[place]), kind, share))
    return found


def _turns(curve: np.ndarray) -> list[tuple[int, str]]:
    away = np.flatnonzero(np.abs(curve - curve[-1]) > LEVEL * np.ptp(curve))
    return [*_extrema(curve), (int(away[-1]) + 1 if len(away) else 0, "level")]


def _extrema(curve: np.ndarray) -> list[tuple[int, str]]:
    """Extrema from which the curve turns back by more than `LEAST` of its range, on both sides."""
    enough = LEAST * float(np.ptp(curve))
    out: list[tuple[int, str]] = []
    low = high = 0
    rising: bool | None = None
    for place, value in enumerate(curve):
        low = place if value < curve[low] else low
        high = place if value > curve[high] else high
        if rising is not False and curve[high] - value > enough:
            if rising:
                out.append((high, "maximum"))
            rising, low = False, place
        elif rising is not True and value - curve[low] > enough:
            if rising is False:
                out.append((low, "minimum"))
            rising, high = True, place
    return out
