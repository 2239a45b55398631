"""What a trained model does with its context: losses early and late, copying, induction heads.

Scores are read off repeated sequences; `period` is found from the tokens, by comparing them with
themselves moved along.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from iclflow.transformers.attention_only import AttentionOnly


def late_loss(losses: Float[Array, "*batch T"]) -> Float[Array, "*batch"]:
    """The mean loss over the last quarter of the context; to be held against ln V."""
    return jnp.mean(losses[..., -(losses.shape[-1] // 4) :], axis=-1)


def in_context_score(losses: Float[Array, "*batch T"]) -> Float[Array, "*batch"]:
    """Loss late (last quarter) minus loss early (first eighth): negative if the context helps.

    In `Repeated` nothing can have come back within the first eighth, and everything has within
    the last quarter.
    """
    early = jnp.mean(losses[..., : max(1, losses.shape[-1] // 8)], axis=-1)
    return late_loss(losses) - early


def find_period(tokens: Int[Array, " n"]) -> Int[Array, ""]:
    """The shortest p for which every token equals the one p before it."""
    length = tokens.shape[0]
    place = jnp.arange(length)
    back = place[None, :] - place[:, None]  # [p, position]
    same = (tokens[jnp.clip(back, 0)] == tokens[None, :]) | (back < 0)
    works = jnp.all(same, axis=1) & (place > 0)
    return jnp.where(jnp.any(works), jnp.argmax(works), length)


def repeats(tokens: Int[Array, " n"]) -> Bool[Array, " T"]:
    """At which positions the token read, and so the one to predict, was one period ago too."""
    return jnp.arange(tokens.shape[0] - 1) >= find_period(tokens)


def repeated_accuracy(correct: Float[Array, "P T"], tokens: Int[Array, "P n"]) -> Float[Array, ""]:
    """The share of right predictions where the segment has been seen before."""
    again = jax.vmap(repeats)(tokens)
    return jnp.sum(jnp.where(again, correct, 0)) / jnp.sum(again)


def prefix_matching(model: AttentionOnly, tokens: Int[Array, "P n"]) -> Float[Array, "L H"]:
    """Mean attention to the tokens that followed earlier copies of the one read, each head.

    Σ_j A[t, j] over j ≤ t with token[j-1] = token[t], averaged over the repeated positions t of
    all sequences: 1 for a perfect induction head.
    """
    return _mean_attention(model, tokens, _after_copies)


def previous_token(model: AttentionOnly, tokens: Int[Array, "P n"]) -> Float[Array, "L H"]:
    """Mean attention to the token just before, each head, at the same positions."""
    return _mean_attention(model, tokens, lambda read: jnp.eye(read.shape[0], k=-1, dtype=bool))


def _after_copies(read: Int[Array, " T"]) -> Bool[Array, "T T"]:
    before = jnp.concatenate([-jnp.ones(1, read.dtype), read[:-1]])
    return jnp.tril(read[:, None] == before[None, :])


def _mean_attention(model, tokens, targets) -> Float[Array, "L H"]:
    def one(sequence: Array) -> tuple[Array, Array]:
        read = sequence[:-1]
        there = jnp.where(targets(read)[None, None], model.attention(read), 0).sum(axis=-1)
        again = repeats(sequence)
        return jnp.sum(jnp.where(again[None, None], there, 0), axis=-1), jnp.sum(again)

    sums, counts = jax.vmap(one)(tokens)
    return jnp.sum(sums, axis=0) / jnp.sum(counts)
