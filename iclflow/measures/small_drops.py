"""Small drops that a mean curve shows and a fraction of the range hides, with a confidence.

A loss may fall by a tenth of its range, rest, and then fall by the rest of it. Seen from the whole
range the first fall is hardly a drop. Its sign is in the slope: on a logarithmic clock the speed of
descent has a maximum, then a minimum, then another maximum. How sure that is can be told where the
same training was measured in several ways, as at several positions of a prompt: the curves are
drawn again with replacement, and the share of the means in which the minimum is still there is the
confidence.
"""

import dataclasses
import itertools

import numpy as np

CONTRAST = 0.75  # a rest is at most this much as fast as the slower of its neighbours
POINTS = 96  # of the resampled clock
LEAST = 0.01  # of the whole fall that a small drop must be


@dataclasses.dataclass(frozen=True)
class SmallDrop:
    """A fall that is followed by a rest.

    - `time`: where the descent is fastest.
    - `rest`: where it is slowest after that.
    - `before`, `after`: the mean curve at the start and at the rest.
    - `confidence`: the share of resampled means that show a rest within a factor 2 of this one.
    """

    time: float
    rest: float
    before: float
    after: float
    confidence: float


def small_drops(
    time: np.ndarray,
    curves: np.ndarray,
    *,
    resamples: int = 400,
    seed: int = 0,
) -> list[SmallDrop]:
    """Falls that end in a rest, in the mean of several curves of one training.

    - `time`: steps, increasing.
    - `curves`: the same loss measured in K ways: positions, evaluation batches.
    - `resamples`: how many means of curves that are drawn again give the confidence.
    - `seed`: of the drawing.

    >>> import numpy as np, iclflow as icl
    >>> time = np.geomspace(1, 1e5, 200)
    >>> curve = 4 - 0.2 / (1 + (100 / time) ** 2) - 2 / (1 + (5000 / time) ** 2)
    >>> found = icl.measures.small_drops(time, np.stack([curve, 1.1 * curve]))
    >>> [(round(d.after, 1), d.confidence) for d in found]
    [(4.0, 1.0)]
    """
    time, curves = np.asarray(time, float), np.asarray(curves, float)
    if curves.ndim != 2 or time.ndim != 1 or curves.shape[1] != len(time):
        raise ValueError(
            f"curves must be [K, T] for T = {time.size} times, got shape {curves.shape}"
        )
    if len(time) < 8 or np.any(np.diff(time) <= 0):
        raise ValueError("at least 8 times are needed, and they must increase")
    if not np.isfinite(curves).all():
        raise ValueError("the curves must be finite, got NaN or inf; cut them before")
    clock, sampled = on_log_clock(time, curves)
    mean = sampled.mean(axis=0)
    found = _rests(clock, mean)
    rng = np.random.default_rng(seed)
    draws = rng.integers(len(curves), size=(resamples, len(curves)))
    others = [{clock[rest] for _, rest in _rests(clock, sampled[d].mean(axis=0))} for d in draws]
    out = []
    for fast, rest in found:
        near = [any(abs(o - clock[rest]) <= np.log(2) for o in rests) for rests in others]
        out.append(SmallDrop(
            float(np.exp(clock[fast])), float(np.exp(clock[rest])), float(mean[0]),
            float(mean[rest]), float(np.mean(near)) if resamples else float("nan"),
        ))  # fmt: skip
    return out


def on_log_clock(time: np.ndarray, curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The curves at even readings of the logarithmic clock, each a mean over its neighbourhood."""
    positive = time > 0
    log, values = np.log(time[positive]), curves[:, positive]
    clock = np.linspace(log[0], log[-1], min(POINTS, len(log)))
    width = 0.75 * (clock[1] - clock[0])
    weights = np.exp(-0.5 * ((clock[:, None] - log[None, :]) / width) ** 2)
    # Points are dense where the record is: each counts as the stretch of the clock it stands for.
    weights *= np.gradient(log)[None, :]
    weights /= weights.sum(axis=1, keepdims=True)
    return clock, values @ weights.T


def _rests(clock: np.ndarray, mean: np.ndarray) -> list[tuple[int, int]]:
    """(fastest, slowest) of every fall that ends in a rest before another fall."""
    speed = -np.gradient(mean, clock)
    fall = mean.max() - mean.min()
    inner = range(1, len(speed) - 1)
    tops = [i for i in inner if speed[i] >= speed[i - 1] and speed[i] > speed[i + 1]]
    out, last = [], 0
    for first, second in itertools.pairwise(tops):
        if first < last:
            continue
        rest = first + int(np.argmin(speed[first : second + 1]))
        enough = mean[last] - mean[rest] >= LEAST * fall
        if enough and speed[rest] <= CONTRAST * min(speed[first], speed[second]):
            out.append((first, rest))
            last = rest
    return out
