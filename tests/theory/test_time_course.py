"""Time courses: merged closed form and reduced flow, the scalar ODE, alignment, dormant heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad, solve_ivp
from scipy.linalg import expm
from scipy.special import ellipkinc, ellipkm1

from iclflow.losses import Population
from iclflow.models import Merged, Separate
from iclflow.tasks.laws import Normal
from iclflow.tasks.task import Task
from iclflow.theory.drops import dormant, scalar_ode
from iclflow.theory.drops import one_drop as time_course
from iclflow.theory.fixed_points.modes import Modes
from tests.helpers import gradient_flow

WHITE = Task([0.25] * 4, 31)
LINEAR = Task([0.4, 0.3, 0.2, 0.1], 31)
TILTED = np.array([[2, 0.5, 0, 0], [0.5, 1, 0.3, 0], [0, 0.3, 1, 0.2], [0, 0, 0.2, 0.5]])


def merged(task, scale, seed=0):
    return Merged.initialiser(task, heads=8, scale=scale)(jax.random.key(seed))


def slope(scales, errors):
    return np.polyfit(np.log(scales), np.log(errors), 1)[0]


# Merged key and query


def test_white_closed_form_is_second_order_in_the_init_scale():
    """(15) with the s(0) of E2, along the alignment (44), against the flow."""
    population, scales = Population(WHITE), np.array([1e-1, 1e-2, 1e-3])
    losses, weights, papers = [], [], []
    for scale in scales:
        model = merged(WHITE, scale)
        course = time_course.WhiteCourse(population, model)
        end = 2.5 * float(course.half_time())
        flow, times = gradient_flow.merged_flow(population, model, end), np.linspace(0, end, 41)
        losses.append(np.abs(np.asarray(course.loss(times)) - flow.loss(times)).max())
        start = jnp.sum(model.values**2)
        strength = time_course.logistic_strength(times, start, course.rate, course.saturation)
        paper = course.power - 2 * course.rate * strength + course.saturation * strength**2
        papers.append(np.abs(np.asarray(paper) - flow.loss(times)).max())
        for time, truth in zip(times[::10], flow.weights(times[::10]).T, strict=True):
            predicted = course.model(time)
            flat = np.concatenate([predicted.values.ravel(), predicted.merged.ravel()])
            weights.append(np.abs(flat - truth).max())
    assert losses[0] < 5e-3
    assert 1.9 < slope(scales, losses) < 2.1
    assert 1.8 < slope(scales, np.reshape(weights, (3, -1)).max(axis=1)) < 2.2
    assert min(papers) > 0.05  # s(0) = |w₂|² is off at every scale


def test_white_closed_form_of_the_paper():
    """(15)(45)-(48): γ = c² √D, α = c³ (1 + (1 + D)/N), for aligned weights W₁ = w₂ m̂ᵀ."""
    c, D, N = 0.25, 4, 31
    gamma, alpha = c**2 * D**0.5, c**3 * (1 + (1 + D) / N)
    values = jnp.full((3, 1, 1), 1e-3)
    model = Merged(values=values, merged=values * jnp.eye(D)[None] / D**0.5)
    course = time_course.WhiteCourse(Population(WHITE), model)
    assert course.rate == pytest.approx(gamma, rel=1e-12)
    assert course.saturation == pytest.approx(alpha, rel=1e-12)
    assert course.initial == pytest.approx(3e-6, rel=1e-12)
    half = float(course.half_time())
    assert course.strength(half) == pytest.approx(gamma / (2 * alpha), rel=1e-12)
    sigma = float(course.strength(half)) / D**0.5
    loss = c * D - 2 * sigma * c**2 * D + sigma**2 * c**3 * D * (1 + (1 + D) / N)
    assert course.loss(half) == pytest.approx(loss, rel=1e-12)
    assert course.strength(1e4) == pytest.approx(gamma / alpha, rel=1e-12)
    together = jax.vmap(course.loss)(jnp.linspace(0.0, 200.0, 5))
    assert np.isfinite(together).all()


def test_closed_form_holds_on_the_range_of_the_covariance():
    task = Task([0.5, 0.5, 0.0], 5)
    model = merged(task, 1e-3)
    course = time_course.WhiteCourse(Population(task), model)
    end = 2 * float(course.half_time())
    flow, times = gradient_flow.merged_flow(Population(task), model, end), np.linspace(0, end, 30)
    assert np.abs(np.asarray(course.loss(times)) - flow.loss(times)).max() < 1e-6


def test_closed_form_refuses_other_spectra():
    with pytest.raises(ValueError, match="white inputs"):
        time_course.WhiteCourse(Population(LINEAR), merged(LINEAR, 1e-3))


@pytest.mark.parametrize("covariance", [None, TILTED], ids=["commuting", "not commuting"])
def test_merged_course_of_any_covariance(covariance):
    """E2: the reduced flow against the whole one."""
    law = None if covariance is None else Normal(covariance=covariance)
    task = Task([0.4, 0.3, 0.2, 0.1], 31, tasks=law)
    population, errors = Population(task), []
    modes = Modes.of(population)
    levels = np.asarray([modes.power, modes.level(range(4))])
    for scale in (1e-1, 1e-2, 1e-3):
        model = merged(task, scale)
        half = time_course.merged_half_time(population, model)
        flow = gradient_flow.merged_flow(population, model, 2.5 * half)
        errors.append(abs(half / flow.crossings(levels)[0] - 1))
    assert np.all(np.asarray(errors) < [2e-3, 1e-4, 1e-5])
    assert errors[0] > 5 * errors[1] > 25 * errors[2]  # it vanishes with the init
    times = np.linspace(0, 2.5 * half, 50)
    found = time_course.merged_course(population, model, times)
    assert np.abs(np.asarray(found.loss) - flow.loss(times)).max() < 1e-4
    assert np.abs(np.asarray(found.values)[25:] - flow.values(times)[25:]).max() < 5e-3
    M = flow.matrix(flow.weights(times))
    assert np.abs(np.asarray(found.effective) - M).max() < 5e-3


def test_merged_course_at_rest():
    model = Merged(values=jnp.zeros((2, 1, 1)), merged=jnp.zeros((2, 4, 4)))
    found = time_course.merged_course(Population(LINEAR), model, [0.0, 1e3])
    assert np.allclose(found.loss, 1.0)
    assert time_course.merged_half_time(Population(LINEAR), model) == np.inf


def test_the_papers_duration_is_the_leading_logarithm():
    """(49)-(51) is short by a share that falls as 1/ln(1/w)."""
    population, gaps = Population(LINEAR), []
    for scale in (1e-1, 1e-3, 1e-6):
        true = time_course.merged_half_time(population, merged(LINEAR, scale))
        gaps.append(1 - float(time_course.paper_merged_duration(population, scale)) / true)
    assert gaps[0] > 0.25
    assert 0.05 < gaps[2] < gaps[1] < gaps[0]
    assert gaps[1] / gaps[2] == pytest.approx(2, rel=0.25)  # as 1/ln(1/w)


# The scalar ODE (26)(66)(67)(72)

G, K = 0.16, 0.0712  # λ = 0.4, N = 31
V = (G / K) ** (1 / 3)


@pytest.mark.parametrize(
    ("start", "stop"),
    [(1e-6, 0.5), (1e-3, 0.99 * V), (0.5, 0.9), (0.9 * V, 0.999 * V), (2 * V, 1.01 * V), (1e4, 2)],
)
def test_explicit_time_is_the_quadrature(start, stop):
    """(67) against the integral of dt/dv (26)."""
    elapsed = float(scalar_ode.value_time(stop, G, K) - scalar_ode.value_time(start, G, K))
    logs = np.log([start, stop])
    integral = quad(lambda u: 1 / (G * np.exp(u) - K * np.exp(4 * u)), *logs, epsabs=0, limit=400)
    assert elapsed == pytest.approx(integral[0], rel=1e-10)
    assert float(scalar_ode.value_course(elapsed, start, G, K)) == pytest.approx(stop, rel=1e-10)
    mirrored = scalar_ode.value_course(elapsed, -start, G, K)
    assert float(mirrored) == pytest.approx(-stop, rel=1e-10)


@settings(max_examples=60)
@given(
    st.floats(-7, 4),
    st.floats(0, 1),
    st.floats(-3, 1),
    st.floats(-4, 1),
)
def test_value_course_inverts_value_time(log_start, share, log_gain, log_curvature):
    g, k = 10.0**log_gain, 10.0**log_curvature
    c = (k / g) ** (1 / 3)
    start = 10.0**log_start / c
    stop = start**share * (1 / c) ** (1 - share)  # between v(0) and v*
    x = c * stop
    if abs(1 - x) < 1e-6:
        return
    elapsed = scalar_ode.value_time(stop, g, k) - scalar_ode.value_time(start, g, k)
    # Rounding of t alone moves v by |dv/dt| eps t.
    rounding = 1e-15 * float(elapsed) * abs(g * stop - k * stop**4) + 1e-11
    found = float(scalar_ode.value_course(elapsed, start, g, k))
    assert found == pytest.approx(stop, rel=10 * rounding)


def test_value_course_solves_the_ode_and_has_its_derivative():
    times = np.linspace(0, 60, 13)
    truth = solve_ivp(
        lambda t, v: G * v**2 - K * v**5, (0, 60), [0.2], t_eval=times, rtol=1e-12, atol=1e-14
    ).y[0]
    found = np.asarray(scalar_ode.value_course(times, 0.2, G, K))
    assert np.abs(found - truth).max() < 1e-9
    rate = jax.vmap(jax.grad(lambda t: scalar_ode.value_course(t, 0.2, G, K)))(jnp.asarray(times))
    assert np.abs(np.asarray(rate) - (G * found**2 - K * found**5)).max() < 1e-12


def test_value_course_at_its_ends():
    late = jnp.array([0.0, 1e3, 1e9])
    assert np.all(np.asarray(scalar_ode.value_course(late, 0.0, G, K)) == 0)
    assert np.all(np.asarray(scalar_ode.value_course(late, 0.3, 0.0, 0.0)) == 0.3)  # λ = 0
    assert np.allclose(scalar_ode.value_course(late, V, G, K), V, rtol=1e-12)
    assert np.allclose(scalar_ode.value_course(late[1:], jnp.array([1e-2, 30.0]), G, K), V)
    assert scalar_ode.value_time(0.3, 0.0, 0.0) == np.inf


def test_mid_drop_of_an_aligned_start():
    """It comes κ c/g before dx/dθ = x² alone would blow up, κ = 1/x - ∫₀ˣ y/(1 - y³) dy = 1.253."""
    middle = scalar_ode.X_MID
    kappa = 1 / middle - quad(lambda y: y / (1 - y**3), 0, middle, epsabs=1e-13)[0]
    c, start = 1 / V, 1e-3
    exact = float(scalar_ode.mid_drop_time(start, G, K))
    assert exact == pytest.approx(1 / (G * start) - kappa * c / G, rel=1e-8)
    value = scalar_ode.value_course(exact, start, G, K)
    assert float((1 - (c * value) ** 3) ** 2) == pytest.approx(0.5, rel=1e-9)
    left = scalar_ode.blow_up_course(1 / (G * start) - exact, G, K)
    assert float(left) == pytest.approx(float(value), rel=(c * start) ** 2)
    assert float(scalar_ode.paper_duration(-start, G)) == pytest.approx(1 / (G * start))


# Alignment and dormant heads


def random_heads(seed, heads, rank, size):
    rng = np.random.default_rng(seed)
    shape = (heads, rank, size)
    return rng.normal(size=heads) / 2, *(rng.normal(size=shape) / 3 for _ in range(2))


def literal_dormant(v, k, q, A, end, limit=None):
    """One head by SciPy; stops when |v| reaches `limit`."""
    shape = k.shape

    def rate(t, y):
        v, k, q = y[0], y[1 : 1 + k_size].reshape(shape), y[1 + k_size :].reshape(shape)
        return np.concatenate([[np.sum((k @ A) * q)], (v * q @ A.T).ravel(), (v * k @ A).ravel()])

    def large(t, y):
        return abs(y[0]) - limit if limit else 1.0

    large.terminal = True
    k_size, start = k.size, np.concatenate([[v], k.ravel(), q.ravel()])
    return solve_ivp(rate, (0, end), start, "DOP853", rtol=1e-12, atol=1e-14, events=large)


def test_aligned_weights_are_the_exponential_of_the_linear_flow():
    """(62)(63)(69)(70) by SciPy's matrix exponential."""
    modes = Modes.of(Task([0.4, 0.3, 0.2, 0.1], 31, tasks=Normal(covariance=TILTED)))
    A = np.asarray(modes.residual([0]))
    _, k, q = random_heads(0, 1, 2, 4)
    phase = 7.3
    both = expm(phase * np.block([[np.zeros((4, 4)), A], [A.T, np.zeros((4, 4))]]))
    truth = np.concatenate([k[0], q[0]], axis=1) @ both.T
    found = dormant.aligned_weights(jnp.asarray(k[0]), jnp.asarray(q[0]), jnp.asarray(A), phase)
    assert np.abs(np.concatenate(found, axis=1) - truth).max() < 1e-12


def test_learned_modes_are_frozen_one_by_one():
    """E6."""
    A = np.diag([0.0, 0.09, 0.04])  # mode 0 is learned
    k, q = jnp.array([0.3, 0.1, 0.2]), jnp.array([-0.5, 0.2, 0.1])
    new_k, new_q = dormant.aligned_weights(k, q, jnp.asarray(A), 20.0)
    assert new_k[0] == pytest.approx(0.3, rel=1e-12)
    assert new_q[0] == pytest.approx(-0.5, rel=1e-12)
    assert new_k[1] / new_q[1] == pytest.approx(1, abs=0.1)  # the others align


@pytest.mark.parametrize("rank", [1, 3])
def test_blow_up_times_and_weights_of_dormant_heads(rank):
    """(61)(69) integrated by SciPy until the head is large."""
    A = np.asarray(Modes.of(LINEAR).residual([]))
    v, k, q = random_heads(1, 12, rank, 4)
    v[:3] *= 1e-3
    v[3] = 0.0
    heads = dormant.DormantHeads.of(v, k, q, A)
    times, signs = heads.blow_up()
    turned = 0
    for i in range(len(v)):
        solution = literal_dormant(v[i], k[i], q[i], A, 2 * times[i], limit=1e6)
        truth = solution.t[-1] + 1 / (0.16 * 1e6)
        assert times[i] == pytest.approx(truth, rel=1e-7)
        assert np.sign(solution.y[0, -1]) == signs[i]
        turned += np.sign(v[i]) == -signs[i]
    assert turned > 0  # some heads pass through v = 0
    wait = 0.7 * times.min()
    model = Separate(
        values=jnp.asarray(v)[:, None, None], keys=jnp.asarray(k), queries=jnp.asarray(q)
    )
    later = dormant.plateau_weights(model, A, wait)
    for i in range(len(v)):
        y = literal_dormant(v[i], k[i], q[i], A, wait).y[:, -1]
        parts = (later.values[i], later.keys[i], later.queries[i])
        found = np.concatenate([np.ravel(a) for a in parts])
        assert np.abs(found - y).max() < 1e-8 * np.abs(y).max()
    assert heads.after(wait).blow_up()[0] == pytest.approx(times - wait, rel=1e-9)
    with pytest.raises(ValueError, match="escapes before"):
        heads.after(float(np.median(times)))


def one_head(v, k, q):
    k, q = (np.asarray(a, float)[None, None] for a in (k, q))
    return dormant.DormantHeads.of(np.array([float(v)]), k, q, np.diag([0.16, 0.09]))


def test_aligned_head_blows_up_at_one_over_g_v():
    for v, k, q in [(0.01, 0.01, 0.01), (-0.01, 0.01, -0.01), (-0.01, -0.01, 0.01)]:
        time, sign = one_head(v, [k, 0], [q, 0]).blow_up()
        assert time[0] == pytest.approx(1 / (0.16 * 0.01), rel=1e-12)
        assert sign[0] == np.sign(v)


def test_heads_that_never_escape():
    for v, k, q in [(0, 0, 0), (0.1, 0, 0), (0, 0, 0.1), (0.2, 0.01, -0.01)]:
        heads = one_head(v, [k, 0], [q, 0])
        assert heads.blow_up()[0][0] == np.inf
        later = heads.after(5.0)
        truth = literal_dormant(
            v, np.array([[k, 0.0]]), np.array([[q, 0.0]]), np.diag([0.16, 0.09]), 5.0
        ).y[:, -1]
        assert later.values[0] == pytest.approx(truth[0], abs=1e-9)
        assert np.isfinite(later.sums).all()
    frozen = dormant.DormantHeads.of(*random_heads(0, 2, 1, 3), np.zeros((3, 3)))
    assert np.all(frozen.blow_up()[0] == np.inf)
    assert np.array_equal(frozen.after(3.0).values, frozen.values)


@pytest.mark.parametrize("gap", [1.0, 1e-2, 1e-5, 1e-10])
def test_a_head_that_turns_where_two_zeros_of_w_are_close(gap):
    # g = 1, p = 1, n = 2: W(s) = v² + ¼ (e^{2s} - 1) + (e^{-2s} - 1), which touches zero at
    # v = ½ and has two zeros of e^{2s} for v² = ¼ (1 - gap).
    v = 0.5 * np.sqrt(1 - gap)
    heads = dormant.DormantHeads.of(
        np.array([v]), np.array([[[1.5]]]), np.array([[[-0.5]]]), np.eye(1)
    )
    # z = e^{2s}: t = ∫ dz/√(z (z² - (5 - 4v²) z + 4)) with zeros a < 2 < b: it goes from 1 to a,
    # turns, and ends at 0; z = a sin²φ makes an elliptic integral of the first kind of it.
    gap = 4 * (0.5 - v) * (0.5 + v)  # of the rounded v
    root = np.sqrt(2 * gap + gap**2 / 4)
    a, b = 2 + gap / 2 - root, 2 + gap / 2 + root
    whole, missing = ellipkm1(2 * root / b), ellipkinc(np.arcsin(np.sqrt(1 / a)), a / b)
    truth = 2 / np.sqrt(b) * (2 * whole - missing)
    rounding = np.finfo(float).eps / gap / 10  # of the weights, which moves the zeros
    assert heads.blow_up()[0][0] == pytest.approx(truth, rel=1e-12 + rounding)
    assert heads.blow_up()[1][0] == -1


@example(seed=1951, size=4, rank=1, spread=-3.0)
@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 3), st.floats(-3, 0))
def test_dormant_times_scale_and_add_up(seed, size, rank, spread):
    rng = np.random.default_rng(seed)
    gains = np.sort(10.0 ** rng.uniform(-2, 0, size))[::-1]
    v, k, q = random_heads(seed, 5, rank, size)
    v, k = v * 10.0 ** rng.uniform(spread, 0, 5), k * 10.0 ** rng.uniform(spread, 0, k.shape)
    heads = dormant.DormantHeads(v, k + q, k - q, gains)
    times, _ = heads.blow_up()
    assert np.all(np.isfinite(times))
    assert np.all(times > 0)
    small = dormant.DormantHeads(1e-9 * v, 1e-9 * (k + q), 1e-9 * (k - q), gains)
    assert small.blow_up()[0] * 1e-9 == pytest.approx(times, rel=1e-6)
    wait = 0.5 * float(times.min())
    assert heads.after(wait).blow_up()[0] == pytest.approx(times - wait, rel=1e-5)
