"""The linear networks that linear attention is equivalent to (11)(12), Section 4.1."""

from typing import Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.models.base import AbstractInitialiser, AbstractLinearModel, Blocks
from iclflow.models.merged import Merged, MergedInitialiser
from iclflow.models.separate import Separate, SeparateInitialiser
from iclflow.tasks.prompt import Prompt


def cubic_features(prompt: Prompt) -> Float[Array, "O F"]:
    """z = vec(β x_qᵀ), columns stacked, one row an output (12)."""
    z = jnp.einsum("od,c->ocd", prompt.correlation, prompt.query)
    return z.reshape(z.shape[0], -1)


class MLP(AbstractLinearModel):
    """Two-layer fully connected linear network on cubic features: ŷ = w₂ᵀ W₁ z (11)."""

    first: Float[Array, "H F"]  # W₁, rows vec(Uᵢ)ᵀ
    second: Float[Array, "H O O"]  # w₂; a number a hidden unit when there is one output

    @property
    def blocks(self) -> Blocks:
        return Blocks.FROZEN

    @classmethod
    def from_attention(cls, model: Merged) -> Self:
        """The network with the same function and the same training dynamics as `model`."""
        heads = model.merged.shape[0]
        return cls(jnp.swapaxes(model.merged, 1, 2).reshape(heads, -1), model.values)

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        hidden = self.first @ cubic_features(prompt).T
        return jnp.einsum("hop,hp->o", self.second, hidden)

    def as_attention(self) -> Merged:
        """The merged attention with the same function."""
        heads, squared = self.first.shape
        size = round(squared**0.5)
        matrices = jnp.swapaxes(self.first.reshape(heads, size, size), 1, 2)
        return Merged(values=self.second, merged=matrices)

    def reduced_weights(self) -> Float[Array, "O O D D"]:
        return self.as_attention().reduced_weights()

    def effective_weights(self) -> Float[Array, "O T T D"]:
        return self.as_attention().effective_weights()


class ConvNet(AbstractLinearModel):
    """A sum of three-layer convolutional linear networks on cubic features: Σᵢ vᵢ qᵢᵀ Kᵢ z.

    Kᵢ is the D x D² convolution with kernel kᵢ and stride D (Section 4.1); rank R has R kernels
    a head.
    """

    kernels: Float[Array, "H R D"]
    second: Float[Array, "H R D"]
    third: Float[Array, "H O O"]

    @property
    def blocks(self) -> Blocks:
        return Blocks.FROZEN

    @classmethod
    def from_attention(cls, model: Separate) -> Self:
        """The network with the same function and the same training dynamics as `model`."""
        return cls(model.keys, model.queries, model.values)

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        heads, rank, size = self.kernels.shape
        convolved = jax.lax.conv_general_dilated(
            cubic_features(prompt)[:, None, :],  # batch O, one channel, D² long
            self.kernels.reshape(heads * rank, 1, size),
            window_strides=(size,),
            padding="VALID",
        ).reshape(-1, heads, rank, size)
        return jnp.einsum("hop,hrc,phrc->o", self.third, self.second, convolved)

    def as_attention(self) -> Separate:
        """The separate attention with the same function."""
        return Separate(values=self.third, keys=self.kernels, queries=self.second)

    def reduced_weights(self) -> Float[Array, "O O D D"]:
        return self.as_attention().reduced_weights()

    def effective_weights(self) -> Float[Array, "O T T D"]:
        return self.as_attention().effective_weights()


class NetworkInitialiser(AbstractInitialiser):
    """key -> the network equivalent to the attention that `inner` draws, with the same weights."""

    inner: MergedInitialiser | SeparateInitialiser

    @property
    def scale(self) -> Float[Array, ""]:
        """The init scale w of the equivalent attention."""
        return self.inner.scale

    def __call__(self, key: PRNGKeyArray) -> MLP | ConvNet:
        model = self.inner(key)
        return (
            MLP.from_attention(model)
            if isinstance(model, Merged)
            else ConvNet.from_attention(model)
        )
