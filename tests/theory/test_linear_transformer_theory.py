"""The two theories of the linear transformer (second paper) against ODEs and one another."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import minimize

from iclflow.measures import autocorrelation_curvature
from iclflow.theory.linear_transformer import (
    CoupledFlow,
    DecoupledFlow,
    TransformerModes,
    optimum,
    overshoot,
    plateau_losses,
    transformer_curves,
    transformer_summary,
)

SPECTRUM = (1.0, 0.6, 0.36, 0.216)
MODES = TransformerModes.given(SPECTRUM, 8)
VARIED = TransformerModes.given(SPECTRUM, 8, (1.0, 0.5, 2.0, 0.25))
TIMES = np.linspace(0, 60, 61)


def decoupled_ode(flow, p, q):
    """(12) integrated to rounding."""
    size = flow.modes.size

    def right(_, y):
        rest = (1 - y[:size] * y[size:] * flow.effective) / flow.timescales
        return np.concatenate([y[size:] * rest, y[:size] * rest])

    start = np.concatenate([p, q])
    found = solve_ivp(right, (0, 60), start, "DOP853", TIMES, rtol=1e-13, atol=1e-15).y.T
    return found[:, :size], found[:, size:]


STARTS = [(0.1, 0.1), (0.3, 0.1), (0.1, 0.3), (-0.5, -0.2), (0.5, -0.2), (0.3, -0.3), (0.2, 0.0),
          (2.0, 0.1), (0.1, 0.1 + 1e-9), (0.0, 0.0)]  # fmt: skip


@pytest.mark.parametrize("start", STARTS)
def test_closed_form_solves_the_decoupled_equations(start):
    """(12) integrated to rounding."""
    flow = DecoupledFlow(VARIED)
    p, q = (np.full(4, x) for x in start)
    expected = decoupled_ode(flow, p, q)
    for found, true in zip(flow.weights(TIMES, p, q), expected, strict=True):
        np.testing.assert_allclose(found, true, atol=1e-11)


def test_closed_form_is_the_papers():
    """(13) from a balanced start, and the tanh form with u = q/p from an unbalanced one."""
    flow = DecoupledFlow(MODES)
    p, q = np.full(4, 0.1), np.full(4, 0.04)
    np.testing.assert_allclose(flow.products(TIMES, p, p), flow.balanced(TIMES, p * p), rtol=1e-12)
    c = p**2 - q**2
    kappa = flow.effective * c / 2
    rho, v = np.sqrt(1 + kappa**2), q / p + kappa
    tanh = np.tanh(rho * TIMES[:, None] / flow.timescales)
    u = rho * (v + rho * tanh) / (rho + v * tanh) - kappa
    np.testing.assert_allclose(flow.products(TIMES, p, q), c * u / (1 - u**2), rtol=1e-9)
    first, second = flow.weights(TIMES, p, q)
    np.testing.assert_allclose(first**2 - second**2, np.tile(c, (61, 1)), rtol=1e-9)


def test_decoupled_constants_and_loss():
    """a∞ (11), the loss (14) and its end, half-times of (13)."""
    flow, s = DecoupledFlow(MODES), np.asarray(SPECTRUM)
    np.testing.assert_allclose(flow.effective, (9 * s + s.sum()) / 8)
    np.testing.assert_allclose(flow.timescales, 1 / s**2)
    end = 1 / flow.effective
    assert flow.final_loss == pytest.approx(float(flow.loss(end)), rel=1e-13)
    assert flow.final_loss == pytest.approx(0.5 * np.sum(s * (s + s.sum()) / (9 * s + s.sum())))
    assert float(flow.loss(np.zeros(4))) == pytest.approx(s.sum() / 2)
    half = flow.half_times(np.full(4, 1e-4))
    small = np.full(4, 1e-12)
    for mode, at in enumerate(flow.drop_times(small)):  # the loss of a mode, the others at zero
        one = flow.products(np.array([at]), small**0.5, small**0.5)[0] * (np.arange(4) == mode)
        ends = [flow.loss(share * flow.fixed_point * (np.arange(4) == mode)) for share in (0, 1)]
        assert flow.loss(one) == pytest.approx(np.mean(ends), rel=1e-9)
    found = flow.balanced(np.sort(half), np.full(4, 1e-4))
    np.testing.assert_allclose(np.diagonal(found), end / 2, rtol=1e-12)
    np.testing.assert_allclose(flow.escape_times(np.full(4, 1e-4)), half, rtol=1e-4)


def test_slope_and_hessian_are_derivatives_of_the_loss():
    flow = CoupledFlow(VARIED)
    s, v, n = jnp.asarray(VARIED.spectrum), jnp.asarray(VARIED.variances), VARIED.context

    def loss(w):
        p, q = w[:4], w[4:]
        # Σ_αβ v_α p_α² E[Σ̂_αβ²] s_β q_β² - 2 Σ v s² p q + Σ v s, straight from the definition.
        square = jnp.diag(s**2) * (1 + 1 / n) + jnp.outer(s, s) / n
        return (v * p**2 @ square @ (s * q**2) - 2 * jnp.sum(v * s**2 * p * q) + v @ s) / 2

    rng = np.random.default_rng(0)
    p, q = rng.normal(size=(2, 4))
    w = jnp.concatenate([jnp.asarray(p), jnp.asarray(q)])
    value, gradient, hessian = jax.jit(
        lambda w: (loss(w), jax.grad(loss)(w), jax.hessian(loss)(w))
    )(w)
    assert float(flow.loss(p, q)) == pytest.approx(float(value), rel=1e-14)
    np.testing.assert_allclose(np.concatenate(flow.slope(p, q)), -gradient, atol=1e-13)
    np.testing.assert_allclose(flow.hessian(p, q), hessian, atol=1e-13)
    first, second = flow.slope(p, q)
    # τ d(p² - q²)/dt is not zero by mode, and its sum over modes is.
    drift = 2 * (p * first - q * second)
    assert np.abs(drift).min() > 1e-3
    assert abs(drift.sum()) < 1e-13


def test_only_the_whole_is_conserved():
    flow = CoupledFlow(MODES)
    p, q = np.full(4, 0.3), np.full(4, 0.1)
    course = flow.solve(np.linspace(0, 400, 50), p, q)
    total = course.conserved.sum(axis=1)
    np.testing.assert_allclose(total, total[0], atol=1e-8)
    assert np.abs(course.conserved - course.conserved[:1]).max() > 0.1
    # Where it ends up does not depend on N, only the time that it takes.
    ends = [optimum(TransformerModes.given(SPECTRUM, n)).weights(0.0) for n in (8, 512, 32768)]
    ratios = [p / q / np.sqrt(np.asarray(SPECTRUM)) for p, q in ends]
    for ratio in ratios:
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-12)


def test_error_of_the_paper_falls_as_one_over_the_context():
    contexts, errors = np.asarray([8, 64, 256, 1024, 4096]), []
    time, start = np.linspace(0, 400, 4001), np.full(4, 0.01)
    for context in contexts:
        modes = TransformerModes.given(SPECTRUM, int(context))
        paper = DecoupledFlow(modes)
        course = CoupledFlow(modes).solve(time, start, start, tolerance=1e-9)
        gap = np.abs(paper.products(time, start, start) - course.products)
        errors.append((gap / paper.fixed_point).max())
    np.testing.assert_allclose(errors, [0.858, 0.193, 0.0504, 0.0129, 0.00325], rtol=5e-3)
    slope = np.polyfit(np.log(contexts[1:]), np.log(errors[1:]), 1)[0]
    assert slope == pytest.approx(-0.98, abs=0.015)


@pytest.mark.parametrize("modes", [MODES, VARIED, TransformerModes.given((2.0, 1.0, 0.02), 4)])
def test_optimum_is_the_end_of_a_long_flow(modes):
    best, flow = optimum(modes), CoupledFlow(modes)
    start = np.linspace(0.2, 0.3, modes.size)
    course = flow.solve(np.asarray([0.0, 1e6]), start, start, tolerance=1e-11)
    np.testing.assert_allclose(course.products[-1], best.products, atol=1e-9)
    assert float(flow.loss(course.p[-1], course.q[-1])) == pytest.approx(best.loss, abs=1e-13)
    p, q = best.weights(0.4)
    np.testing.assert_allclose(p * q, best.products, rtol=1e-12)
    assert np.sum(p**2 - q**2) == pytest.approx(0.4)
    assert float(flow.loss(p, q)) == pytest.approx(best.loss, rel=1e-13)
    assert np.abs(np.concatenate(flow.slope(p, q))).max() < 1e-13


def test_optimum_formulas_and_active_set():
    s, n = np.asarray(SPECTRUM), 8
    best = optimum(MODES)
    root = np.sqrt(s)
    np.testing.assert_allclose(
        best.products, n / ((n + 1) * s) * (1 - root.sum() / ((n + 5) * root)), rtol=1e-13
    )
    whole = (s.sum() + n * root.sum() ** 2 / (n + 5)) / (2 * (n + 1))
    assert best.loss == pytest.approx(whole, rel=1e-13)
    rng = np.random.default_rng(5)
    for _ in range(20):
        modes = TransformerModes.given(
            np.exp(rng.normal(0, 2, 4)), int(rng.integers(1, 6)), np.exp(rng.normal(0, 1, 4))
        )
        best, power = optimum(modes), np.sqrt(modes.variances * modes.spectrum)
        # Every active set whose stationary point is feasible; the least of them, by brute force.
        losses = []
        for size in range(1, 5):
            for chosen in itertools.combinations(range(4), size):
                part = power[list(chosen)]
                level = part.sum() / (modes.context + 1 + size)
                if np.all(part > level):
                    share = modes.context / (modes.context + 1)
                    losses.append((np.sum(power**2) - share * np.sum(part * (part - level))) / 2)
        assert best.loss == pytest.approx(min(losses), rel=1e-12)
        np.testing.assert_array_equal(best.active, power**2 > best.threshold)
        start = np.concatenate(best.weights(0.0)) + 0.05
        flow = CoupledFlow(modes)
        found = minimize(lambda w, f=flow: float(f.loss(w[:4], w[4:])), start)
        assert found.fun >= best.loss - 1e-9


def test_fast_modes_overshoot_and_drift_back():
    """To the best that the learned modes can do alone; later modes make them give way."""
    equal = TransformerModes.given(np.full(3, 0.7), 10)
    np.testing.assert_allclose(overshoot(equal)[2], 10 / (14 * 0.7), rtol=1e-13)
    modes = TransformerModes.given((2.0, 0.3, 0.04), 20)
    flow, start = CoupledFlow(modes), np.full(3, 1e-5)
    course = flow.solve(np.geomspace(0.01, 1e5, 20_001), start, start)
    a, loss = course.products, flow.loss(course.p, course.q)
    levels, best = overshoot(modes), optimum(modes)
    assert levels[0] == pytest.approx(20 / (22 * 2.0), rel=1e-13)
    np.testing.assert_allclose(a.max(axis=0), levels, rtol=1e-4)
    for mode, level in enumerate(plateau_losses(modes)[:-1]):
        waiting = np.searchsorted(a[:, mode], 1e-5)  # the next mode is still nothing
        assert loss[waiting] == pytest.approx(level, rel=1e-4)
    np.testing.assert_allclose(a[-1], best.products, rtol=1e-6)
    assert np.all(a.max(axis=0)[:2] > 1.01 * best.products[:2])
    with pytest.raises(ValueError, match="must be 0 to 3, got 4"):
        optimum(modes, 4)


def test_autocorrelation_finds_the_half_times():
    """s = 2, 1, ½, ¼, N = 4096, ηP = 0.05: half-times 21, 92, 396, 1695."""
    modes = TransformerModes.given((2.0, 1.0, 0.5, 0.25), 4096)
    epochs, start = np.arange(4001.0), np.full(4, 0.01)
    course = CoupledFlow(modes).solve(0.05 * epochs, start, start)
    half = [
        np.interp(end / 2, a, epochs)
        for a, end in zip(course.products.T, DecoupledFlow(modes).fixed_point, strict=True)
    ]
    np.testing.assert_allclose(half, [21.3, 91.9, 395, 1693], rtol=5e-3)
    peaks = autocorrelation_curvature(epochs, CoupledFlow(modes).loss(course.p, course.q)).peaks(
        1e-4
    )
    nearest = [peaks[np.argmin(np.abs(np.log(peaks / h)))] for h in half]
    np.testing.assert_allclose(nearest, half, rtol=0.08)


def test_final_loss_is_off_at_leading_order():
    """N L(∞) and N L_opt tend to different limits unless all eigenvalues are equal."""
    s = np.asarray(SPECTRUM)
    modes = TransformerModes.given(s, 10**7)
    ratio = DecoupledFlow(modes).final_loss / optimum(modes).loss
    assert ratio == pytest.approx(5 * s.sum() / (s.sum() + np.sqrt(s).sum() ** 2), rel=1e-5)
    assert ratio > 1.06


def test_scaling_of_tasks_and_inputs():
    """W → cW leaves a and scales time and loss; x → cx scales a by 1/c²."""
    base, paper = optimum(MODES), DecoupledFlow(MODES)
    louder = TransformerModes.given(SPECTRUM, 8, np.full(4, 4.0))
    np.testing.assert_allclose(optimum(louder).products, base.products, rtol=1e-13)
    assert optimum(louder).loss == pytest.approx(4 * base.loss, rel=1e-13)
    np.testing.assert_allclose(DecoupledFlow(louder).timescales, paper.timescales / 4)
    larger = TransformerModes.given(4 * np.asarray(SPECTRUM), 8)
    np.testing.assert_allclose(optimum(larger).products, base.products / 4, rtol=1e-13)
    np.testing.assert_allclose(DecoupledFlow(larger).fixed_point, paper.fixed_point / 4)


def test_summary_and_curves_agree_with_the_flows():
    found = transformer_summary(MODES, (0.01, 0.01), epoch_rate=0.02)
    paper = DecoupledFlow(MODES)
    np.testing.assert_allclose(found["timescales"], paper.timescales / 0.02)
    np.testing.assert_allclose(
        found["paper_half_times"], paper.half_times(np.full(4, 1e-4)) / 0.02, rtol=1e-4
    )
    assert found["paper_error"] == pytest.approx(0.858, abs=2e-3)
    curves = transformer_curves(MODES, (0.02, 0.01))
    assert curves["exact_loss"][-1] > optimum(MODES).loss
    total = curves["balance"].sum(axis=1)
    np.testing.assert_allclose(total, 4 * (0.02**2 - 0.01**2), atol=1e-7)
    with pytest.raises(ValueError, match="between 0 and a∞/2"):
        transformer_summary(MODES, (2.0, 2.0))
    with pytest.raises(ValueError, match="eigenvalues above 0"):
        TransformerModes.given((1.0, 0.0), 8)
    with pytest.raises(ValueError, match="2 task variances above 0"):
        TransformerModes.given((1.0, 0.5), 8, (1.0,))
    with pytest.raises(ValueError, match="at least one labelled pair"):
        TransformerModes.given((1.0, 0.5), 0)
