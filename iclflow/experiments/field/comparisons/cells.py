"""What a comparison with a published table is: cells, each with its standard error, and checks."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Report = Callable[[float], None]  # the fraction that is done

SOLID_CHI2 = 2.0  # χ² per cell up to which a table agrees
SOLID_Z = 4.0  # largest |z| up to which it does


@dataclasses.dataclass
class Cells:
    """Numbers of a table beside ours.

    - `theirs`, `ours`: means over draws.
    - `error`: the standard error of the difference.
    - `control`: ours with one deliberate mistake, which must not agree.
    """

    label: list[str] = dataclasses.field(default_factory=list)
    theirs: list[float] = dataclasses.field(default_factory=list)
    ours: list[float] = dataclasses.field(default_factory=list)
    error: list[float] = dataclasses.field(default_factory=list)
    control: list[float] = dataclasses.field(default_factory=list)

    def add(self, label: str, theirs: Any, ours: Any, error: Any, control: Any) -> None:
        """One more cell."""
        self.label.append(label)
        for name, value in zip(
            ("theirs", "ours", "error", "control"), (theirs, ours, error, control), strict=True
        ):
            getattr(self, name).append(float(value))

    def z(self, which: str = "ours") -> np.ndarray:
        """(theirs - ours)/error of every cell; `which` is "ours" or "control"."""
        gap = np.asarray(self.theirs) - np.asarray(getattr(self, which))
        return gap / np.asarray(self.error)


@dataclasses.dataclass(frozen=True)
class Check:
    """One more statement about a table, a number that must lie near another.

    - `control`: what is measured with a deliberate mistake; it must lie outside the tolerance.
    """

    name: str
    words: str
    expected: float
    measured: float
    tolerance: float
    control: float


@dataclasses.dataclass
class Found:
    """The comparison of one table.

    - `mistake`: in words, what the control does wrong.
    - `total`: how many cells the table has; those that were not recomputed are counted here too.
    - `note`: what a reader should know besides.
    - `authors`: the seconds that the authors state, NaN where they state none.
    """

    cells: Cells
    mistake: str
    total: int
    checks: Sequence[Check] = ()
    note: str = ""
    authors: float = float("nan")


def scores(z: np.ndarray) -> tuple[float, float]:
    """χ² per cell and the largest |z|; NaN without cells."""
    known = np.asarray(z, float)
    if known.size == 0:
        return float("nan"), float("nan")
    return float(np.mean(known**2)), float(np.max(np.abs(known)))


def agrees(z: np.ndarray) -> bool:
    """Whether χ² per cell and the largest |z| are those of equal means."""
    chi2, largest = scores(z)
    return bool(chi2 < SOLID_CHI2 and largest < SOLID_Z)


def error_of_difference(
    std: float, draws: float, ours: np.ndarray | None = None, *, fewest: int = 8
) -> float:
    """The standard error of the difference of two means.

    - `std`, `draws`: the population standard deviation of theirs and their number of draws.
    - `ours`: our draws; None where ours is exact.
    - `fewest`: with fewer draws on either side than this the two spreads are pooled.
    """
    theirs = std**2 / (draws - 1) if draws > 1 else float("nan")
    if ours is None:
        return theirs**0.5
    many = len(ours)
    own = float(np.var(ours, ddof=1)) if many > 1 else float("nan")
    if draws >= fewest and many >= fewest:
        return (theirs + own / many) ** 0.5
    freedom = (draws - 1 if draws > 1 else 0) + (many - 1)
    sums = (std**2 * draws if draws > 1 else 0.0) + (own * (many - 1) if many > 1 else 0.0)
    return (sums / freedom * (1 / draws + 1 / many)) ** 0.5
