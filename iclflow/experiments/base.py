"""What an experiment is: data for a figure, and the claims that the data can settle."""

import dataclasses
from typing import Protocol

import xarray as xr

from iclflow.results.progress import Progress


@dataclasses.dataclass(frozen=True)
class Claim:
    """One statement of the paper with the number that was measured for it.

    `holds` is decided by comparing `measured` with `expected` within `tolerance`, never by hand;
    `reason` says where the tolerance comes from, `note` what a reader should know besides.
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


class Experiment(Protocol):
    """The two functions every module of this package has."""

    def compute(self, *, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
        """Everything the figure shows, theory included, as one labelled Dataset.

        Paper scale by default; `quick` is smaller in sequences, seeds or steps, and says so in
        the Dataset's attributes. Deterministic.
        """
        ...

    def claims(self, data: xr.Dataset) -> list[Claim]:
        """The claims this Dataset settles."""
        ...


def below(
    id: str, claim: str, equation: str, measured: float, limit: float, reason: str, note: str = ""
) -> Claim:
    """A claim that a measured size is at most `limit`; NaN does not hold."""
    return Claim(id, claim, equation, 0.0, measured, limit, bool(measured <= limit), reason, note)


def near(
    id: str,
    claim: str,
    equation: str,
    expected: float,
    measured: float,
    tolerance: float,
    reason: str,
    note: str = "",
) -> Claim:
    """A claim that `measured` lies within `tolerance` of `expected`; NaN does not hold."""
    holds = bool(abs(measured - expected) <= tolerance)
    return Claim(id, claim, equation, expected, measured, tolerance, holds, reason, note)
