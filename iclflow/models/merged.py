"""Linear attention with merged key and query, ATTN_M (7)(M)."""

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
    dims_of,
    measured_scale,
    require_blocks,
    require_scale,
)
from iclflow.tasks.checks import require_real, require_size, require_within


class Merged(AbstractAttention):
    """ŷ = Σᵢ [𝐯ᵢᵀ vᵢ] S [Uᵢ; 𝐮ᵢᵀ] x_q (7); without 𝐯, 𝐮 it is Σᵢ vᵢ βᵀ Uᵢ x_q (M).

    - `values`: vᵢ, label slot -> output.
    - `merged`: Uᵢ, rows meet the keys, columns the query.
    - `value_inputs`: 𝐯ᵢ, input slots -> output; None for `Blocks.FROZEN`, as the next.
    - `key_labels`: 𝐮ᵢ, the keys' label slot.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Merged.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> model.values.shape, model.merged.shape
    ((2, 1, 1), (2, 2, 2))
    """

    values: Float[Array, "H O O"]
    merged: Float[Array, "H D D"]
    value_inputs: Float[Array, "H O D"] | None = None
    key_labels: Float[Array, "H O D"] | None = None

    @property
    def input_size(self) -> int:
        return self.merged.shape[-1]

    def key_query(self) -> Float[Array, "H T D"]:
        if self.key_labels is None:
            heads, outputs, _ = self.values.shape
            labels = jnp.zeros((heads, outputs, self.input_size), self.merged.dtype)
        else:
            labels = self.key_labels
        return jnp.concatenate([self.merged, labels], axis=1)

    def reduced_weights(self) -> Float[Array, "O O D D"]:
        return contract("hop,hdc->opdc", self.values, self.merged)

    def scores(self, tokens: Float[Array, "n T"], query: Float[Array, " D"]) -> Float[Array, "H n"]:
        return jnp.einsum("hac,c->ha", self.key_query(), query) @ tokens.T

    @classmethod
    def initialiser(
        cls, source: Any, *, heads: int, scale: ArrayLike, blocks: Blocks = Blocks.FROZEN
    ) -> "MergedInitialiser":
        """key -> `Merged` with vᵢ ~ N(0, w²/H) and U entries ~ N(0, w²/(H D²)) (34).

        - `source`: a task, prompts or a loss, whose sizes D and O these are, or (D, O) itself.
        - `heads`: the number of heads H.
        - `scale`: the init scale w, the norm of every layer.
        - `blocks`: whether the zero blocks are trained.
        """
        return MergedInitialiser(require_scale("scale", scale), heads, *dims_of(source), blocks)

    @classmethod
    def linear_transformer(
        cls,
        source: Any,
        *,
        scale: ArrayLike,
        query_scale: ArrayLike | None = None,
        spread: ArrayLike = 0.0,
        blocks: Blocks = Blocks.FROZEN,
    ) -> "LinearTransformerInitialiser":
        """key -> the linear transformer of Mainali & Teixeira (2025): one head, D outputs.

        f(Z) = Z + W^P (Z Zᵀ/N) W^Q Z (1), with `values` p₂, `merged` q₁, `value_inputs` p₁ and
        `key_labels` q₂ (which, zero at first, are trained with `Blocks.FULL`; without them ŷ is
        p₂ W Σ̂ q₁ x_q (8)).

        - `source`: says the sizes D and O, which must be equal (see `dims_of`).
        - `scale`, `query_scale`: p₂ = scale · I and q₁ = query_scale · I, equal if omitted.
        - `spread`: standard deviation of Gaussian noise on every entry of both; with scale 0 all
          of the start.
        - `blocks`: whether p₁ and q₂ are trained.
        """
        size, outputs = dims_of(source)
        if outputs != size:
            raise ValueError(
                f"the linear transformer has as many outputs as inputs, got {outputs} and "
                f"{size}; give tasks=Commuting()"
            )
        first = require_real("scale", scale, ndim=0)
        second = first if query_scale is None else require_real("query_scale", query_scale, ndim=0)
        return LinearTransformerInitialiser(
            scale=first,
            query_scale=second,
            spread=require_scale("spread", spread),
            size=size,
            blocks=blocks,
        )

    def reduce(self) -> Self:
        return type(self)(values=self.values, merged=self.merged)

    def axes(self) -> dict[str, tuple[str, ...]]:
        return {
            "values": ("head", "output", "label"),
            "merged": ("head", "row", "column"),
            "value_inputs": ("head", "output", "row"),
            "key_labels": ("head", "label", "column"),
        }

    @eqx.filter_jit
    def at_minimum(self, weights: Float[Array, "O O D D"]) -> Self:
        outputs = weights.shape[0]
        zero = jax.tree.map(jnp.zeros_like, self)
        # [(o, p), (d, c)]: the SVD splits any M over heads, each balanced; one output: all in one.
        left, singular, right = jnp.linalg.svd(
            weights.reshape(outputs * outputs, -1), full_matrices=False
        )
        used = min(singular.size, self.values.shape[0])
        root = jnp.sqrt(singular[:used])[:, None]
        values = (left.T[:used] * root).reshape(used, outputs, outputs)
        merged = (right[:used] * root).reshape(used, *weights.shape[2:])
        return eqx.tree_at(
            lambda m: (m.values, m.merged),
            zero,
            (zero.values.at[:used].set(values), zero.merged.at[:used].set(merged)),
        )

    def as_initialiser(self) -> "MergedInitialiser":
        scale, (heads, outputs, _) = measured_scale([self.values, self.merged]), self.values.shape
        return MergedInitialiser(scale, heads, self.input_size, outputs, self.blocks)

    def conserved(self) -> dict[str, Array]:
        """w₂w₂ᵀ - W₁W₁ᵀ (17), rows the heads; 0 makes all heads parallel."""
        heads = self.values.shape[0]
        second = self.value_rows().reshape(heads, -1)
        first = self.key_query().reshape(heads, -1)
        return {"value_merged": second @ second.T - first @ first.T}

    def score_balance(self) -> dict[str, Array]:
        return {}

    def visits(self, modes: int) -> tuple[int, ...]:
        return tuple(dict.fromkeys((0, modes)))  # all modes are learned at once, in one drop


class MergedInitialiser(AbstractInitialiser):
    """See `Merged.initialiser`."""

    scale: Float[Array, ""]
    heads: int = eqx.field(static=True, converter=partial(require_size, "heads"))
    size: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    blocks: Blocks = eqx.field(static=True, converter=require_blocks)

    def __check_init__(self) -> None:
        require_scale("scale", self.scale)

    @eqx.filter_jit
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


class LinearTransformerInitialiser(AbstractInitialiser):
    """See `Merged.linear_transformer`; here a scale is an entry of the diagonal, not a norm."""

    scale: Float[Array, ""]
    query_scale: Float[Array, ""]
    spread: Float[Array, ""]
    size: int = eqx.field(static=True)
    blocks: Blocks = eqx.field(static=True, converter=require_blocks)

    def __check_init__(self) -> None:
        for name, value in (("scale", self.scale), ("query_scale", self.query_scale)):
            require_within(name, require_real(name, value, ndim=0))
        require_scale("spread", self.spread)

    @eqx.filter_jit
    def __call__(self, key: PRNGKeyArray) -> Merged:
        size = self.size
        noise = self.spread * jax.random.normal(key, (2, 1, size, size))
        identity = jnp.eye(size)[None]
        zeros = jnp.zeros((1, size, size)) if self.blocks is Blocks.FULL else None
        return Merged(
            values=self.scale * identity + noise[0],
            merged=self.query_scale * identity + noise[1],
            value_inputs=zeros,
            key_labels=zeros,
        )
