"""The statements of docs/corrections.md, each against a literal computation that knows no theory.

Everything here is NumPy, SciPy and automatic differentiation of the reduced population loss
L(M) = E[y²] - 2⟨M, G⟩ + tr(Mᵀ B M Λ), except where the statement is about prompts.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp

from iclflow.losses import Sequences
from iclflow.models import Blocks, Merged, Separate
from iclflow.tasks.base import Normaliser
from iclflow.tasks.task import Task

SPECTRUM = np.array([0.4, 0.3, 0.2, 0.1])


def moments(spectrum, task_covariance, context, noise=0.0):
    """Λ, B and G of Gaussian inputs."""
    covariance = np.diag(spectrum)
    signal = covariance @ task_covariance @ covariance
    power = np.trace(covariance @ task_covariance)
    second = (1 + 1 / context) * signal + (power + noise) * covariance / context
    return covariance, second, signal


def loss(weights, covariance, second, cross):
    """L - E[y²] of weights (v [H], k [H, R, D], q [H, R, D])."""
    m = jnp.einsum("h,hrd,hrc->dc", *weights)
    return jnp.sum(m * (second @ m @ covariance)) - 2 * jnp.sum(m * cross)


gradient = jax.jit(jax.grad(loss))


def largest_gradient(weights, *task):
    return max(float(np.max(np.abs(g))) for g in gradient(weights, *task))


def rank_one(modes, size, heads):
    """Minimal-norm rank-one weights (25) that hold `modes`: [(direction, weight), ...]."""
    v, k = np.zeros(heads), np.zeros((heads, 1, size))
    for head, (direction, weight) in enumerate(modes):
        v[head] = weight ** (1 / 3)
        k[head, 0] = v[head] * np.eye(size)[direction]
    return jnp.asarray(v), jnp.asarray(k), jnp.asarray(k)


def hessian_eigenvalues(weights, *task):
    flat, unflatten = ravel_pytree(weights)
    return np.linalg.eigvalsh(jax.jit(jax.hessian(lambda f: loss(unflatten(f), *task) / 2))(flat))


def test_the_flow_of_the_query_has_q_k_transposed():
    """(19c)."""
    covariance, second, cross = task = moments(SPECTRUM, np.eye(4), 31)
    off = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        v, k, q = (jnp.asarray(rng.normal(size=s)) for s in ((5,), (5, 1, 4), (5, 1, 4)))
        truth = -gradient((v, k, q), *task)[2][:, 0] / 2
        product = jnp.einsum("h,hd,hc->dc", v, k[:, 0], q[:, 0])
        right, printed = (
            v[:, None] * (k[:, 0] @ (cross - covariance @ sum_of_heads @ second).T)
            for sum_of_heads in (product.T, product)
        )
        assert float(jnp.max(jnp.abs(right - truth))) < 1e-13
        off.append(float(jnp.linalg.norm(printed - truth) / jnp.linalg.norm(truth)))
    assert np.median(off) == pytest.approx(0.73, abs=0.01)
    assert min(off) > 0.1


def test_order_of_learning_follows_the_drop_not_the_gain():
    """E1."""
    covariance, second, cross = task = moments([1.0, 0.5], np.diag([1.0, 3.0]), 200)
    gains, scales = np.diag(cross), np.diag(covariance) * np.diag(second)
    drops, weight = gains**2 / scales, gains / scales
    assert gains[0] > gains[1]
    assert drops[1] > drops[0]
    states = [rank_one([(d, weight[d])], 2, heads=2) for d in (0, 1)]
    assert max(largest_gradient(state, *task) for state in states) < 1e-14
    lowest = [hessian_eigenvalues(state, *task)[0] for state in states]
    assert lowest[0] < -0.01  # holding the mode of largest gain: a strict saddle
    assert lowest[1] > -1e-12  # holding the mode of largest drop: no direction of descent


def test_fixed_points_of_any_task_are_partial_singular_value_decompositions():
    """E1."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    covariance, second, cross = task = moments([0.5, 0.3, 0.2], root @ root.T, 10, noise=0.1)
    powers = {}
    for name, matrix in (("B", second), ("Λ", covariance)):
        values, vectors = np.linalg.eigh(matrix)
        powers[name] = vectors @ np.diag(values**-0.5) @ vectors.T
    u, sigma, w = np.linalg.svd(powers["B"] @ cross @ powers["Λ"])
    assert not np.allclose(cross @ covariance, covariance @ cross)  # nothing commutes
    for chosen in ([0], [2], [0, 2], [0, 1, 2]):
        left, right = powers["B"] @ u[:, chosen], powers["Λ"] @ w.T[:, chosen]
        weights = (
            jnp.asarray(sigma[chosen]),
            jnp.asarray(left.T[:, None, :]),
            jnp.asarray(right.T[:, None, :]),
        )
        assert largest_gradient(weights, *task) < 1e-13
        assert float(loss(weights, *task)) == pytest.approx(-np.sum(sigma[chosen] ** 2), abs=1e-13)


def white_merged(scale, seed, size=4, heads=8, context=31):
    """Flow of the merged model, Λ = I/D, and (15) from two choices of s(0)."""
    c = 1 / size
    gamma, alpha = c**2 * size**0.5, c**3 * (1 + (1 + size) / context)
    rng = np.random.default_rng(seed)
    second0 = rng.normal(size=heads) * scale / heads**0.5
    first0 = rng.normal(size=(heads, size**2)) * scale / (heads**0.5 * size)
    direction = np.eye(size).ravel() / size**0.5  # E[yz] normalised

    def flow(_, state):
        w2, w1 = state[:heads], state[heads:].reshape(heads, -1)
        residual = gamma * direction - alpha * (w2 @ w1)
        return np.concatenate([w1 @ residual, np.outer(w2, residual).ravel()])

    def closed_form(start, t):
        growth = np.exp(2 * gamma * t)
        return gamma * growth / (alpha * (growth - 1) + gamma / start)

    def loss_of(m):
        return 1 - 2 * gamma * (m @ direction) + alpha * np.sum(m**2, axis=-1)

    def halfway(_, state):
        learned = state[:heads] @ state[heads:].reshape(heads, -1) @ direction
        return learned - gamma / (2 * alpha)

    aligned = np.sum((second0 + first0 @ direction) ** 2) / 4
    t = np.linspace(0, np.log(gamma / (alpha * aligned)) / gamma, 401)
    start = np.concatenate([second0, first0.ravel()])
    run = solve_ivp(flow, (0, t[-1]), start, "DOP853", t, events=halfway, rtol=1e-11, atol=1e-14)
    w2, w1 = run.y.T[:, :heads], run.y.T[:, heads:].reshape(t.size, heads, -1)
    true = loss_of(np.einsum("th,thf->tf", w2, w1))
    starts = (aligned, np.sum(second0**2))
    errors = [
        np.max(np.abs(loss_of(closed_form(s, t)[:, None] * direction) - true)) for s in starts
    ]
    return errors, float(run.t_events[0][0]), np.log(1 / scale) / gamma


def test_white_time_course_starts_from_the_growing_half():
    """E2, for s(0) in (15)."""
    scales = [1e-1, 1e-2, 1e-3]
    errors = np.array([white_merged(scale, seed=3)[0] for scale in scales])
    slopes = np.diff(np.log10(errors[:, 0])) / np.diff(np.log10(scales))
    np.testing.assert_allclose(slopes, 2, atol=0.1)
    assert np.min(errors[:, 1]) > 0.05  # ‖w₂(0)‖² does not improve as the init scale vanishes


def test_merged_plateau_duration_is_a_leading_logarithm():
    """(51)."""
    scales = np.array([1e-2, 1e-3, 1e-4, 1e-6])
    _, measured, predicted = zip(*(white_merged(scale, seed=3) for scale in scales), strict=True)
    ratio = np.array(measured) / np.array(predicted)
    assert np.all(ratio > 1.05)  # too short, by as much as 5% even at 1e-6
    # the relative error falls as 1/ln(1/w), not as a power of w
    product = (ratio - 1) * np.log(1 / scales)
    np.testing.assert_allclose(product, product[-1], rtol=1e-2)


def test_dormant_heads_of_a_fixed_point_obey_one_scalar_equation():
    """E4, in place of (C3)."""
    covariance, second, cross = task = moments(SPECTRUM, np.eye(4), 31)
    weight = np.diag(cross) / (np.diag(covariance) * np.diag(second))
    v, k, q = rank_one([(0, weight[0])], 4, heads=2)
    rng = np.random.default_rng(1)
    key, query = rng.normal(size=4), rng.normal(size=4)
    residual = np.array(cross) * (np.arange(4) > 0)[:, None]  # A at M({1})
    query[1] -= (key @ residual @ query) / (key @ residual)[1]
    state = (v, k.at[1, 0].set(key), q.at[1, 0].set(query))
    assert np.min(np.abs([key[1:], query[1:]])) > 1e-3  # both leave the span of what is learned
    assert largest_gradient(state, *task) < 1e-14
    elsewhere = (v, state[1], state[2].at[1, 0, 2].add(0.1))
    assert largest_gradient(elsewhere, *task) > 1e-4


def test_merged_zero_function_is_stationary_on_a_manifold():
    """E4, in place of (14a)."""
    covariance, second, cross = moments(SPECTRUM, np.eye(4), 31)
    first = np.random.default_rng(4).normal(size=(3, 4, 4))
    first -= np.einsum("hdc,dc->h", first, cross)[:, None, None] * cross / np.sum(cross**2)

    def merged_loss(w2, w1):
        m = jnp.einsum("h,hdc->dc", w2, w1)
        return jnp.sum(m * (second @ m @ covariance)) - 2 * jnp.sum(m * cross)

    gradients = jax.grad(merged_loss, argnums=(0, 1))(jnp.zeros(3), jnp.asarray(first))
    assert max(float(jnp.max(jnp.abs(g))) for g in gradients) < 1e-14
    elsewhere = jax.grad(merged_loss)(jnp.zeros(3), jnp.asarray(first + cross))
    assert float(jnp.min(jnp.abs(elsewhere))) > 1e-2


def test_learned_components_of_a_dormant_head_freeze_one_by_one():
    """E6, the third term of (70)."""
    gains = np.array([0.0, 0.09, 0.04, 0.01])  # mode 1 learned

    def flow(_, state):
        v, k, q = state[0], state[1:5], state[5:]
        return np.concatenate([[k @ (gains * q)], v * gains * q, v * gains * k])

    start = np.append(1.0, np.random.default_rng(2).normal(size=8))
    end = solve_ivp(flow, (0, 5), start, rtol=1e-10, atol=1e-14).y[:, -1]
    assert np.max(np.abs(end[2:5] - start[2:5])) > 1e-2  # the others did move
    np.testing.assert_allclose(end[[1, 5]], start[[1, 5]], atol=1e-14)
    assert abs(start[1] - start[5]) > 1e-2  # so half their sum is neither of them


def test_key_and_query_gram_matrices_are_conserved_entry_by_entry():
    """E7, of which (85) is the diagonal."""
    task = moments(SPECTRUM, np.eye(4), 31)
    keys = jax.random.split(jax.random.key(0), 3)
    weights = v, k, q = (
        jax.random.normal(keys[0], (5,)),
        jax.random.normal(keys[1], (5, 3, 4)),
        jax.random.normal(keys[2], (5, 3, 4)),
    )
    dv, dk, dq = gradient(weights, *task)

    def rate(a, da):
        half = jnp.einsum("hrd,hsd->hrs", a, da)
        return half + jnp.swapaxes(half, 1, 2)

    assert float(jnp.max(jnp.abs(rate(k, dk)))) > 1
    np.testing.assert_allclose(rate(k, dk), rate(q, dq), atol=1e-11)
    np.testing.assert_allclose(jnp.trace(rate(k, dk), axis1=1, axis2=2), 2 * v * dv, atol=1e-11)


def test_minimal_norm_of_a_rank_two_head():
    """E9, of which (78) is rank one."""
    covariance, second, cross = task = moments(SPECTRUM, np.eye(4), 31)
    m = np.diag(cross) / (np.diag(covariance) * np.diag(second))
    value = (m[0] + m[1]) ** (1 / 3)
    pairs = np.sqrt(m[:2] / value)[:, None] * np.eye(4)[:2]
    state = (jnp.array([value]), jnp.asarray(pairs[None]), jnp.asarray(pairs[None]))
    assert value == pytest.approx(1.72924, abs=5e-6)
    assert np.sum(pairs**2) == pytest.approx(value**2)
    assert largest_gradient(state, *task) < 1e-14
    assert 3 * value**2 < 3 * np.sum(m[:2] ** (2 / 3))  # below two rank-one heads


def implicit_time(x):
    return np.log((1 + x + x**2) / (1 - x) ** 2) / 6 - np.arctan((2 * x + 1) / 3**0.5) / 3**0.5


def test_time_course_of_a_value_weight_in_elementary_functions():
    """(67)."""
    a = SPECTRUM**2 * (1 + (1 + SPECTRUM.sum() / SPECTRUM) / 31)
    gain, c = SPECTRUM[1] ** 2, (a[1] / SPECTRUM[1]) ** (1 / 3)
    start = 1e-2
    time = lambda v: (-1 / v + c * implicit_time(c * v)) / gain  # noqa: E731 (the formula)
    v = np.array([0.02, 0.1, 0.5, 0.9, 0.99]) / c

    def flow(_, v):
        return gain * v**2 - SPECTRUM[1] * a[1] * v**5

    run = solve_ivp(flow, (0, time(v[-1]) - time(start)), [start], "DOP853", time(v) - time(start),
                    rtol=1e-12, atol=1e-15)  # fmt: skip
    np.testing.assert_allclose(run.y[0], v, rtol=1e-7)
    middle = (1 - 0.5**0.5) ** (1 / 3)  # loss halfway between two levels
    kappa = 1 / middle - implicit_time(middle) + implicit_time(0.0)
    assert kappa == pytest.approx(1.253391, abs=5e-7)
    exact, short = time(middle / c) - time(start), 1 / (gain * start) - kappa * c / gain
    assert exact == pytest.approx(short, rel=(c * start) ** 3)


def test_the_attention_normaliser_is_a_rescaling():
    """E8."""
    context, steps, rate = 7, 1500, 0.04  # well inside the stable rates
    task = Task(SPECTRUM, context, rotation=jax.random.key(5))
    unnormalised = task.replace(normaliser=Normaliser.NONE)
    cases = [
        (Separate.initialiser(task, heads=3, rank=2, scale=1.0, blocks=Blocks.FULL), 1 / 3, 2 / 3),
        (Merged.initialiser(task, heads=3, scale=1.0, blocks=Blocks.FULL), 1 / 2, 1),
    ]
    for init, weight_power, rate_power in cases:
        model = init(jax.random.key(6))
        small = jax.tree.map(lambda w, p=weight_power: w * context**-p, model)
        ours = descend(task, model, rate, steps)
        theirs = descend(unnormalised, small, rate * context**-rate_power, steps)
        assert float(ours[0] - ours[-1]) > 0.3
        np.testing.assert_allclose(theirs, ours, rtol=1e-12)


def descend(task, model, rate, steps):
    on_prompts = Sequences.sample(task, 40, jax.random.key(7))

    def step(model, _):
        value, gradient = jax.value_and_grad(on_prompts)(model)
        return jax.tree.map(lambda w, g: w - rate * g, model, gradient), value

    return jax.jit(lambda model: jax.lax.scan(step, model, length=steps)[1])(model)


@pytest.mark.parametrize("normaliser", [Normaliser.PAIRS, Normaliser.TOKENS, Normaliser.CONTEXT])
def test_moments_at_varying_length(normaliser):
    """E3."""
    lengths, context, noise = np.array([2, 3, 8]), 8, 0.3
    covariance, task_covariance = np.diag([0.7, 0.3]), np.diag([1.0, 2.0])
    z = {"pairs": lengths, "tokens": lengths + 1, "context": 0 * lengths + context}[
        normaliser.value
    ]
    signal = covariance @ task_covariance @ covariance
    spread = (np.trace(covariance @ task_covariance) + noise) * covariance
    cross = np.mean(lengths / z) * signal
    second = np.mean(lengths * (lengths + 1) / z**2) * signal + np.mean(lengths / z**2) * spread

    rng, count = np.random.default_rng(8), 200_000
    x = rng.normal(size=(count, context, 2)) * np.diag(covariance) ** 0.5
    query = rng.normal(size=(count, 2)) * np.diag(covariance) ** 0.5
    w = rng.normal(size=(count, 2)) * np.diag(task_covariance) ** 0.5
    y = np.einsum("pnd,pd->pn", x, w) + noise**0.5 * rng.normal(size=(count, context))
    partial = np.cumsum(y[..., None] * x, axis=1)[:, lengths - 1] / z[:, None]  # β of each length
    target = np.einsum("pd,pd->p", query, w)
    samples = {
        "second": np.mean(partial[..., :, None] * partial[..., None, :], axis=1),
        "cross": np.mean(partial, axis=1)[:, :, None] * (target[:, None] * query)[:, None, :],
    }

    def standard_errors(name, matrix):
        mean, error = samples[name].mean(0), samples[name].std(0) / count**0.5
        return np.max(np.abs(mean - matrix) / error)

    assert standard_errors("second", second) < 4.5
    assert standard_errors("cross", cross) < 4.5
    # the arithmetic mean of the lengths in place of ⟨1/n⟩ is not an approximation
    n = np.mean(lengths)
    assert standard_errors("second", (1 + 1 / n) * signal + spread / n) > 20
