"""What a staircase is made of: drops, and the curves between them."""

import abc
import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import ArrayLike, Float

Times = ArrayLike | Sequence[float]  # t/τ


@dataclasses.dataclass(frozen=True)
class Curve:
    """A predicted run at some times; what the prediction does not know is None."""

    time: Float[np.ndarray, " T"]  # t/τ
    loss: Float[np.ndarray, " T"]
    values: Float[np.ndarray, "T H"] | None = None  # the value weight of every head
    effective: Float[np.ndarray, "T D D"] | None = None  # M = Σ v k qᵀ


@dataclasses.dataclass(frozen=True)
class Drop:
    """One mode learned by one head. Times are t/τ."""

    mode: int
    head: int
    switch: float  # when the other heads see the mode go
    blow_up: float  # of the head that escapes; infinite for a drop inside an active head
    sign: float  # of the head's value weight from then on
    gain: float  # g of the mode
    misalignment: float  # share of the head's |p|² on other modes, shortly before it escapes
    dormant_value: float  # |v| of the head at the beginning of the plateau

    @property
    def escape(self) -> bool:
        """Whether a new head makes the drop, rather than a further pair of an active one."""
        return bool(np.isfinite(self.blow_up))


class AbstractRun(abc.ABC):
    """A predicted run: its drops in order and its curves on the clock t/τ."""

    drops: list[Drop]
    ended: str  # why there are no more drops

    @property
    @abc.abstractmethod
    def drop_times(self) -> Float[np.ndarray, " n"]:
        """When the loss is halfway down each drop."""

    @abc.abstractmethod
    def loss(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
        """The loss."""

    @abc.abstractmethod
    def values(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T H"]:
        """The value weight of every head."""

    @abc.abstractmethod
    def own_values(self, times: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """The value weight of each drop's head, at a time for each after its drop."""

    @abc.abstractmethod
    def effective(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T D D"]:
        """M = Σ v k qᵀ, the weights on β x_qᵀ."""
