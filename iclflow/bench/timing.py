"""Seconds of what is measured, and how they grow."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

REPEATS = 3


def best_seconds(call: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Wall time of the fastest of several calls."""
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def step_seconds(run: Callable[[int], Any], least: float) -> float:
    """Seconds of a step: `run(steps)` with as many as take `least`, the fastest of several."""
    run(1)  # compiles
    steps = 1
    for _ in itertools.count():
        spent = best_seconds(lambda n=steps: run(n), 1)
        if spent >= least:
            break
        steps = int(steps * min(64.0, 1 + 1.2 * least / spent))
    return min(spent, best_seconds(lambda: run(steps), REPEATS - 1)) / steps


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """Slope of log cost against log size by least squares, and its standard error."""
    x, y = np.log(sizes), np.log(costs)
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    residual = y - y.mean() - slope * x
    return slope, float(np.sqrt(residual @ residual / (len(x) - 2) / (x @ x)))
