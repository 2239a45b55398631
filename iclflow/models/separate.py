"""Linear attention with separate key and query of rank R, ATTN_S (S)."""

from functools import partial
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from iclflow.linalg import contract
from iclflow.models.base import (
    AbstractAttention,
    AbstractInitialiser,
    Blocks,
    Pairs,
    dims_of,
    measured_scale,
    require_blocks,
    require_scale,
)
from iclflow.tasks.checks import require_size


class Separate(AbstractAttention):
    """W^{KQ}ᵢ = Σᵣ kᵢᵣ qᵢᵣᵀ; without the extra blocks ŷ = Σᵢ Σᵣ vᵢ βᵀ kᵢᵣ qᵢᵣᵀ x_q (S).

    Rank one is (18).

    - `values`: vᵢ, label slot -> output.
    - `keys`, `queries`: kᵢᵣ and qᵢᵣ.
    - `value_inputs`: 𝐯ᵢ, input slots -> output; None for `Blocks.FROZEN`, as the next.
    - `key_labels`: the keys' label slot.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Separate.initialiser(task, heads=3, rank=2, scale=0.1)(jax.random.key(0))
    >>> model.values.shape, model.keys.shape
    ((3, 1, 1), (3, 2, 2))
    """

    values: Float[Array, "H O O"]
    keys: Float[Array, "H R D"]
    queries: Float[Array, "H R D"]
    value_inputs: Float[Array, "H O D"] | None = None
    key_labels: Float[Array, "H R O"] | None = None

    @property
    def input_size(self) -> int:
        return self.queries.shape[-1]

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
        return contract("hra,hrc->hac", self.key_rows(), self.queries)

    def reduced_weights(self) -> Float[Array, "O O D D"]:
        return contract("hop,hrd,hrc->opdc", self.values, self.keys, self.queries)

    def pairs(self) -> Pairs | None:
        if self.blocks is Blocks.FULL or self.values.shape[1] > 1:
            return None
        return self.values[:, 0, 0], self.keys, self.queries

    def scores(self, tokens: Float[Array, "n T"], query: Float[Array, " D"]) -> Float[Array, "H n"]:
        activity = jnp.einsum("hrc,c->hr", self.queries, query)
        return jnp.einsum("hr,hra->ha", activity, self.key_rows()) @ tokens.T

    @classmethod
    def initialiser(
        cls,
        source: Any,
        *,
        heads: int,
        rank: int = 1,
        scale: ArrayLike,
        blocks: Blocks = Blocks.FROZEN,
    ) -> "SeparateInitialiser":
        """key -> `Separate` with vᵢ ~ N(0, w²/H) and k, q entries ~ N(0, w²/(H R D)) (36).

        - `source`: a task, prompts or a loss, whose sizes D and O these are, or (D, O) itself.
        - `heads`: the number of heads H.
        - `rank`: the rank R of each head's key-query product.
        - `scale`: the init scale w, the norm of every layer.
        - `blocks`: whether the zero blocks are trained.
        """
        return SeparateInitialiser(
            require_scale("scale", scale), heads, rank, *dims_of(source), blocks
        )

    def reduce(self) -> Self:
        return type(self)(values=self.values, keys=self.keys, queries=self.queries)

    def axes(self) -> dict[str, tuple[str, ...]]:
        return {
            "values": ("head", "output", "label"),
            "keys": ("head", "pair", "row"),
            "queries": ("head", "pair", "column"),
            "value_inputs": ("head", "output", "row"),
            "key_labels": ("head", "pair", "label"),
        }

    @eqx.filter_jit
    def at_minimum(self, weights: Float[Array, "O O D D"]) -> Self:
        heads, rank, size = self.keys.shape
        outputs = weights.shape[0]
        # Several outputs are averaged into one map: exact for one output, a guide for more.
        matrix = jnp.einsum("oodc->dc", weights) / outputs
        left, singular, right = jnp.linalg.svd(matrix)
        singular = jnp.where(jnp.arange(size) < heads * rank, singular, 0.0)
        slots = jnp.zeros(max(heads * rank, size)).at[:size].set(singular)[: heads * rank]
        slots = slots.reshape(heads, rank)
        value = jnp.sum(slots, axis=1) ** (1 / 3)
        amplitude = jnp.sqrt(slots / jnp.where(value > 0, value, 1.0)[:, None]).reshape(-1)
        used = min(heads * rank, size)
        keys = jnp.zeros((heads * rank, size)).at[:used].set(left.T[:used])
        queries = jnp.zeros((heads * rank, size)).at[:used].set(right[:used])
        return eqx.tree_at(
            lambda m: (m.values, m.keys, m.queries),
            jax.tree.map(jnp.zeros_like, self),
            (
                value[:, None, None] * jnp.eye(outputs)[None],
                (keys * amplitude[:, None]).reshape(heads, rank, size),
                (queries * amplitude[:, None]).reshape(heads, rank, size),
            ),
        )

    def as_initialiser(self) -> "SeparateInitialiser":
        scale = measured_scale([self.values, self.keys, self.queries])
        heads, outputs, _ = self.values.shape
        return SeparateInitialiser(scale, heads, self.rank, self.input_size, outputs, self.blocks)

    def conserved(self) -> dict[str, Array]:
        """The balance inside k·q, and Σ_r ‖k_r‖² - ‖(𝐯, v)‖² of each head (79)(85), E7."""
        keys, rows = self.key_rows(), self.value_rows()
        exchange = jnp.sum(keys**2, axis=(1, 2)) - jnp.sum(rows**2, axis=(1, 2))
        return {**self.score_balance(), "key_value": exchange}

    def score_balance(self) -> dict[str, Array]:
        """KᵢKᵢᵀ - QᵢQᵢᵀ of each head, rows the R pairs; its diagonal is ‖k_r‖² - ‖q_r‖²."""
        keys, queries = self.key_rows(), self.queries
        outer = jnp.einsum("hrt,hst->hrs", keys, keys)
        return {"key_query": outer - jnp.einsum("hrd,hsd->hrs", queries, queries)}

    def visits(self, modes: int) -> tuple[int, ...]:
        heads, rank, _ = self.keys.shape
        return tuple(range(min(modes, heads * rank) + 1))


class SeparateInitialiser(AbstractInitialiser):
    """See `Separate.initialiser`."""

    scale: Float[Array, ""]
    heads: int = eqx.field(static=True, converter=partial(require_size, "heads"))
    rank: int = eqx.field(static=True, converter=partial(require_size, "rank"))
    size: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    blocks: Blocks = eqx.field(static=True, converter=require_blocks)

    def __check_init__(self) -> None:
        require_scale("scale", self.scale)

    @eqx.filter_jit
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
