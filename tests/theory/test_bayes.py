"""Bayes-optimal prediction against brute-force posteriors, and against every rival."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from iclflow.tasks.base import Prompt
from iclflow.tasks.laws import Mixture, Normal, Pool, Rademacher
from iclflow.tasks.task import ContextLabels, Task
from iclflow.theory import (
    GradientSteps,
    InWeight,
    OrdinaryLeastSquares,
    Ridge,
    bayes_loss,
    bayes_predictor,
    gradient_step,
    least_squares,
    monte_carlo_loss,
    zero_predictor,
)
from tests.helpers.predictor_checks import (
    COUNT,
    NORMAL,
    close,
    in_weight,
    pairs,
    predict,
    sample,
    squared_errors,
)
from tests.helpers.theory_tasks import key, random_covariance


def test_bayes_is_the_conditional_expectation_by_brute_force():
    """D = 2, N = 2: integrate the posterior of w numerically on a grid."""
    spread, mean, noise = np.array([[0.8, 0.3], [0.3, 0.5]]), np.array([0.3, -0.4]), 0.6
    task = Task([0.7, 0.4], 2, tasks=Normal(mean, spread), label_noise=noise)
    axis = np.linspace(-7, 7, 561)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    prior = scipy.stats.multivariate_normal(mean, spread).pdf(grid)
    for seed in range(3):
        prompt = sample(task, seed)
        x, y, query = pairs(prompt)
        weight = prior * np.exp(-np.sum((y.T - grid @ x.T) ** 2, axis=1) / (2 * noise**2))
        expected = (weight @ grid) @ query / weight.sum()
        close(predict(bayes_predictor(task), prompt), [expected], 1e-9)


def test_bayes_without_noise_knows_what_the_labels_say():
    """σ = 0: exact for N ≥ D; for N < D the normal conditional mean given the exact labels."""
    task = Task([0.7, 0.4, 0.2], 2, tasks=Normal(covariance=random_covariance(4, 3)))
    prompt = sample(task)
    x, y, query = pairs(prompt)
    spread = np.asarray(task.tasks.covariance)
    w = spread @ x.T @ np.linalg.solve(x @ spread @ x.T, y)
    close(predict(bayes_predictor(task), prompt), query @ w, 1e-10)
    long = task.replace(context=5)
    prompt = sample(long)
    close(predict(bayes_predictor(long), prompt), prompt.target, 1e-10)
    close(bayes_loss(long, 100, key(0)).mean, 0.0)
    singular = Task([0.7, 0.4, 0.2], 1, tasks=Normal(covariance=[1.0, 0.0, 0.0]))
    prompt = sample(singular)
    close(predict(bayes_predictor(singular), prompt), prompt.target, 1e-10)


def test_special_cases_of_bayes():
    isotropic = Task([0.8, 0.5, 0.2], 6, label_noise=0.5)
    prompt = sample(isotropic)
    close(predict(bayes_predictor(isotropic), prompt), predict(Ridge(0.25), prompt))
    noise = NORMAL.replace(context_labels=ContextLabels.NOISE)
    close(predict(bayes_predictor(noise), prompt), np.asarray(NORMAL.tasks.mean) @ prompt.query)
    fixed = NORMAL.replace(tasks=Mixture(NORMAL.tasks, fraction=1.0))
    close(predict(bayes_predictor(fixed), prompt), predict(InWeight.of(fixed), prompt))
    close(bayes_loss(fixed, 10, key(0)).mean, InWeight.of(fixed).population_loss(fixed))


@pytest.mark.parametrize("length", [None, 1])
def test_pool_by_brute_force(length):
    pool = np.random.default_rng(0).normal(size=(4, 2, 3))
    for noise in (0.7, 1e-3):
        task = Task([0.8, 0.5, 0.2], 4, tasks=Pool(pool), label_noise=noise)
        prompt = sample(task) if length is None else sample(task).prefix(length)
        x, y, query = pairs(prompt)
        logs = [scipy.stats.norm(x @ w.T, noise).logpdf(y).sum() for w in pool]
        weight = np.exp(np.array(logs) - max(logs))
        expected = np.einsum("m,mod,d->o", weight / weight.sum(), pool, query)
        close(predict(bayes_predictor(task), prompt), expected, 1e-9)


def test_pool_without_noise():
    """Exact labels single out the task; tasks they cannot tell apart share the prediction."""
    task = Task([0.8, 0.5], 3, tasks=Pool(np.random.default_rng(0).normal(size=(50, 2))))
    for seed in range(5):
        prompt = sample(task, seed)
        close(predict(bayes_predictor(task), prompt), prompt.target)
    blind = Task([0.8, 0.0], 3, tasks=Pool([[1.0, 5.0], [1.0, -3.0], [2.0, 0.0]]))
    inputs = jnp.array([[1.0, 0.0], [-2.0, 0.0], [0.5, 0.0], [1.0, 0.0]])
    prompt = Prompt(inputs, inputs[:, :1], inputs[:, :1])
    close(bayes_predictor(blind).posterior(prompt), [0.5, 0.5, 0.0])


@pytest.mark.long
def test_mixture_by_brute_force():
    """In-weight mixture, D = 1: the posterior is an integral over w and one point mass."""
    task = Task(
        [0.9], 3, label_noise=0.8,
        tasks=Mixture(Normal([-0.2], [[0.6]]), [1.3], fraction=0.35),
    )  # fmt: skip
    predictor = bayes_predictor(task)
    for seed in range(4):
        prompt = sample(task, seed)
        x, y, query = pairs(prompt)

        def likelihood(w, x=x, y=y):
            return float(np.prod(scipy.stats.norm(x[:, 0] * w, 0.8).pdf(y[:, 0])))

        def prior(w):
            return float(scipy.stats.norm(-0.2, 0.6**0.5).pdf(w))

        def integral(f):
            return scipy.integrate.quad(f, -12, 12, epsabs=1e-14, points=[0.0])[0]

        free = 0.65 * integral(lambda w, f=likelihood: prior(w) * f(w))
        first = 0.65 * integral(lambda w, f=likelihood: w * prior(w) * f(w))
        fixed = 0.35 * likelihood(1.3)
        expected = (first + 1.3 * fixed) / (free + fixed) * query
        close(predict(predictor, prompt), expected, 1e-8)
        close(predictor.fixed_probability(prompt), fixed / (free + fixed), 1e-8)


def test_mixture_without_noise_and_with_a_pool():
    task = Task([0.9, 0.4], 2, tasks=Mixture(fraction=0.5))
    predictor = bayes_predictor(task)
    fixed = task.in_weight().sample(key(0))
    other = task.in_context().sample(key(0))
    close(predictor.fixed_probability(fixed), 1.0)
    close(predictor.fixed_probability(other), 0.0)
    close(predict(predictor, fixed), fixed.target)
    law = Mixture(Pool([[0.5], [-1.0]]), fraction=0.5)
    pool = Task([0.9], 3, tasks=law, label_noise=1.0)
    prior = bayes_predictor(pool).prior
    close(prior, [0.25, 0.25, 0.5])


RIVALS = ["normal", "short", "pool", "mixture", "signs"]


@pytest.mark.long
@pytest.mark.parametrize("name", RIVALS)
def test_bayes_beats_every_rival(name):
    task = {
        "normal": NORMAL,
        "short": Task([0.8, 0.5, 0.2], 2, tasks=Normal(covariance=random_covariance(3, 3))),
        "pool": Task(
            [0.8, 0.5], 8, tasks=Pool(np.random.default_rng(1).normal(size=(5, 2)))
        ).replace(label_noise=0.6),
        "mixture": Task([0.8, 0.5], 8, tasks=Mixture(fraction=0.4), label_noise=0.6),
        "signs": Task([0.8, 0.5], 8, inputs=Rademacher(), rotation=key(8), label_noise=0.6),
    }[name]
    best = bayes_predictor(task)
    eye = jnp.eye(task.size)
    rivals = [
        least_squares(task),
        gradient_step(task),
        zero_predictor(task),
        OrdinaryLeastSquares(),
        Ridge(1.0),
        GradientSteps(eye, 2),
        in_weight(task),
    ]
    errors = np.asarray(squared_errors([best, *rivals], task, jax.random.split(key(5), COUNT)))
    excess = errors[:, 1:] - errors[:, :1]
    assert np.all(excess.mean(axis=0) > 3 * excess.std(axis=0) / np.sqrt(COUNT))


@pytest.mark.long
def test_bayes_loss_from_the_inputs_alone():
    """The conditional variance gives the same loss with a far smaller standard error."""
    sharp = bayes_loss(NORMAL, COUNT, key(0))
    plain = monte_carlo_loss(bayes_predictor(NORMAL), NORMAL, COUNT, key(1))
    error = np.hypot(float(sharp.error), float(plain.error))
    assert abs(float(sharp.mean) - float(plain.mean)) < 4.5 * error
    assert float(sharp.error) < 0.5 * float(plain.error)
    assert float(sharp.mean) < float(least_squares(NORMAL).population_loss(NORMAL))
    pool = Task([0.5], 2, tasks=Pool([[1.0], [2.0]]), label_noise=0.5)
    assert 0 < float(bayes_loss(pool, 500, key(0)).mean) < 0.25 * 0.5
