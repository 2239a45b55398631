"""The reduced rungs of the ladder: what they take, and that they overlay the flow."""

import gradient_flow
import jax
import numpy as np
import pytest
from iclflow.dynamics.reduced import Jumps, Logistic, OneDrop, Stairs

from iclflow.dynamics import Flow
from iclflow.losses import Moments, Population
from iclflow.models import MLP, Blocks, ConvNet, Merged, Separate
from iclflow.results.trajectory import RESULTS
from iclflow.tasks.task import Task
from iclflow.tasks.task_vectors import Normal

LINEAR = Task([0.4, 0.3, 0.2, 0.1], 31)
WHITE = Task([0.5, 0.5], 31)


def separate(task=LINEAR, scale=1e-2, **options):
    return Separate.initialiser(task, heads=5, scale=scale, **options)(jax.random.key(0))


def merged(task=LINEAR, scale=1e-2, **options):
    return Merged.initialiser(task, heads=4, scale=scale, **options)(jax.random.key(0))


@pytest.mark.parametrize(
    ("dynamics", "task", "model", "tolerance"),
    [
        (Stairs(), WHITE, separate(WHITE), 1e-2),
        (Stairs(), WHITE, ConvNet.from_attention(separate(WHITE)), 1e-2),
        (OneDrop(), LINEAR, merged(), 1e-3),
        (OneDrop(), LINEAR, MLP.from_attention(merged()), 1e-3),
        (Logistic(), WHITE, merged(WHITE), 1e-4),
    ],
)
def test_overlays_the_simulated_flow_on_the_same_clock(dynamics, task, model, tolerance):
    loss = Population(task)
    assert dynamics.admits(loss, model) is None
    end = 60.0 if isinstance(model, Merged | MLP) else 1500.0
    times = np.linspace(0, end, 60)
    flow = Flow(end)
    state = flow.start(loss, model, jax.random.key(0))
    record = {"loss": lambda m, objective: objective(m)}
    truth = flow.advance(loss, state, jax.numpy.asarray(times), record)
    found = dynamics(loss, model, times)
    assert np.array_equal(found.time, truth.time)
    assert np.asarray(truth.loss)[-1] < np.asarray(truth.loss)[0] - 0.3  # something happened
    assert np.abs(np.asarray(found.loss) - np.asarray(truth.loss)).max() < tolerance
    assert found.result == RESULTS.finished
    heads = 5 if task is WHITE and not isinstance(model, Merged) else 4
    assert found["values"].shape == (60, heads)


def test_effective_weights_and_values_of_the_closed_form():
    loss, model = Population(WHITE), merged(WHITE, 1e-3)
    times = np.linspace(0, 80, 9)
    flow = gradient_flow.merged_flow(loss, model, 80.0)
    # The closed form keeps what is left of the start, the reduced flow does not: w² and w.
    for dynamics, tolerance in ((Logistic(), 1e-5), (OneDrop(), 1e-3)):
        found = dynamics(loss, model, times)
        M = flow.matrix(flow.weights(times))
        assert np.abs(np.asarray(found["effective"]) - M).max() < tolerance
        assert np.abs(np.asarray(found["values"]) - flow.values(times)).max() < tolerance


def test_jumps_are_between_the_levels():
    loss, model = Population(LINEAR), separate(scale=1e-4)
    times = np.geomspace(1, 1e7, 200)
    found = np.asarray(Jumps()(loss, model, times).loss)
    smooth = np.asarray(Stairs()(loss, model, times).loss)
    assert np.median(np.abs(found - smooth)) < 1e-6
    assert set(np.round(found, 6)) <= {1.0, 0.640580, 0.377372, 0.209805, 0.135995}


@pytest.mark.parametrize(
    ("dynamics", "loss", "model", "reason"),
    [
        (Stairs(), Population(LINEAR), merged(), "predicts Separate or ConvNet, got Merged"),
        (OneDrop(), Population(LINEAR), separate(), "predicts Merged or MLP, got Separate"),
        (Stairs(), Population(LINEAR), separate(blocks=Blocks.FULL), "zero blocks must be frozen"),
        (Logistic(), Population(LINEAR), merged(), "white inputs"),
        (
            Jumps(),
            Population(Task([0.5, 0.5], 9, tasks=Normal(outputs=2))),
            separate(Task([0.5, 0.5], 9, tasks=Normal(outputs=2))),
            "one output, got 2",
        ),
        (
            OneDrop(),
            Moments.sample(WHITE, 10, jax.random.key(0)),
            merged(WHITE),
            "those of Population, got Moments",
        ),
    ],
)
def test_says_what_it_cannot_take(dynamics, loss, model, reason):
    assert reason in dynamics.admits(loss, model)
    if isinstance(loss, Population):
        with pytest.raises(ValueError, match=f"{type(dynamics).__name__} cannot take this run"):
            dynamics(loss, model, [0.0, 1.0])


def test_each_rung_states_what_it_assumes():
    for rung in (Stairs(), Jumps(), OneDrop(), Logistic()):
        assert "initial weights" in rung.assumes
