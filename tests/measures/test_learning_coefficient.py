"""Curvature at both ends, gradient noise, and learning coefficients beside their exact values."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import iclflow as icl
from iclflow.dynamics import reference_minimum
from iclflow.measures import learning_coefficient, operator_trace, spectrum_ends
from iclflow.runs.record import recorded_models
from iclflow.theory import attention_coefficient, reduced_rank_coefficient

SAMPLES = 100_000
NBETA = SAMPLES / np.log(SAMPLES)
TASK = icl.Task(spectrum=[0.6, 0.4], context=31)


def low_rank_expectation(t, *, inputs, outputs):
    """λ̂(t) = t E[|a|²|b|²] under exp(-t |a|²|b|² - |a|²/2 - |b|²/2), by one integral.

    The integral over a is (1 + 2t|b|²)^(-outputs/2); |b|² is integrated on a grid of its logarithm.
    """
    y = np.linspace(-90, 8, 400_001)
    square = np.exp(y)
    density = np.exp(y * inputs / 2 - square / 2)
    weight = density * (1 + 2 * t * square) ** (-outputs / 2)
    return np.sum(weight * outputs * t * square / (1 + 2 * t * square)) / np.sum(weight)


def two_hidden_expectation(t, *, inputs, outputs):
    """λ̂(t) of |A B|² with two hidden units, by the eigenvalues of the Wishart matrix B Bᵀ."""
    y = np.linspace(-60, 6, 3001)
    first, second = np.meshgrid(np.exp(y), np.exp(y))
    power = (inputs - 3) / 2 + 1  # and one for the logarithmic grid
    density = np.abs(first - second) * np.exp(
        power * (np.log(first) + np.log(second)) - (first + second) / 2
    )
    weight = density * ((1 + 2 * t * first) * (1 + 2 * t * second)) ** (-outputs / 2)
    here = sum(outputs * t * value / (1 + 2 * t * value) for value in (first, second))
    return np.sum(weight * here) / np.sum(weight)


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (1, 2), (2, 2), (2, 3), (3, 1)])
def test_the_formula_of_one_hidden_unit_is_the_limit_of_an_integral(inputs, outputs):
    """λ̂(t) -> λ - (m - 1)/(ln t + c), so that 1/(λ - λ̂) grows by 1 per unit of ln t for m = 2."""
    exact = reduced_rank_coefficient(inputs=inputs, outputs=outputs, hidden=1)
    low, high = (low_rank_expectation(t, inputs=inputs, outputs=outputs) for t in (1e10, 1e14))
    if exact.multiplicity == 1:
        np.testing.assert_allclose(high, exact.coefficient, atol=1e-6)
    else:
        gaps = 1 / (exact.coefficient - np.array([low, high]))
        np.testing.assert_allclose(np.diff(gaps), np.log(1e4), rtol=1e-2)


@pytest.mark.parametrize(("inputs", "outputs"), [(2, 2), (2, 1), (3, 2), (4, 2)])
def test_the_formula_of_two_hidden_units_is_the_limit_of_an_integral(inputs, outputs):
    exact = reduced_rank_coefficient(inputs=inputs, outputs=outputs, hidden=2)
    low, high = (two_hidden_expectation(t, inputs=inputs, outputs=outputs) for t in (1e8, 1e12))
    if exact.multiplicity == 1:
        np.testing.assert_allclose(high, exact.coefficient, atol=2e-3)
    else:
        gaps = 1 / (exact.coefficient - np.array([low, high]))
        np.testing.assert_allclose(np.diff(gaps), np.log(1e4), rtol=5e-2)


def test_the_coefficient_of_reduced_rank_regression_has_its_symmetries_and_limits():
    for m, n, h, r in [(3, 5, 2, 1), (2, 7, 3, 2), (4, 4, 2, 0), (6, 2, 2, 1)]:
        swapped = reduced_rank_coefficient(inputs=n, outputs=m, hidden=h, rank=r)
        assert reduced_rank_coefficient(inputs=m, outputs=n, hidden=h, rank=r) == swapped
    # Full rank and enough hidden units: every entry of the product is free.
    assert reduced_rank_coefficient(inputs=3, outputs=3, hidden=5, rank=3) == (4.5, 1)
    # No more hidden units than the rank: the manifold of matrices of that rank.
    assert reduced_rank_coefficient(inputs=4, outputs=3, hidden=2, rank=2) == (5.0, 1)
    with pytest.raises(ValueError, match="rank between 0 and 2"):
        reduced_rank_coefficient(inputs=2, outputs=2, hidden=2, rank=3)


def product_loss(weights):
    return jnp.sum(weights[:2] ** 2) * jnp.sum(weights[2:] ** 2)


def test_the_sampled_coefficient_is_the_expectation_that_it_estimates():
    """|a|²|b|² at zero, a and b in R²: λ = 1 with m = 2; against the integral at this nβ."""
    found = learning_coefficient(product_loss, jnp.zeros(4), draws=1000, key=jax.random.key(2))
    expected = low_rank_expectation(NBETA, inputs=2, outputs=2)
    assert abs(float(found.value) - expected) < 4 * float(found.standard_error)
    # Its slope is the derivative of the integral, and with it the stated error reaches λ.
    step = 1.01
    slope = (
        low_rank_expectation(NBETA * step, inputs=2, outputs=2)
        - low_rank_expectation(NBETA / step, inputs=2, outputs=2)
    ) / (2 * np.log(step))
    np.testing.assert_allclose(float(found.slope), slope, atol=0.02)
    exact = reduced_rank_coefficient(inputs=2, outputs=2, hidden=1)
    assert exact == (1.0, 2)
    assert float(found.value) < exact.coefficient
    assert abs(float(found.value) - exact.coefficient) < float(found.error)


def test_regular_minima_have_half_the_number_of_weights_to_the_order_of_the_localisation():
    """E nβL = ½ Σ nβh/(nβh + γ) exactly; the control variates leave almost no noise."""
    curvatures = jnp.array([1.0, 2.0, 5.0])

    def loss(weights):
        return jnp.sum(curvatures * weights["a"] ** 2) / 2 + (weights["b"] - 1) ** 2 / 2

    found = learning_coefficient(
        loss, {"a": jnp.zeros(3), "b": jnp.ones(())}, localisation=50.0, draws=200, leaps=8
    )
    stiff = NBETA * np.array([1.0, 2.0, 5.0, 1.0])
    np.testing.assert_allclose(float(found.value), 0.5 * np.sum(stiff / (stiff + 50)), atol=1e-3)
    assert abs(float(found.value) - 2) < 0.02
    again = learning_coefficient(
        loss, {"a": jnp.zeros(3), "b": jnp.ones(())}, localisation=50.0, draws=200, leaps=8
    )
    assert float(again.value) == float(found.value)


@pytest.mark.long
@pytest.mark.parametrize("kind", [icl.Merged, icl.Separate])
def test_attention_with_more_heads_than_it_needs_has_half_the_entries_of_its_map(kind):
    """λ = D²/2 = 2 with four heads, of 20 weights."""
    loss = icl.Population(TASK)
    model = reference_minimum(loss, kind.initialiser(TASK, heads=4, scale=0.1)(jax.random.key(0)))
    exact = attention_coefficient(model)
    assert exact == (2.0, 1)
    found = learning_coefficient(loss, model, draws=400)
    assert abs(float(found.value) - exact.coefficient) < float(found.error)


def test_langevin_chains_on_minibatches_find_the_same_coefficient():
    """A loss that draws: Σ h w²/2 with a slope that differs from batch to batch; λ = 3/2."""

    class Drawn(eqx.Module):
        tilt: jax.Array
        stochastic = True

        def __call__(self, weights):
            return jnp.sum(weights**2) / 2

        def draw(self, key):
            tilt = self.tilt * jax.random.normal(key, (3,))
            return lambda weights: jnp.sum(weights**2) / 2 + jnp.sum(tilt * weights)

    found = learning_coefficient(Drawn(jnp.asarray(0.01)), jnp.zeros(3), draws=500, leaps=100)
    assert float(found.accepted) == 1
    assert abs(float(found.value) - 1.5) < 0.05 * 1.5 + float(found.error)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"samples": 2}, "samples must be a whole number of at least 3, got 2"),
        ({"chains": 1}, "chains must be a whole number of at least 2, got 1"),
        ({"draws": True}, "draws must be a whole number"),
        ({"burn": -5}, "burn must be a whole number of at least 0, got -5"),
        ({"localisation": 0.0}, "localisation must be a number above 0"),
        ({"localisation": np.inf}, "localisation must be a number above 0, got inf"),
        ({"step": -1.0}, "step must be a number above 0"),
        ({"step": np.nan}, "step must be a number above 0, got nan"),
    ],
)
def test_impossible_chains_are_one_line(options, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        learning_coefficient(product_loss, jnp.zeros(4), **options)
    assert "\n" not in str(error.value)


def test_chains_that_do_not_move_give_no_coefficient():
    """At a maximum the density has no end, and every proposal is refused."""
    found = learning_coefficient(lambda w: -jnp.sum(w**2), jnp.zeros(2), draws=20, leaps=4)
    assert np.isnan(found.value)
    assert "the weights are no minimum" in str(found)


def dense_hessian(loss, model):
    flat, unravel = ravel_pytree(model)
    return np.asarray(jax.jit(jax.hessian(lambda w: loss(unravel(w))))(flat))


def test_a_run_records_both_ends_of_its_spectrum_and_the_trace_by_name():
    """Against dense Hessians; near zero weights the loss is at a saddle."""
    loss = icl.Population(TASK)
    init = icl.Merged.initialiser(TASK, heads=2, scale=0.05)
    names = ["weights", "sharpness", "lowest_curvature", "hessian_trace"]
    runs = icl.sweep(TASK, init, icl.Descent(0.3), saveat=[0, 20, 60, 400], record=names)
    data = runs.isel(seed=0)
    kept = recorded_models(data, init)
    for i in range(4):
        values = np.linalg.eigvalsh(dense_hessian(loss, jax.tree.map(lambda a, i=i: a[i], kept)))
        np.testing.assert_allclose(data["sharpness"][i], values[-1], atol=1e-9)
        np.testing.assert_allclose(data["lowest_curvature"][i], values[0], atol=1e-9)
        np.testing.assert_allclose(data["hessian_trace"][i], values.sum(), atol=1e-9)
    assert float(data["lowest_curvature"][0]) < -0.1
    assert float(data["lowest_curvature"][-1]) > -1e-3
    assert "saddle" in data["lowest_curvature"].attrs["long_name"]


@pytest.mark.long
def test_a_run_records_its_learning_coefficient_with_an_error():
    init = icl.Merged.initialiser(TASK, heads=2, scale=0.05)
    names = ["loss", "learning_coefficient"]
    data = icl.sweep(TASK, init, icl.Descent(0.3), saveat=[0, 3000], record=names).isel(seed=0)
    last = data.isel(time=-1)
    assert abs(float(last["learning_coefficient"]) - 2) < float(last["learning_coefficient_error"])
    assert float(data["learning_coefficient"][0]) < 0  # at a saddle the chains find lower losses


def test_the_trace_of_a_large_operator_is_within_its_error_of_the_truth():
    matrix = np.random.default_rng(0).normal(size=(60, 60))
    matrix = jnp.asarray(matrix @ matrix.T)
    apart = matrix - jnp.diag(jnp.diag(matrix))
    error = float(jnp.sqrt(2 * jnp.sum(apart**2) / 40))
    found = operator_trace(lambda v: matrix @ v, 60, jax.random.key(0), probes=40)
    assert abs(float(found) - float(jnp.trace(matrix))) < 3 * error
    exact = operator_trace(lambda v: matrix @ v, 60, jax.random.key(0), probes=60)
    np.testing.assert_allclose(exact, jnp.trace(matrix), rtol=1e-12)
    top, lowest = spectrum_ends(lambda v: matrix @ v, 60, jax.random.key(0), count=2, steps=60)
    values = np.linalg.eigvalsh(matrix)
    np.testing.assert_allclose([*top, lowest], [values[-1], values[-2], values[0]], rtol=1e-8)


def test_gradient_noise_is_the_covariance_of_drawn_minibatches():
    """All 10 batches of two of five prompts, literally."""
    whole = icl.Features.sample(TASK, 5, key=jax.random.key(3))
    model = icl.Merged.initialiser(TASK, heads=1, scale=0.5)(jax.random.key(0))
    found = icl.gradient_noise(icl.Minibatch(whole, 2), model)
    flat, unravel = ravel_pytree(model)
    slope = jax.jit(jax.grad(lambda w, index: whole.take(index)(unravel(w))))
    batches = [jnp.array([i, j]) for i in range(5) for j in range(i)]
    gradients = np.stack([slope(flat, batch) for batch in batches])
    np.testing.assert_allclose(found.gradient, slope(flat, jnp.arange(5)), atol=1e-12)
    expected = np.cov(gradients, rowvar=False, bias=True)
    np.testing.assert_allclose(found.covariance, expected, atol=1e-12)
    np.testing.assert_allclose(found.trace, np.trace(expected), atol=1e-12)
    signal = np.sum(gradients.mean(axis=0) ** 2)
    np.testing.assert_allclose(found.noise_scale, 2 * np.trace(expected) / signal, rtol=1e-9)
    run = icl.simulate(
        icl.Minibatch(whole, 2), model, icl.Descent(0.1), saveat=[0], record=["gradient_noise"]
    )
    np.testing.assert_allclose(run.record["gradient_noise"][0], found.trace, rtol=1e-12)
    with pytest.raises(ValueError, match="Population keeps none; use Minibatch"):
        icl.gradient_noise(icl.Population(TASK), model, size=2)
    with pytest.raises(ValueError, match="size must be between 1 and 5"):
        icl.gradient_noise(whole, model)
