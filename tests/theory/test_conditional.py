"""The loss given the context: against whole prompts, and against the predictors themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.theory.algorithms.conditional import conditional_losses, context_weights
from tests.helpers.cases import KEY

TASK = icl.Task([0.6, 0.3], 12, rotation=KEY, label_noise=0.5, target_noise=0.2)
POOL = TASK.replace(tasks=icl.Pool([[1.0, -0.5], [0.3, 2.0], [-0.2, 0.1]]))
SHIFTED = TASK.replace(tasks=icl.Normal(mean=[0.4, -1.0], covariance=[0.5, 2.0]))
PREDICTORS = {
    "pool": icl.theory.bayes_predictor(POOL),
    "normal": icl.theory.bayes_predictor(SHIFTED),
    "ridge": icl.theory.Ridge(0.3),
}


@pytest.mark.parametrize("name", PREDICTORS)
def test_the_weights_are_those_of_the_predictor(name):
    """Two statistics of a whole prompt say what the predictor says of it."""
    prompt = SHIFTED.sample(jax.random.key(4))
    design, labels = prompt.inputs[:-1], prompt.labels[:-1]
    found = context_weights(PREDICTORS[name], design.T @ design, design.T @ labels)
    np.testing.assert_allclose(found @ prompt.query, PREDICTORS[name](prompt), rtol=1e-11)


@pytest.mark.parametrize("task", [TASK, POOL], ids=["new", "on the pool"])
def test_the_mean_is_the_loss_on_whole_prompts(task):
    found = conditional_losses(list(PREDICTORS.values()), task, 2000, jax.random.key(1))
    for losses, predictor in zip(found, PREDICTORS.values(), strict=True):
        whole = icl.theory.monte_carlo_loss(predictor, task, 8000, jax.random.key(2))
        error = (losses.std() ** 2 / len(losses) + whole.error**2) ** 0.5
        assert abs(losses.mean() - whole.mean) < 4 * error
        assert losses.std() < whole.error * 8000**0.5  # the noise of queries is gone


def test_the_loss_of_the_posterior_is_its_variance():
    """On its own task the mean squared error of Bayes is tr(Λ posterior covariance) + σ²."""
    losses = conditional_losses(PREDICTORS["normal"], SHIFTED, 4000, jax.random.key(3))
    exact = icl.theory.bayes_loss(SHIFTED, 4000, jax.random.key(5))
    error = (losses.std() ** 2 / len(losses) + exact.error**2) ** 0.5
    assert abs(losses.mean() - exact.mean) < 4 * error


def test_contexts_shorter_than_the_inputs():
    task = icl.Task([1 / 6] * 6, 3, label_noise=0.4, target_noise=0.4)
    losses = conditional_losses(icl.theory.bayes_predictor(task), task, 2000, KEY)
    exact = icl.theory.bayes_loss(task, 2000, jax.random.key(6))
    error = (losses.std() ** 2 / len(losses) + exact.error**2) ** 0.5
    assert abs(losses.mean() - exact.mean) < 4 * error


def test_blocks_do_not_matter(monkeypatch):
    from iclflow.theory.algorithms import conditional

    whole = conditional_losses(PREDICTORS["pool"], TASK, 7, KEY)
    monkeypatch.setattr(conditional, "AT_ONCE", 18)
    np.testing.assert_allclose(conditional_losses(PREDICTORS["pool"], TASK, 7, KEY), whole)


@pytest.mark.parametrize(
    ("predictor", "task", "complaint"),
    [
        (icl.theory.Ridge(0.0), TASK, "assumes noise, got 0"),
        (icl.theory.zero_predictor(TASK), TASK, "got LinearPredictor; use monte_carlo_loss"),
        ([], TASK, "got none"),
        (icl.theory.Ridge(1.0), TASK.replace(inputs=icl.Sphere()), "task.sample"),
    ],
)
def test_what_is_not_known_is_refused(predictor, task, complaint):
    with pytest.raises(ValueError, match=complaint) as found:
        conditional_losses(predictor, task, 10, KEY)
    assert "\n" not in str(found.value)


def test_two_outputs():
    """The trace over outputs, against direct sampling of the query."""
    law = icl.Pool(np.random.default_rng(0).standard_normal((4, 2, 2)))
    task = TASK.replace(tasks=law)
    losses = conditional_losses(icl.theory.bayes_predictor(task), task, 500, KEY)
    whole = icl.theory.monte_carlo_loss(icl.theory.bayes_predictor(task), task, 4000, KEY)
    error = (losses.std() ** 2 / 500 + whole.error**2) ** 0.5
    assert abs(losses.mean() - whole.mean) < 4 * error
    assert bool(jnp.all(losses >= 2 * 0.2**2))
