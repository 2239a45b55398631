"""The curves of a predicted run."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import ArrayLike, Float

Times = ArrayLike | Sequence[float]  # t/τ


@dataclasses.dataclass(frozen=True)
class Curve:
    """A predicted run at some times; what the prediction does not know is None.

    - `loss`: the loss at these times.
    """

    time: Float[np.ndarray, " T"]  # t/τ
    loss: Float[np.ndarray, " T"]
    values: Float[np.ndarray, "T H"] | None = None  # the value weight of every head
    effective: Float[np.ndarray, "T D D"] | None = None  # M = Σ v k qᵀ
