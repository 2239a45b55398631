"""Linear attention with merged key and query, ATTN_M (7)(M)."""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from iclflow.models.base import AbstractAttention, AbstractInitialiser, Blocks, require_positive
from iclflow.task import Task


class Merged(AbstractAttention):
    """ŷ = Σᵢ [𝐯ᵢᵀ vᵢ] S [Uᵢ; 𝐮ᵢᵀ] x_q (7); without 𝐯, 𝐮 it is Σᵢ vᵢ βᵀ Uᵢ x_q (M)."""

    values: Float[Array, "H O O"]  # vᵢ: label slot -> output
    merged: Float[Array, "H D D"]  # Uᵢ: rows meet the keys, columns the query
    value_inputs: Float[Array, "H O D"] | None = None  # 𝐯ᵢ: input slots -> output
    key_labels: Float[Array, "H O D"] | None = None  # 𝐮ᵢ: the keys' label slot

    @property
    def input_size(self) -> int:
        return self.merged.shape[2]

    def key_query(self) -> Float[Array, "H T D"]:
        if self.key_labels is None:
            heads, outputs, _ = self.values.shape
            labels = jnp.zeros((heads, outputs, self.input_size), self.merged.dtype)
        else:
            labels = self.key_labels
        return jnp.concatenate([self.merged, labels], axis=1)

    def scores(self, tokens: Float[Array, "n T"], query: Float[Array, " D"]) -> Float[Array, "H n"]:
        return jnp.einsum("hac,c->ha", self.key_query(), query) @ tokens.T

    @classmethod
    def initialiser(
        cls, task: Task, *, heads: int, scale: ArrayLike, blocks: Blocks = Blocks.FROZEN
    ) -> "MergedInitialiser":
        """key -> `Merged` with vᵢ ~ N(0, w²/H) and U entries ~ N(0, w²/(H D²)) (34)."""
        require_positive(heads=heads)
        return MergedInitialiser(jnp.asarray(scale, float), heads, task.size, task.outputs, blocks)

    def reduce(self) -> Self:
        """The same weights without the blocks 𝐯 and 𝐮."""
        return type(self)(values=self.values, merged=self.merged)


class MergedInitialiser(AbstractInitialiser):
    """See `Merged.initialiser`."""

    scale: Float[Array, ""]
    heads: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    blocks: Blocks = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray) -> Merged:
        value_key, merged_key = jax.random.split(key)
        heads, size, outputs = self.heads, self.size, self.outputs
        zeros = jnp.zeros((heads, outputs, size)) if self.blocks is Blocks.FULL else None
        return Merged(
            values=jax.random.normal(value_key, (heads, outputs, outputs))
            * (self.scale / (outputs * heads**0.5)),
            merged=jax.random.normal(merged_key, (heads, size, size))
            * (self.scale / (size * heads**0.5)),
            value_inputs=zeros,
            key_labels=zeros,
        )
