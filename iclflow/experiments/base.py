"""What an experiment is: data, the claims that the data settle, and controls of these claims.

A folder each, with the same names in each: `data.compute`, `claims.claims`, `claims.controls`,
`figure.draw`, with a suffix where there are several; `__init__` has its figures in words. No
science is imported here.
"""

import dataclasses
import itertools
from typing import Any

Control = Any  # a Dataset, or a tuple of several


@dataclasses.dataclass(frozen=True)
class Claim:
    """One statement with the number that was measured for it.

    - `holds` is decided by comparing `measured` with `expected` within `tolerance`, never by hand.
    - `reason` says where the tolerance comes from, `note` what a reader should know besides.
    - `population`: measured without sampling, on the loss's closed form or by formulas alone.
    - `beyond`: not in the paper; a result of ours beside it.
    """

    id: str
    claim: str
    equation: str
    expected: float | str
    measured: float
    tolerance: float
    holds: bool
    reason: str = ""
    note: str = ""
    population: bool = False
    beyond: bool = False


def near(
    id: str, claim: str, equation: str, expected: float, measured: float, tolerance: float,
    reason: str, note: str = "", **marks: bool,
) -> Claim:  # fmt: skip
    """A claim that `measured` lies within `tolerance` of `expected`; NaN does not hold."""
    holds = bool(abs(measured - expected) <= tolerance)
    return Claim(id, claim, equation, expected, measured, tolerance, holds, reason, note, **marks)


def below(
    id: str, claim: str, equation: str, measured: float, limit: float, reason: str,
    note: str = "", **marks: bool,
) -> Claim:  # fmt: skip
    """A claim that a measured size, 0 at best, is at most `limit`; NaN does not hold."""
    holds = bool(measured <= limit)
    return Claim(id, claim, equation, 0.0, measured, limit, holds, reason, note, **marks)


def at_least(
    id: str, claim: str, equation: str, measured: float, limit: float, reason: str,
    note: str = "", **marks: bool,
) -> Claim:  # fmt: skip
    """A claim that `measured` reaches `limit`."""
    wanted, holds = f"at least {limit:g}", bool(measured >= limit)
    return Claim(id, claim, equation, wanted, measured, limit, holds, reason, note, **marks)


def at_most(
    id: str, claim: str, equation: str, measured: float, limit: float, reason: str,
    note: str = "", **marks: bool,
) -> Claim:  # fmt: skip
    """A claim that `measured` does not exceed `limit`."""
    wanted, holds = f"at most {limit:g}", bool(measured <= limit)
    return Claim(id, claim, equation, wanted, measured, limit, holds, reason, note, **marks)


def less(
    id: str, claim: str, equation: str, measured: float, other: float, reason: str,
    note: str = "", **marks: bool,
) -> Claim:  # fmt: skip
    """A claim of order, `measured` < `other`."""
    wanted, holds = f"below {other:g}", bool(measured < other)
    return Claim(id, claim, equation, wanted, measured, other, holds, reason, note, **marks)


def level_tolerance(levels: Any, deviation: float) -> float:
    """Three standard errors, or half the smallest step if that is less: no other level fits."""
    steps = [abs(float(b - a)) for a, b in itertools.pairwise(levels)]
    return min(3 * deviation, min(steps) / 2)
