"""Softmax attention over either parametrisation (5)(6)."""

from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.models.base import AbstractAttention, AbstractInitialiser, AbstractModel, Blocks
from iclflow.models.merged import Merged
from iclflow.models.separate import Separate
from iclflow.tasks.prompt import Prompt


class Softmax(AbstractModel):
    """ŷ = Σᵢ Σⱼ softmaxⱼ(x_qᵀ-row of XᵀW^{KQ}ᵢX) [𝐯ᵢᵀ vᵢ] (xⱼ, yⱼ); the query attends to itself.

    No 1/√d and no 1/N, as in the published code. Only the query's row of the attention map is
    computed. Linear in no fixed features of the prompt, so it trains on sequences only.

    - `attention`: the layer whose scores it takes, `Merged` or `Separate`.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Merged.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> icl.Softmax(model)(task.sample(jax.random.key(1))).shape
    (1,)
    """

    attention: AbstractAttention

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        return self.attention.read(self.attention_map(prompt), prompt.tokens)

    def attention_map(self, prompt: Prompt) -> Float[Array, "H n"]:
        """The query's row of each head: how much it attends to every token, itself included."""
        scores = self.attention.scores(prompt.tokens, prompt.query)
        visible = prompt.visible
        if visible is not None:
            scores = jnp.where(visible[None, :], scores, -jnp.inf)
        return jax.nn.softmax(scores, axis=1)

    def label_weights(self, prompt: Prompt) -> tuple[Float[Array, " O"], Float[Array, "O n O"]]:
        if self.attention.blocks is Blocks.FULL:
            return super().label_weights(prompt)
        return self.attention.value_labels(self.attention_map(prompt), prompt)

    @classmethod
    def initialiser(
        cls, source: Any, *, rank: int | None = None, **options: Any
    ) -> "SoftmaxInitialiser":
        """key -> softmax of separate or merged attention.

        - `source`: says the sizes D and O (see `dims_of`).
        - `rank`: that of separate attention; merged if omitted.
        - `options`: those of `Separate.initialiser`, or `Merged`'s, which draws the weights.
        """
        if rank is None:
            return SoftmaxInitialiser(Merged.initialiser(source, **options))
        return SoftmaxInitialiser(Separate.initialiser(source, rank=rank, **options))

    def weights(self) -> dict[str, Array]:
        return self.attention.weights()

    def axes(self) -> dict[str, tuple[str, ...]]:
        return self.attention.axes()

    def dims(self) -> tuple[int, int]:
        return self.attention.dims()

    def as_attention(self) -> AbstractAttention:
        return self.attention

    def at_minimum(self, weights: Float[Array, "O O D D"]) -> Self:
        return type(self)(self.attention.at_minimum(weights))

    def conserved(self) -> dict[str, Array]:
        """Softmax breaks the exchange of scale with the values, not the one inside k·q."""
        return self.attention.score_balance()


class SoftmaxInitialiser(AbstractInitialiser):
    """key -> `Softmax` of the attention that `inner` draws."""

    inner: AbstractInitialiser

    def __call__(self, key: PRNGKeyArray) -> Softmax:
        attention = self.inner(key)
        assert isinstance(attention, AbstractAttention)
        return Softmax(attention)
