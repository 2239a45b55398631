"""In-context algorithms: predictions by hand, optimality, closed losses against Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.losses import Features, Moments, Population, Sequences
from iclflow.tasks.laws import AbstractTaskVectors, Mixture, Normal, Pool, Rademacher, StudentT
from iclflow.tasks.task import ContextLabels, Task
from iclflow.theory import (
    GradientSteps,
    InWeight,
    Modes,
    OrdinaryLeastSquares,
    Ridge,
    bayes_predictor,
    gradient_step,
    least_squares,
    monte_carlo_loss,
    plateau_losses,
    principal_component_regression,
    zero_predictor,
)
from tests.helpers.predictor_checks import (
    COUNT,
    NORMAL,
    agrees,
    close,
    in_weight,
    pairs,
    predict,
    sample,
    squared_errors,
)
from tests.helpers.theory_tasks import key, random_covariance, tasks

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
    close(predict(GradientSteps(jnp.asarray(metric), 3), prompt), query @ w)
    close(predict(GradientSteps(jnp.asarray(metric), 0), prompt), [0.0])
    step = gradient_step(task, rate=0.4, preconditioner=jnp.asarray(metric))
    close(predict(step, prompt), query @ (0.4 * metric @ (x.T @ y) / n))
    close(predict(GradientSteps(jnp.asarray(0.4 * metric), 1), prompt), predict(step, prompt))
    mean, spread = np.asarray(task.tasks.mean[0]), np.asarray(task.tasks.covariance)
    gram = x @ spread @ x.T + 0.25 * np.eye(n)
    w = mean + spread @ x.T @ np.linalg.solve(gram, y[:, 0] - x @ mean)
    close(predict(bayes_predictor(task), prompt), [query @ w])
    close(predict(zero_predictor(task), prompt), [0.0])
    close(predict(in_weight(task), prompt), [np.asarray(task.basis).sum(axis=1) @ query])


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
    features = Features.of(sequences.prompts, lengths=task.lengths)
    expected = float(sequences(predictor))
    close(features(predictor), expected)
    close(Moments.of(sequences.prompts, lengths=task.lengths)(predictor), expected)


def test_gradient_step_has_the_best_rate():
    for name in ("paper", "non-commuting", "lengths"):
        task = tasks()[name]
        best = gradient_step(task)
        for factor in (0.99, 1.01):
            other = type(best)(factor * best.weight)
            assert float(other.population_loss(task)) > float(best.population_loss(task))
    assert float(jnp.abs(gradient_step(Task([0.0], 2)).weight).max()) == 0.0


# --- closed losses against Monte Carlo -----------------------------------------------------------


def check_closed_losses(predictors, task):
    errors = np.asarray(squared_errors(predictors, task, jax.random.split(key(1), COUNT)))
    means, spread = errors.mean(axis=0), errors.std(axis=0) / np.sqrt(COUNT)
    closed = np.array([float(f.population_loss(task)) for f in predictors])
    assert np.all(np.abs(means - closed) < 4.5 * spread), (means, closed, spread)


@pytest.mark.parametrize("name", ["rotated noise", "non-commuting", "task mean", "lengths"])
def test_closed_losses(name):
    task = tasks()[name]
    predictors = [f(task) for f in (least_squares, zero_predictor, gradient_step, in_weight)]
    predictors.append(principal_component_regression(task, 1))
    check_closed_losses(predictors, task)


@pytest.mark.parametrize("name", ["pool", "mixture", "noise labels", "two outputs"])
def test_closed_losses_of_other_tasks(name):
    mixed = Task([0.5, 0.3], 4, tasks=Mixture(fixed=[1.0, -2.0], fraction=0.4))
    task = {
        "pool": Task([0.5, 0.3], 4, tasks=Pool([[1.0, 0.0], [0.5, 2.0], [-1.0, 1.0]])),
        "mixture": mixed,
        "noise labels": mixed.replace(context_labels=ContextLabels.NOISE),
        "two outputs": Task(
            [0.5, 0.3], 4, tasks=Normal(outputs=2), label_noise=0.3, target_noise=0.2
        ),
    }[name]
    predictors = [least_squares(task), gradient_step(task), in_weight(task)]
    if task.tasks.mixed():
        predictors.append(InWeight.of(task))
    if name == "noise labels":
        assert float(jnp.abs(predictors[0].weight).max()) == 0.0
    check_closed_losses(predictors, task)


@pytest.mark.parametrize(
    "task",
    [
        Task([0.8, 0.5, 0.2], 9, label_noise=0.5, target_noise=0.3),
        Task([0.8, 0.5, 0.0], 9, label_noise=0.5, lengths=(6, 9)),
        Task([0.8, 0.5, 0.2], 4),
        Task([0.5] * 6, 2, label_noise=0.5, tasks=Normal(covariance=np.arange(1.0, 7))),
        Task([0.5] * 3, 2, tasks=Normal(outputs=2)),
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
        (GradientSteps(jnp.eye(3), 2), NORMAL, "use `monte_carlo_loss`"),
        (bayes_predictor(NORMAL), NORMAL, "use `bayes_loss`"),
    ):
        with pytest.raises(ValueError, match=match):
            predictor.population_loss(task)
    with pytest.raises(ValueError, match="have no fourth moment"):
        least_squares(Task([0.5], 3, inputs=StudentT(3.0)))


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
        GradientSteps(jnp.eye(2), -2)
    with pytest.raises(ValueError, match="at least 2 sequences"):
        monte_carlo_loss(zero_predictor(NORMAL), NORMAL, 1, key(0))
    with pytest.raises(ValueError, match="this one has 2"):
        zero_predictor(Task([0.5], 2, tasks=Normal(outputs=2))).as_weights()

    # A law of tasks with moments but no known posterior.
    members = dict.fromkeys(AbstractTaskVectors.__abstractmethods__, lambda self: None)
    members |= {"dims": (1, 1), "mean": property(lambda self: jnp.zeros((1, 1)))}
    members |= {"bind": lambda self, basis: self}
    coin_type = type("Coin", (AbstractTaskVectors,), members)
    coin = Task([0.5], 3, tasks=coin_type())
    with pytest.raises(ValueError, match="the posterior of Coin is not known"):
        bayes_predictor(coin)
    with pytest.raises(ValueError, match="only a mixture has a fixed task, got Coin"):
        InWeight.of(coin)


def test_fixed_points_are_the_algorithms():
    """(27) has the loss (24) of its plateau."""
    task = tasks()["paper"]
    modes = Modes.of(task)
    for m in range(5):
        predictor = principal_component_regression(modes, m)
        close(Population(task)(predictor), plateau_losses(task)[m])
