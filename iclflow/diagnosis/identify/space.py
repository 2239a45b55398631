"""Linear models and linear candidates as vectors, with the norm of the population moments."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.linalg import gaussian_moment, packed_pairs
from iclflow.losses import FullFeatures, Population, ReducedFeatures, population_moments
from iclflow.losses.population import LengthMoments
from iclflow.models import AbstractLinearModel, AbstractModel, Blocks
from iclflow.tasks.inputs import Gaussian
from iclflow.tasks.task import ContextLabels, Task
from iclflow.theory import InWeight

FULL_LIMIT = 4096  # features whose moments are worth the memory


class Space(eqx.Module):
    """Predictors linear in (φ, x_q) as vectors, with the population's E[(φ, x_q)(φ, x_q)ᵀ]."""

    gram: Float[Array, "F F"]
    map: FullFeatures | ReducedFeatures
    size: int = eqx.field(static=True)

    def vector(self, predictor: AbstractModel) -> Float[Array, " F"]:
        """The weights of a predictor on (φ, x_q)."""
        if isinstance(predictor, InWeight):
            zeros = jnp.zeros(self.gram.shape[0] - self.size, self.gram.dtype)
            return jnp.concatenate([zeros, predictor.task_matrix[0]])
        assert isinstance(predictor, AbstractLinearModel)
        weights = self.map.weights(predictor)[0].reshape(-1)
        return jnp.concatenate([weights, jnp.zeros(self.size, weights.dtype)])

    def squared_distances(
        self, models: AbstractModel, predictor: AbstractModel, moved: bool
    ) -> Float[np.ndarray, " T"]:
        """E(ŷ - ŷ')² of every model to a predictor (`moved`: one predictor for each model)."""
        return np.maximum(np.asarray(self._squares(models, predictor, moved)), 0.0)

    @eqx.filter_jit
    def _squares(
        self, models: AbstractModel, predictor: AbstractModel, moved: bool
    ) -> Float[Array, " T"]:
        ours = jax.vmap(self.vector)(models)
        theirs = jax.vmap(self.vector)(predictor) if moved else self.vector(predictor)[None]
        change = ours - jnp.broadcast_to(theirs, ours.shape)
        return jnp.sum((change @ self.gram) * change, axis=1)


def feature_space(models: AbstractModel, task: Task) -> Space | None:
    """The space in which the models and the linear candidates are vectors, if it is known."""
    if not isinstance(models, AbstractLinearModel):
        return None
    mean = task.tasks.mean
    full = models.blocks is Blocks.FULL
    count = (FullFeatures() if full else ReducedFeatures()).count(task)
    if count > FULL_LIMIT or (full and not isinstance(task.inputs, Gaussian)):
        return None
    if task.context_labels is ContextLabels.NOISE:
        mean = jnp.zeros_like(mean)
    if full:
        second, cross = population_moments(task).second, _full_cross(task, mean[0])
    else:
        population = Population(task)
        second = jnp.kron(population.second, population.covariance)
        correlation = LengthMoments.of(task).pairs * task.covariance @ mean[0]
        cross = jnp.kron(correlation[:, None], task.covariance)
    gram = jnp.block([[second, cross], [cross.T, task.covariance]])
    return Space(gram, FullFeatures() if full else ReducedFeatures(), task.size)


def _full_cross(task: Task, mean: Float[Array, " D"]) -> Float[Array, "F D"]:
    """`E[S_ab x_c x_d]`: the context's ⟨n/z⟩ E[C_ab] Λ_cd and the query token's fourth moment."""
    size, lengths, covariance = task.size, LengthMoments.of(task), task.covariance
    labels = jnp.einsum("ocod,cd->", task.second_moment(), covariance) + task.label_noise**2
    if task.context_labels is ContextLabels.NOISE:
        labels = jnp.ones_like(labels)
    row = (covariance @ mean)[None]
    token = jnp.block([[covariance, row.T], [row, labels[None, None]]])
    a, b = (jnp.asarray(i)[:, None, None] for i in packed_pairs(size + 1))
    c, d = jnp.arange(size)[None, :, None], jnp.arange(size)[None, None, :]
    padded = jnp.pad(covariance, ((0, 1), (0, 1)))  # the query's label slot is 0
    four = gaussian_moment(padded, jnp.zeros(size + 1), a, b, c, d)
    both = lengths.pairs * token[a, b] * covariance[c, d] + lengths.query * four
    return both.reshape(-1, size)
