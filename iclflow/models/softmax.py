"""Softmax attention over either parametrisation (5)(6)."""

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.models.base import AbstractAttention, AbstractInitialiser, AbstractModel, Blocks
from iclflow.models.merged import Merged
from iclflow.models.separate import Separate
from iclflow.tasks.base import Prompt


class Softmax(AbstractModel):
    """ŷ = Σᵢ Σⱼ softmaxⱼ(x_qᵀ-row of XᵀW^{KQ}ᵢX) [𝐯ᵢᵀ vᵢ] (xⱼ, yⱼ); the query attends to itself.

    With `query_key=False` the query is not among its keys, and j runs over the labelled pairs.

    No 1/√d and no 1/N, as in the published code. Only the query's row of the attention map is
    computed. Linear in no fixed features of the prompt, so it trains on sequences only.

    - `attention`: the layer whose scores it takes, `Merged` or `Separate`.
    - `query_key`: whether the query attends to itself.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Merged.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> icl.Softmax(model)(task.sample(jax.random.key(1))).shape
    (1,)
    """

    attention: AbstractAttention
    query_key: bool = eqx.field(static=True, default=True)

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        return self.attention.read(self.attention_map(prompt), prompt.tokens)

    def attention_map(self, prompt: Prompt) -> Float[Array, "H n"]:
        """The query's row of each head: how much it attends to every token."""
        scores = self.attention.scores(prompt.tokens, prompt.query)
        visible = prompt.visible
        if not self.query_key:
            pairs = prompt.context if prompt.length is None else prompt.length
            visible = jnp.arange(prompt.context + 1) < pairs
        if visible is not None:
            scores = jnp.where(visible[None, :], scores, -jnp.inf)
        return jax.nn.softmax(scores, axis=1)

    def label_weights(self, prompt: Prompt) -> tuple[Float[Array, " O"], Float[Array, "O n O"]]:
        if self.attention.blocks is Blocks.FULL:
            return super().label_weights(prompt)
        return self.attention.value_labels(self.attention_map(prompt), prompt)

    @classmethod
    def initialiser(
        cls, source: Any, *, rank: int | None = None, query_key: bool = True, **options: Any
    ) -> "SoftmaxInitialiser":
        """key -> softmax of separate or merged attention.

        - `source`: says the sizes D and O (see `dims_of`).
        - `rank`: that of separate attention; merged if omitted.
        - `query_key`: whether the query attends to itself.
        - `options`: those of `Separate.initialiser`, or `Merged`'s, which draws the weights.
        """
        if rank is None:
            return SoftmaxInitialiser(Merged.initialiser(source, **options), query_key)
        inner = Separate.initialiser(source, rank=rank, **options)
        return SoftmaxInitialiser(inner, query_key)

    def weights(self) -> dict[str, Array]:
        return self.attention.weights()

    def axes(self) -> dict[str, tuple[str, ...]]:
        return self.attention.axes()

    def dims(self) -> tuple[int, int]:
        return self.attention.dims()

    def as_attention(self) -> AbstractAttention:
        return self.attention

    @property
    def depth(self) -> int:
        return 1

    def as_initialiser(self) -> "SoftmaxInitialiser | None":
        inner = self.attention.as_initialiser()
        return None if inner is None else SoftmaxInitialiser(inner, self.query_key)

    def at_minimum(self, weights: Float[Array, "O O D D"]) -> Self:
        return type(self)(self.attention.at_minimum(weights), self.query_key)

    def conserved(self) -> dict[str, Array]:
        """Softmax breaks the exchange of scale with the values, not the one inside k·q."""
        return self.attention.score_balance()


class SoftmaxInitialiser(AbstractInitialiser):
    """key -> `Softmax` of the attention that `inner` draws.

    - `query_key`: whether the query is among its keys.
    """

    inner: AbstractInitialiser
    query_key: bool = eqx.field(static=True, default=True)

    def __call__(self, key: PRNGKeyArray) -> Softmax:
        attention = self.inner(key)
        assert isinstance(attention, AbstractAttention)
        return Softmax(attention, self.query_key)
