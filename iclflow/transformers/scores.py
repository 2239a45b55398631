"""What a trained model does with its context: losses early and late, copying, induction heads.

Scores are read off repeated sequences; `period` is found from the tokens, by comparing them with
themselves moved along.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Bool, Float, Int

from iclflow.checkpoints.series import Checkpoint
from iclflow.measures.attention import find_period, prefix_matching_score, previous_token_score
from iclflow.results.messages import Progress
from iclflow.transformers.attention_only import AttentionOnly
from iclflow.transformers.corpora import Repeated


def late_loss(losses: Float[Array, "*batch T"]) -> Float[Array, "*batch"]:
    """The mean loss over the last quarter of the context; to be held against ln V.

    - `losses`: by position, the last axis.

    >>> import jax.numpy as jnp
    >>> from iclflow.transformers import late_loss
    >>> float(late_loss(jnp.array([4.0, 4.0, 3.0, 1.0])))
    1.0
    """
    return jnp.mean(losses[..., -(losses.shape[-1] // 4) :], axis=-1)


def in_context_score(losses: Float[Array, "*batch T"]) -> Float[Array, "*batch"]:
    """Loss late (last quarter) minus loss early (first eighth): negative if the context helps.

    In `Repeated` nothing can have come back within the first eighth, and everything has within
    the last quarter.

    - `losses`: by position, the last axis.

    >>> import jax.numpy as jnp
    >>> from iclflow.transformers import in_context_score
    >>> float(in_context_score(jnp.array([4.0, 4.0, 3.0, 1.0])))
    -3.0
    """
    early = jnp.mean(losses[..., : max(1, losses.shape[-1] // 8)], axis=-1)
    return late_loss(losses) - early


def repeats(tokens: Int[Array, " n"]) -> Bool[Array, " T"]:
    """At which positions the token read, and so the one to predict, was one period ago too.

    - `tokens`: one sequence that repeats itself, with the last token, which is only predicted.

    >>> import jax.numpy as jnp
    >>> from iclflow.transformers import repeats
    >>> repeats(jnp.array([5, 7, 5, 7, 5])).tolist()
    [False, False, True, True]
    """
    return jnp.arange(tokens.shape[0] - 1) >= find_period(tokens)


def repeated_accuracy(correct: Float[Array, "P T"], tokens: Int[Array, "P n"]) -> Float[Array, ""]:
    """The share of right predictions where the segment has been seen before.

    - `correct`: 1 where the prediction is right, by sequence and position.
    - `tokens`: the sequences.

    >>> import jax.numpy as jnp
    >>> from iclflow.transformers import repeated_accuracy
    >>> float(repeated_accuracy(jnp.array([[0.0, 0.0, 1.0, 0.0]]), jnp.array([[5, 7, 5, 7, 5]])))
    0.5
    """
    again = jax.vmap(repeats)(tokens)
    return jnp.sum(jnp.where(again, correct, 0)) / jnp.sum(again)


def prefix_matching(model: AttentionOnly, tokens: Int[Array, "P n"]) -> Float[Array, "L H"]:
    """`prefix_matching_score` of every head on given sequences: 1 for a perfect induction head.

    - `model`: whose attention it is.
    - `tokens`: sequences that repeat themselves.

    >>> import jax
    >>> from iclflow.transformers import AttentionOnlyInitialiser, Repeated, prefix_matching
    >>> model = AttentionOnlyInitialiser(8, 8, layers=2, width=4, heads=2)(jax.random.key(0))
    >>> prefix_matching(model, Repeated(8, 8).batch(jax.random.key(1), 4)).shape
    (2, 2)
    """
    return prefix_matching_score(_attention(model, tokens), tokens)


def previous_token(model: AttentionOnly, tokens: Int[Array, "P n"]) -> Float[Array, "L H"]:
    """`previous_token_score` of every head on given sequences.

    - `model`: whose attention it is.
    - `tokens`: sequences that repeat themselves.

    >>> import jax
    >>> from iclflow.transformers import AttentionOnlyInitialiser, Repeated, previous_token
    >>> model = AttentionOnlyInitialiser(8, 8, layers=2, width=4, heads=2)(jax.random.key(0))
    >>> previous_token(model, Repeated(8, 8).batch(jax.random.key(1), 4)).shape
    (2, 2)
    """
    return previous_token_score(_attention(model, tokens), tokens)


def _attention(model: AttentionOnly, tokens: Int[Array, "P n"]) -> Float[Array, "P L H T T"]:
    return jax.vmap(lambda sequence: model.attention(sequence[:-1]))(tokens)


def score_series(
    series: Sequence[Checkpoint],
    *,
    sequences: int = 64,
    seed: int = 0,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Induction and previous-token scores of every head over a series of checkpoints.

    - `series`: checkpoints of attention-only transformers under the names of TransformerLens, as
      `Snapshots(folder, AttentionOnly.tensors)` writes them and `find_series` finds them.
    - `sequences`: how many random sequences that repeat themselves the scores are averaged over.
    - `seed`: of these sequences.
    - `progress`: called with the checkpoints done and their number.

    Over (`step`, `layer`, `head`): `prefix_matching` and `previous_token`. Of other models give
    their attention to `measures.prefix_matching_score`, and the scores to a `Monitor` as metrics.

    >>> from iclflow.transformers import score_series
    >>> score_series([])
    Traceback (most recent call last):
    ValueError: no checkpoints to score
    """
    if not series:
        raise ValueError("no checkpoints to score")
    steps, rows, tokens = [], [], None
    for number, checkpoint in enumerate(sorted(series, key=lambda one: one.step)):
        if progress is not None:
            progress(number, len(series))
        with checkpoint.open() as source:
            names = source.names()
            model = AttentionOnly.of_tensors({n: source.read(n) for n in names}, checkpoint.label)
        if tokens is None:
            corpus = Repeated(model.vocabulary, model.context)
            tokens = corpus.batch(jax.random.key(seed), sequences)
        steps.append(checkpoint.step)
        rows.append([np.asarray(score) for score in _scores(model, tokens)])
    about = ("prefix-matching score", "previous-token score")
    data = {
        name: (("step", "layer", "head"), np.stack(values), {"long_name": label, "units": "1"})
        for name, label, values in zip(
            ("prefix_matching", "previous_token"), about, zip(*rows, strict=True), strict=True
        )
    }
    at = ("step", np.array(steps, int), {"long_name": "step", "units": "1"})
    return xr.Dataset(data, coords={"step": at})


@eqx.filter_jit
def _scores(model: AttentionOnly, tokens: Int[Array, "P n"]) -> tuple[Array, Array]:
    return prefix_matching(model, tokens), previous_token(model, tokens)
