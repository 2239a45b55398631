"""The label row: its features, its population, prompts at the cost of one token, and memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from tests.helpers.cases import KEY

SPECTRUM = [0.5, 0.3, 0.2]
PLAIN = icl.Task(SPECTRUM, 6, rotation=KEY, label_noise=0.4, target_noise=0.3)
SHORT = icl.Task([0.7, 0.3], 4, label_noise=0.3, target_noise=0.2)
POOL = icl.Pool([[1.0, -0.5], [0.3, 2.0], [-0.2, 0.1]])
TASKS = {
    "plain": PLAIN,
    "tokens": PLAIN.replace(normaliser=icl.Normaliser.TOKENS),
    "mean": PLAIN.replace(tasks=icl.Normal(mean=[1.0, 0.5, -1.0], covariance=[1.0, 2.0, 0.5])),
    "pool": SHORT.replace(tasks=POOL),
    "mixture": SHORT.replace(tasks=icl.Mixture(POOL, fraction=0.3)),
    "exact labels": SHORT.replace(label_noise=0.0),
}
MEMORY = {
    "next token": icl.Memory.autoregressive(SHORT, length=2.0),
    "independent query": icl.Memory.autoregressive(SHORT, length=2.0, query=False),
    "pool": icl.Memory.autoregressive(SHORT.replace(tasks=POOL), length=1.0),
    "mean": icl.Memory.autoregressive(
        SHORT.replace(tasks=icl.Normal(mean=[1.0, -0.4], covariance=[0.5, 1.5])), length=3.0
    ),
    "unequal": icl.Memory(SHORT, np.diag([0.5, 1.0, 2.0, 1.0, 0.7]) + 0.3),
}


def model_of(task, seed=0):
    return icl.LabelRow.initialiser(task, deviation=0.7)(jax.random.key(seed))


@pytest.mark.parametrize("name", TASKS)
def test_the_population_is_that_of_all_features(name):
    """`population_moments` of every feature, by Wick's theorem written another way."""
    task = TASKS[name]
    model = model_of(task)
    np.testing.assert_allclose(
        icl.LabelPopulation(task)(model), icl.population_moments(task)(model), rtol=1e-12
    )


@pytest.mark.parametrize("name", MEMORY)
def test_the_population_with_memory_is_that_of_many_prompts(name):
    task = MEMORY[name]
    loss = icl.LabelPopulation(task)
    assert (loss.joint is None) is False
    model = model_of(task)
    found = icl.theory.monte_carlo_loss(model, task, 20_000, jax.random.key(1))
    assert abs(loss(model) - found.mean) < 4 * found.error


@pytest.mark.parametrize("name", [*TASKS, *(f"memory, {name}" for name in MEMORY)])
def test_label_rows_have_the_law_of_prompts(name):
    """Every entry of E[φφᵀ] and of E[y φ], within standard errors."""
    task = MEMORY[name[8:]] if name.startswith("memory") else TASKS[name]
    count = 40_000
    found = icl.label_rows(task, count, jax.random.key(3))
    loss, size = icl.LabelPopulation(task), task.size
    phi = np.einsum("pk,pc->pkc", found.statistic[:, 0], found.query[:, 0]).reshape(count, -1)
    joint = jnp.kron(loss.second, loss.covariance) if loss.joint is None else loss.joint
    products = phi[:, :, None] * phi[:, None, :]
    error = products.std(axis=0) / count**0.5
    assert np.abs((products.mean(axis=0) - joint) / error).max() < 5
    crosses = phi * np.asarray(found.target[:, 0])
    expected = np.asarray(loss.cross).reshape(-1)
    assert np.abs((crosses.mean(axis=0) - expected) * count**0.5 / crosses.std(axis=0)).max() < 4.5
    power = np.asarray(found.target[:, 0, 0]) ** 2
    assert abs(power.mean() - loss.power) < 4 * power.std() / count**0.5
    assert found.query.shape == (count, 1, size)


def test_a_prompt_has_the_prediction_of_its_label_row():
    prompt = PLAIN.sample(KEY)
    model = model_of(PLAIN)
    row = jnp.append(prompt.correlation[0], jnp.mean(prompt.labels[:-1] ** 2))
    np.testing.assert_allclose(model(prompt)[0], row @ model.matrix @ prompt.query, rtol=1e-13)
    loss = icl.Features.sample(PLAIN, 20, KEY, features=icl.LabelFeatures())
    all_ = icl.Features.sample(PLAIN, 20, KEY)
    np.testing.assert_allclose(loss(model), all_(model), rtol=1e-12)
    moments = icl.Moments.sample(PLAIN, 20, KEY, features=icl.LabelFeatures())
    np.testing.assert_allclose(loss(model), moments(model), rtol=1e-12)
    frozen = icl.Merged.initialiser(PLAIN, heads=2, scale=1.0)(KEY)
    np.testing.assert_allclose(loss(frozen), all_(frozen), rtol=1e-12)
    full = icl.Merged.initialiser(PLAIN, heads=2, scale=1.0, blocks=icl.Blocks.FULL)(KEY)
    assert "FullFeatures" in str(loss.admits(full))


def test_equal_shares_are_equal():
    found = icl.label_rows(TASKS["exact labels"].replace(tasks=POOL, target_noise=0.0), 9, KEY,
                           equal_shares=True)  # fmt: skip
    tasks = jnp.tile(POOL.members[:, 0], (3, 1))
    np.testing.assert_allclose(
        found.target[:, 0, 0], jnp.sum(found.query[:, 0] * tasks, axis=1), rtol=1e-12
    )


def test_memory_shortens_the_context():
    """For an independent query B is that of N²/tr K² pairs, apart from the noise's share."""
    task = icl.Task([1.0, 1.0], 50)
    slow = icl.Memory.autoregressive(task, length=3.0, query=False)
    loss = icl.LabelPopulation(slow)
    shorter = loss.second[:2, :2] - jnp.eye(2)
    np.testing.assert_allclose(shorter, 3 * jnp.eye(2) / slow.effective_context, rtol=1e-12)
    inputs = jax.vmap(slow.sample)(jax.random.split(KEY, 4000)).inputs
    measured = np.einsum("pnd,pmd->nm", inputs, inputs) / inputs.shape[0] / 2
    assert np.abs(measured - slow.covariance).max() < 0.12


@pytest.mark.parametrize("rank", [None, 2])
def test_a_label_row_trains(rank):
    task = icl.Task([0.7, 0.3], 8, tasks=icl.Normal(mean=[0.5, 0.0]))
    loss = icl.LabelPopulation(task)
    model = icl.LabelRow.initialiser(task, rank=rank)(KEY)
    run = icl.simulate(loss, model, icl.Descent(0.05), until=2000)
    assert float(run.loss[-1]) < 0.5 * float(run.loss[0])


def test_decay_inside_the_gradient_ends_at_the_ridge_minimum():
    """Half of the decay is the constant of the ridge; AdamW ends elsewhere."""
    loss = icl.label_rows(SHORT, 60, KEY)
    start = icl.LabelRow.initialiser(SHORT)(KEY)
    ends = [
        icl.simulate(loss, start, icl.Descent(0.01, rule), until=3000, record=()).model.matrix
        for rule in (
            icl.Adam(weight_decay=0.2, decay_inside=True), icl.Adam(weight_decay=0.2)
        )
    ]  # fmt: skip
    least = icl.theory.ridge(loss, 0.1).matrix
    np.testing.assert_allclose(ends[0], least, atol=1e-6)
    assert np.abs(ends[1] - least).max() > 1e-2


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: icl.Memory(SHORT, np.eye(3)), "must be 5 x 5, the query last, or 4 x 4"),
        (lambda: icl.Memory(SHORT, -np.eye(5)), "positive semidefinite"),
        (lambda: icl.Memory(SHORT, np.triu(np.ones((5, 5)))), "must be symmetric"),
        (lambda: icl.Memory(SHORT, np.full((5, 5), np.nan)), "must be finite"),
        (lambda: icl.Memory(SHORT.replace(inputs=icl.Sphere()), np.eye(5)), "are Gaussian"),
        (lambda: icl.Memory(SHORT.replace(lengths=[2, 4]), np.eye(5)), "one context length"),
        (lambda: icl.Memory.autoregressive(SHORT, length=-1.0), "at least 0, got -1"),
        (lambda: icl.label_rows(SHORT, 0, KEY), "at least 1"),
        (lambda: icl.label_rows(SHORT.replace(inputs=icl.Sphere()), 5, KEY), "Features.sample"),
        (lambda: icl.label_rows(SHORT, 5, KEY, equal_shares=True), "tasks of a pool"),
        (lambda: icl.label_rows(SHORT, 10**13, KEY), "ask for fewer"),
        (lambda: icl.LabelPopulation(SHORT.replace(inputs=icl.Sphere())), "Moments.sample"),
        (lambda: icl.LabelRow(None, jnp.zeros((2, 2))), "D \\+ 1 rows"),
        (lambda: icl.LabelRow.initialiser((2, 2)), "one output"),
    ],
)
def test_bad_input_is_one_line(make, complaint):
    with pytest.raises(ValueError, match=complaint) as found:
        make()
    assert "\n" not in str(found.value)
