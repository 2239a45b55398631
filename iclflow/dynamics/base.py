"""What a dynamics is: a way for training time to advance."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, PRNGKeyArray, PyTree

from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.results.trajectory import Trajectory

Recorder = Callable[[AbstractModel, AbstractLoss], PyTree[Array]]


class AbstractDynamics(eqx.Module):
    """Train a model on a loss and return what was recorded at the marks."""

    @abc.abstractmethod
    def start(self, loss: AbstractLoss, model: AbstractModel, key: PRNGKeyArray) -> Any:
        """The state of a run that has made no step yet."""

    @abc.abstractmethod
    def advance(
        self, loss: AbstractLoss, state: Any, marks: Array, record: dict[str, Recorder]
    ) -> Trajectory:
        """Run from `state` to the last mark, recording at every mark; pure, one run."""

    @abc.abstractmethod
    def marks(self, count: int) -> Array:
        """`count` save points spread over the whole run, evenly in the logarithm of time."""

    def admits(self, loss: AbstractLoss, model: AbstractModel) -> str | None:
        """None if the pair can be trained this way, else the reason why not."""
        return loss.admits(model)
