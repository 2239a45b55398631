"""Softmax attention over either parametrisation (5)(6)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.models.base import AbstractAttention, AbstractInitialiser, AbstractModel
from iclflow.models.merged import MergedInitialiser
from iclflow.models.separate import SeparateInitialiser
from iclflow.tasks.prompt import Prompt


class Softmax(AbstractModel):
    """ŷ = Σᵢ Σⱼ softmaxⱼ(x_qᵀ-row of XᵀW^{KQ}ᵢX) [𝐯ᵢᵀ vᵢ] (xⱼ, yⱼ); the query attends to itself.

    No 1/√d and no 1/N, as in the published code. Only the query's row of the attention map is
    computed. Linear in no fixed features of the prompt, so it trains on sequences only.
    """

    attention: AbstractAttention

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        tokens = prompt.tokens
        scores = self.attention.scores(tokens, prompt.query)
        visible = prompt.visible
        if visible is not None:
            scores = jnp.where(visible[None, :], scores, -jnp.inf)
        return self.attention.read(jax.nn.softmax(scores, axis=1), tokens)


class SoftmaxInitialiser(AbstractInitialiser):
    """key -> `Softmax` of the attention that `inner` draws."""

    inner: MergedInitialiser | SeparateInitialiser

    @property
    def scale(self) -> Float[Array, ""]:
        """The init scale w of the attention inside."""
        return self.inner.scale

    def __call__(self, key: PRNGKeyArray) -> Softmax:
        return Softmax(self.inner(key))
