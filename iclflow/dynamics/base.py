"""What a dynamics is: a way for training time to advance."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, PRNGKeyArray, PyTree

from iclflow.losses import AbstractLoss, Population
from iclflow.models import AbstractLinearModel, AbstractModel, Blocks
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


class AbstractReduced(eqx.Module):
    """A prediction of the gradient flow of one start, without integrating its weights."""

    assumes: eqx.AbstractClassVar[str]
    models: eqx.AbstractClassVar[tuple[type, ...]]

    @abc.abstractmethod
    def __call__(self, loss: Population, model: AbstractModel, times: Any) -> Trajectory:
        """The run at the times t/τ: at least `loss`."""

    def admits(self, loss: AbstractLoss, model: AbstractModel) -> str | None:
        """None if the pair can be predicted this way, else the reason why not."""
        if not isinstance(loss, Population):
            return f"the reduced dynamics are those of Population, got {type(loss).__name__}"
        if loss.cross.shape[0] != 1:
            return f"the reduced dynamics are those of one output, got {loss.cross.shape[0]}"
        if not isinstance(model, self.models):
            names = " or ".join(kind.__name__ for kind in self.models)
            return f"it predicts {names}, got {type(model).__name__}"
        if isinstance(model, AbstractLinearModel) and model.blocks is Blocks.FULL:
            return "the zero blocks must be frozen; use model.reduce()"
        return None

    def require(self, loss: AbstractLoss, model: AbstractModel) -> None:
        """Raise `ValueError` with the reason unless the pair is admitted."""
        reason = self.admits(loss, model)
        if reason is not None:
            raise ValueError(f"{type(self).__name__} cannot take this run: {reason}")
