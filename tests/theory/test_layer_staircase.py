"""The staircase of several layers, predicted from their initial weights."""

import jax
import numpy as np
import pytest

import iclflow as icl
from iclflow.measures import first_crossings
from iclflow.theory import depth
from iclflow.theory.drops.head_flow import HeadFlow
from iclflow.theory.drops.stack import Stack

TASK = icl.Task([0.6, 0.3], 15)
HEADS = 3


def start(seed: int, *, scale: float = 0.01, **options) -> icl.Layers:
    init = icl.Layers.initialiser(TASK, heads=HEADS, scale=scale, **options)
    return init(jax.random.key(seed))


@pytest.mark.long
@pytest.mark.parametrize("tied", [False, True])
def test_the_flow_of_the_heads_is_minus_half_the_gradient_of_the_loss(tied):
    model, loss = start(4, scale=0.7, tied=tied), icl.Population(TASK)
    stack = Stack.of(TASK, model)
    weights, block = stack.weights(model)
    flow = HeadFlow(stack, *weights[1].shape[:2], block)
    state = np.concatenate([a.ravel() for a in weights])
    gradient = jax.grad(lambda m: loss(m))(model).stack
    expected = [gradient.values[..., 0, 0], gradient.keys, gradient.queries]
    expected = -np.concatenate([np.asarray(a).ravel() for a in expected]) / 2
    np.testing.assert_allclose(flow.slope(0.0, state), expected, atol=1e-13)
    assert float(flow.loss(state[None])[0]) == pytest.approx(float(loss(model)), rel=1e-13)
    step = 1e-6 * np.eye(len(state))
    rows = [(flow.slope(0.0, state + e) - flow.slope(0.0, state - e)) / 2e-6 for e in step]
    np.testing.assert_allclose(flow.jacobian(0.0, state), np.stack(rows, axis=1), atol=1e-8)


def measured(found: icl.theory.Prediction, model: icl.Layers, loss) -> np.ndarray:
    """When the simulated flow crosses the middles of the predicted drops."""
    near = [time * np.linspace(0.9, 1.1, 60) for time in found.times]
    marks = np.unique(np.concatenate([[0.0, 1.5 * found.times[-1]], *near]))
    run = icl.simulate(loss, model, icl.Flow(1e-8), saveat=marks)
    middles = (found.levels[:-1] + found.levels[1:]) / 2
    return first_crossings(marks, np.asarray(run.loss), middles)


@pytest.mark.slow
def test_two_layers_fall_in_as_many_steps_as_they_have_modes_and_when_it_is_predicted():
    table, minima = depth.plateau_table(TASK), depth.untied_minima(TASK)
    model = start(1)
    found = icl.predict(TASK, model, probes=0)
    assert type(found.engine).__name__ == "LayerStairs"
    assert found.heads is not None
    assert len(set(found.heads.tolist())) == 4
    assert sorted((found.heads // HEADS).tolist()) == [0, 0, 1, 1]
    times = measured(found, model, icl.Population(TASK))
    np.testing.assert_allclose(found.times, times, rtol=1e-3)
    for count, level in enumerate(found.levels):
        layers = found.heads[:count] // HEADS
        ranks = int(np.sum(layers == 0)), int(np.sum(layers == 1))
        assert level > table[ranks] - 1e-6  # the least of the local minima of these ranks
    assert min(abs(x - found.levels[-1]) for x in minima) < 1e-6
    swapped = icl.Layers.of([model.layer(1), model.layer(0)])  # the loss knows which is first
    other = icl.predict(TASK, swapped, probes=0)
    assert np.max(np.abs(other.times[1:] / times[1:] - 1)) > 0.01


@pytest.mark.slow
def test_two_heads_that_escape_together_are_named_in_the_order_in_which_they_rise():
    """At the second drop a head of layer 1 rises first, and one of layer 0 moves most."""
    model, table = start(10, scale=0.05), depth.plateau_table(TASK)
    found = icl.predict(TASK, model, probes=0)
    assert any("together" in note for note in found.notes)
    assert found.heads is not None
    assert (found.heads // HEADS).tolist() == [0, 1, 0, 1]
    layers = [found.heads[:count] // HEADS for count in range(5)]
    ranks = [(int(np.sum(one == 0)), int(np.sum(one == 1))) for one in layers]
    assert all(level > table[pair] - 1e-6 for level, pair in zip(found.levels, ranks, strict=True))


@pytest.mark.long
def test_tied_layers_are_predicted_by_the_same_engine():
    tied = start(0, tied=True)
    found, levels = icl.predict(TASK, tied, probes=0), depth.tied_levels(TASK)
    np.testing.assert_allclose(found.levels[:-1], levels[:-1], atol=1e-6)
    # The last is the symmetric saddle, from which an antisymmetric part gains a little more.
    assert 0 < found.levels[-1] - levels[-1] < 1e-5
    np.testing.assert_allclose(found.times, measured(found, tied, icl.Population(TASK)), rtol=1e-3)


@pytest.mark.slow
def test_three_layers_are_predicted_on_the_statistics_of_prompts():
    three = start(0, layers=3)
    loss = icl.Statistics.sample(TASK, 60, jax.random.key(3))
    found = icl.predict(loss, three, probes=0)
    times = measured(found, three, loss)
    assert len(times) >= 4
    np.testing.assert_allclose(found.times[:4], times[:4], rtol=0.01)


def test_layers_that_no_engine_covers_are_refused_with_the_reason():
    merged = icl.Layers.initialiser(TASK, rank=None, heads=2, scale=0.1)(jax.random.key(0))
    with pytest.raises(ValueError, match="separate key and query, got Merged"):
        icl.predict(TASK, merged)
    with pytest.raises(ValueError, match="use Draws"):
        icl.predict(TASK, start(0, layers=3))
    with pytest.raises(ValueError, match="draws a batch per step"):
        icl.predict(icl.Fresh(TASK, icl.Population(TASK), 10), start(0))
