"""Training that changes with time: schedules, and the clock that every rule keeps or does not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import xarray as xr

import iclflow as icl
from iclflow.measures import find_stages, first_crossings

TASK = icl.Task([0.5, 0.3], 15)
INIT = icl.Separate.initialiser(TASK, heads=3, scale=0.15)
LOSS = icl.Population(TASK)


def start():
    return INIT(jax.random.key(0))


RULES = {
    "descent": (0.2, None),
    "momentum": (0.05, icl.Momentum(0.8)),
    "adam": (0.01, icl.Adam()),
    "optax": (0.01, optax.lion),
}


@pytest.mark.parametrize("name", RULES)
def test_a_constant_schedule_is_a_constant_rate_bit_for_bit(name):
    rate, rule = RULES[name]
    runs = [
        icl.simulate(LOSS, start(), icl.Descent(r, rule), until=700, record=["loss", "weights"])
        for r in (rate, optax.constant_schedule(rate))
    ]
    for one, other in zip(*(jax.tree.leaves(run) for run in runs), strict=True):
        if jnp.issubdtype(jnp.asarray(one).dtype, jax.dtypes.prng_key):
            continue
        np.testing.assert_array_equal(one, other)


def test_a_schedule_keeps_the_exact_clock():
    """t/τ = 2 Σ ηₛ against a literal sum, and its inverse."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.3, 50, 400, 0.01)
    descent = icl.Descent(schedule)
    marks = np.array([0, 1, 3, 50, 399, 600])
    literal = [2 * sum(float(schedule(s)) for s in range(mark)) for mark in marks]
    run = icl.simulate(LOSS, start(), descent, saveat=marks)
    np.testing.assert_allclose(run.time, literal, rtol=1e-13)
    np.testing.assert_allclose(descent.time(marks), literal, rtol=1e-13)
    np.testing.assert_array_equal(descent.steps(np.asarray(run.time)[2:]), marks[2:])
    assert int(descent.steps(literal[3] + 1e-3)) == 51
    runs = icl.sweep(TASK, INIT, descent, saveat=marks, seeds=2)
    np.testing.assert_allclose(runs["time"], literal, rtol=1e-13)
    np.testing.assert_allclose(runs["loss"][0], run.loss, rtol=1e-12)


def test_a_schedule_is_followed_step_by_step():
    """Against a literal loop of gradient descent."""
    schedule = optax.linear_schedule(0.3, 0.05, 40)
    model, losses = start(), []
    for step in range(61):
        value, gradient = jax.value_and_grad(lambda m: LOSS(m))(model)
        losses.append(value)
        model = jax.tree.map(lambda w, g, s=step: w - schedule(s) * g, model, gradient)
    run = icl.simulate(LOSS, start(), icl.Descent(schedule), saveat=np.arange(61))
    np.testing.assert_allclose(run.loss, losses, rtol=1e-12)


def test_descent_under_a_schedule_follows_the_flow_at_its_own_clock():
    """The loss at t/τ = 2 Σ ηₛ is the flow's, with an error of first order in the rate."""
    errors, rates = [], np.array([0.1, 0.05, 0.025])
    for rate in rates:
        count = round(60 / rate)
        schedule, marks = optax.linear_schedule(rate, rate / 4, count), np.arange(13) * count // 12
        run = icl.simulate(LOSS, start(), icl.Descent(schedule), saveat=marks)
        flow = icl.simulate(LOSS, start(), icl.Flow(1e-11), saveat=np.asarray(run.time))
        errors.append(float(jnp.abs(run.loss - flow.loss).max()))
    slope = np.polyfit(np.log(rates), np.log(errors), 1)[0]
    assert 0.9 < slope < 1.1


def test_steps_and_times_are_inverses():
    descent, adam = icl.Descent(0.3), icl.Descent(0.01, icl.Adam())
    steps = np.arange(0, 5000, 7)
    np.testing.assert_array_equal(descent.steps(descent.time(steps)), steps)
    assert int(descent.steps(1.0)) == 2  # 0.6, 1.2
    np.testing.assert_array_equal(adam.time(steps), steps)
    np.testing.assert_array_equal(adam.steps(steps), steps)
    with pytest.raises(ValueError, match=r"t/τ is 4 after [\d,]+ steps, asked for is 100"):
        icl.Descent(lambda step: jnp.where(step < 10, 0.2, 0.0)).steps(100.0)


@pytest.mark.parametrize(
    ("rate", "reason"),
    [
        (optax.adam, "a function of the step"),
        (lambda step: 0.2 if step < 3 else 0.1, "decides with `if`"),
        (lambda step: jnp.ones(3), r"got an array of shape \(3,\); an optimiser comes second"),
        (lambda step: -1.0, "got -1 at step 0"),
        (lambda: 0.1, "takes 0 positional arguments"),
        (-0.1, "must be a positive number"),
    ],
)
def test_what_is_no_schedule_is_refused_in_one_line(rate, reason):
    with pytest.raises(ValueError, match=reason) as caught:
        icl.Descent(rate)
    assert "\n" not in str(caught.value)


def test_an_optimiser_that_decides_by_its_rate_is_told_where_schedules_go():
    def make(rate):
        return optax.adam(optax.warmup_cosine_decay_schedule(0.0, rate, 10, 100))

    with pytest.raises(ValueError, match="give a schedule as the rate instead"):
        icl.simulate(LOSS, start(), icl.Descent(0.01, make), until=10)


def test_rules_without_a_clock_count_steps():
    """The index `time` is steps: stages are found on it, and it selects."""
    runs = icl.sweep(TASK, INIT, icl.Descent(0.01, icl.Adam()), until=800, seeds=2)
    np.testing.assert_array_equal(runs["time"], runs["step"])
    assert runs["time"].attrs["long_name"] == "training steps"
    assert "number of steps" in runs.attrs["clock"]
    assert int(runs.sel(time=100, method="nearest")["step"]) in range(95, 106)
    assert find_stages(runs["time"].values, runs["loss"].values[0]).plateaus
    run = icl.simulate(LOSS, start(), icl.Descent(0.01, icl.Adam()), until=20)
    assert not run.timed
    assert "<th>time</th>" in run._repr_html_()


def test_rate_times_sharpness_has_the_rate_of_its_step():
    schedule = optax.linear_schedule(0.2, 0.1, 20)
    run = icl.simulate(
        LOSS, start(), icl.Descent(schedule), saveat=[0, 10, 20],
        record=["sharpness", "rate_times_sharpness"],
    )  # fmt: skip
    found = run["rate_times_sharpness"] / run["sharpness"]
    np.testing.assert_allclose(found, [0.2, 0.15, 0.1], rtol=1e-12)
    runs = icl.sweep(
        TASK, INIT, icl.Descent(schedule), saveat=[0, 10, 20], record=["rate_times_sharpness"]
    )
    np.testing.assert_allclose(
        runs["rate_times_sharpness"][0], run["rate_times_sharpness"], rtol=1e-6
    )


def test_axes_of_lists_and_of_objects_are_labelled_and_saved(tmp_path):
    spectra = [[0.5, 0.3], [0.6, 0.1]]
    runs = icl.sweep(TASK, INIT, icl.Descent(0.2), until=20, axes={"spectrum": spectra})
    assert runs["spectrum"].values.tolist() == ["0.5,0.3", "0.6,0.1"]
    alone = icl.sweep(icl.Task(spectra[1], 15), INIT, icl.Descent(0.2), until=20)
    np.testing.assert_allclose(runs["loss"].sel(spectrum="0.6,0.1"), alone["loss"], rtol=1e-12)
    rules = [icl.GradientDescent(), icl.Adam()]
    by_rule = icl.sweep(TASK, INIT, icl.Descent(0.01), until=20, axes={"optimiser": rules})
    assert by_rule["optimiser"].values[0] == "GradientDescent()"
    named = {"cosine": optax.cosine_decay_schedule(0.2, 20), "flat": 0.2}
    scheduled = icl.sweep(TASK, INIT, icl.Descent(0.2), until=20, axes={"rate": named})
    np.testing.assert_array_equal(
        scheduled["loss"].sel(rate="flat"),
        icl.sweep(TASK, INIT, icl.Descent(0.2), until=20)["loss"],
    )
    for number, made in enumerate((runs, by_rule, scheduled)):
        icl.save(made, tmp_path / f"{number}.nc")
        xr.testing.assert_identical(icl.load(tmp_path / f"{number}.nc")["loss"], made["loss"])


def test_values_that_cannot_be_told_apart_are_refused_before_training():
    schedules = [optax.cosine_decay_schedule(0.2, n) for n in (20, 30)]
    with pytest.raises(ValueError, match="name them yourself"):
        icl.sweep(TASK, INIT, icl.Descent(0.2), until=10**9, axes={"rate": schedules})
    with pytest.raises(ValueError, match="has 2 axes"):
        icl.sweep(TASK, INIT, icl.Descent(0.2), until=10**9, axes={"spectrum": [[0.1, 0.2, 0.3]]})


def test_fields_of_the_optimiser_are_axes():
    decays = [0.0, 0.1, 0.3]
    adam = icl.Descent(0.01, icl.Adam())
    runs = icl.sweep(TASK, INIT, adam, until=60, seeds=2, axes={"weight_decay": decays})
    for decay in decays:
        alone = icl.simulate(
            LOSS, start(), icl.Descent(0.01, icl.Adam(weight_decay=decay)), until=60
        )
        found = runs["loss"].sel(weight_decay=decay, seed=0)
        np.testing.assert_allclose(found, alone.loss, rtol=1e-10)
    ball = icl.sweep(
        TASK, INIT, icl.Descent(0.05, icl.Momentum()), until=60, axes={"decay": [0.5, 0.9]}
    )
    alone = icl.simulate(LOSS, start(), icl.Descent(0.05, icl.Momentum(0.5)), until=60)
    np.testing.assert_allclose(ball["loss"].sel(decay=0.5, seed=0), alone.loss, rtol=1e-10)


def test_levels_may_be_a_list():
    time, curves = np.arange(4.0), np.array([[1.0, 0.8, 0.4, 0.2], [1.0, 0.6, 0.5, 0.1]])
    np.testing.assert_allclose(first_crossings(time, curves, [0.5]), [[1.75], [2.0]])
    with pytest.raises(ValueError, match="do not go together"):
        first_crossings(time, curves, np.ones((3, 2)))
    with pytest.raises(ValueError, match="must be a list"):
        first_crossings(time, curves, 0.5)


def test_functools_partials_are_schedules():
    polynomial = functools.partial(lambda step, power: 0.2 / (1 + step) ** power, power=0.5)
    run = icl.simulate(LOSS, start(), icl.Descent(polynomial), until=30)
    assert float(run.time[-1]) == pytest.approx(2 * sum(0.2 / (1 + s) ** 0.5 for s in range(30)))
