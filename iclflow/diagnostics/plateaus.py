"""What the stages of a loss curve are: plateaus and drops on a clock."""

import dataclasses
import enum

import numpy as np
from jaxtyping import Float


class Clock(enum.Enum):
    """The time in which a plateau is long: `LOG` treats every decade alike."""

    LOG = "log"
    LINEAR = "linear"

    def __call__(self, time: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
        """The clock's reading; time 0 stands half the first positive time on a log clock."""
        if self is Clock.LINEAR:
            return time
        positive = time[time > 0]
        first = positive[0] if positive.size else 1.0
        return np.log(np.maximum(time, first / 2))

    def inverse(self, reading: float) -> float:
        """The time of a reading."""
        return float(reading if self is Clock.LINEAR else np.exp(reading))


@dataclasses.dataclass(frozen=True)
class Plateau:
    """A slow stretch: from 90% of the drop before to 10% of the drop after."""

    start: float
    end: float
    level: float  # median loss
    confidence: float


@dataclasses.dataclass(frozen=True)
class Drop:
    """A fast stretch. `time` is where the loss crosses halfway between the two levels."""

    time: float
    start: float  # 10% down
    end: float  # 90% down
    before: float
    after: float  # for an incomplete drop, the loss at the end of the curve
    complete: bool  # False if the curve ends before the loss levels off
    confidence: float
    p_value: float  # how often a curve without this drop would show one

    @property
    def size(self) -> float:
        """The loss lost in the drop."""
        return self.before - self.after


@dataclasses.dataclass(frozen=True)
class Stages:
    """The plateaus and drops of one curve, in order of time.

    Every drop has a plateau before it and, unless it is incomplete, one after it. Confidence is
    the share of resampled curves, each read with thresholds changed by up to a factor 1.5, in
    which the plateau or drop is found again; NaN without resampling.
    """

    plateaus: tuple[Plateau, ...]
    drops: tuple[Drop, ...]
    noise: float  # median standard deviation of a bin's loss
    clock: Clock

    def at(self, time: float | int) -> int:
        """The number of drops whose middle has passed: the plateau one is on, or heading for."""
        return sum(drop.time <= time for drop in self.drops)

    def lines(self) -> list[str]:
        """One line for each plateau."""
        return [
            f"plateau {i}: {p.start:.6g} to {p.end:.6g}, loss {p.level:.6g}, "
            f"confidence {p.confidence:.2f}"
            for i, p in enumerate(self.plateaus)
        ]

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{i}</td><td>{p.start:.6g}</td><td>{p.end:.6g}</td><td>{p.level:.6g}</td>"
            f"<td>{p.confidence:.2f}</td></tr>"
            for i, p in enumerate(self.plateaus)
        )
        names = ("plateau", "start", "end", "loss", "confidence")
        header = "".join(f"<th>{name}</th>" for name in names)
        drops = ", ".join(f"{drop.time:.6g}" for drop in self.drops) or "none"
        return f"<b>Stages</b>, drops at: {drops}<table><tr>{header}</tr>{rows}</table>"
