"""Feature maps of a prompt, and the loss on per-prompt features (Section 5 of the theory page)."""

import abc
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.linalg import pack_dual, pack_symmetric
from iclflow.losses.base import AbstractLoss
from iclflow.losses.memory import require_memory
from iclflow.models import AbstractLinearModel, AbstractModel, Blocks
from iclflow.results.progress import Progress
from iclflow.tasks.prompt import Prompt, map_prefixes
from iclflow.tasks.prompts import PromptSet
from iclflow.tasks.task import Task

NOT_LINEAR = "its prediction is linear in no fixed features of the prompt; use Sequences"


class AbstractFeatureMap(eqx.Module):
    """Features φ = statistic ⊗ x_q, in which linear models are linear: ŷ_o = Σ W[o,k,c] φ[k,c]."""

    @abc.abstractmethod
    def statistic(self, prompt: Prompt) -> Float[Array, " K"]:
        """What the features keep of the context."""

    @abc.abstractmethod
    def weights(self, model: AbstractLinearModel) -> Float[Array, "O K D"]:
        """The model's weights on the features."""

    @abc.abstractmethod
    def count(self, task: Task) -> int:
        """How many features a prompt has, K·D."""

    @abc.abstractmethod
    def admits(self, model: AbstractModel) -> str | None:
        """None, or why these features do not determine the model's prediction."""


class FullFeatures(AbstractFeatureMap):
    """The upper triangle of S = XXᵀ/N: (D+O)(D+O+1)/2 · D features, enough for all blocks."""

    def statistic(self, prompt: Prompt) -> Float[Array, " K"]:
        return pack_symmetric(prompt.second_moment)

    def weights(self, model: AbstractLinearModel) -> Float[Array, "O K D"]:
        return pack_dual(model.effective_weights())

    def count(self, task: Task) -> int:
        token = task.size + task.outputs
        return token * (token + 1) // 2 * task.size

    def admits(self, model: AbstractModel) -> str | None:
        return None if isinstance(model, AbstractLinearModel) else NOT_LINEAR


class ReducedFeatures(AbstractFeatureMap):
    """The correlation β alone: O·D² features z, enough when the zero blocks are frozen."""

    def statistic(self, prompt: Prompt) -> Float[Array, " K"]:
        return prompt.correlation.reshape(-1)

    def weights(self, model: AbstractLinearModel) -> Float[Array, "O K D"]:
        weights = model.reduced_weights()
        return weights.reshape(weights.shape[0], -1, weights.shape[-1])

    def count(self, task: Task) -> int:
        return task.outputs * task.size**2

    def admits(self, model: AbstractModel) -> str | None:
        if not isinstance(model, AbstractLinearModel):
            return NOT_LINEAR
        if model.blocks is Blocks.FULL:
            return "the reduced features β x_qᵀ miss its trained zero blocks; use FullFeatures()"
        return None


class Features(AbstractLoss):
    """Mean squared error from per-prompt features; exact, cost independent of N."""

    statistic: Float[Array, "P n K"]
    query: Float[Array, "P n D"]
    target: Float[Array, "P n O"]
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
        """Draw prompts and keep their features; `task.lengths` prefixes of each."""
        map_ = FullFeatures() if features is None else features
        require_memory(
            features_bytes(task, sequences, map_),
            f"the features of {sequences} sequences",
            "use Moments, whose memory does not depend on them, or fewer sequences",
        )
        prompts = PromptSet.sample(task, sequences, key, matched=matched)
        parts = []
        for index, mask in prompts.chunks(min(sequences, 8192)):
            part, whole = extract(prompts, map_, index), int(index[-1]) < sequences
            parts.append(part if whole else jax.tree.map(lambda a, m=mask: a[m], part))
            if progress is not None:
                progress(min(int(index[-1]) + 1, sequences), sequences)
        statistic, query, target = jax.tree.map(lambda *a: jnp.concatenate(a), *parts)
        return cls(statistic, query, target, map_)

    @classmethod
    def from_prompts(
        cls, prompts: Prompt, lengths: tuple[int, ...], features: AbstractFeatureMap | None = None
    ) -> Self:
        """The features of given prompts (stacked along a leading axis), each cut to `lengths`."""
        map_ = FullFeatures() if features is None else features
        statistic, query, target = jax.vmap(lambda p: _features(p, lengths, map_))(prompts)
        return cls(statistic, query, target, map_)

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        self.require(model)
        assert isinstance(model, AbstractLinearModel)
        weights = self.map.weights(model)
        prediction = jnp.einsum("pnk,okc,pnc->pno", self.statistic, weights, self.query)
        return jnp.mean(jnp.sum((self.target - prediction) ** 2, axis=-1))

    def admits(self, model: AbstractModel) -> str | None:
        return self.map.admits(model)

    @property
    def count(self) -> int:
        """The number of sequences P."""
        return self.target.shape[0]

    def take(self, index: Array) -> Self:
        """The same loss on some of the sequences."""
        return type(self)(self.statistic[index], self.query[index], self.target[index], self.map)


def features_bytes(task: Task, sequences: int, features: AbstractFeatureMap) -> int:
    """Memory for the features, and for the copies a training step makes of them."""
    row = features.count(task) // task.size + task.size + task.outputs
    return 3 * 8 * sequences * len(task.lengths) * row


def _features(
    prompt: Prompt, lengths: tuple[int, ...], map_: AbstractFeatureMap
) -> tuple[Float[Array, "n K"], Float[Array, "n D"], Float[Array, "n O"]]:
    """Statistic, query and target of every prefix of one prompt."""
    return map_prefixes(lambda p: (map_.statistic(p), p.query, p.target), prompt, lengths)


@eqx.filter_jit
def extract(
    prompts: PromptSet, map_: AbstractFeatureMap, index: Array
) -> tuple[Float[Array, "C n K"], Float[Array, "C n D"], Float[Array, "C n O"]]:
    """Features of a chunk of prompts."""
    return jax.vmap(lambda i: _features(prompts.prompt(i), prompts.task.lengths, map_))(index)
