"""Losses of given prompts, and of a task that is not linear regression, written as a user would."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.losses import AbstractPromptLoss
from iclflow.tasks.prompts import PromptSet, StackedPrompts
from iclflow.theory import OrdinaryLeastSquares
from iclflow.theory.algorithms.monte_carlo import monte_carlo_loss
from tests.helpers.cases import KEY, TASKS

LEVELS = (icl.Sequences, icl.Features, icl.Moments)


class Sines(icl.AbstractTask):
    """y = sin(w·x): linear in no fixed features."""

    size: int = eqx.field(static=True, default=3)
    outputs: int = eqx.field(static=True, default=1)
    context: int = eqx.field(static=True, default=8)
    lengths: tuple[int, ...] = eqx.field(static=True, default=(4, 8))

    def sample(self, key):
        weights, inputs = jax.random.split(key)
        x = jax.random.normal(inputs, (self.context + 1, self.size))
        y = jnp.sin(x @ jax.random.normal(weights, (self.size,)))[:, None]
        return icl.Prompt(x, y, y)


def same(one: AbstractPromptLoss, other: AbstractPromptLoss, tolerance=1e-14):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def parts(prompts, cuts):
    """Stacked prompts as a stream of batches."""
    for start, end in itertools.pairwise(cuts):
        yield jax.tree.map(lambda a, s=start, e=end: a[s:e], prompts)


# Every level and every task; `make test-all` has all pairs.
PAIRS = [
    pytest.param(level, name, marks=[] if i in (j, j + 1) else [pytest.mark.slow])
    for i, level in enumerate(LEVELS)
    for j, name in enumerate(["lengths", "mixture", "sines"])
]


@pytest.mark.parametrize(("level", "name"), PAIRS)
def test_given_prompts_are_drawn_prompts(level, name):
    """A set, its stacked prompts and a stream of batches of them are one loss."""
    task = Sines() if name == "sines" else TASKS[name]()
    drawn = level.sample(task, 50, KEY)
    whole = PromptSet.sample(task, 50, KEY)
    same(level.of(whole), drawn, 0)
    same(level.of(StackedPrompts(whole.prompts(), task.lengths)), drawn)
    same(level.of(whole.prompts(), lengths=task.lengths), drawn)
    same(level.of(parts(whole.prompts(), [0, 20, 40, 50]), lengths=task.lengths), drawn)


def test_whole_prompts_unless_lengths_are_given():
    prompts = PromptSet.sample(TASKS["lengths"](), 20, KEY).prompts()
    same(icl.Moments.of(prompts), icl.Moments.of(prompts, lengths=(9,)), 0)
    # Prompts may also bring a length each: those of 4 pairs are their own prefixes.
    short = jax.vmap(lambda p: p.prefix(4))(prompts)
    same(icl.Features.of(short), icl.Features.of(prompts, lengths=(4,)), 1e-15)


def test_a_stream_is_read_once_batch_by_batch():
    prompts = PromptSet.sample(TASKS["plain"](), 60, KEY).prompts()
    read, seen = [], []

    def stream():
        for batch in parts(prompts, [0, 30, 60]):
            read.append(len(seen))  # what was reported when this batch was asked for
            yield batch

    icl.Moments.of(stream(), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(30, 30), (60, 60)]
    assert read == [0, 1]


def test_a_task_that_is_not_linear_trains(monkeypatch):
    """Sampled levels, fresh batches, chunks, sweeps and Monte Carlo need only `sample`."""
    task = Sines()
    init = icl.Separate.initialiser(task, heads=2, scale=0.5)
    model = init(KEY)
    losses = [level.sample(task, 300, KEY, features=None) for level in LEVELS[1:]]
    losses.append(icl.Sequences.sample(task, 300, KEY))
    for loss in losses:
        assert float(loss(model)) == pytest.approx(float(losses[0](model)), abs=1e-12)
    monkeypatch.setattr("iclflow.losses.moments.CHUNK_BYTES", 2**14)
    same(icl.Moments.sample(task, 300, KEY), losses[1], 1e-12)
    fresh = icl.Fresh(task=task, evaluation=losses[1], size=16)
    for source in (losses[1], fresh):
        runs = icl.sweep(source, init, icl.Descent(0.1), seeds=2, saveat=[0, 60])
        assert np.all(runs["loss"][:, -1] < runs["loss"][:, 0])
    assert icl.select(task, model, 300).build(task, 300, KEY).admits(model) is None
    estimate = monte_carlo_loss(OrdinaryLeastSquares(), task, 500, KEY)
    assert float(estimate.mean) > 5 * float(estimate.error)


def test_what_needs_linear_regression_says_so():
    task, init = Sines(), icl.Separate.initialiser(Sines(), heads=2, scale=0.5)
    for needs in (
        icl.Population,
        icl.population_moments,
        icl.theory.Modes.of,
        icl.theory.least_squares,
        icl.theory.bayes_predictor,
        lambda t: icl.sweep(t, init, icl.Descent(0.1), until=5),
        lambda t: PromptSet.sample(t, 30, KEY, matched=True),
    ):
        with pytest.raises(ValueError, match="linear regression of a Task, got Sines; sample"):
            needs(task)


@pytest.mark.parametrize("level", LEVELS)
def test_malformed_prompts_are_refused(level):
    prompts = PromptSet.sample(TASKS["plain"](), 4, KEY).prompts()
    other = PromptSet.sample(TASKS["outputs"](), 4, KEY).prompts()
    spoiled = eqx.tree_at(lambda p: p.labels, prompts, prompts.labels.at[2, 1].set(jnp.nan))
    ragged = eqx.tree_at(lambda p: p.labels, prompts, prompts.labels[:3])
    for given, message in (
        ([], "there are no prompts: the iterable is empty"),
        ([prompts, other], r"one \(N, D, O, normaliser\)"),
        (iter([prompts.inputs]), "come as Prompt batches, got ArrayImpl"),
        (spoiled, "1 of 4 are not, the first is number 2"),
        (ragged, r"must be stacked: .* got \(4, 10, 3\), \(3, 10, 1\)"),
        (TASKS["plain"]().sample(KEY), "needs a leading axis"),
        (jax.tree.map(lambda a: a[:, :1], prompts), "at least one pair and a query"),
        (jax.tree.map(lambda a: a[:0], prompts), "at least one pair and a query"),
    ):
        with pytest.raises(ValueError, match=message):
            level.of(given)
    with pytest.raises(ValueError, match="between 1 and the context 9, got"):
        level.of(prompts, lengths=(10,))
    with pytest.raises(ValueError, match="have their own lengths"):
        level.of(PromptSet.sample(TASKS["plain"](), 4, KEY), lengths=(3,))
