"""The linear networks that linear attention is equivalent to (11)(12), Section 4.1."""

import abc
import math
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.models.base import AbstractAttention, AbstractInitialiser, AbstractLinearModel, Blocks
from iclflow.models.merged import Merged
from iclflow.models.separate import Separate
from iclflow.tasks.base import Prompt


def cubic_features(prompt: Prompt) -> Float[Array, "O F"]:
    """z = vec(β x_qᵀ), columns stacked, one row per output (12)."""
    z = jnp.einsum("od,c->ocd", prompt.correlation, prompt.query)
    return z.reshape(z.shape[0], -1)


class AbstractNetwork(AbstractLinearModel):
    """A linear network on cubic features: the same function and dynamics as an attention layer.

    Its own code computes predictions only; what else it says of itself is said by the attention.

    >>> import iclflow as icl
    >>> [issubclass(kind, icl.AbstractNetwork) for kind in (icl.MLP, icl.ConvNet, icl.Merged)]
    [True, True, False]
    """

    @property
    def blocks(self) -> Blocks:
        return Blocks.FROZEN

    @property
    def depth(self) -> int:
        return 1

    @classmethod
    @abc.abstractmethod
    def from_attention(cls, model: Any) -> Self:
        """The network with the same function and the same training dynamics as `model`."""

    @abc.abstractmethod
    def as_attention(self) -> AbstractAttention:
        """The attention with the same function."""

    def reduced_weights(self) -> Float[Array, "O O D D"]:
        return self.as_attention().reduced_weights()

    def effective_weights(self) -> Float[Array, "O T T D"]:
        return self.as_attention().effective_weights()

    def as_initialiser(self) -> "NetworkInitialiser | None":
        inner = self.as_attention().as_initialiser()
        return None if inner is None else NetworkInitialiser(inner, type(self))

    def at_minimum(self, weights: Float[Array, "O O D D"]) -> Self:
        return self.from_attention(self.as_attention().at_minimum(weights))

    def conserved(self) -> dict[str, Array]:
        return self.as_attention().conserved()

    def visits(self, modes: int) -> tuple[int, ...]:
        return self.as_attention().visits(modes)


class MLP(AbstractNetwork):
    """Two-layer fully connected linear network on cubic features: ŷ = w₂ᵀ W₁ z (11).

    - `first`: W₁, rows vec(Uᵢ)ᵀ.
    - `second`: w₂; a number a hidden unit when there is one output.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Merged.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> icl.MLP.from_attention(model).first.shape
    (2, 4)
    """

    first: Float[Array, "H F"]
    second: Float[Array, "H O O"]

    @classmethod
    def from_attention(cls, model: Merged) -> Self:
        heads = model.merged.shape[0]
        return cls(jnp.swapaxes(model.merged, 1, 2).reshape(heads, -1), model.values)

    @classmethod
    def initialiser(cls, source: Any, **options: Any) -> "NetworkInitialiser":
        """key -> `MLP` with the weights that `Merged.initialiser` draws, by its options."""
        return NetworkInitialiser(Merged.initialiser(source, **options), cls)

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        hidden = self.first @ cubic_features(prompt).T
        return jnp.einsum("hop,hp->o", self.second, hidden)

    def dims(self) -> tuple[int, int]:
        return math.isqrt(self.first.shape[-1]), self.second.shape[-1]

    def as_attention(self) -> Merged:
        heads, size = self.first.shape[0], self.dims()[0]
        matrices = jnp.swapaxes(self.first.reshape(heads, size, size), 1, 2)
        return Merged(values=self.second, merged=matrices)

    def axes(self) -> dict[str, tuple[str, ...]]:
        return {"first": ("head", "feature"), "second": ("head", "output", "label")}


class ConvNet(AbstractNetwork):
    """A sum of three-layer convolutional linear networks on cubic features: Σᵢ vᵢ qᵢᵀ Kᵢ z.

    Kᵢ is the D x D² convolution with kernel kᵢ and stride D (Section 4.1).

    - `kernels`: kᵢ; rank R has R of them a head.
    - `second`, `third`: qᵢ and vᵢ.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Separate.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> icl.ConvNet.from_attention(model).kernels.shape
    (2, 1, 2)
    """

    kernels: Float[Array, "H R D"]
    second: Float[Array, "H R D"]
    third: Float[Array, "H O O"]

    @classmethod
    def from_attention(cls, model: Separate) -> Self:
        return cls(model.keys, model.queries, model.values)

    @classmethod
    def initialiser(cls, source: Any, **options: Any) -> "NetworkInitialiser":
        """key -> `ConvNet` with the weights that `Separate.initialiser` draws, by its options."""
        return NetworkInitialiser(Separate.initialiser(source, **options), cls)

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        heads, rank, size = self.kernels.shape
        convolved = jax.lax.conv_general_dilated(
            cubic_features(prompt)[:, None, :],  # batch O, one channel, D² long
            self.kernels.reshape(heads * rank, 1, size),
            window_strides=(size,),
            padding="VALID",
        ).reshape(-1, heads, rank, size)
        return jnp.einsum("hop,hrc,phrc->o", self.third, self.second, convolved)

    def dims(self) -> tuple[int, int]:
        return self.kernels.shape[-1], self.third.shape[-1]

    def as_attention(self) -> Separate:
        return Separate(values=self.third, keys=self.kernels, queries=self.second)

    def axes(self) -> dict[str, tuple[str, ...]]:
        return {
            "kernels": ("head", "pair", "row"),
            "second": ("head", "pair", "column"),
            "third": ("head", "output", "label"),
        }


class NetworkInitialiser(AbstractInitialiser):
    """key -> the network of a kind equivalent to the attention that `inner` draws.

    - `kind`: the class of the network, such as `MLP`.
    """

    inner: AbstractInitialiser
    kind: type[AbstractNetwork] = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray) -> AbstractNetwork:
        return self.kind.from_attention(self.inner(key))
