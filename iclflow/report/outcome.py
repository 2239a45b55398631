"""What became of a figure."""

import dataclasses
from typing import Any

from iclflow.experiments.base import Claim


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one figure.

    `computing` is the time its data took, in an earlier run if they were `reused`; figures drawn
    from the same data have the same.
    """

    name: str
    status: str  # computed, reused or failed
    computing: float = 0.0
    drawing: float = 0.0
    claims: tuple[Claim, ...] = ()
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: str = ""
