"""In-context algorithms: predictions by hand, optimality, closed losses against Monte Carlo."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from theory_tasks import key, random_covariance, tasks

from iclflow.distributions import AbstractTaskVectors, Rademacher, StudentT
from iclflow.losses import Features, Moments, Population, Sequences
from iclflow.prompt import Prompt, map_prefixes
from iclflow.task import ContextLabels, Task
from iclflow.theory import (
    GradientDescent,
    InWeight,
    Modes,
    OrdinaryLeastSquares,
    Ridge,
    bayes_loss,
    bayes_predictor,
    gradient_step,
    least_squares,
    monte_carlo_loss,
    plateau_losses,
    principal_component_regression,
    zero_predictor,
)

COUNT = 20_000
NORMAL = Task(
    [0.8, 0.5, 0.2],
    6,
    task_covariance=random_covariance(3, 3),
    task_mean=np.array([0.5, -0.2, 0.3]),
    label_noise=0.5,
    target_noise=0.3,
)


@eqx.filter_jit
def predict(predictor, prompt):
    return predictor(prompt)


def close(a, b, tolerance=1e-12):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def agrees(estimate, value, errors=4.5):
    assert abs(float(estimate.mean) - float(value)) < errors * float(estimate.error)


def sample(task, seed=0):
    return task.sample(key(seed))


def pairs(prompt):
    """Context inputs, labels and the query as NumPy arrays."""
    n = prompt.context if prompt.length is None else int(prompt.length)
    x, y = np.asarray(prompt.inputs), np.asarray(prompt.labels)
    return x[:n], y[:n], x[n]


# --- predictions against literal NumPy -----------------------------------------------------------


@pytest.mark.parametrize("length", [None, 2, 4])
def test_predictions_by_hand(length):
    task = NORMAL
    prompt = sample(task) if length is None else sample(task).prefix(length)
    x, y, query = pairs(prompt)
    n, size = x.shape
    w = np.linalg.lstsq(x, y, rcond=None)[0]
    close(predict(OrdinaryLeastSquares(), prompt), query @ w)
    w = np.linalg.solve(x.T @ x + 0.7 * np.eye(size), x.T @ y)
    close(predict(Ridge(0.7), prompt), query @ w)
    close(predict(Ridge(0.0), prompt), predict(OrdinaryLeastSquares(), prompt))
    metric = random_covariance(5, size) + np.triu(np.ones((size, size)), 1) / 5
    w = np.zeros((size, 1))
    for _ in range(3):
        w = w + metric @ (x.T @ (y - x @ w)) / n
    close(predict(GradientDescent(jnp.asarray(metric), 3), prompt), query @ w)
    close(predict(GradientDescent(jnp.asarray(metric), 0), prompt), [0.0])
    step = gradient_step(task, rate=0.4, preconditioner=jnp.asarray(metric))
    close(predict(step, prompt), query @ (0.4 * metric @ (x.T @ y) / n))
    close(predict(GradientDescent(jnp.asarray(0.4 * metric), 1), prompt), predict(step, prompt))
    mean, spread = np.asarray(task.tasks.mean[0]), np.asarray(task.tasks.covariance)
    gram = x @ spread @ x.T + 0.25 * np.eye(n)
    w = mean + spread @ x.T @ np.linalg.solve(gram, y[:, 0] - x @ mean)
    close(predict(bayes_predictor(task), prompt), [query @ w])
    close(predict(zero_predictor(task), prompt), [0.0])
    close(predict(InWeight.of(task), prompt), np.asarray(task.fixed_task) @ query)


def test_least_squares_weights():
    """(16): M = (Λ + (Λ + tr(Λ) I)/N)⁻¹, and the identity of its special cases."""
    lam = np.array([0.4, 0.3, 0.2, 0.1])
    task = Task(lam, 31)
    best = least_squares(task)
    close(best.as_weights(), np.diag(1 / (lam + (lam + 1) / 31)))
    close(best.population_loss(task), plateau_losses(task)[-1])
    close(principal_component_regression(task, 4).as_weights(), best.as_weights())
    half = np.diag((lam > 0.25) / (lam + (lam + 1) / 31))
    close(principal_component_regression(task, 2).as_weights(), half)
    close(gradient_step(task, preconditioner=best.as_weights()).as_weights(), best.as_weights())
    long = Task(lam, 10**9)
    np.testing.assert_allclose(least_squares(long).as_weights(), np.diag(1 / lam), rtol=1e-7)


@pytest.mark.parametrize("name", ["non-commuting rotated", "lengths"])
def test_linear_predictors_are_models(name):
    """Every level of the loss takes them, and says the same."""
    task = tasks()[name]
    predictor = least_squares(task)
    sequences = Sequences.sample(task, 30, key(0))
    features = Features.from_prompts(sequences.prompts, task.lengths)
    expected = float(sequences(predictor))
    close(features(predictor), expected)
    close(Moments.from_features(features)(predictor), expected)


def test_gradient_step_has_the_best_rate():
    for name in ("paper", "non-commuting", "lengths"):
        task = tasks()[name]
        best = gradient_step(task)
        for factor in (0.99, 1.01):
            other = type(best)(factor * best.weight)
            assert float(other.population_loss(task)) > float(best.population_loss(task))
    assert float(jnp.abs(gradient_step(Task([0.0], 2)).weight).max()) == 0.0


# --- closed losses against Monte Carlo -----------------------------------------------------------


@eqx.filter_jit
def squared_errors(predictors, task, keys):
    """One column a predictor, one row a prompt, averaged over the task's lengths."""

    def one(k):
        def every(prompt):
            return jnp.stack([jnp.sum((prompt.target - f(prompt)) ** 2) for f in predictors])

        return jnp.mean(map_prefixes(every, task.sample(k), task.lengths), axis=0)

    return jax.vmap(one)(keys)


def check_closed_losses(predictors, task):
    errors = np.asarray(squared_errors(predictors, task, jax.random.split(key(1), COUNT)))
    means, spread = errors.mean(axis=0), errors.std(axis=0) / np.sqrt(COUNT)
    closed = np.array([float(f.population_loss(task)) for f in predictors])
    assert np.all(np.abs(means - closed) < 4.5 * spread), (means, closed, spread)


@pytest.mark.parametrize("name", ["rotated noise", "non-commuting", "task mean", "lengths"])
def test_closed_losses(name):
    task = tasks()[name]
    predictors = [f(task) for f in (least_squares, zero_predictor, gradient_step, InWeight.of)]
    predictors.append(principal_component_regression(task, 1))
    check_closed_losses(predictors, task)


@pytest.mark.parametrize("name", ["pool", "mixture", "noise labels", "two outputs"])
def test_closed_losses_of_other_tasks(name):
    mixed = Task([0.5, 0.3], 4, fixed_fraction=0.4, fixed_task=np.array([1.0, -2.0]))
    task = {
        "pool": Task([0.5, 0.3], 4, pool=np.array([[1.0, 0.0], [0.5, 2.0], [-1.0, 1.0]])),
        "mixture": mixed,
        "noise labels": mixed.replace(context_labels=ContextLabels.NOISE),
        "two outputs": Task([0.5, 0.3], 4, outputs=2, label_noise=0.3, target_noise=0.2),
    }[name]
    predictors = [least_squares(task), gradient_step(task), InWeight.of(task)]
    if name == "noise labels":
        assert float(jnp.abs(predictors[0].weight).max()) == 0.0
    check_closed_losses(predictors, task)


@pytest.mark.parametrize(
    "task",
    [
        Task([0.8, 0.5, 0.2], 9, label_noise=0.5, target_noise=0.3),
        Task([0.8, 0.5, 0.0], 9, label_noise=0.5, lengths=(6, 9)),
        Task([0.8, 0.5, 0.2], 4),
        Task([0.5] * 6, 2, label_noise=0.5, task_covariance=np.arange(1.0, 7)),
        Task([0.5] * 3, 2, outputs=2),
        Task([0.4] * 4, 2, label_noise=0.0, lengths=(1, 2)),
    ],
    ids=["long", "lengths", "exact", "short noisy", "two outputs", "short"],
)
def test_risk_of_ordinary_least_squares(task):
    predictor = OrdinaryLeastSquares()
    closed = float(predictor.population_loss(task))
    if float(task.label_noise) == 0 and min(task.lengths) >= task.size:
        assert closed == 0.0
        assert float(monte_carlo_loss(predictor, task, 500, key(0)).mean) < 1e-20
    else:
        agrees(monte_carlo_loss(predictor, task, COUNT, key(3)), closed)


def test_where_there_is_no_closed_form():
    assert np.isinf(OrdinaryLeastSquares().population_loss(Task([0.5, 0.3], 3, label_noise=0.1)))
    for predictor, task, match in (
        (OrdinaryLeastSquares(), Task([0.5, 0.3], 1), "equal eigenvalues only"),
        (OrdinaryLeastSquares(), Task([0.5], 9, inputs=Rademacher()), "Gaussian inputs only"),
        (OrdinaryLeastSquares(), Task([0.5], 9, context_labels=ContextLabels.NOISE), "made by"),
        (Ridge(1.0), NORMAL, "use `monte_carlo_loss`"),
        (GradientDescent(jnp.eye(3), 2), NORMAL, "use `monte_carlo_loss`"),
        (bayes_predictor(NORMAL), NORMAL, "use `bayes_loss`"),
    ):
        with pytest.raises(ValueError, match=match):
            predictor.population_loss(task)
    with pytest.raises(ValueError, match="have no fourth moment"):
        least_squares(Task([0.5], 3, inputs=StudentT(3.0)))


# --- Bayes --------------------------------------------------------------------------------------


def test_bayes_is_the_conditional_expectation_by_brute_force():
    """D = 2, N = 2: integrate the posterior of w numerically on a grid."""
    spread, mean, noise = np.array([[0.8, 0.3], [0.3, 0.5]]), np.array([0.3, -0.4]), 0.6
    task = Task([0.7, 0.4], 2, task_covariance=spread, task_mean=mean, label_noise=noise)
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
    task = Task([0.7, 0.4, 0.2], 2, task_covariance=random_covariance(4, 3))
    prompt = sample(task)
    x, y, query = pairs(prompt)
    spread = np.asarray(task.tasks.covariance)
    w = spread @ x.T @ np.linalg.solve(x @ spread @ x.T, y)
    close(predict(bayes_predictor(task), prompt), query @ w, 1e-10)
    long = task.replace(context=5)
    prompt = sample(long)
    close(predict(bayes_predictor(long), prompt), prompt.target, 1e-10)
    close(bayes_loss(long, 100, key(0)).mean, 0.0)
    singular = Task([0.7, 0.4, 0.2], 1, task_covariance=np.array([1.0, 0.0, 0.0]))
    prompt = sample(singular)
    close(predict(bayes_predictor(singular), prompt), prompt.target, 1e-10)


def test_special_cases_of_bayes():
    isotropic = Task([0.8, 0.5, 0.2], 6, label_noise=0.5)
    prompt = sample(isotropic)
    close(predict(bayes_predictor(isotropic), prompt), predict(Ridge(0.25), prompt))
    noise = NORMAL.replace(context_labels=ContextLabels.NOISE)
    close(predict(bayes_predictor(noise), prompt), np.asarray(NORMAL.tasks.mean) @ prompt.query)
    fixed = NORMAL.replace(fixed_fraction=1.0)
    close(predict(bayes_predictor(fixed), prompt), predict(InWeight.of(fixed), prompt))
    close(bayes_loss(fixed, 10, key(0)).mean, InWeight.of(fixed).population_loss(fixed))


@pytest.mark.parametrize("length", [None, 1])
def test_pool_by_brute_force(length):
    pool = np.random.default_rng(0).normal(size=(4, 2, 3))
    for noise in (0.7, 1e-3):
        task = Task([0.8, 0.5, 0.2], 4, pool=pool, label_noise=noise)
        prompt = sample(task) if length is None else sample(task).prefix(length)
        x, y, query = pairs(prompt)
        logs = [scipy.stats.norm(x @ w.T, noise).logpdf(y).sum() for w in pool]
        weight = np.exp(np.array(logs) - max(logs))
        expected = np.einsum("m,mod,d->o", weight / weight.sum(), pool, query)
        close(predict(bayes_predictor(task), prompt), expected, 1e-9)


def test_pool_without_noise():
    """Exact labels single out the task; tasks they cannot tell apart share the prediction."""
    task = Task([0.8, 0.5], 3, pool=np.random.default_rng(0).normal(size=(50, 2)))
    for seed in range(5):
        prompt = sample(task, seed)
        close(predict(bayes_predictor(task), prompt), prompt.target)
    blind = Task([0.8, 0.0], 3, pool=np.array([[1.0, 5.0], [1.0, -3.0], [2.0, 0.0]]))
    inputs = jnp.array([[1.0, 0.0], [-2.0, 0.0], [0.5, 0.0], [1.0, 0.0]])
    prompt = Prompt(inputs, inputs[:, :1], inputs[:, :1])
    close(bayes_predictor(blind).posterior(prompt), [0.5, 0.5, 0.0])


def test_mixture_by_brute_force():
    """In-weight mixture, D = 1: the posterior is an integral over w and one point mass."""
    task = Task(
        [0.9], 3, label_noise=0.8, fixed_fraction=0.35, fixed_task=np.array([1.3]),
        task_mean=np.array([-0.2]), task_covariance=np.array([[0.6]]),
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
    task = Task([0.9, 0.4], 2, fixed_fraction=0.5)
    predictor = bayes_predictor(task)
    fixed = task.prompt(task.draw(key(0), True))
    other = task.prompt(task.draw(key(0), False))
    close(predictor.fixed_probability(fixed), 1.0)
    close(predictor.fixed_probability(other), 0.0)
    close(predict(predictor, fixed), fixed.target)
    pool = Task([0.9], 3, pool=np.array([[0.5], [-1.0]]), fixed_fraction=0.5, label_noise=1.0)
    prior = bayes_predictor(pool).prior
    close(prior, [0.25, 0.25, 0.5])


RIVALS = ["normal", "short", "pool", "mixture", "signs"]


@pytest.mark.parametrize("name", RIVALS)
def test_bayes_beats_every_rival(name):
    task = {
        "normal": NORMAL,
        "short": Task([0.8, 0.5, 0.2], 2, task_covariance=random_covariance(3, 3)),
        "pool": Task([0.8, 0.5], 8, pool=np.random.default_rng(1).normal(size=(5, 2))).replace(
            label_noise=0.6
        ),
        "mixture": Task([0.8, 0.5], 8, fixed_fraction=0.4, label_noise=0.6),
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
        GradientDescent(eye, 2),
        InWeight.of(task),
    ]
    errors = np.asarray(squared_errors([best, *rivals], task, jax.random.split(key(5), COUNT)))
    excess = errors[:, 1:] - errors[:, :1]
    assert np.all(excess.mean(axis=0) > 3 * excess.std(axis=0) / np.sqrt(COUNT))


def test_bayes_loss_from_the_inputs_alone():
    """The conditional variance gives the same loss with a far smaller standard error."""
    sharp = bayes_loss(NORMAL, COUNT, key(0))
    plain = monte_carlo_loss(bayes_predictor(NORMAL), NORMAL, COUNT, key(1))
    error = np.hypot(float(sharp.error), float(plain.error))
    assert abs(float(sharp.mean) - float(plain.mean)) < 4.5 * error
    assert float(sharp.error) < 0.5 * float(plain.error)
    assert float(sharp.mean) < float(least_squares(NORMAL).population_loss(NORMAL))
    pool = Task([0.5], 2, pool=np.array([[1.0], [2.0]]), label_noise=0.5)
    assert 0 < float(bayes_loss(pool, 500, key(0)).mean) < 0.25 * 0.5


def test_monte_carlo_is_repeatable_over_chunks():
    """The chunk a prompt falls in changes nothing: 5000 prompts are the first of 6000."""
    predictor = zero_predictor(NORMAL)
    long = monte_carlo_loss(predictor, NORMAL, 5000, key(0))
    keys = [jax.random.fold_in(key(0), i) for i in range(3)]
    few = monte_carlo_loss(predictor, NORMAL, 3, key(0))
    literal = [float(NORMAL.sample(k).target[0] ** 2) for k in keys]
    close(few.mean, np.mean(literal))
    close(few.error, np.std(literal, ddof=1) / np.sqrt(3))
    agrees(long, predictor.population_loss(NORMAL))


def test_mistakes():
    with pytest.raises(ValueError, match="4 components to regress on, got 5"):
        principal_component_regression(tasks()["paper"], 5)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        Ridge(-1.0)
    with pytest.raises(ValueError, match="at least 0, got -2"):
        GradientDescent(jnp.eye(2), -2)
    with pytest.raises(ValueError, match="at least 2 sequences"):
        monte_carlo_loss(zero_predictor(NORMAL), NORMAL, 1, key(0))
    with pytest.raises(ValueError, match="this one has 2"):
        zero_predictor(Task([0.5], 2, outputs=2)).as_weights()

    # A law of tasks with moments but no known mean or posterior.
    members = dict.fromkeys(AbstractTaskVectors.__abstractmethods__, lambda self: None)
    members |= {"dims": (1, 1), "second_moment": lambda self: jnp.ones((1, 1, 1, 1))}
    coin_type = type("Coin", (AbstractTaskVectors,), members)
    coin = Task([0.5], 3, tasks=coin_type())
    with pytest.raises(ValueError, match="the posterior of Coin is not known"):
        bayes_predictor(coin)
    with pytest.raises(ValueError, match="the mean of Coin is not known"):
        InWeight.of(coin).population_loss(coin)


def test_fixed_points_are_the_algorithms():
    task = tasks()["paper"]
    modes = Modes.of(task)
    for m in range(5):
        predictor = principal_component_regression(modes, m)
        close(Population(task)(predictor), plateau_losses(task)[m])
