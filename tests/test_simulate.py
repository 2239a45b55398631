import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.dynamics import Adam, Descent, Flow
from iclflow.losses import Features, Minibatch, Population
from iclflow.models import Separate
from iclflow.results.trajectory import linear_steps, log_steps
from iclflow.runs.simulate import simulate
from iclflow.tasks.task import Task
from tests.cases import KEY, softmax

TASK = Task([0.5, 0.3, 0.2], 9)
LOSS = Population(TASK)
INIT = Separate.initialiser(TASK, heads=3, rank=1, scale=0.5)


def test_it_works_under_jit_and_vmap():
    keys = jax.random.split(KEY, 3)
    descent = Descent(0.3, 50)
    batch = jax.jit(jax.vmap(lambda k: simulate(LOSS, INIT(k), descent).loss))(keys)
    for i in range(3):
        np.testing.assert_allclose(
            batch[i], simulate(LOSS, INIT(keys[i]), descent).loss, atol=1e-14
        )


def test_a_sweep_over_the_rate_is_a_vmap():
    rates = jnp.asarray([0.1, 0.3])
    losses = jax.vmap(lambda r: simulate(LOSS, INIT(KEY), Descent(r, 40)).loss)(rates)
    np.testing.assert_allclose(
        losses[1], simulate(LOSS, INIT(KEY), Descent(0.3, 40)).loss, atol=1e-14
    )


@pytest.mark.parametrize("dynamics", [Descent(0.3, 60), Flow(30.0)], ids=["descent", "flow"])
def test_gradient_through_training(dynamics):
    """d(final loss)/d(init scale) against finite differences."""
    model = INIT(KEY)

    def final(scale):
        return simulate(LOSS, jax.tree.map(lambda a: a * scale, model), dynamics).loss[-1]

    step = 1e-5
    numeric = (final(1 + step) - final(1 - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(final)(1.0), numeric, rtol=1e-5)


@pytest.mark.parametrize("optimiser", [None, Adam()], ids=["descent", "adam"])
def test_a_resumed_run_is_the_whole_run(optimiser):
    loss = Minibatch(Features.sample(TASK, 50, KEY), 10)
    model = Separate.initialiser(TASK, heads=3, rank=1, scale=0.5)(KEY)
    key = jax.random.key(5)
    whole = simulate(loss, model, Descent(0.1, 80, optimiser), saveat=[0, 30, 80], key=key)
    first = simulate(loss, model, Descent(0.1, 30, optimiser), saveat=[0, 30], key=key)
    rest = simulate(loss, model, Descent(0.1, 80, optimiser), saveat=[80], state=first.state)
    np.testing.assert_array_equal(rest.loss[-1], whole.loss[-1])
    assert eqx.tree_equal(rest.model, whole.model)
    again = simulate(loss, model, Descent(0.1, 80, optimiser), state=first.state)
    assert int(again.step[0]) >= 30


def test_the_second_call_does_not_compile():
    traced = []

    def count(model):
        traced.append(1)
        return jnp.sum(model.values)

    for seed, rate in ((0, 0.1), (1, 0.2)):
        task = Task([0.5, 0.3, 0.2], 9 + seed)
        simulate(Population(task), INIT(jax.random.key(seed)), Descent(rate, 20), also={"x": count})
        if seed == 0:
            first = len(traced)
    assert len(traced) == first


def test_recording_by_name():
    run = simulate(
        LOSS, INIT(KEY), Descent(0.3, 20),
        record=["loss", "values", "effective", "weights", "gradient_norm", "sharpness"],
        also={"twice": lambda m: 2 * LOSS(m)}, saveat=[0, 10, 20],
    )  # fmt: skip
    assert run["values"].shape == (3, 3)
    assert run["effective"].shape == (3, 3, 3)
    assert run["weights"]["keys"].shape == (3, 3, 1, 3)
    np.testing.assert_allclose(run["twice"], 2 * run.loss)
    with pytest.raises(KeyError, match="recorded"):
        run["nothing"]


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'values'"):
        simulate(LOSS, INIT(KEY), Descent(0.3, 5), record=["valeus"])
    with pytest.raises(ValueError, match="list of names"):
        simulate(LOSS, INIT(KEY), Descent(0.3, 5), record="loss")


@pytest.mark.parametrize("saveat", [[], [3, 1], [-1, 2], [0.5, 1.0], [[1]]])
def test_impossible_save_points(saveat):
    with pytest.raises(ValueError, match="saveat"):
        simulate(LOSS, INIT(KEY), Descent(0.3, 5), saveat=np.asarray(saveat))


def test_a_loss_that_does_not_admit_the_model():
    with pytest.raises(ValueError, match="use Sequences"):
        simulate(LOSS, softmax(TASK)(KEY), Descent(0.1, 5))


def test_save_points():
    steps = log_steps(1000, 50)
    assert steps[0] == 0
    assert steps[-1] == 1000
    assert np.all(np.diff(steps) > 0)
    assert list(log_steps(0)) == [0]
    assert list(linear_steps(10, 3)) == [0, 5, 10]


def test_single_precision_warns_once(monkeypatch):
    monkeypatch.setattr("iclflow.runs.simulate._warned", False)
    single = jax.tree.map(lambda a: a.astype(jnp.float32), (LOSS, INIT(KEY)))
    with jax.enable_x64(False), pytest.warns(UserWarning, match="jax_enable_x64"):
        simulate(*single, Descent(0.1, 2))
