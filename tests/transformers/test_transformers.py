"""Attention-only transformers: the forward pass, the corpora, the losses and the scores."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.losses import Population
from iclflow.measures import find_period
from iclflow.models import Blocks
from iclflow.tasks.task import Task
from iclflow.transformers import (
    AttentionOnlyInitialiser,
    FreshTokens,
    Markov,
    NextToken,
    Repeated,
    distances_to_end,
    effective_ranks,
    in_context_score,
    late_loss,
    prefix_matching,
    previous_token,
    repeated_accuracy,
    repeats,
    spectrum,
)
from tests.helpers.cases import MODELS
from tests.helpers.literal_transformer import induction_model, literal_forward

VOCABULARY, CONTEXT = 5, 7
TOKENS = jnp.asarray([3, 1, 4, 1, 0, 2, 3], jnp.int32)


@pytest.fixture(scope="module")
def model():
    init = AttentionOnlyInitialiser(VOCABULARY, CONTEXT, 3, 8, 2, precision="float64")
    return eqx.filter_jit(init)(jax.random.key(0))


@pytest.fixture(scope="module")
def run():
    return eqx.filter_jit(lambda model, tokens: model.run(tokens))


@eqx.filter_jit
def value(loss, model):
    return loss(model)


@eqx.filter_jit
def by_position(loss, model):
    return loss.by_position(model)


@eqx.filter_jit
def matching_and_previous(model, tokens):
    return prefix_matching(model, tokens), previous_token(model, tokens)


def test_the_forward_pass_is_the_literal_one(model, run):
    logits, patterns = run(model, TOKENS)
    expected, attention = literal_forward(model, np.asarray(TOKENS))
    np.testing.assert_allclose(logits, expected, atol=1e-12)
    np.testing.assert_allclose(patterns, attention, atol=1e-12)


def test_no_position_sees_what_comes_later(model, run):
    logits, patterns = run(model, TOKENS)
    for t in range(CONTEXT - 1):
        later = jnp.arange(CONTEXT) > t
        others = jnp.where(later, (TOKENS + 1) % VOCABULARY, TOKENS).astype(jnp.int32)
        changed, _ = run(model, others)
        np.testing.assert_array_equal(changed[: t + 1], logits[: t + 1])
        assert np.all(np.abs(changed[t + 1 :] - logits[t + 1 :]).max(axis=1) > 1e-3)
    above = np.triu(np.ones((CONTEXT, CONTEXT), bool), k=1)
    assert np.all(np.asarray(patterns)[:, :, above] == 0)
    np.testing.assert_allclose(patterns.sum(-1), 1, atol=1e-14)


def test_a_prefix_is_read_as_it_is_inside_the_whole(model, run):
    logits, _ = run(model, TOKENS)
    short, _ = run(model, TOKENS[:4])
    np.testing.assert_allclose(short, logits[:4], atol=1e-13)
    with pytest.raises(ValueError, match="8 tokens are more than the 7 positions"):
        model(jnp.zeros(8, jnp.int32))


def test_the_gradient_is_that_of_finite_differences(model):
    corpus = Repeated(VOCABULARY, CONTEXT)
    loss = NextToken.sample(corpus, 3, jax.random.key(1))
    gradient = eqx.filter_jit(eqx.filter_grad(lambda m: loss(m)))(model)
    rng = np.random.default_rng(0)
    for name in ("embedding", "positions", "query", "key", "value", "output", "unembedding"):
        weights = getattr(model, name)
        direction = jnp.asarray(rng.normal(size=weights.shape))
        at = [
            float(value(loss, dataclasses.replace(model, **{name: weights + h * direction})))
            for h in (-1e-5, 1e-5)
        ]
        slope = float(jnp.sum(getattr(gradient, name) * direction))
        np.testing.assert_allclose((at[1] - at[0]) / 2e-5, slope, rtol=1e-6, atol=1e-10)


def test_shuffled_repeats_have_the_same_tokens_and_nothing_to_copy():
    plain, mixed = (Repeated(64, 64, shuffled=shuffled) for shuffled in (False, True))
    traced = Repeated(64, 64, shuffled=jnp.asarray(True))
    batches = [np.asarray(one.batch(jax.random.key(4), 200)) for one in (plain, mixed, traced)]
    np.testing.assert_array_equal(batches[1], batches[2])
    copied = []
    for sequence, other in zip(*batches[:2], strict=True):
        period = next(p for p in range(8, 33) if np.all(sequence[p:] == sequence[:-p]))
        whole = len(sequence) // period
        blocks = other[: whole * period].reshape(whole, period)
        wanted = np.sort(sequence[:period])
        assert all(np.array_equal(np.sort(block), wanted) for block in blocks)
        copied.append(np.mean(other[period:] == other[:-period]))
    # A random order has one token in its old place on average, of 8 to 32; some occur twice.
    assert np.mean(copied) < 0.1


def test_the_loss_is_the_literal_cross_entropy(model):
    sequences = NextToken.sample(Repeated(VOCABULARY, CONTEXT), 3, jax.random.key(2))
    losses, correct = by_position(sequences, model)
    for row, sequence in enumerate(np.asarray(sequences.tokens)):
        logits, _ = literal_forward(model, sequence[:-1])
        chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected = -np.log(chances[np.arange(CONTEXT), sequence[1:]])
        np.testing.assert_allclose(losses[row], expected, atol=1e-12)
        np.testing.assert_array_equal(correct[row], chances.argmax(axis=1) == sequence[1:])
    np.testing.assert_allclose(value(sequences, model), np.mean(losses), atol=1e-14)


def test_single_precision_unless_said_otherwise():
    drawn = AttentionOnlyInitialiser(4, 4, 1, 4, 2)(jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(drawn)} == {jnp.dtype("float32")}


def test_initial_weights_have_the_stated_variances():
    layers, width = 2, 64
    drawn = AttentionOnlyInitialiser(50, 60, layers, width, 4)(jax.random.key(0))
    stated = {
        "embedding": 0.3**2, "positions": 0.3**2, "query": 1 / width, "key": 1 / width,
        "value": 1 / width, "output": 1 / width / (2 * layers), "unembedding": 1 / width,
    }  # fmt: skip
    for name, variance in stated.items():
        found = np.asarray(getattr(drawn, name), float)
        error = np.sqrt(2 / found.size)  # of the variance of that many Gaussians
        assert abs(found.var() / variance - 1) < 5 * error, name


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AttentionOnlyInitialiser(4, 4, 1, 5, 2), "a multiple of the heads, got 5 and 2"),
        (lambda: AttentionOnlyInitialiser(4, 4, 0, 4, 2), "layers must be a whole number"),
        (lambda: Repeated(4, 8, (3, 9)), "between 1 and 8"),
        (lambda: Markov(4, 8, 0.3), "a positive multiple of 0.5, got 0.3"),
        (lambda: FreshTokens(Repeated(4, 8), NextToken(jnp.zeros((1, 9), jnp.int32)), 0), "batch"),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(ValueError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def test_what_a_loss_of_tokens_admits(model):
    sequences = NextToken(jnp.zeros((1, CONTEXT + 1), jnp.int32))
    task = Task([0.5, 0.5], 4)
    prompts = MODELS["separate"](task, Blocks.FROZEN, 0.3)(jax.random.key(0))
    assert sequences.admits(model) is None
    assert "tokens" in (sequences.admits(prompts) or "")
    assert FreshTokens(Repeated(VOCABULARY, CONTEXT), sequences, 2).admits(model) is None
    longer = FreshTokens(Repeated(VOCABULARY, 9), sequences, 2).admits(model)
    assert longer == "it has (5, 7) tokens and positions, the corpus needs (5, 9)"
    assert Population(task).admits(model) is not None


def test_repeated_sequences():
    corpus, count = Repeated(16, 24), 4000
    tokens = np.asarray(eqx.filter_jit(corpus.batch)(jax.random.key(0), count))
    assert tokens.shape == (count, 25)
    assert corpus.periods == (3, 12)
    periods = np.asarray(jax.jit(jax.vmap(find_period))(jnp.asarray(tokens)))
    for row, period in zip(tokens[:50], periods[:50], strict=True):
        literal = next(p for p in range(1, 25) if np.all(row[p:] == row[:-p]))
        assert literal == period
    # A segment may itself be periodic by chance; with 16 tokens that is rare.
    drawn = np.bincount(periods, minlength=13)
    assert drawn[:3].sum() < 0.01 * count
    assert np.all(np.abs(drawn[3:] - count / 10) < 5 * np.sqrt(count / 10) + 0.01 * count)
    first = np.bincount(tokens[:, 0], minlength=16)
    assert np.all(np.abs(first - count / 16) < 5 * np.sqrt(count / 16))


def test_a_step_sees_new_sequences_and_reports_the_old():
    corpus = Repeated(8, 16)
    kept = NextToken.sample(corpus, 4, jax.random.key(0))
    loss = FreshTokens(corpus, kept, 3)
    draw = jax.jit(lambda key: loss.draw(key).tokens)
    first, second = (draw(jax.random.key(k)) for k in (1, 2))
    assert first.shape == (3, 17)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, draw(jax.random.key(1)))


def test_markov_chains_have_dirichlet_transitions():
    """Pair statistics of long chains: E[p²] = (α+1)/(V(Vα+1)) for a row ~ Dirichlet(α, …)."""
    size, alpha, count = 3, 1.5, 400
    corpus = Markov(size, 600, alpha)
    tokens = np.asarray(eqx.filter_jit(corpus.batch)(jax.random.key(3), count))
    assert set(np.unique(tokens)) == {0, 1, 2}
    squares, means = [], []
    for row in tokens:
        seen = np.zeros((size, size))
        np.add.at(seen, (row[:-1], row[1:]), 1)
        n = seen.sum(axis=1, keepdims=True)
        enough = n[:, 0] > 50
        # (k² - k)/(n² - n) is unbiased for p²
        squares.append(((seen**2 - seen) / (n**2 - n))[enough].mean(axis=0))
        means.append((seen / n)[enough].mean(axis=0))
    expected = (alpha + 1) / (size * (size * alpha + 1))
    for values, goal in ((squares, expected), (means, 1 / size)):
        error = np.std(values, axis=0) / np.sqrt(count)
        assert np.all(np.abs(np.mean(values, axis=0) - goal) < 5 * error)


def test_the_best_predictor_of_markov_chains():
    """Against sums over a grid of transition probabilities, and better than any other tried."""
    corpus = Markov(2, 12, 0.5)
    tokens = np.asarray(eqx.filter_jit(corpus.batch)(jax.random.key(4), 2000))
    best, single = corpus.optimal_losses(tokens), corpus.unigram_losses(tokens)
    # Gauss-Chebyshev: nodes of the density p^(-1/2)(1-p)^(-1/2), which is Dirichlet(½, ½)
    grid = np.cos((2 * np.arange(400) + 1) * np.pi / 800) / 2 + 0.5
    for row in tokens[:5]:
        chances = []
        for t in range(12):
            likelihood = np.ones_like(grid)  # of the row of the token read, p = chance of token 1
            for i in range(t):
                if row[i] == row[t]:
                    likelihood *= np.where(row[i + 1] == 1, grid, 1 - grid)
            after = np.where(row[t + 1] == 1, grid, 1 - grid)
            chances.append(np.sum(likelihood * after) / np.sum(likelihood))
        np.testing.assert_allclose(corpus.optimal_losses(row[None]), -np.log(chances), atol=1e-9)
    np.testing.assert_allclose(best[0], np.log(2), atol=1e-12)
    assert best[-4:].mean() < single[-4:].mean()
    other = [Markov(2, 12, a).optimal_losses(tokens).mean() for a in (1.0, 2.0)]
    assert all(best.mean() < loss for loss in other)


def test_token_frequencies_are_counted_literally():
    corpus, row = Markov(3, 4, 0.5), np.array([[2, 0, 0, 2, 1]])
    literal = -np.log([0.5 / 2.5, 1.5 / 3.5, 1.5 / 4.5, 0.5 / 5.5])
    np.testing.assert_allclose(corpus.unigram_losses(row), literal, atol=1e-14)


def test_scores_of_losses():
    losses = jnp.arange(16.0)[None, :]
    np.testing.assert_allclose(late_loss(losses), [13.5])
    np.testing.assert_allclose(in_context_score(losses), [13.5 - 0.5])


def test_repeats_and_accuracy():
    tokens = jnp.asarray([[1, 2, 3, 1, 2, 3, 1], [4, 1, 4, 1, 4, 1, 4]], jnp.int32)
    period = jax.jit(find_period)
    np.testing.assert_array_equal(jax.jit(repeats)(tokens[0]), [0, 0, 0, 1, 1, 1])
    assert int(period(jnp.arange(7, dtype=jnp.int32))) == 7  # nothing comes back
    correct = jnp.asarray([[0.0, 0, 0, 1, 1, 0], [0, 0, 1, 1, 1, 1]])
    np.testing.assert_allclose(jax.jit(repeated_accuracy)(correct, tokens), 6 / 7)


def test_an_induction_head_made_by_hand():
    """The constructed head has score 1 and copies; the first layer looks one token back."""
    rng = np.random.default_rng(5)  # no token twice in a period, or there is no one right answer
    rows = [np.resize(rng.permutation(32)[:period], 17) for period in (2, 3, 5, 8)]
    sequences = NextToken(jnp.asarray(np.stack(rows), jnp.int32))
    made = induction_model(32, 16)
    matching, previous = matching_and_previous(made, sequences.tokens)
    assert matching[1, 0] > 0.999
    # Looking one back is looking after a copy where the period is 2: at 14 of 46 repeats.
    np.testing.assert_allclose(matching[0, 0], 14 / 46, rtol=1e-3)
    assert previous[0, 0] > 0.999
    losses, correct = by_position(sequences, made)
    assert losses.shape == (4, 16)
    assert repeated_accuracy(correct, sequences.tokens) == 1


def test_uniform_attention_has_the_score_of_chance(model):
    flat = eqx.tree_at(lambda m: m.query, model, 0 * model.query)
    tokens = jnp.asarray([[0, 1, 2, 0, 1, 2, 0, 1]], jnp.int32)
    # at t = 3 … 6 the places after a copy: one of 4, 5, 6 and two of 7
    expected = np.mean([1 / 4, 1 / 5, 1 / 6, 2 / 7])
    matching, previous = matching_and_previous(flat, tokens)
    np.testing.assert_allclose(matching, np.full((3, 2), expected), atol=1e-12)
    expected = np.mean([1 / 4, 1 / 5, 1 / 6, 1 / 7])
    np.testing.assert_allclose(previous, np.full((3, 2), expected), atol=1e-12)


def test_circuits_against_dense_matrices(model):
    other = jax.tree.map(lambda a: a + 0.3 * jnp.roll(a, 1), model)
    found = eqx.filter_jit(spectrum)(model, 2)
    distance = eqx.filter_jit(distances_to_end)(found.basis[None], other)
    ranks = effective_ranks(found.values)
    for c, (left, right) in enumerate((("query", "key"), ("value", "output"))):
        for layer, head in np.ndindex(3, 2):
            dense, end = (
                np.asarray(getattr(m, left)[layer, head])
                @ (np.asarray(getattr(m, right)[layer, head]).T if right == "key"
                   else np.asarray(getattr(m, right)[layer, head]))
                for m in (model, other)
            )  # fmt: skip
            _, values, vt = np.linalg.svd(dense)
            np.testing.assert_allclose(found.values[c, layer, head], values[:4], atol=1e-12)
            share = values[:4] / values[:4].sum()
            np.testing.assert_allclose(
                ranks[c, layer, head], np.exp(-np.sum(share * np.log(share))), rtol=1e-10
            )
            rest = end @ (np.eye(8) - vt[:2].T @ vt[:2])
            expected = np.linalg.norm(rest) / np.linalg.norm(end)
            np.testing.assert_allclose(distance[0, c, layer, head], expected, rtol=1e-9)
