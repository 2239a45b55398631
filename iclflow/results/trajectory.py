"""What a run returns: recorded quantities at saved times, and how the run ended."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int, PyTree


class RESULTS(eqx.Enumeration):
    """How a run ended. Numerical failure is a result, not an exception."""

    finished = "reached the end"
    diverged = "the loss grew past any bound: the rate is too large"
    not_a_number = "the loss or the weights were not numbers from the start"
    step_limit = "the solver used up its steps before the end"


class Trajectory(eqx.Module):
    """One training run.

    Saved points after the run stopped hold NaN; everything before is kept. For gradient descent
    at rate η, `time` is t/τ = 2 η · step, the one clock of every plot (Section 4 of the theory).
    """

    time: Float[Array, " T"]  # t/τ
    step: Float[Array, " T"] | Int[Array, " T"]  # updates made; for a flow, equal to `time`
    record: dict[str, Any]  # name -> [T, ...], or a dict of such
    result: RESULTS
    stopped: Float[Array, ""] | Int[Array, ""]  # the last step (flow: time) that was computed
    state: Any = None  # resumes the run; see `simulate(..., state=)`

    def __getitem__(self, name: str) -> PyTree[Array]:
        if name not in self.record:
            raise KeyError(f"{name!r} was not recorded; recorded: {', '.join(self.record)}")
        return self.record[name]

    @property
    def loss(self) -> Float[Array, " T"]:
        """The training loss at the saved times."""
        return self["loss"]

    @property
    def model(self) -> Any:
        """The weights at the end of the run."""
        return self.state.model


def log_steps(last: int, count: int = 200) -> np.ndarray:
    """About `count` whole steps from 0 to `last`, evenly spaced in the logarithm."""
    if last < 1:
        return np.zeros(1, dtype=int)
    grid = np.geomspace(1, last, max(2, count - 1))
    return np.unique(np.concatenate([[0], np.round(grid).astype(int), [last]]))


def linear_steps(last: int, count: int = 200) -> np.ndarray:
    """About `count` whole steps from 0 to `last`, evenly spaced."""
    return np.unique(np.round(np.linspace(0, last, max(2, count))).astype(int))
