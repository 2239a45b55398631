"""Training in closed or nearly closed form: the reduced rungs of the ladder, on the clock t/τ.

Each takes `Population` losses only and says in `assumes` what its result rests on. They are host
functions (events decide what comes next), so they stand outside jit.
"""

import jax
import jax.numpy as jnp

from iclflow.dynamics.base import AbstractReduced
from iclflow.losses import AbstractLoss, Population
from iclflow.models import MLP, AbstractModel, ConvNet, Merged, Separate
from iclflow.results.trajectory import RESULTS, Trajectory
from iclflow.theory.drops.base import Times
from iclflow.theory.drops.limit import vanishing_limit
from iclflow.theory.drops.one_drop import WhiteCourse, merged_course
from iclflow.theory.drops.staircase import staircase


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
