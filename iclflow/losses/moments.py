"""The loss from moments of the features: cost a step independent of P and N."""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from iclflow.losses.base import AbstractLoss
from iclflow.losses.features import AbstractFeatureMap, Features, FullFeatures, extract
from iclflow.losses.memory import require_memory
from iclflow.models import AbstractLinearModel, AbstractModel
from iclflow.results.progress import Progress
from iclflow.tasks.prompts import PromptSet
from iclflow.tasks.task import Task

CHUNK_BYTES = 64 * 2**20  # features of one chunk of prompts


@jax.custom_jvp
def quadratic_form(matrix: Float[Array, "F F"], weights: Float[Array, "O F"]) -> Float[Array, ""]:
    """Σ_o W_o C W_oᵀ for symmetric C, with a gradient that reuses the product W C."""
    return jnp.sum((weights @ matrix) * weights)


@quadratic_form.defjvp
def _quadratic_form_jvp(primals: tuple, tangents: tuple) -> tuple:
    (matrix, weights), (matrix_dot, weights_dot) = primals, tangents
    product = weights @ matrix
    tangent = 2 * jnp.sum(product * weights_dot) + jnp.sum((weights @ matrix_dot) * weights)
    return jnp.sum(product * weights), tangent


class Moments(AbstractLoss):
    """L = E|y|² - 2 ⟨W, E[y φ]⟩ + ⟨W, W E[φφᵀ]⟩ for weights W on the features φ; exact."""

    power: Float[Array, ""]  # E|y|²
    cross: Float[Array, "O F"]  # E[y φ]
    second: Float[Array, "F F"]  # E[φφᵀ]
    map: AbstractFeatureMap

    @classmethod
    def sample(
        cls,
        task: Task,
        sequences: int,
        key: PRNGKeyArray,
        *,
        features: AbstractFeatureMap | None = None,
        matched: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Draw `sequences` prompts chunk by chunk and keep only their moments.

        The prompts are those of `Features.sample` and `Sequences.sample` with the same key.
        """
        map_ = FullFeatures() if features is None else features
        require_memory(
            moments_bytes(task, map_),
            f"the moments of {map_.count(task)} features",
            "use Features or Sequences, which keep prompts instead, or freeze the zero blocks",
        )
        prompts = PromptSet.sample(task, sequences, key, matched=matched)
        row = map_.count(task) * len(task.lengths) * 8
        chunk = max(1, min(sequences, 16384, CHUNK_BYTES // row))
        total = None
        for index, mask in prompts.chunks(chunk):
            part = _chunk_sums(prompts, map_, index, mask)
            total = part if total is None else jax.tree.map(jnp.add, total, part)
            if progress is not None:
                jax.block_until_ready(total)
                progress(min(int(index[-1]) + 1, sequences), sequences)
        assert total is not None
        count = sequences * len(task.lengths)
        power, cross, second = jax.tree.map(lambda s: s / count, total)
        return cls(power, cross, second, map_)

    @classmethod
    def from_features(cls, features: Features) -> Self:
        """The moments of per-prompt features."""
        count = features.target.shape[0] * features.target.shape[1]
        sums = _sums(features.statistic, features.query, features.target, None)
        power, cross, second = jax.tree.map(lambda s: s / count, sums)
        return cls(power, cross, second, features.map)

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        self.require(model)
        assert isinstance(model, AbstractLinearModel)
        weights = self.map.weights(model)
        weights = weights.reshape(weights.shape[0], -1)
        return self.power - 2 * jnp.sum(weights * self.cross) + quadratic_form(self.second, weights)

    def admits(self, model: AbstractModel) -> str | None:
        return self.map.admits(model)


def moments_bytes(task: Task, features: AbstractFeatureMap) -> int:
    """Memory for the moments and the gradient step that uses them."""
    return 3 * 8 * features.count(task) ** 2


def _sums(
    statistic: Float[Array, "P n K"],
    query: Float[Array, "P n D"],
    target: Float[Array, "P n O"],
    mask: Bool[Array, " P"] | None,
) -> tuple[Float[Array, ""], Float[Array, "O F"], Float[Array, "F F"]]:
    phi = jnp.einsum("pnk,pnc->pnkc", statistic, query)
    phi = phi.reshape(phi.shape[0] * phi.shape[1], -1)
    y = target.reshape(phi.shape[0], -1)
    if mask is not None:
        keep = jnp.repeat(mask, target.shape[1])[:, None]
        phi, y = jnp.where(keep, phi, 0.0), jnp.where(keep, y, 0.0)
    return jnp.sum(y**2), y.T @ phi, phi.T @ phi


@eqx.filter_jit
def _chunk_sums(
    prompts: PromptSet, map_: AbstractFeatureMap, index: Array, mask: Array
) -> tuple[Array, Array, Array]:
    return _sums(*extract(prompts, map_, index), mask)
