"""Linear attention with separate key and query of rank R, ATTN_S (S)."""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from iclflow.models.base import AbstractAttention, AbstractInitialiser, Blocks, require_positive
from iclflow.tasks.base import AbstractTask


class Separate(AbstractAttention):
    """W^{KQ}ᵢ = Σᵣ kᵢᵣ qᵢᵣᵀ; without the extra blocks ŷ = Σᵢ Σᵣ vᵢ βᵀ kᵢᵣ qᵢᵣᵀ x_q (S)."""

    values: Float[Array, "H O O"]  # vᵢ
    keys: Float[Array, "H R D"]  # kᵢᵣ
    queries: Float[Array, "H R D"]  # qᵢᵣ
    value_inputs: Float[Array, "H O D"] | None = None  # 𝐯ᵢ
    key_labels: Float[Array, "H R O"] | None = None  # the keys' label slot

    @property
    def input_size(self) -> int:
        return self.queries.shape[2]

    @property
    def rank(self) -> int:
        """The rank R of each head's key-query product."""
        return self.keys.shape[1]

    def key_rows(self) -> Float[Array, "H R T"]:
        """The keys with their label slot."""
        if self.key_labels is None:
            heads, rank, _ = self.keys.shape
            labels = jnp.zeros((heads, rank, self.values.shape[1]), self.keys.dtype)
        else:
            labels = self.key_labels
        return jnp.concatenate([self.keys, labels], axis=2)

    def key_query(self) -> Float[Array, "H T D"]:
        return jnp.einsum("hra,hrc->hac", self.key_rows(), self.queries)

    def scores(self, tokens: Float[Array, "n T"], query: Float[Array, " D"]) -> Float[Array, "H n"]:
        activity = jnp.einsum("hrc,c->hr", self.queries, query)
        return jnp.einsum("hr,hra->ha", activity, self.key_rows()) @ tokens.T

    @classmethod
    def initialiser(
        cls,
        task: AbstractTask,
        *,
        heads: int,
        rank: int = 1,
        scale: ArrayLike,
        blocks: Blocks = Blocks.FROZEN,
    ) -> "SeparateInitialiser":
        """key -> `Separate` with vᵢ ~ N(0, w²/H) and k, q entries ~ N(0, w²/(H R D)) (36)."""
        require_positive(heads=heads, rank=rank)
        return SeparateInitialiser(
            jnp.asarray(scale, float), heads, rank, task.size, task.outputs, blocks
        )

    def reduce(self) -> Self:
        """The same weights without the extra blocks."""
        return type(self)(values=self.values, keys=self.keys, queries=self.queries)


class SeparateInitialiser(AbstractInitialiser):
    """See `Separate.initialiser`."""

    scale: Float[Array, ""]
    heads: int = eqx.field(static=True)
    rank: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    blocks: Blocks = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray) -> Separate:
        value_key, key_key, query_key = jax.random.split(key, 3)
        heads, rank, size, outputs = self.heads, self.rank, self.size, self.outputs
        full = self.blocks is Blocks.FULL
        std = self.scale / (heads * rank * size) ** 0.5
        return Separate(
            values=jax.random.normal(value_key, (heads, outputs, outputs))
            * (self.scale / (outputs * heads**0.5)),
            keys=jax.random.normal(key_key, (heads, rank, size)) * std,
            queries=jax.random.normal(query_key, (heads, rank, size)) * std,
            value_inputs=jnp.zeros((heads, outputs, size)) if full else None,
            key_labels=jnp.zeros((heads, rank, outputs)) if full else None,
        )
