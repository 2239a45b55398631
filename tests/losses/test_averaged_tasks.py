"""The mean over tasks taken exactly (S12): against Monte Carlo, formulas and the other levels."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.tasks.averaged import AveragedPrompts
from tests.helpers.cases import filled, standardised
from tests.helpers.tiers import some

KEY = jax.random.key(5)
TASKS = {
    "plain": lambda: icl.Task([0.5, 0.3, 0.2], 6),
    "all": lambda: icl.Task(
        [0.5, 0.3, 0.2], 6, rotation=KEY, label_noise=0.6, target_noise=0.4, lengths=(3, 6),
        tasks=icl.Normal(mean=[1.0, 0.0, -0.5], covariance=[1.0, 0.4, 2.0]),
        inputs=icl.Rademacher(), normaliser=icl.Normaliser.TOKENS,
    ),
    "pool": lambda: icl.Task([0.5, 0.3], 5, tasks=icl.Pool([[1.0, 2.0], [0.0, 1.0]])),
    "outputs": lambda: icl.Task([0.6, 0.4], 5, tasks=icl.Normal(outputs=2), label_noise=0.5),
}  # fmt: skip
MODELS = {
    "merged": lambda task: icl.Merged.initialiser(task, heads=3, scale=0.5),
    "separate": lambda task: icl.Separate.initialiser(task, heads=3, rank=2, scale=0.5),
    "softmax": lambda task: icl.Softmax.initialiser(task, heads=2, rank=1, scale=0.5),
    "layers": lambda task: icl.Layers.initialiser(task, layers=2, heads=2, scale=0.5),
}


def model_of(name, task):
    return filled(MODELS[name](task)(KEY), size=0.4)


class Offset(icl.AbstractModel):
    """A model that is linear in the labels up to a number that no label changes."""

    softmax: icl.Softmax

    def __call__(self, prompt):
        return self.softmax(prompt) + jnp.sum(prompt.query)


PAIRS = [f"{task} {model}" for task in TASKS for model in (*MODELS, "offset")]
LINEAR = [pair for pair in PAIRS if not pair.endswith("offset")]


@pytest.mark.parametrize("pair", some(PAIRS, "plain softmax", "all offset", "outputs layers"))
def test_the_mean_over_tasks_is_that_of_monte_carlo(pair):
    """Within four standard errors of prompts with the same inputs and other tasks and noise."""
    name, model = pair.split()
    task = TASKS[name]()
    model = Offset(model_of("softmax", task)) if model == "offset" else model_of(model, task)
    exact = icl.Sequences.sample(task, 3, KEY, averaged=True)

    @jax.jit
    def sampled(key):
        def one(prompt, key):
            law = task.tasks.sample(key)
            noise = jax.random.normal(jax.random.fold_in(key, 1), (2, *prompt.labels.shape))
            clean = prompt.inputs @ law.T
            labels = clean + task.label_noise * noise[0]
            targets = clean + task.target_noise * noise[1]
            return icl.Prompt(prompt.inputs, labels, targets, None, prompt.normaliser)

        prompts = jax.vmap(one)(exact.prompts, jax.random.split(key, 3))
        return icl.Sequences(prompts, exact.lengths)(model)

    estimates = jax.lax.map(sampled, jax.random.split(jax.random.key(1), 4000), batch_size=500)
    assert abs(standardised(np.asarray(estimates), exact(model))) < 4


@pytest.mark.parametrize(
    "pair", some(LINEAR, "all softmax", "outputs softmax", "plain layers", "pool merged")
)
def test_value_and_gradient_are_those_of_the_parts(pair):
    """A prompt per column of a root of E[W ⊗ W] and per noisy label: the same mean, to rounding."""
    task, name = pair.split()
    task = TASKS[task]()
    model, average = model_of(name, task), icl.TaskAverage.of(task)
    prompts = icl.PromptSet.sample(task, 5, KEY)
    short = icl.Sequences.of_average(prompts, average)
    value = eqx.filter_jit(eqx.filter_value_and_grad(lambda m, loss: loss(m)))
    one, slope = value(model, short)
    other, other_slope = value(model, icl.Sequences.of(AveragedPrompts(prompts, average)))
    np.testing.assert_allclose(one, other, rtol=1e-12)
    for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(other_slope), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("task", some(TASKS, "all"))
def test_every_level_takes_the_same_mean(task):
    task = TASKS[task]()
    drawn = lambda kind, **o: kind.sample(task, 5, KEY, averaged=True, **o)  # noqa: E731
    reduced = {"features": icl.ReducedFeatures()}
    model = model_of("separate", task)
    levels = [drawn(icl.Features, **reduced), drawn(icl.Moments, **reduced), drawn(icl.Statistics)]
    sequences = drawn(icl.Sequences)
    np.testing.assert_allclose([level(model) for level in levels], sequences(model), rtol=1e-12)
    assert levels[1].count == 5
    deep = model_of("layers", task)
    np.testing.assert_allclose(levels[2](deep), sequences(deep), rtol=1e-12)


def test_the_population_is_met_as_prompts_grow():
    """The error falls as P^(-1/2), and no prompt of fixed inputs knows more than its own mean."""
    task = icl.Task([0.5, 0.3], 6, label_noise=0.3)
    model, counts = model_of("separate", task), [100, 1600, 25600]
    exact = float(icl.Population(task)(model))
    sample = lambda key, n: icl.Sequences.sample(task, n, key, averaged=True)  # noqa: E731
    loss = jax.jit(lambda key, n: sample(key, n)(model), static_argnums=1)
    errors = [
        np.sqrt(np.mean([(float(loss(jax.random.key(s), n)) - exact) ** 2 for s in range(24)]))
        for n in counts
    ]
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert abs(slope + 0.5) < 0.1


def test_training_steps_see_the_mean_too():
    task = TASKS["plain"]()
    model = model_of("softmax", task)
    whole = icl.Sequences.sample(task, 64, KEY, averaged=True)
    batch = icl.Minibatch(whole, 16).draw(KEY)
    assert batch.count == 16
    assert batch.average is not None
    fresh = icl.Fresh(task, whole, 16, averaged=True).draw(KEY)
    again = icl.Sequences.sample(task, 16, KEY, averaged=True)
    assert float(fresh(model)) == float(again(model))


def test_matching_leaves_the_inputs_centred():
    task = TASKS["plain"]()
    inputs = icl.Sequences.sample(task, 40, KEY, matched=True, averaged=True).prompts.inputs
    np.testing.assert_allclose(inputs.mean(axis=0), 0.0, atol=1e-12)


def test_what_is_not_linear_in_the_labels_is_refused():
    task = TASKS["plain"]()
    averaged = icl.Sequences.sample(task, 4, KEY, averaged=True)
    full = icl.Merged.initialiser(task, heads=2, scale=0.5, blocks=icl.Blocks.FULL)(KEY)
    for model in (full, icl.Softmax(full)):
        with pytest.raises(ValueError, match=r"linear in the labels.*freeze the zero blocks"):
            averaged(model)
        with pytest.raises(ValueError, match="linear in the labels"):
            icl.Fresh(task, averaged, 4, averaged=True).require(model)
    for kind in (icl.Features, icl.Moments):
        with pytest.raises(ValueError, match="give features="):
            kind.sample(task, 4, KEY, averaged=True)
    noise = task.replace(context_labels=icl.ContextLabels.NOISE)
    with pytest.raises(ValueError, match="labels that the task makes"):
        icl.Sequences.sample(noise, 4, KEY, averaged=True)
