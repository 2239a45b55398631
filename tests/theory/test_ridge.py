"""The ridge minimum of a sample, in three ways, at the end of a flow, and its limit."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.theory import ridge, ridge_equivalent, ridge_limit, ridge_weights

TASK = icl.Task([0.5, 0.3, 0.2], 8, label_noise=0.3, target_noise=0.3)


def rows(count, seed=0, task=TASK):
    return icl.label_rows(task, count, jax.random.key(seed))


@pytest.mark.parametrize("count", [7, 12, 60])
@pytest.mark.parametrize("penalty", [1e-3, 0.1])
def test_primal_dual_and_iterations_agree(count, penalty):
    loss = rows(count)
    primal, dual, found = (
        ridge_weights(loss, penalty, method=m) for m in ("primal", "dual", "iterations")
    )
    np.testing.assert_allclose(dual, primal, atol=1e-10)
    np.testing.assert_allclose(found, primal, atol=1e-8)
    # by NumPy, from the features themselves
    phi = np.einsum("pk,pc->pkc", loss.statistic[:, 0], loss.query[:, 0]).reshape(count, -1)
    direct = np.linalg.solve(
        phi.T @ phi / count + penalty * np.eye(12), phi.T @ np.asarray(loss.target[:, 0]) / count
    )
    np.testing.assert_allclose(primal.reshape(-1), direct[:, 0], atol=1e-10)
    # stationary: the gradient of the mean squared error and of the penalty cancel
    model = icl.LabelRow(None, primal[0])
    gradient = jax.grad(lambda w: loss(icl.LabelRow(None, w)))(model.right)
    np.testing.assert_allclose(gradient, -2 * penalty * primal[0], atol=1e-12)


def test_moments_and_reduced_features():
    for features in (icl.ReducedFeatures(), icl.LabelFeatures(), icl.FullFeatures()):
        options = {"features": features}
        one = icl.Moments.sample(TASK, 40, jax.random.key(1), **options)
        other = icl.Features.sample(TASK, 40, jax.random.key(1), **options)
        expected = ridge_weights(other, 0.01)
        np.testing.assert_allclose(ridge_weights(one, 0.01), expected, atol=1e-10)
    model = ridge(
        icl.Moments.sample(TASK, 40, jax.random.key(1), features=icl.ReducedFeatures()), 0
    )
    assert model.reduced_weights().shape == (1, 1, 3, 3)


def test_a_long_flow_ends_at_the_ridge_minimum_without_a_penalty():
    loss = rows(60)
    start = icl.LabelRow(None, jnp.zeros((4, 3)))
    curvature = float(jnp.linalg.eigvalsh(jnp.einsum(
        "pk,pc,pl,pd->kcld", loss.statistic[:, 0], loss.query[:, 0], loss.statistic[:, 0],
        loss.query[:, 0]).reshape(12, 12) / 60)[0])  # fmt: skip
    run = icl.simulate(loss, start, icl.Flow(), until=20 / curvature)
    np.testing.assert_allclose(run.model.right, ridge(loss, 0).matrix, atol=1e-6)


def test_fewer_prompts_than_features_take_the_least_norm():
    loss = rows(7)
    found = ridge(loss, 0).matrix
    assert float(loss(icl.LabelRow(None, found))) < 1e-20
    phi = np.einsum("pk,pc->pkc", loss.statistic[:, 0], loss.query[:, 0]).reshape(7, -1)
    np.testing.assert_allclose(
        np.ravel(found), np.linalg.lstsq(phi, np.asarray(loss.target[:, 0, 0]))[0], atol=1e-9
    )


def test_the_limit_without_training_noise_is_the_population():
    """τ → ∞: the least loss on B = q + r, written directly."""
    limit = ridge_limit(prompts=1e9, context=5.0, tasks=1e9, noise=0.2)
    q = 1.2 / 5
    expected = 1.2 - 1 / (1 + q)
    np.testing.assert_allclose([limit.new, limit.pool], expected, rtol=1e-6)


@pytest.mark.parametrize(("tau", "kappa"), [(0.5, 0.5), (3.0, 0.5), (3.0, 2.0)])
def test_the_equivalent_tends_to_the_limit(tau, kappa):
    alpha, rho, size = 4.0, 0.1, 120
    many = int(kappa * size)
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(4):
        members = rng.standard_normal((many, size))
        members *= (size**0.5 / np.linalg.norm(members, axis=1))[:, None]
        new = icl.Task([1 / size] * size, int(alpha * size), label_noise=rho**0.5,
                       target_noise=rho**0.5)  # fmt: skip
        pool = icl.LabelPopulation(new.replace(tasks=icl.Pool(members)))
        errors.append([
            float(ridge_equivalent(pool, test, int(tau * size**2)))
            for test in (icl.LabelPopulation(new), pool)
        ])  # fmt: skip
    limit = ridge_limit(tau, alpha, kappa, rho)
    np.testing.assert_allclose(np.mean(errors, axis=0), [limit.new, limit.pool], rtol=0.03)


def test_the_equivalent_is_near_the_ridge_minimum():
    """Within 25 % at D = 12, and further off for fewer dimensions: what it leaves out is 1/D."""
    gaps = []
    for size in (6, 24):
        task = icl.Task([1 / size] * size, 4 * size, label_noise=0.3, target_noise=0.3)
        population = icl.LabelPopulation(task)
        count = 4 * size**2
        found = [
            float(population(ridge(rows(count, seed, task), 0.0, method="primal")))
            for seed in range(8)
        ]
        expected = float(ridge_equivalent(population, population, count))
        gaps.append(np.mean(found) / expected - 1)
    assert 0 < gaps[1] < gaps[0] < 0.5


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: ridge_weights(rows(5), -1.0), "at least 0"),
        (lambda: ridge_weights(rows(5), 1.0, method="svd"), "unknown method 'svd'"),
        (lambda: ridge_weights(rows(5), 1.0, tolerance=0.0), "tolerance must be above 0"),
        (lambda: ridge_weights(icl.Population(TASK), 1.0), "Features or Moments, got Population"),
        (lambda: ridge(icl.Features.sample(TASK, 5, jax.random.key(0)), 1.0), "LabelFeatures"),
        (lambda: ridge_limit(1.0, 1.0, 1.0, -0.1), "noise must be finite and at least 0"),
        (lambda: ridge_limit(0.0, 1.0, 1.0, 0.1), "prompts must be finite and above 0"),
    ],
)
def test_bad_input_is_one_line(call, complaint):
    with pytest.raises(ValueError, match=complaint) as found:
        call()
    assert "\n" not in str(found.value)


def test_nan_labels_and_shapes_that_disagree_are_refused():
    loss = rows(5)
    short = eqx.tree_at(lambda f: f.query, loss, loss.query[:4])
    with pytest.raises(ValueError, match="target per prompt are needed, got 5, 4 and 5"):
        ridge_weights(short, 0.1)
    broken = icl.Features(loss.statistic, loss.query, loss.target.at[0].set(jnp.nan), loss.map)
    with pytest.raises(ValueError, match="targets must be finite"):
        ridge_weights(broken, 0.1)
