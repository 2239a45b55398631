"""Training in closed or nearly closed form: the reduced rungs of the ladder, on the clock t/τ.

Each takes `Population` losses only and says in `assumes` what its result rests on. They are host
functions (events decide what comes next), so they stand outside jit.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp

from iclflow.losses import AbstractLoss, Population
from iclflow.models import (
    MLP,
    AbstractLinearModel,
    AbstractModel,
    Blocks,
    ConvNet,
    Merged,
    Separate,
)
from iclflow.theory.drops import Times
from iclflow.theory.limit import vanishing_limit
from iclflow.theory.staircase import staircase
from iclflow.theory.time_course import WhiteCourse, merged_course
from iclflow.trajectory import RESULTS, Trajectory


class AbstractReduced(eqx.Module):
    """A prediction of the gradient flow of one start, without integrating its weights."""

    assumes: eqx.AbstractClassVar[str]
    models: eqx.AbstractClassVar[tuple[type, ...]]

    @abc.abstractmethod
    def __call__(self, loss: Population, model: AbstractModel, times: Times) -> Trajectory:
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


class Stairs(AbstractReduced):
    """Separate key and query: the staircase from the initial weights (see `staircase`)."""

    assumes = "small initial weights: heads that have not escaped do not feel each other"
    models = (Separate, ConvNet)

    def __call__(self, loss: Population, model: AbstractModel, times: Times) -> Trajectory:
        self.require(loss, model)
        return staircase(loss, model, probes=0).at(times)


class Jumps(AbstractReduced):
    """Separate key and query: the limit of vanishing initial weights (see `vanishing_limit`)."""

    assumes = "vanishing initial weights: drops take no time, and dormant heads only grow"
    models = (Separate, ConvNet)

    def __call__(self, loss: Population, model: AbstractModel, times: Times) -> Trajectory:
        self.require(loss, model)
        return vanishing_limit(loss, model).at(times)


class OneDrop(AbstractReduced):
    """Merged key and query: one matrix instead of H heads (see `merged_course`)."""

    assumes = "small initial weights: all heads are parallel when the drop comes"
    models = (Merged, MLP)

    def __call__(self, loss: Population, model: AbstractModel, times: Times) -> Trajectory:
        self.require(loss, model)
        return merged_course(loss, _merged(model), times)


class Logistic(AbstractReduced):
    """Merged key and query, white inputs: the closed form (15)(45)-(48) (see `WhiteCourse`)."""

    assumes = "small initial weights and white inputs, B G Λ ∝ G"
    models = (Merged, MLP)

    def admits(self, loss: AbstractLoss, model: AbstractModel) -> str | None:
        reason = super().admits(loss, model)
        if reason is None:
            try:
                WhiteCourse(loss, _merged(model))  # type: ignore[arg-type]
            except ValueError as error:
                return str(error)
        return reason

    def __call__(self, loss: Population, model: AbstractModel, times: Times) -> Trajectory:
        self.require(loss, model)
        course = WhiteCourse(loss, _merged(model))
        saves = jnp.atleast_1d(jnp.asarray(times, float))
        weights = jax.vmap(course.model)(saves)
        values = weights.values[:, :, 0, 0]
        matrices = jnp.einsum("th,thdc->tdc", values, weights.merged)
        record = {"loss": course.loss(saves), "values": values, "effective": matrices}
        return Trajectory(saves, saves, record, RESULTS.finished, saves[-1])


def _merged(model: AbstractModel) -> Merged:
    """The merged attention that a network on cubic features is equal to (11)."""
    found = model.as_attention() if isinstance(model, MLP) else model
    assert isinstance(found, Merged)
    return found
