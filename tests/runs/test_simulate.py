import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.dynamics import Adam, Descent, Flow
from iclflow.dynamics.base import linear_steps, log_steps
from iclflow.losses import Features, Minibatch, Population
from iclflow.models import Separate
from iclflow.runs.record import OfModel
from iclflow.runs.simulate import simulate
from iclflow.tasks.task import Task
from tests.helpers.cases import KEY, softmax

TASK = Task([0.5, 0.3, 0.2], 9)
LOSS = Population(TASK)
INIT = Separate.initialiser(TASK, heads=3, rank=1, scale=0.5)


def test_it_works_under_jit_and_vmap():
    keys = jax.random.split(KEY, 3)
    one = lambda k: simulate(LOSS, INIT(k), Descent(0.3), until=50).loss  # noqa: E731
    batch = jax.jit(jax.vmap(one))(keys)
    for i in range(3):
        np.testing.assert_allclose(batch[i], one(keys[i]), atol=1e-14)


def test_a_sweep_over_the_rate_is_a_vmap():
    rates = jnp.asarray([0.1, 0.3])
    one = lambda rate: simulate(LOSS, INIT(KEY), Descent(rate), until=40).loss  # noqa: E731
    np.testing.assert_allclose(jax.vmap(one)(rates)[1], one(0.3), atol=1e-14)


@pytest.mark.parametrize(
    ("dynamics", "until"),
    [
        pytest.param(lambda: Descent(0.3), 60, id="descent"),
        pytest.param(Flow, 30.0, id="flow", marks=pytest.mark.slow),
    ],
)
def test_gradient_through_training(dynamics, until):
    """d(final loss)/d(init scale) against finite differences."""
    model = INIT(KEY)

    def final(scale):
        start = jax.tree.map(lambda a: a * scale, model)
        return simulate(LOSS, start, dynamics(), until=until).loss[-1]

    step = 1e-5
    numeric = (final(1 + step) - final(1 - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(final)(1.0), numeric, rtol=1e-5)


@pytest.mark.parametrize("optimiser", [None, Adam()], ids=["descent", "adam"])
def test_a_resumed_run_is_the_whole_run(optimiser):
    loss = Minibatch(Features.sample(TASK, 50, KEY), 10)
    model = Separate.initialiser(TASK, heads=3, rank=1, scale=0.5)(KEY)
    key = jax.random.key(5)
    descent = Descent(0.1, optimiser)
    whole = simulate(loss, model, descent, saveat=[0, 30, 80], key=key)
    first = simulate(loss, model, descent, saveat=[0, 30], key=key)
    rest = simulate(loss, model, descent, saveat=[80], state=first.state)
    np.testing.assert_array_equal(rest.loss[-1], whole.loss[-1])
    assert eqx.tree_equal(rest.model, whole.model)
    again = simulate(loss, model, descent, until=80, state=first.state)
    assert int(again.step[0]) >= 30


def test_the_second_call_does_not_compile():
    traced = []

    def count(model, loss):
        traced.append(1)
        return jnp.sum(model.values)

    for seed, rate in ((0, 0.1), (1, 0.2)):
        task = Task([0.5, 0.3, 0.2], 9 + seed)
        start = INIT(jax.random.key(seed))
        simulate(Population(task), start, Descent(rate), until=20, record={"x": count})
        if seed == 0:
            first = len(traced)
    assert len(traced) == first


def test_recording_by_name():
    run = simulate(
        LOSS, INIT(KEY), Descent(0.3),
        record=["loss", "values", "effective", "weights", "gradient_norm", "sharpness", twice],
        saveat=[0, 10, 20],
    )  # fmt: skip
    assert run["values"].shape == (3, 3)
    assert run["effective"].shape == (3, 3, 3)
    assert run["weights"]["keys"].shape == (3, 3, 1, 3)
    np.testing.assert_allclose(run["twice"], 2 * run.loss)
    with pytest.raises(KeyError, match="recorded"):
        run["nothing"]


def twice(model, loss):
    return 2 * loss(model)


def test_recording_by_mapping():
    """A name for a name, for a function (model, loss), of the model alone, or for a test loss."""
    test = Population(Task([0.5, 0.3, 0.2], 20))
    record = {
        "loss": "loss",
        "training": "loss",
        "twice": twice,
        "first": OfModel(lambda model: model.values[0, 0, 0]),
        "test": test,
    }
    run = simulate(LOSS, INIT(KEY), Descent(0.3), saveat=[0, 20], record=record)
    assert set(run.record) == set(record)
    np.testing.assert_array_equal(run["training"], run.loss)
    np.testing.assert_allclose(run["twice"], 2 * run.loss)
    np.testing.assert_allclose(run["first"][1], run.model.values[0, 0, 0])
    np.testing.assert_allclose(run["test"][1], test(run.model), rtol=1e-14)


def test_functions_without_a_name_are_refused():
    with pytest.raises(ValueError, match="named functions") as error:
        simulate(LOSS, INIT(KEY), Descent(0.3), until=5, record=[lambda m, loss: loss(m)])
    assert "\n" not in str(error.value)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'values'"):
        simulate(LOSS, INIT(KEY), Descent(0.3), until=5, record=["valeus"])
    with pytest.raises(ValueError, match="list of names"):
        simulate(LOSS, INIT(KEY), Descent(0.3), until=5, record="loss")


@pytest.mark.parametrize(
    ("saveat", "words"),
    [
        ([], "saveat must be a non-empty list"),
        ([[1]], "saveat must be a non-empty list"),
        ([3, 1], "saveat must be increasing"),
        ([-1, 2], "saveat must be increasing and not negative"),
        ([0.5, 1.0], r"counts whole steps, got array\(\[0.5, 1. \]\); for times t/τ use Flow"),
        ([0, 6], "saveat asks for 6, but the run ends at 5"),
    ],
)
def test_impossible_save_points(saveat, words):
    with pytest.raises(ValueError, match=words) as error:
        simulate(LOSS, INIT(KEY), Descent(0.3), until=5, saveat=np.asarray(saveat))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("until", [-1, 2.5, np.array([1, 2]), float("nan"), float("inf")])
def test_impossible_ends(until):
    with pytest.raises(ValueError, match=r"until must be one number|whole steps") as error:
        simulate(LOSS, INIT(KEY), Descent(0.3), until=until)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dynamics", [lambda: Descent(0.3), Flow], ids=["descent", "flow"])
def test_the_end_is_always_saved(dynamics):
    both = simulate(LOSS, INIT(KEY), dynamics(), until=20, saveat=[0, 5])
    np.testing.assert_array_equal(both.step, [0, 5, 20])
    long = simulate(LOSS, INIT(KEY), dynamics(), saveat=[0, 5, 20])
    np.testing.assert_array_equal(both.loss, long.loss)
    np.testing.assert_array_equal(both.loss[-1], LOSS(both.model))
    same = simulate(LOSS, INIT(KEY), dynamics(), until=20, saveat=[0, 5, 20])
    np.testing.assert_array_equal(same.step, long.step)
    own = simulate(LOSS, INIT(KEY), dynamics(), until=20)
    assert own.step[0] == 0
    assert own.step[-1] == 20
    with pytest.raises(ValueError, match="saveat asks for 30, but the run ends at 20"):
        simulate(LOSS, INIT(KEY), dynamics(), until=20, saveat=[0, 30])
    with pytest.raises(ValueError, match="say when the run ends: until=") as error:
        simulate(LOSS, INIT(KEY), dynamics())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dynamics", [lambda: Descent(0.3), Flow], ids=["descent", "flow"])
def test_no_time_is_the_start(dynamics):
    run = simulate(LOSS, INIT(KEY), dynamics(), until=0)
    assert eqx.tree_equal(run.model, INIT(KEY))
    np.testing.assert_array_equal(run.step, 0)
    np.testing.assert_allclose(run.loss, LOSS(INIT(KEY)), rtol=1e-14)


def test_a_loss_that_does_not_admit_the_model():
    with pytest.raises(ValueError, match="use Sequences"):
        simulate(LOSS, softmax(TASK)(KEY), Descent(0.1), until=5)


def test_save_points():
    steps = log_steps(1000, 50)
    assert steps[0] == 0
    assert steps[-1] == 1000
    assert np.all(np.diff(steps) > 0)
    assert list(log_steps(0)) == [0]
    assert list(linear_steps(10, 3)) == [0, 5, 10]


def test_single_precision_warns_once(monkeypatch):
    monkeypatch.setattr("iclflow.losses.base._warned", False)
    single = jax.tree.map(lambda a: a.astype(jnp.float32), (LOSS, INIT(KEY)))
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.warns(UserWarning, match="jax_enable_x64"):
            simulate(*single, Descent(0.1), until=2)
    finally:
        jax.config.update("jax_enable_x64", True)
