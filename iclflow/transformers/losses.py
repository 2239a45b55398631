"""Cross-entropy of the next token: on a set of sequences, or on new ones at every step."""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.transformers.attention_only import AttentionOnly
from iclflow.transformers.corpora import AbstractCorpus


class NextToken(AbstractLoss):
    """-mean ln p(next token | tokens so far), in nats, over all sequences and positions.

    - `tokens`: the sequences, each with one token more than there are positions.
    """

    tokens: Int[Array, "P n"]  # n = T + 1

    @classmethod
    def sample(cls, corpus: AbstractCorpus, sequences: int, key: PRNGKeyArray) -> Self:
        """Draw and keep `sequences` sequences."""
        return cls(_sample(corpus, key, sequences))

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        return jnp.mean(self.by_position(model)[0])

    def admits(self, model: AbstractModel) -> str | None:
        if not isinstance(model, AttentionOnly):
            return "it does not map tokens to logits; use a model of iclflow.transformers"
        return None

    def by_position(self, model: AbstractModel) -> tuple[Float[Array, "P T"], Float[Array, "P T"]]:
        """Loss, and whether the likeliest token is right (1 or 0), everywhere."""

        def one(tokens: Array) -> tuple[Array, Array]:
            logits, target = model(tokens[:-1]), tokens[1:]
            right = jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]
            loss = jax.nn.logsumexp(logits, axis=1) - right
            return loss, (jnp.argmax(logits, axis=1) == target).astype(loss.dtype)

        return jax.vmap(one)(self.tokens)


@eqx.filter_jit
def _sample(corpus: AbstractCorpus, key: PRNGKeyArray, count: int) -> Int[Array, "P n"]:
    return corpus.batch(key, count)


class FreshTokens(AbstractLoss):
    """Each step descends the loss of `size` new sequences; `evaluation` is what is reported.

    - `corpus`: what the sequences are drawn from.
    """

    stochastic = True

    corpus: AbstractCorpus
    evaluation: NextToken
    size: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"the batch must have at least 1 sequence, got {self.size}")

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        return self.evaluation(model)

    def admits(self, model: AbstractModel) -> str | None:
        reason = self.evaluation.admits(model)
        if reason is None and isinstance(model, AttentionOnly):
            sizes = (model.vocabulary, model.context)
            needed = (self.corpus.vocabulary, self.corpus.context)
            if sizes[0] != needed[0] or sizes[1] < needed[1]:
                reason = f"it has {sizes} tokens and positions, the corpus needs {needed}"
        return reason

    def draw(self, key: PRNGKeyArray) -> NextToken:
        return NextToken(self.corpus.batch(key, self.size))
