"""Numbers that several layers, correlated tokens and pools have at λ = (.4 .3 .2 .1), N = 31."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import iclflow as icl
from iclflow.theory import depth, plateau_losses
from iclflow.theory.scaling import PowerLaw, fitted_exponent
from tests.helpers.stacks import value

SPECTRUM = np.array([0.4, 0.3, 0.2, 0.1])
TASK = icl.Task(SPECTRUM.tolist(), 31)


@functools.partial(jax.jit, static_argnums=2)
def value_and_slope(flat, mask, tied):
    """The loss of diagonal layers g = λ γ, some of which a mask keeps at zero."""

    def loss(flat):
        steps = flat.reshape(mask.shape) * mask / SPECTRUM[None]
        return icl.Population(TASK)(icl.Steps(steps, 4, 2, tied))

    return jax.value_and_grad(loss)(flat)


def least(rows, mask=None, *, tied=False):
    """The least loss of diagonal layers below a start in g = λ γ, and where it is."""
    rows = np.asarray(rows, float)
    mask = np.ones_like(rows) if mask is None else np.asarray(mask, float)
    found = minimize(
        lambda x: tuple(np.asarray(a, float) for a in value_and_slope(x, mask, tied)),
        rows.ravel(), jac=True, method="BFGS", options={"gtol": 1e-12},
    )  # fmt: skip
    return float(found.fun), found.x.reshape(rows.shape) * mask


def test_the_minima_and_their_steps():
    """Both orders of the two steps, by descent over all weights; the best diagonal tied layers."""
    expected = (
        (
            0.025640115,
            (1.295484, 1.271475, 1.226738, 1.113942),
            (0.624059, 0.621285, 0.615755, 0.599764),
        ),
        (
            0.025890124,
            (0.638045, 0.628109, 0.608881, 0.555160),
            (1.280248, 1.266453, 1.243239, 1.189448),
        ),
    )  # fmt: skip
    for (loss, layers), (wanted, *steps) in zip(depth.layer_minima(TASK), expected, strict=True):
        assert round(loss, 9) == wanted
        g = np.diagonal(layers, axis1=1, axis2=2) * SPECTRUM
        np.testing.assert_allclose(g, steps, atol=2e-5)
        assert np.abs(layers - layers * np.eye(4)).max() < 1e-4
    loss, g = least(np.full((1, 4), 0.8), tied=True)
    assert round(loss, 9) == 0.038982571
    np.testing.assert_allclose(g[0], (0.861650, 0.849680, 0.827520, 0.770745), atol=1e-6)


def test_each_mode_in_one_of_the_layers_is_below_one_layer():
    one_layer = float(plateau_losses(TASK)[-1])
    assert round(one_layer, 6) == 0.135995
    for modes, expected in (
        ((0, 0, 0, 1), 0.119415),
        ((0, 0, 1, 1), 0.108443),
        ((0, 1, 0, 1), 0.112411),
        ((1, 1, 1, 0), 0.130957),
    ):
        mask = np.array([[mode == layer for mode in modes] for layer in (0, 1)])
        loss, _ = least(0.8 * np.ones((2, 4)), mask)
        assert round(loss, 6) == expected < one_layer


def test_some_ranks_have_a_second_minimum_above_the_level():
    """The level (D20) of four pairs of ranks and another minimum, by the order of the two steps."""
    for ranks, level, other in (
        ((3, 4), 0.03652, 0.04083),
        ((4, 1), 0.10383, 0.10526),
        ((4, 2), 0.07386, 0.07511),
        ((4, 3), 0.04697, 0.04754),
    ):
        mask = np.array([np.arange(4) < rank for rank in ranks])
        starts = [np.outer(steps, np.ones(4)) for steps in ((0.6, 1.3), (1.3, 0.6))]
        assert sorted(round(least(start, mask)[0], 5) for start in starts) == [level, other]


def test_correlated_tokens_are_a_shorter_context():
    """(D21): without noise the levels are those of N²/tr K² pairs, K_nm = r^|n - m|."""
    distance = np.abs(np.subtract.outer(np.arange(31), np.arange(31)))
    covariance, total = np.diag(SPECTRUM), SPECTRUM.sum()
    signal, population = covariance @ covariance, icl.Population(TASK)
    for r, length, levels in (
        (0.5, 18.9256, (0.662429, 0.418321, 0.266464, 0.203222)),
        (0.8, 7.3166, (0.729431, 0.541020, 0.431133, 0.391188)),
    ):
        share = np.sum(r ** (2 * distance)) / 31**2
        assert round(1 / share, 4) == length
        second = jnp.asarray(signal + share * (signal + total * covariance))
        loss = eqx.tree_at(lambda p: p.second, population, second)
        np.testing.assert_allclose(np.asarray(plateau_losses(loss))[1:], levels, atol=6e-7)


def test_pools_of_tasks_and_new_tasks():
    """(D23): the optimum on a pool, on its own tasks and on new ones."""
    for variances, own, new in (
        ((2, 2, 0, 0), 0.123438, 0.377773),
        ((0, 0, 2, 2), 0.052708, 0.763404),
        ((4, 0, 0, 0), 0.096970, 0.641322),
    ):
        pool = TASK.replace(tasks=icl.Normal(covariance=[float(v) for v in variances]))
        best = icl.theory.least_squares(pool)
        assert round(float(icl.Population(pool)(best)), 6) == own
        assert round(float(icl.Population(TASK)(best)), 6) == new


def test_tests_outside_of_the_covariance_have_the_reference_numbers():
    """One layer, and two in both orders, on three other covariances; as a recorded test loss."""
    best = icl.theory.least_squares(TASK).reduced_weights()[0, 0]
    minima = [layers for _, layers in depth.layer_minima(TASK)]
    stacks = [np.stack([np.asarray(best), np.zeros((4, 4))]), *minima]
    for spectrum, expected in (
        ((0.35, 0.3, 0.2, 0.15), (0.1593, 0.0459, 0.0416)),
        ((0.25,) * 4, (0.461, 1.064, 0.936)),
        ((0.1, 0.2, 0.3, 0.4), (2.11, 22.1, 20.5)),
    ):
        other = icl.Population(icl.Task(spectrum, 31))
        models = [icl.Steps(jnp.asarray(np.diagonal(m, axis1=1, axis2=2)), 4, 2) for m in stacks]
        found = [float(value(other, model)) for model in models]
        np.testing.assert_allclose(found, expected, rtol=6e-3)


def test_a_run_of_two_layers_is_identified_as_two_preconditioned_steps():
    algorithms = depth.step_algorithms(TASK)
    assert len(algorithms) == 4
    ends = [np.diagonal(layers, axis1=1, axis2=2) for _, layers in depth.layer_minima(TASK)]
    rows = jnp.asarray([1e-4 * ends[0], ends[0], ends[1]])
    stacked = jax.vmap(lambda steps: icl.Steps(steps, 4, 2))(rows)
    found = icl.diagnosis.identify.identify(stacked, TASK, among=algorithms, sequences=300)
    names = [str(name) for name in found["algorithm"].values]
    assert names == ["no step", *list(algorithms)[2:]]
    distance = found["distance"].values
    assert distance[1, 2] < 1e-4 < 1e-2 < distance[1, 1]


def test_power_laws():
    """Exponents of section 4: the theory, and fits of finite sums close to it."""
    expected = {
        (1.5, 0.75): (-0.273, -0.529, -0.652, -0.75, -0.2195),
        (1.0, 1.5): (-0.429, -0.692, -0.789, -1.5, -0.3333),
        (2.0, 0.5): (-0.200, -0.429, -0.556, -0.5, -0.1667),
    }
    for pair, (time, three, five, depth_law, fixed) in expected.items():
        law = PowerLaw(*pair, 20_000)
        assert round(law.time_exponent, 3) == time
        assert round(law.factor_exponent(3), 3) == three
        assert round(law.factor_exponent(5), 3) == five
        assert law.depth_exponent == depth_law
        assert round(law.fixed_exponent, 4) == fixed
    law, times = PowerLaw(1.5, 0.75, 20_000), np.geomspace(1e3, 1e5, 21)
    slope, error = fitted_exponent(times, law.over_time(times, np.inf))
    assert abs(slope - law.time_exponent) < 2e-3
    assert error < 1e-3
    slope, _ = fitted_exponent(times, law.fixed_over_time(times))
    assert abs(slope - law.fixed_exponent) < 2e-3
    one = law.over_time(np.array([0.0, 1e2, 1e4]), 1.0)
    assert round(one[1], 2) == round(one[2], 2) == 0.22  # one layer saturates


def test_power_laws_of_finite_depth_and_context_against_literal_sums():
    law, rng = PowerLaw(1.0, 0.5, 6), np.random.default_rng(0)
    literal = np.sum(law.powers * (1 - 0.7 * law.eigenvalues / 3) ** 6)
    np.testing.assert_allclose(law.loss(0.7, 3.0), literal, rtol=1e-12)
    step = 1e-6
    slope = -(law.loss(0.7 + step, 3.0) - law.loss(0.7 - step, 3.0)) / (4 * step)
    np.testing.assert_allclose(law.slope(0.7, 3.0), slope, rtol=1e-7)
    normals = rng.normal(size=(6, 2))
    found = law.in_context(normals)
    x = np.sqrt(law.eigenvalues)[:, None] * normals
    left = np.eye(6) - x @ np.linalg.pinv(x)
    tasks = np.diag(law.powers / law.eigenvalues)
    expected = np.trace(np.diag(law.eigenvalues) @ left @ tasks @ left.T)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    assert law.in_context(rng.normal(size=(6, 5))) < law.powers.sum()


def test_the_context_exponent_is_that_of_the_limit():
    """Samples have the exponent of the limit on their own range, which is not yet that of the law.

    Far out the exponent of the limit is -ν min(β, 2), for β on both sides of 1 and of 2.
    """
    law, rng, contexts = PowerLaw(1.0, 1.5, 500), np.random.default_rng(1), np.array([8, 16, 32])
    sampled = [
        np.mean([law.in_context(rng.normal(size=(500, n))) for _ in range(30)]) for n in contexts
    ]
    limit = law.context_limit(contexts)
    np.testing.assert_allclose(sampled, limit, rtol=0.12)
    slopes = [fitted_exponent(contexts, y)[0] for y in (np.array(sampled), limit)]
    assert abs(slopes[0] - slopes[1]) < 0.1
    assert slopes[1] > -1.4  # where the law is -1.5
    far = np.array([500.0, 4000.0])
    for pair in ((1.5, 0.75), (1.5, 1.5), (1.5, 2.5)):
        law = PowerLaw(*pair, 200_000)
        slope = np.diff(np.log(law.context_limit(far)))[0] / np.log(8)
        assert abs(slope - law.context_exponent) < 0.06
        assert law.context_exponent == -1.5 * min(pair[1], 2)
    with pytest.raises(ValueError, match="0 < N < 500 modes, got N = 500"):
        PowerLaw(1.0, 1.5, 500).context_limit(np.array([500]))


def test_the_context_limit_solves_its_equations():
    """White modes have κ and the loss in closed form: a share (1 - N/K) of the power is left."""
    law = PowerLaw(0.0, 1.0, 40)
    np.testing.assert_allclose(law.context_limit(np.array([10, 30])), [0.75, 0.25], rtol=1e-10)
