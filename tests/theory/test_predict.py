"""One door to the time courses: what its engines take, and that they overlay the flow."""

import jax
import numpy as np
import pytest

from iclflow.dynamics import Flow
from iclflow.losses import Population
from iclflow.models import MLP, Blocks, ConvNet, Merged, Separate, Softmax
from iclflow.runs.simulate import simulate
from iclflow.tasks.laws import Normal
from iclflow.tasks.task import Task
from iclflow.theory import (
    ENGINES,
    Jumps,
    Logistic,
    Modes,
    OneDrop,
    Stairs,
    drop_times,
    predict,
)
from tests.helpers import gradient_flow

LINEAR = Task([0.4, 0.3, 0.2, 0.1], 31)
WHITE = Task([0.5, 0.5], 31)
LEVELS = [1.0, 0.640580, 0.377372, 0.209805, 0.135995]


def separate(task=LINEAR, scale=1e-2, heads=5, **options):
    return Separate.initialiser(task, heads=heads, scale=scale, **options)(jax.random.key(0))


def merged(task=LINEAR, scale=1e-2, **options):
    return Merged.initialiser(task, heads=4, scale=scale, **options)(jax.random.key(0))


@pytest.mark.parametrize(
    ("engine", "task", "start", "network", "tolerance"),
    [
        (Stairs, WHITE, separate, None, 1e-3),
        pytest.param(Stairs, WHITE, separate, ConvNet, 1e-3, marks=pytest.mark.slow),
        (OneDrop, LINEAR, merged, None, 1e-3),
        pytest.param(OneDrop, LINEAR, merged, MLP, 1e-3, marks=pytest.mark.slow),
        pytest.param(Logistic, WHITE, merged, None, 1e-4, marks=pytest.mark.long),
    ],
)
def test_the_best_engine_overlays_the_simulated_flow(engine, task, start, network, tolerance):
    model = start(task) if network is None else network.from_attention(start(task))
    loss, found = Population(task), predict(task, model, probes=0)
    assert type(found.engine) is engine
    assert found.assumes == engine.assumes
    assert found.condition is None
    one_drop = isinstance(model, Merged | MLP)
    times = np.linspace(0, 60.0 if one_drop else 1500.0, 60)
    truth = np.asarray(simulate(loss, model, Flow(), saveat=times).loss)
    curve = found.curve(times)
    assert np.array_equal(curve.time, times)
    assert truth[-1] < truth[0] - 0.3  # something happened
    assert np.abs(curve.loss - truth).max() < tolerance
    assert curve.values.shape == (60, 4 if one_drop else 5)
    assert (found.heads is None) == one_drop
    middles = (found.levels[:-1] + found.levels[1:]) / 2
    assert found.curve(found.times).loss == pytest.approx(middles, rel=1e-6)
    assert found.time.shape == found.loss.shape


def test_every_source_and_trained_zero_blocks_give_the_same():
    found = predict(LINEAR, separate(blocks=Blocks.FULL), probes=0)
    for source in (Population(LINEAR), Modes.of(LINEAR)):
        assert np.array_equal(predict(source, separate(), probes=0).times, found.times)


def test_levels_are_those_that_the_model_visits():
    assert predict(LINEAR, separate(), probes=0).levels == pytest.approx(LEVELS, abs=1e-6)
    few = predict(LINEAR, separate(heads=2), probes=0)
    assert few.levels == pytest.approx(LEVELS[:3], abs=1e-6)
    assert len(few.times) == len(few.heads) == 2
    assert predict(LINEAR, merged()).levels == pytest.approx([LEVELS[0], LEVELS[-1]], abs=1e-6)


def test_the_condition_is_measured_where_it_is_asked_for():
    found = predict(WHITE, separate(WHITE), probes=2)
    assert np.isfinite(found.condition).all()
    assert found.condition.shape == found.times.shape


def test_closed_form_and_reduced_flow_drop_at_the_same_time():
    model = merged(WHITE, 1e-3)
    closed, flow = (predict(WHITE, model, engine=one) for one in (Logistic(), OneDrop()))
    assert closed.times == pytest.approx(flow.times, rel=1e-8)


def test_effective_weights_and_values_of_the_closed_form():
    loss, model = Population(WHITE), merged(WHITE, 1e-3)
    times = np.linspace(0, 80, 9)
    flow = gradient_flow.merged_flow(loss, model, 80.0)
    # The closed form keeps what is left of the start, the reduced flow does not: w² and w.
    for engine, tolerance in ((Logistic(), 1e-5), (OneDrop(), 1e-3)):
        found = predict(loss, model, engine=engine).curve(times)
        M = flow.matrix(flow.weights(times))
        assert np.abs(found.effective - M).max() < tolerance
        assert np.abs(found.values - flow.values(times)).max() < tolerance


def test_many_starts_together_drop_when_each_of_them_does():
    keys = jax.random.split(jax.random.key(1), 6)
    few = Task([0.5, 0.3], 31)
    models = [Separate.initialiser(few, heads=3, scale=1e-3)(key) for key in keys]
    together = drop_times(few, models)
    alone = [predict(few, one, probes=0).times for one in models]
    assert np.array_equal(together, alone)
    assert drop_times(LINEAR, [merged()]).tolist() == [predict(LINEAR, merged()).times.tolist()]
    assert drop_times(few, []).shape == (0, 0)


def test_a_drop_that_never_comes_is_infinitely_late():
    models = [separate(), jax.tree.map(lambda a: 0 * a, separate())]
    times = drop_times(LINEAR, models)
    assert np.isfinite(times[0]).all()
    assert np.isinf(times[1]).all()


def test_jumps_are_between_the_levels():
    model, times = separate(scale=1e-4), np.geomspace(1, 1e7, 200)
    jumps = predict(LINEAR, model, engine=Jumps())
    smooth = predict(LINEAR, model, probes=0).curve(times).loss
    assert np.median(np.abs(jumps.curve(times).loss - smooth)) < 1e-6
    assert jumps.levels == pytest.approx(LEVELS, abs=1e-6)
    assert set(jumps.curve(times).loss) <= set(jumps.levels)


TWO = Task([0.5, 0.5], 9, tasks=Normal(outputs=2))


@pytest.mark.parametrize(
    ("engine", "task", "model", "reason"),
    [
        (Stairs(), LINEAR, merged(), "predicts Separate, got Merged"),
        (OneDrop(), LINEAR, separate(), "predicts Merged, got Separate"),
        (Logistic(), LINEAR, merged(), "white inputs"),
        (Jumps(), TWO, separate(TWO), "one output, got 2"),
        (None, TWO, separate(TWO), "one output, got 2"),
        (
            None,
            LINEAR,
            Softmax.initialiser(LINEAR, heads=2, scale=0.1)(jax.random.key(0)),
            "linear attention with one layer, got Softmax",
        ),
    ],
)
def test_says_what_it_cannot_take(engine, task, model, reason):
    with pytest.raises(ValueError, match=reason) as error:
        predict(task, model, engine=engine)
    assert "\n" not in str(error.value)


def test_each_engine_states_what_it_assumes():
    for engine in ENGINES:
        assert "initial weights" in engine.assumes
