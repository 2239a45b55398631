"""Every model in the registry keeps its contract; every loss, model and dynamics train or say why.

A triple is trained in shapes only (traced, not compiled): that it has a gradient and a record of
the right kind. Numbers are the business of the tests of each.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.models.registry import MODELS
from iclflow.runs.record import variables

KEY = jax.random.key(3)
GIVEN = {"heads": 2, "rank": 2, "blocks": icl.Blocks.FULL, "layers": 2, "tied": False}
GIVEN |= {"width": 8, "mlp": 2, "norm": True, "causal": False}
LOSSES = {
    "sequences": lambda task: icl.Sequences.sample(task, 6, KEY),
    "features": lambda task: icl.Features.sample(task, 6, KEY),
    "moments": lambda task: icl.Moments.sample(task, 6, KEY),
    "population": icl.Population,
    "averaged": lambda task: icl.Sequences.sample(task, 6, KEY, averaged=True),
    "large context": lambda task: icl.LargeContext(task_with(False)),  # one output
    "statistics": lambda task: icl.Statistics.sample(task, 6, KEY),
    "draws": lambda task: icl.Draws.sample(task_with(False), 6, KEY),  # one output
    "two-layer moments": lambda task: icl.Moments.sample(
        task_with(False), 6, KEY, features=icl.TwoLayerFeatures()
    ),
    "minibatch": lambda task: icl.Minibatch(icl.Sequences.sample(task, 6, KEY), 2),
    "fresh": lambda task: icl.Fresh(task, icl.Sequences.sample(task, 6, KEY), 2),
}
# What these models leave to the defaults of the contract, which claim nothing.
NO_SINGLE_ATTENTION = ("layers", "steps", "transformer", "label-row")
NO_MINIMUM = ("steps", "transformer", "label-row")
NO_PLATEAUS = ("label-row",)
DYNAMICS = {"descent": icl.Descent(0.1), "adam": icl.Descent(0.1, icl.Adam()), "flow": icl.Flow()}


@functools.cache
def task_with(vector: bool) -> icl.Task:
    return icl.Task([0.6, 0.3], context=5, tasks=icl.Commuting() if vector else icl.Normal())


def task_of(name: str) -> icl.Task:
    return task_with(MODELS[name].vector)


@functools.cache
def loss_with(loss: str, vector: bool) -> icl.AbstractLoss:
    return LOSSES[loss](task_with(vector))


@functools.cache
def model_of(name: str, scale: float = 0.5) -> icl.AbstractModel:
    kind = MODELS[name]
    options = {option: GIVEN[option] for option in kind.options}
    model = kind.initialiser(task_of(name), scale=scale, **options)(KEY)
    # Zero blocks filled too: what holds only at zero is no contract.
    moved = {
        name: array + 0.1 * jax.random.normal(jax.random.fold_in(KEY, i), array.shape)
        for i, (name, array) in enumerate(model.weights().items())
    }
    return model.with_weights(moved)


@pytest.mark.parametrize("name", MODELS)
def test_weights_have_names_and_axes_and_come_back(name):
    model = model_of(name)
    weights = model.weights()
    assert set(model.axes()) <= set(weights)
    assert all(len(dims) == weights[n].ndim for n, dims in model.axes().items())
    doubled = model.with_weights({n: 2 * array for n, array in weights.items()})
    assert all(np.array_equal(doubled.weights()[n], 2 * a) for n, a in weights.items())
    labelled = variables({"weights": weights}, 0, model.axes())
    assert set(labelled) == set(weights)


@pytest.mark.parametrize("name", MODELS)
def test_the_attention_of_a_linear_model_predicts_the_same(name):
    model, prompt = model_of(name), task_of(name).sample(KEY)
    prediction = model(prompt)
    assert prediction.shape == (task_of(name).outputs,)
    attention = model.as_attention()
    if name.startswith(NO_SINGLE_ATTENTION):
        assert attention is None
        return
    assert isinstance(attention, icl.AbstractAttention)
    if isinstance(model, icl.AbstractLinearModel):
        np.testing.assert_allclose(attention(prompt), prediction, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", MODELS)
def test_the_minimum_has_the_weights_asked_for(name):
    model, task = model_of(name), task_of(name)
    wanted = jnp.einsum("op,dc->opdc", jnp.eye(task.outputs), jnp.diag(jnp.array([2.0, 1.0])))
    found = model.at_minimum(wanted)
    assert (found is None) == name.startswith(NO_MINIMUM)
    layers = () if found is None else found.attention_layers()
    assert found is None or layers
    assert len(layers) == len(model.attention_layers()) == model.depth
    for layer in layers:
        np.testing.assert_allclose(layer.reduced_weights(), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_conserved_has_no_slope_along_the_flow(name):
    loss = loss_with("sequences", MODELS[name].vector)

    @eqx.filter_jit
    def rates_of(model):
        slope = eqx.filter_grad(lambda m: loss(m))(model)
        return eqx.filter_jvp(lambda m: m.conserved(), (model,), (slope,))[1]

    model = model_of(name)
    rates = rates_of(model)
    assert rates or not isinstance(model, icl.AbstractLinearModel) or name in NO_PLATEAUS
    for rate in rates.values():
        np.testing.assert_allclose(rate, 0.0, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_plateaus_are_visited_in_order(name):
    model = model_of(name)
    visited = model.visits(4)
    plateaus = isinstance(model, icl.AbstractLinearModel) and name not in NO_PLATEAUS
    assert bool(visited) == plateaus
    assert list(visited) == sorted(set(visited))
    assert visited[:1] in ((), (0,))
    assert visited[-1:] in ((), (4,))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", MODELS)
def test_a_triple_trains_or_says_why(loss, name):
    trained = 0
    model, problem = model_of(name), loss_with(loss, MODELS[name].vector)
    for dynamics in DYNAMICS.values():
        reason = dynamics.admits(problem, model)
        if reason is None:
            run = lambda d=dynamics: icl.simulate(problem, model, d, saveat=[0, 1])  # noqa: E731
            assert eqx.filter_eval_shape(run).record["loss"].shape == (2,)
            trained += 1
            continue
        assert len(reason) > 20
        with pytest.raises(ValueError, match="cannot train"):
            icl.simulate(problem, model, dynamics, saveat=[0, 1])
    assert (trained > 0) == (problem.admits(model) is None)
