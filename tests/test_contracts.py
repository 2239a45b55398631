"""Contracts: every registered model answers every question; every triple trains or says why not."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.dynamics.chebyshev import Chebyshev
from iclflow.models import AbstractAttention, AbstractLinearModel, empty_model
from iclflow.models.registry import MODELS
from iclflow.runs.record import recorded_models

KEY = jax.random.key(3)
SCALAR = icl.Task([0.5, 0.3, 0.2], 7)
VECTOR = icl.Task([0.5, 0.3, 0.2], 7, tasks=icl.Commuting())
OPTIONS = {"heads": 3, "rank": 2, "blocks": icl.Blocks.FROZEN}


def made(name, blocks=icl.Blocks.FROZEN):
    kind = MODELS[name]
    task = VECTOR if kind.vector else SCALAR
    options = {n: v for n, v in OPTIONS.items() if n in kind.options}
    if "blocks" in options:
        options["blocks"] = blocks
    return task, kind.initialiser(task, scale=0.4, **options)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_answers_for_itself(name):
    task, init = made(name)
    model, like = init(KEY), empty_model(init)
    assert type(like) is type(model)
    weights = model.weights()
    assert set(weights) == set(like.weights())
    assert jax.tree.all(jax.tree.map(jnp.array_equal, model.with_weights(weights), model))
    axes = model.axes()
    assert all(len(axes[n]) == weights[n].ndim for n in weights)
    attention = model.as_attention()
    assert isinstance(attention, AbstractAttention)
    if isinstance(model, AbstractLinearModel):
        prompt = task.sample(KEY)
        np.testing.assert_allclose(attention(prompt), model(prompt), atol=1e-13)
        assert jax.tree.structure(model.reduce().reduce()) == jax.tree.structure(model.reduce())
    goal = 0.3 * jnp.eye(3)[None, None] * jnp.ones((task.outputs, task.outputs, 1, 1))
    there = model.at_minimum(goal).as_attention().reduced_weights()
    if task.outputs == 1:  # several outputs need as many heads
        np.testing.assert_allclose(there, goal, atol=1e-12)
    visited = model.visits(3)
    assert list(visited) == sorted(set(visited))
    assert (visited == ()) == (not isinstance(model, AbstractLinearModel))


@pytest.mark.parametrize("name", MODELS)
def test_what_a_model_conserves_is_conserved(name):
    task, init = made(name)
    model = init(KEY)
    if not model.conserved():
        assert name == "softmax-merged"
        return
    loss = icl.Sequences.sample(task, 16, KEY)
    run = icl.simulate(loss, model, icl.Flow(1e-10), until=3.0)
    for before, after in zip(
        model.conserved().values(), run.model.conserved().values(), strict=True
    ):
        np.testing.assert_allclose(after, before, atol=1e-8)
    assert float(jnp.abs(run.loss[-1] - run.loss[0])) > 1e-4  # it did move


@pytest.mark.parametrize("name", MODELS)
def test_weights_come_back_from_a_record(name):
    task, init = made(name)
    loss = icl.Sequences.sample(task, 8, KEY)
    runs = icl.sweep(loss, init, icl.Descent(0.05), until=3, record=["loss", "weights"])
    models = recorded_models(runs.isel(seed=0), init)
    first = jax.tree.map(lambda a: a[0], models)
    np.testing.assert_allclose(float(loss(first)), runs["loss"].values[0, 0], atol=1e-13)


def losses(task):
    sequences = icl.Sequences.sample(task, 8, KEY)
    found = {
        "sequences": sequences,
        "features": icl.Features.sample(task, 8, KEY),
        "reduced features": icl.Features.sample(task, 8, KEY, features=icl.ReducedFeatures()),
        "moments": icl.Moments.sample(task, 8, KEY),
        "population": icl.Population(task),
        "population moments": icl.population_moments(task),
        "minibatch": icl.Minibatch(sequences, 4),
        "fresh": icl.Fresh(task, sequences, 4),
    }
    return found


DYNAMICS = {
    "descent": (icl.Descent(0.02), 2),
    "momentum": (icl.Descent(0.02, icl.Momentum()), 2),
    "adam": (icl.Descent(0.002, icl.Adam()), 2),
    "flow": (icl.Flow(1e-6), 0.04),
    "chebyshev": (icl.Flow(1e-4, solver=Chebyshev()), 0.04),
}


@pytest.mark.parametrize("blocks", icl.Blocks)
@pytest.mark.parametrize("name", MODELS)
def test_every_triple_trains_or_says_why_not(name, blocks):
    task, init = made(name, blocks)
    trained = 0
    for (what, loss), (how, (dynamics, until)) in itertools.product(
        losses(task).items(), DYNAMICS.items()
    ):
        reason = dynamics.admits(loss, empty_model(init))
        if reason is not None:
            assert len(reason) > 20, (what, how)
            with pytest.raises(ValueError, match="cannot train"):
                icl.simulate(loss, init(KEY), dynamics, until=until)
        elif how in ("descent", "flow") or what == "sequences":  # the rest compiles the same parts
            run = icl.simulate(loss, init(KEY), dynamics, saveat=[0, until])
            assert np.isfinite(run.loss).all(), (what, how)
            trained += 1
    assert trained >= 4
