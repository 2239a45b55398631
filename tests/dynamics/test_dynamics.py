import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from iclflow.dynamics import (
    Adam,
    Descent,
    Flow,
    Momentum,
    reference_minimum,
    sharpness,
    stable_rate,
)
from iclflow.dynamics.base import RESULTS
from iclflow.losses import Features, Fresh, Minibatch, Moments, Population, Sequences
from iclflow.models import Blocks
from iclflow.runs.simulate import simulate
from iclflow.tasks.task import Task
from tests.helpers.cases import KEY, MODELS, NETWORKS, TASKS, filled, softmax


def standard(name="separate", scale=0.3, blocks=Blocks.FROZEN):
    task = Task([0.4, 0.3, 0.2, 0.1], 31)
    return task, Population(task), MODELS[name](task, blocks, scale)(KEY)


def literal_descent(model, task, rate, steps):
    """The flow (19) of rank-R attention, discretised by hand in NumPy."""
    v = np.array(model.values[:, 0, 0])
    k, q = np.array(model.keys), np.array(model.queries)
    lam = np.asarray(task.covariance)
    n = task.context
    second = lam @ lam * (1 + 1 / n) + np.trace(lam) * lam / n
    losses = []
    for _ in range(steps + 1):
        m = np.einsum("h,hrd,hrc->dc", v, k, q)
        losses.append(np.trace(lam) - 2 * np.sum(m * lam @ lam) + np.sum(m * (second @ m @ lam)))
        a = lam @ lam - second @ m @ lam
        dv = np.einsum("hrd,dc,hrc->h", k, a, q)
        dk = np.einsum("h,dc,hrc->hrd", v, a, q)
        dq = np.einsum("h,dc,hrd->hrc", v, a, k)
        v, k, q = v + 2 * rate * dv, k + 2 * rate * dk, q + 2 * rate * dq
    return np.array(losses)


def test_descent_is_the_literal_update():
    """(10)(19)(80) by hand, and the clock 2η a step."""
    task, loss, model = standard()
    run = simulate(loss, model, Descent(0.2), saveat=np.arange(301))
    np.testing.assert_allclose(run.loss, literal_descent(model, task, 0.2, 300), atol=1e-13)
    np.testing.assert_allclose(run.time, 0.4 * np.arange(301))


def test_descent_approaches_flow_at_first_order():
    """(10): at equal t/τ the difference halves with the rate, slope 1."""
    _, loss, model = standard(scale=0.8)
    flow = simulate(loss, model, Flow(1e-11), saveat=np.linspace(0, 40, 11))
    errors, rates = [], np.array([0.2, 0.1, 0.05, 0.025])
    for rate in rates:
        run = simulate(loss, model, Descent(rate),
                       saveat=np.round(np.linspace(0, 20 / rate, 11)).astype(int))  # fmt: skip
        errors.append(float(jnp.abs(run.loss - flow.loss).max()))
    slope = np.polyfit(np.log(rates), np.log(errors), 1)[0]
    assert 0.95 < slope < 1.05


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(Momentum(0.8), optax.sgd(0.05, momentum=0.8)), (Adam(), optax.adam(0.05))],
    ids=["momentum", "adam"],
)
def test_other_update_rules(ours, theirs):
    _, loss, model = standard()
    run = simulate(loss, model, Descent(0.05, ours), saveat=np.arange(31))
    assert not run.timed  # a step of these is no time of the flow
    np.testing.assert_array_equal(run.time, run.step)
    state, values = theirs.init(model), []
    for _ in range(31):
        value, gradient = jax.value_and_grad(lambda m: loss(m))(model)
        values.append(value)
        updates, state = theirs.update(gradient, state, model)
        model = optax.apply_updates(model, updates)
    np.testing.assert_allclose(run.loss, jnp.stack(values), atol=1e-12)


def test_a_rate_that_diverges_is_a_result():
    _, loss, model = standard()
    run = simulate(loss, model, Descent(50.0), saveat=np.arange(0, 401, 2))
    assert run.result == RESULTS.diverged
    stopped = int(run.stopped)
    assert 0 < stopped < 400
    kept = np.asarray(run.step) < stopped
    assert np.all(np.isfinite(run.loss[kept]))
    assert np.all(np.isnan(run.loss[np.asarray(run.step) > stopped]))


def test_weights_that_are_not_numbers_are_a_result():
    _, loss, model = standard()
    broken = jax.tree.map(lambda a: a * jnp.nan, model)
    run = simulate(loss, broken, Descent(0.1), until=10)
    assert run.result == RESULTS.not_a_number
    assert int(run.stopped) == 0


def test_the_step_limit_of_a_flow_is_a_result():
    _, loss, model = standard()
    run = simulate(loss, model, Flow(max_steps=40), until=500.0)
    assert run.result == RESULTS.step_limit
    assert 0 < float(run.stopped) < 500
    assert np.isfinite(run.loss[0])
    assert np.isnan(run.loss[-1])
    whole = simulate(loss, model, Flow(), until=500.0)
    resumed = simulate(loss, model, Flow(), saveat=[500.0], state=run.state)
    np.testing.assert_allclose(resumed.loss[-1], whole.loss[-1], rtol=1e-7)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("blocks", Blocks)
def test_sharpness_is_the_largest_eigenvalue(name, blocks):
    task = TASKS["mixture"]()
    loss = Moments.sample(task, 80, KEY)
    model = filled(MODELS[name](task, blocks, 0.5)(KEY))
    flat, unravel = ravel_pytree(model)
    hessian = jax.jit(jax.hessian(lambda w: loss(unravel(w))))(flat)
    assert sharpness(loss, model) == pytest.approx(
        float(jnp.linalg.eigvalsh(hessian)[-1]), rel=1e-8
    )


@pytest.mark.parametrize("name", [*MODELS, *NETWORKS])
def test_reference_minimum_is_the_minimum(name):
    """It has the loss (24) of all modes learned, and no gradient."""
    task, loss, _ = standard()
    model = (
        MODELS[name](task, Blocks.FROZEN, 0.3) if name in MODELS else NETWORKS[name](task, 0.3)
    )(KEY)
    if name in ("separate", "conv"):
        assert task.size <= 3 * 2
    best = reference_minimum(loss, model)
    assert loss(best) == pytest.approx(0.135995, abs=5e-7)
    gradient = ravel_pytree(jax.grad(lambda m: loss(m))(best))[0]
    assert jnp.abs(gradient).max() < 1e-6


@pytest.mark.parametrize("name", MODELS)
def test_default_rate_is_a_quarter_of_the_limit(name):
    """Descent at the default rate ends at η·sharpness near 1/2; far past the limit it fails."""
    task, _, _ = standard()
    loss = Moments.sample(task, 2000, KEY, matched=True)
    model = MODELS[name](task, Blocks.FULL, 0.3)(KEY)
    rate = stable_rate(loss, model)
    run = simulate(loss, model, Descent(rate), until=6000)
    assert run.result == RESULTS.finished
    assert 0.3 < float(rate * sharpness(loss, run.model)) < 0.7


def test_full_blocks_are_sharper():
    """The limit for merged attention, D = 4: near 0.15 with trained blocks, above 1.3 without."""
    task, _, _ = standard()
    loss = Moments.sample(task, 2000, KEY, matched=True)
    limits = {
        blocks: float(4 * stable_rate(loss, MODELS["merged"](task, blocks, 0.1)(KEY)))
        for blocks in Blocks
    }
    assert 0.13 < limits[Blocks.FULL] < 0.18
    assert 1.2 < limits[Blocks.FROZEN] < 1.7


@pytest.mark.parametrize("level", [Features, Sequences])
def test_minibatches(level):
    """A batch is drawn without replacement and its mean gradient is the full one."""
    task = TASKS["plain"]()
    whole = level.sample(task, 40, KEY)
    model = filled(MODELS["merged"](task, Blocks.FROZEN, 0.5)(KEY))
    loss = Minibatch(whole, 8)
    assert loss(model) == whole(model)
    draws = jax.vmap(lambda k: loss.draw(k)(model))(jax.random.split(KEY, 4000))
    error = draws.std() / 4000**0.5
    assert abs(draws.mean() - whole(model)) < 5 * error
    all_of_it = Minibatch(whole, 40).draw(KEY)(model)
    assert all_of_it == pytest.approx(float(whole(model)), rel=1e-13)
    with pytest.raises(ValueError, match="between 1 and 40"):
        Minibatch(whole, 41)


def test_stochastic_descent_learns_and_repeats():
    task, population, model = standard(scale=0.8)
    loss = Fresh(task, population, 64)
    first, again, other = (
        simulate(loss, model, Descent(0.05), until=400, key=jax.random.key(key))
        for key in (1, 1, 2)
    )
    np.testing.assert_array_equal(first.loss, again.loss)
    assert float(first.loss[-1]) < 0.75
    assert not np.array_equal(first.loss, other.loss)


def test_softmax_learns():
    task = TASKS["plain"]()
    loss = Sequences.sample(task, 200, KEY, matched=True)
    model = softmax(task, scale=1.0)(KEY)
    run = simulate(loss, model, Descent(0.2), until=300)
    assert run.result == RESULTS.finished
    assert run.loss[-1] < 0.9 * run.loss[0]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_the_rate_must_be_positive(rate):
    with pytest.raises(ValueError, match="positive"):
        Descent(rate)


def test_a_flow_needs_a_tolerance_and_a_step():
    for tolerance in (0.0, np.inf):
        with pytest.raises(ValueError, match="tolerance must be a positive number"):
            Flow(tolerance)
    with pytest.raises(ValueError, match="max_steps must be a whole number of at least 1"):
        Flow(max_steps=0)


@pytest.mark.parametrize("make", [Fresh, Minibatch])
def test_a_flow_refuses_losses_that_draw(make):
    """Silently it would follow the loss they are evaluated on."""
    task, population, model = standard()
    features = Features.sample(task, 20, KEY)
    loss = Fresh(task, population, 8) if make is Fresh else Minibatch(features, 8)
    assert Descent(0.1).admits(loss, model) is None
    reason = Flow().admits(loss, model)
    assert reason is not None
    assert f"{make.__name__} draws a new batch for every step; use Descent" in reason
    with pytest.raises(ValueError, match="follows the gradient of one loss") as error:
        simulate(loss, model, Flow(), until=1.0)
    assert "\n" not in str(error.value)
    assert Flow().admits(population, model) is None
