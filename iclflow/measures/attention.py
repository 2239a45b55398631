"""What attention looks at: the scores of induction heads and of heads that look one token back.

Both are read off sequences that repeat themselves, from the attention of any model.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def find_period(tokens: Int[Array, " n"]) -> Int[Array, ""]:
    """The shortest p for which every token equals the one p before it.

    - `tokens`: the numbers of the tokens of one sequence.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> int(icl.measures.find_period(jnp.asarray([3, 1, 4, 3, 1, 4, 3])))
    3
    """
    length = tokens.shape[0]
    place = jnp.arange(length)
    back = place[None, :] - place[:, None]  # [p, position]
    same = (tokens[jnp.clip(back, 0)] == tokens[None, :]) | (back < 0)
    works = jnp.all(same, axis=1) & (place > 0)
    return jnp.where(jnp.any(works), jnp.argmax(works), length)


def prefix_matching_score(
    attention: Float[Array, "P *heads T T"], tokens: Int[Array, "P n"]
) -> Float[Array, "*heads"]:
    """Mean attention to the tokens that followed earlier copies of the one read, for each head.

    Σ_j A[t, j] over j ≤ t with token[j-1] = token[t], averaged over the repeated positions t of
    all sequences: 1 for a perfect induction head.

    - `attention`: how much each position (row) attends to each other (column), by sequence, for
      any number of layers and heads.
    - `tokens`: the sequences, each of which repeats itself from some period on. They may have one
      token more than there are positions, the last one to be predicted.

    >>> import jax.numpy as jnp
    >>> from iclflow.measures import prefix_matching_score
    >>> tokens = jnp.array([[5, 7, 5, 7]])
    >>> looks = jnp.eye(4)[jnp.array([0, 0, 1, 2])]  # position 2 reads 5 and looks at the 7
    >>> float(prefix_matching_score(looks[None], tokens))
    1.0
    """
    return _mean_attention(attention, tokens, _after_copies)


def previous_token_score(
    attention: Float[Array, "P *heads T T"], tokens: Int[Array, "P n"]
) -> Float[Array, "*heads"]:
    """Mean attention to the token just before, for each head, at the same positions.

    The arguments are those of `prefix_matching_score`. Induction heads need a head in an earlier
    layer that looks one token back, so this score tends to rise first.

    - `attention`, `tokens`: the attention of each head on P sequences, and the sequences.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> tokens = jnp.asarray([[0, 1, 2, 0, 1, 2]])
    >>> one_back = jnp.eye(6, k=-1).at[0, 0].set(1.0)
    >>> float(icl.measures.previous_token_score(one_back[None], tokens))
    1.0
    """
    return _mean_attention(attention, tokens, lambda read: jnp.eye(read.shape[0], k=-1, dtype=bool))


def _after_copies(read: Int[Array, " T"]) -> Bool[Array, "T T"]:
    before = jnp.concatenate([-jnp.ones(1, read.dtype), read[:-1]])
    return jnp.tril(read[:, None] == before[None, :])


def _mean_attention(
    attention: Array, tokens: Array, targets: Callable[[Array], Array]
) -> Float[Array, "*heads"]:
    length = attention.shape[-1]
    if attention.shape[0] != tokens.shape[0] or tokens.shape[1] - length not in (0, 1):
        raise ValueError(
            f"attention of {attention.shape[0]} sequences over {length} positions needs as many "
            f"tokens, or one more, got tokens of shape {tokens.shape}"
        )

    def one(pattern: Array, sequence: Array) -> tuple[Array, Array]:
        wanted = targets(sequence[:length]).reshape((1,) * (pattern.ndim - 2) + (length, length))
        there = jnp.where(wanted, pattern, 0).sum(axis=-1)
        again = jnp.arange(length) >= find_period(sequence)
        counted = jnp.where(again.reshape((1,) * (there.ndim - 1) + (length,)), there, 0)
        return jnp.sum(counted, axis=-1), jnp.sum(again)

    sums, counts = jax.vmap(one)(attention, tokens)
    return jnp.sum(sums, axis=0) / jnp.sum(counts)
