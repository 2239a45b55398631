"""Claims with two sides: an interval over seeds is on one side of a limit, on the other, or both.

A claim that a mean is above a limit can be wrong in two ways. Its interval may lie below the limit,
and then the claim is refuted; or it may contain the limit, and then the seeds do not decide.
"""

from typing import Any

import numpy as np
from scipy import stats

from iclflow.experiments.base import Claim

CONFIDENCE = 0.95


def interval(values: Any, *, share: bool = False) -> tuple[float, float, float]:
    """The mean over seeds, and the two ends of its interval at 95%.

    - `values`: one per seed; those that are NaN do not count.
    - `share`: whether the values are 0 or 1. Their mean is then a share, and the interval is that
      of Clopper and Pearson; otherwise it is Student's.

    >>> from iclflow.experiments.intervals import interval
    >>> [round(end, 3) for end in interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    >>> [round(end, 3) for end in interval([1.0] * 8, share=True)]
    [1.0, 0.631, 1.0]
    """
    found = np.asarray(values, float)
    found = found[np.isfinite(found)]
    if found.size < 2:
        return (float(found[0]) if found.size else np.nan), np.nan, np.nan
    middle = float(np.mean(found))
    if share:
        test = stats.binomtest(int(found.sum()), found.size)
        ends = test.proportion_ci(CONFIDENCE, "exact")
        return middle, float(ends.low), float(ends.high)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, found.size - 1) * stats.sem(found)
    return middle, middle - float(half), middle + float(half)


def two_sided(
    id: str,
    claim: str,
    equation: str,
    values: Any,
    limit: float,
    reason: str,
    note: str = "",
    *,
    above: bool = True,
    share: bool = False,
    **marks: Any,
) -> Claim:
    """A claim that the mean over seeds is above a limit (or below it), in every one of some cells.

    It holds if the whole interval of every cell is on that side. It is undecided if no interval
    lies on the other side, but one contains the limit. What is shown is the worst cell.

    - `values`: [cell, seed], such as depths and circuits; one row will do. NaN is a missing seed.
    - `limit`: what the mean is compared with, and why in `reason`.
    - `above`: the side that is claimed.
    - `share`: as in `interval`.
    """
    rows = np.atleast_2d(np.asarray(values, float))
    cells = [interval(row, share=share) for row in rows]
    sign = 1.0 if above else -1.0
    nearest = [sign * (low if above else high) for _, low, high in cells]
    worst = int(np.argmin(np.where(np.isfinite(nearest), nearest, -np.inf)))
    measured, low, high = cells[worst]
    holds = bool(np.min(nearest) > sign * limit)  # NaN does not hold
    other = [sign * (high if above else low) < sign * limit for _, low, high in cells]
    seeds = int(np.isfinite(rows[worst]).sum())
    said = f"95% interval over {seeds} seeds {low:.3g} to {high:.3g}"
    return Claim(
        id, claim, equation, f"{'above' if above else 'below'} {limit:g}", measured, limit, holds,
        reason, f"{said}; {note}" if note else said, interval=(low, high),
        decided=holds or any(other), **marks,
    )  # fmt: skip


def around(
    id: str,
    claim: str,
    equation: str,
    ratios: Any,
    factor: float,
    reason: str,
    note: str = "",
    **marks: Any,
) -> Claim:
    """A claim that a ratio is 1 within a factor, either way, in every one of some cells.

    It holds if the interval of the geometric mean lies within the factor in every cell, and is
    refuted if that of some cell lies outside. What is shown is the cell that is farthest from 1.

    - `ratios`: [cell, seed], such as two tasks; NaN is a missing seed.
    - `factor`: how far from 1 still counts, and why in `reason`.
    """
    rows = np.log(np.atleast_2d(np.asarray(ratios, float)))
    cells = [interval(row) for row in rows]
    limit = np.log(factor)
    worst = int(np.argmax([abs(middle) if np.isfinite(middle) else np.inf for middle, *_ in cells]))
    measured, low, high = (float(np.exp(number)) for number in cells[worst])
    holds = all(-limit <= low and high <= limit for _, low, high in cells)
    outside = any(low > limit or high < -limit for _, low, high in cells)
    seeds = int(np.isfinite(rows[worst]).sum())
    said = f"95% interval over {seeds} seeds {low:.3g} to {high:.3g}"
    return Claim(
        id, claim, equation, f"1 within a factor {factor:g}", measured, factor, holds, reason,
        f"{said}; {note}" if note else said, interval=(low, high), decided=holds or outside,
        **marks,
    )  # fmt: skip
