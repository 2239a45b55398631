"""The theory of a sample: the staircase of the very prompts that are trained on (Q1)-(Q6)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.dynamics import Flow
from iclflow.losses import Features, FullFeatures, Minibatch, Moments, ReducedFeatures, Sequences
from iclflow.models import Blocks, Merged, Separate, Softmax
from iclflow.runs.simulate import simulate
from iclflow.tasks.base import Prompt
from iclflow.tasks.laws import Normal, Pool
from iclflow.tasks.task import Task
from iclflow.theory import Quadratic, plateau_losses, predict, select

TASK = Task([0.5, 0.3, 0.2], 20)


def drawn(number):
    """A sample and a start by a fixed rule: D 2-4, N 8-39, P 200 to 5,000, w 0.003 to 0.03."""
    rng = np.random.default_rng(number)
    size = int(rng.integers(2, 5))
    spectrum = np.sort(rng.uniform(0.1, 1, size))[::-1]
    context, prompts = int(rng.integers(8, 40)), int(rng.choice([200, 1000, 5000]))
    scale = float(rng.choice([3e-3, 1e-2, 3e-2]))
    task = Task((spectrum / spectrum.sum()).tolist(), context)
    key = jax.random.key(100 + number)
    loss = Moments.sample(task, prompts, key, features=ReducedFeatures())
    init = Separate.initialiser(task, heads=size + 1, scale=scale)
    return task, loss, init(jax.random.key(number))


def measured(loss, model, found, points=4001):
    """When a tight flow is halfway between the predicted levels, and who has grown then."""
    end = 1.2 * found.times[-1]
    saves = np.unique(np.concatenate([[0.0, end], *np.outer(found.times, near(points))]))
    run = simulate(loss, model, Flow(1e-9), saveat=saves, record=("loss", "values"))
    losses, times = np.asarray(run.loss), np.asarray(run.time)
    values = np.abs(np.asarray(run["values"]).reshape(len(times), -1))
    middles = (found.levels[:-1] + found.levels[1:]) / 2
    crossed, heads = [], []
    for middle in middles:
        i = int(np.argmax(losses < middle))
        assert losses[i] < middle
        crossed.append(np.interp(middle, losses[[i, i - 1]], times[[i, i - 1]]))
        grown = values[i] / values[-1].clip(0.5)  # halfway down a head has two thirds of its end
        fresh = [h for h in np.argsort(-grown) if h not in heads]
        heads.append(int(fresh[0]))
    return np.asarray(crossed), np.asarray(heads)


@functools.cache
def near(points):
    """Times about a drop, as shares of it: close where it is expected, and far around."""
    return np.union1d(np.linspace(0.97, 1.03, points // 2), np.linspace(0.5, 1.2, points // 20))


def error(number):
    _, loss, model = drawn(number)
    found = predict(loss, model, probes=0)
    times, heads = measured(loss, model, found)
    return np.abs(found.times / times - 1), found.heads == heads


@pytest.mark.parametrize("number", [11, pytest.param(2, marks=pytest.mark.long)])
def test_drops_of_a_sample_come_when_its_theory_says(number):
    errors, heads = error(number)
    assert errors.max() < 2e-4
    assert heads.all()


@pytest.mark.slow
def test_sixty_samples_drawn_by_a_rule():
    found = [error(number) for number in range(60)]
    errors, heads = (np.concatenate(parts) for parts in zip(*found, strict=True))
    assert np.median(errors) < 2e-4
    assert np.quantile(errors, 0.9) < 2e-3
    assert errors.max() < 2e-2
    assert heads.mean() >= 0.98


def test_the_operator_of_one_sample_with_the_cross_moment_of_another_misses():
    # The negative control: either would do if only the population mattered.
    _, loss, model = drawn(11)
    other = Quadratic.of(Moments.sample(drawn(11)[0], 200, jax.random.key(5)))
    mine = Quadratic.of(loss)
    wrong = Quadratic(mine.power, other.cross, mine.operator)
    right, found = (predict(one, model, probes=0).times for one in (mine, wrong))
    count = min(len(right), len(found))
    assert np.abs(found[:count] / right[:count] - 1).max() > 0.05


@pytest.mark.slow
def test_large_samples_approach_the_population():
    model = Separate.initialiser(TASK, heads=4, scale=1e-2)(jax.random.key(3))
    limit, sizes, gaps = predict(TASK, model, probes=0).times[0], (300, 3000, 30000), []
    for size in sizes:
        losses = [Moments.sample(TASK, size, jax.random.key(s)) for s in range(8)]
        times = [predict(loss, model, probes=0).times[0] for loss in losses]
        gaps.append(np.sqrt(np.mean((np.asarray(times) / limit - 1) ** 2)))
    assert -0.7 < np.polyfit(np.log(sizes), np.log(gaps), 1)[0] < -0.3  # P^(-1/2), eight samples


def test_every_loss_of_the_same_prompts_is_the_same_quadratic():
    """(Q1) against the loss itself, at random weights."""
    key, model = (
        jax.random.key(2),
        Separate.initialiser(TASK, heads=4, scale=1.0)(jax.random.key(0)),
    )
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (Sequences, {}),
        (Features, {"features": ReducedFeatures()}),
        (Features, {"features": FullFeatures()}),
        (Moments, {"features": ReducedFeatures()}),
        (Moments, {"features": FullFeatures()}),
    ]
    losses = [kind.sample(TASK, 50, key, **options) for kind, options in kinds]
    M = np.einsum("h,hrd,hrc->dc", model.values[:, 0, 0], model.keys, model.queries)
    for loss in losses:
        assert float(Quadratic.of(loss).loss(M)) == pytest.approx(
            float(losses[0](model)), rel=1e-12
        )


def test_merged_key_and_query_on_a_sample():
    """(Q6): one matrix, any 𝓗; the error is of the order of the weights squared."""
    loss = Moments.sample(TASK, 300, jax.random.key(1), features=ReducedFeatures())
    model = Merged.initialiser(TASK, heads=4, scale=1e-2)(jax.random.key(0))
    found = predict(loss, model)
    assert len(found.times) == 1
    times = np.linspace(0, 3 * found.times[0], 400)
    run = simulate(loss, model, Flow(1e-9), saveat=times)
    assert np.abs(found.curve(times).loss - np.asarray(run.loss)).max() < 1e-3
    assert found.levels[1] < float(run.loss[-1]) + 1e-6


def test_heads_in_the_null_space_of_few_prompts_never_escape():
    # Two prompts: 𝓗 has rank two of nine, and what fits both prompts is learned in a drop or two.
    loss = Moments.sample(TASK, 2, jax.random.key(1), features=ReducedFeatures())
    model = Separate.initialiser(TASK, heads=5, scale=1e-2)(jax.random.key(0))
    found = predict(loss, model, probes=0)
    assert 1 <= len(found.times) <= 2
    assert np.isfinite(found.times).all()
    assert found.levels[-1] == pytest.approx(0.0, abs=1e-8)  # they are fitted
    assert np.isfinite(found.curve([0.0, 1e9]).loss).all()


def test_own_prompts_with_a_teacher_that_is_not_linear():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 21, 2)) * [1.0, 0.6]
    y = np.tanh(np.einsum("pnd,pd->pn", x, rng.normal(size=(400, 2))))[..., None]
    loss = Moments.of(Prompt(jnp.asarray(x), jnp.asarray(y), jnp.asarray(y)))
    model = Separate.initialiser(Task([0.5, 0.5], 20), heads=3, scale=1e-2)(jax.random.key(0))
    found = predict(loss, model, probes=0)
    assert len(found.times) == 2
    assert np.abs(found.times / measured(loss, model, found)[0] - 1).max() < 2e-4


@pytest.mark.slow
def test_twenty_thousand_prompts_of_a_tanh_teacher():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(20_000, 32, 4)) * np.sqrt([0.4, 0.3, 0.2, 0.1])
    y = np.tanh(np.einsum("pnd,pd->pn", x, rng.normal(size=(20_000, 4))))[..., None]
    prompts = Prompt(jnp.asarray(x), jnp.asarray(y), jnp.asarray(y))
    loss = Moments.of(prompts, features=ReducedFeatures())
    task = Task([0.4, 0.3, 0.2, 0.1], 31)
    model = Separate.initialiser(task, heads=5, scale=1e-2)(jax.random.key(0))
    found = predict(loss, model, probes=0)
    assert len(found.times) == 4
    assert np.abs(found.times / measured(loss, model, found)[0] - 1).max() < 1e-2


def test_levels_of_a_sample_end_at_least_squares():
    pool = Task([0.5, 0.3, 0.2], 20, tasks=Pool(np.eye(3)[:2] + 0.5))
    for task in (TASK, pool):
        loss = Moments.sample(task, 300, jax.random.key(4), features=ReducedFeatures())
        levels = np.asarray(plateau_losses(loss))
        quadratic = Quadratic.of(loss)
        assert levels[0] == pytest.approx(float(loss.power))
        assert np.all(np.diff(levels) < 0)
        assert levels[-1] == pytest.approx(float(quadratic.loss(quadratic.least_squares)), abs=1e-6)


def test_a_prediction_says_what_it_leaves_out():
    loss = Moments.sample(TASK, 300, jax.random.key(4))
    init = Separate.initialiser(TASK, heads=4, scale=1e-2, blocks=Blocks.FULL)
    found = predict(loss, init(jax.random.key(0)), probes=0)
    assert "zero blocks" in found.assumes
    assert "zero blocks" in repr(found)
    assert "zero blocks" in found._repr_html_()
    assert "zero blocks" not in predict(TASK, init(jax.random.key(0)), probes=0).assumes


def test_the_curves_come_with_their_labels():
    _, loss, model = drawn(11)
    found = icl.predict(loss, model)
    data = found.to_dataset(np.linspace(0, 1e3, 5))
    assert dict(data.sizes) == {
        "time": 5,
        "event": 2,
        "plateau": 3,
        "head": 3,
        "row": 2,
        "column": 2,
    }
    assert np.array_equal(data["loss"], found.curve(data["time"].values).loss)
    assert data.attrs["engine"] == "Stairs"
    assert found.to_dataset().sizes["time"] == len(found.time)


def test_what_is_not_quadratic_is_refused_in_one_line():
    two = Task([0.5, 0.3], 9, tasks=Normal(outputs=2))
    separate = Separate.initialiser(TASK, heads=2, scale=0.1)(jax.random.key(0))
    softmax = Softmax.initialiser(TASK, heads=2, scale=0.1)(jax.random.key(0))
    sampled = Features.sample(TASK, 20, jax.random.key(0))
    cases = [
        (Moments.sample(two, 20, jax.random.key(0)), separate, "one output, got 2"),
        (Minibatch(sampled, 5), separate, "draws a batch per step"),
        (sampled, softmax, "linear attention with one layer, got Softmax"),
    ]
    for loss, model, reason in cases:
        assert select(loss, model) is None
        with pytest.raises(ValueError, match=reason) as caught:
            predict(loss, model)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", [TASK, drawn(11)[1]], ids=["population", "sample"])
def test_weights_too_small_for_double_precision_are_refused_in_one_line(source):
    """Between them and ordinary ones times are what the limit says: T w constant, or T + ln w/γ."""
    size = Quadratic.of(source).size

    def start(kind, scale):
        return kind.initialiser(size, heads=3, scale=scale)(jax.random.key(0))

    for kind, scale in ((Separate, 1e-20), (Separate, 1e-300), (Merged, 1e-300)):
        with pytest.raises(ValueError, match="give a larger init scale") as caught:
            predict(source, start(kind, scale), probes=0)
        assert "\n" not in str(caught.value)
    rate = float(np.linalg.norm(Quadratic.of(source).cross))
    late, early = (predict(source, start(Merged, w), probes=0).times[0] for w in (1e-80, 1e-6))
    np.testing.assert_allclose(late - early, 74 * np.log(10) / rate, rtol=1e-6)
    times = [0.3 * late, 0.99 * late, late]
    loss = predict(source, start(Merged, 1e-80), probes=0).curve(times).loss
    top, middle = Quadratic.of(source).power, (loss[-1] - loss[0]) / (loss[1] - loss[0])
    assert loss[0] == pytest.approx(top)
    assert middle > 1
    late, early = (predict(source, start(Separate, w), probes=0).times[0] for w in (1e-10, 1e-8))
    np.testing.assert_allclose(late * 1e-10, early * 1e-8, rtol=1e-5)
