"""Diagonal layers, and their population losses in closed form (D6)(D7)(D10)."""

import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.losses.commuting import (
    commuting_noise,
    commuting_signal,
    eigenvalue_rule,
    wick_table,
)
from iclflow.losses.wishart import trace_moments, two_layer_noise, two_layer_signal
from iclflow.theory.depth import best_untied, white_loss
from tests.helpers.cases import KEY
from tests.helpers.stacks import of_matrices, value
from tests.helpers.wick import wishart_mean

SPECTRUM = [0.4, 0.3, 0.2, 0.1]
NOISY = icl.Task(SPECTRUM, 31, label_noise=0.3, target_noise=0.1, tasks=icl.Normal(
    covariance=[1.0, 0.5, 2.0, 1.0]
), lengths=(5, 31))  # fmt: skip
WHITE = icl.Task([0.5] * 3, 7, label_noise=0.3)
ONES = np.ones(4)


def steps(task, layers, **options):
    return icl.Steps.initialiser(task, layers=layers, scale=1.0, **options)(KEY)


signal = jax.jit(commuting_signal)
noise = jax.jit(commuting_noise)


def test_commuting_layers_have_the_reference_numbers():
    """(D10) at three layers, of which the last two alone are (D16); the order matters."""
    layers = jnp.asarray([0.6 * ONES, 0.8 * ONES, [1.4, 1.3, 1.2, 1.1]])
    tasks = jnp.asarray(SPECTRUM)
    assert round(float(signal(layers, tasks, 31.0)), 12) == 0.009019257749
    assert round(float(signal(layers[1:], tasks, 31.0)), 12) == 0.053605317042
    swapped = float(signal(layers[::-1], tasks, 31.0))
    assert abs(swapped - 0.009019257749) > 1e-6


def test_the_table_of_pairings():
    """15 and 203 rows for four and six matrices; 8, 60 and 6040 pairings for three, four, six."""
    rows = {k: len(wick_table(k).blocks) for k in (3, 4, 6)}
    assert rows == {3: 5, 4: 15, 6: 203}
    assert [int(wick_table(k).counts.sum()) for k in (3, 4, 6)] == [8, 60, 6040]


def test_one_and_two_commuting_layers_are_those_of_any_weights():
    rng = np.random.default_rng(1)
    g, tasks = jnp.asarray(rng.normal(size=(2, 5))), jnp.asarray(rng.uniform(size=5))
    matrices = [jnp.diag(row) for row in g]
    expected = two_layer_signal(*matrices, jnp.diag(tasks), jnp.asarray(7.0))
    np.testing.assert_allclose(signal(g, tasks, 7.0), expected, rtol=1e-12)
    expected = two_layer_noise(*matrices, jnp.asarray(7.0))
    np.testing.assert_allclose(noise(g, 7.0), expected, rtol=1e-12)
    zero = jnp.zeros_like(g[0])
    alone = signal(g[:1], tasks, 7.0)
    np.testing.assert_allclose(signal(jnp.stack([g[0], zero]), tasks, 7.0), alone, rtol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize(("size", "n"), [(2, 3), (2, 1)])
def test_three_commuting_layers_against_all_pairings(size, n):
    """(D10) against the 10,395 pairings of six factors of W, also with D > N."""
    rng = np.random.default_rng(n)
    g, tasks = rng.normal(size=(3, size)), rng.uniform(size=size)
    moments = {k: wishart_mean(size, n, k) for k in range(1, 7)}

    def mean(factors):
        """E tr of a product of diagonals, with None for each W."""
        diagonal = [np.ones(size)]
        for factor in factors:
            if factor is None:
                diagonal.append(np.ones(size))
            else:
                diagonal[-1] = diagonal[-1] * factor
        k = len(diagonal) - 1
        if k == 0:
            return float(np.sum(diagonal[0]))
        inner = diagonal[1:-1]
        letters = "abcdef"[: k + 1] if k < 6 else "abcdef"
        # E tr[C W c₁ W c₂ … W]: row of factor i is mode i, its column is mode i + 1.
        pairs = "".join(letters[i] + letters[(i + 1) % k] for i in range(k))
        spec = ",".join(letters[:k]) + "," + pairs + "->"
        arrays = [diagonal[0] * diagonal[-1], *inner]
        return float(np.einsum(spec, *arrays, moments[k], optimize="greedy"))

    def product(parts):
        found = [((), 1.0)]
        for part in parts:
            found = [(a + b, s * t) for a, s in found for b, t in part]
        return found

    one = np.ones(size)
    q = product([[((one,), 1.0), ((row, None), -1.0)] for row in g[::-1]])
    back = lambda f: tuple(reversed(f))  # noqa: E731
    expected = sum(
        s * t * mean((*a, tasks, *back(b))) for (a, s), (b, t) in itertools.product(q, repeat=2)
    )
    np.testing.assert_allclose(
        signal(jnp.asarray(g), jnp.asarray(tasks), float(n)), expected, rtol=1e-10
    )
    p = []
    for layer in range(3):
        before = [[((one,), 1.0), ((None, row), -1.0)] for row in g[:layer][::-1]]
        p += product([[((g[layer],), 1.0)], *before])
    expected = sum(
        s * t * mean((*a, None, *back(b))) for (a, s), (b, t) in itertools.product(p, repeat=2)
    )
    np.testing.assert_allclose(noise(jnp.asarray(g), float(n)), expected, rtol=1e-10)


def test_steps_are_the_layers_with_diagonal_matrices():
    """The prediction, every level, and the slope: an off-diagonal entry has none."""
    model = steps(NOISY, 2)
    stack = of_matrices(*(np.diag(row) for row in model.steps))
    prompt = NOISY.sample(KEY)
    np.testing.assert_allclose(model(prompt), stack(prompt), rtol=1e-12)
    for loss in (
        icl.Sequences.sample(NOISY, 20, KEY),
        icl.Statistics.sample(NOISY, 20, KEY),
        icl.Moments.sample(NOISY, 20, KEY, features=icl.TwoLayerFeatures()),
        icl.Draws.sample(NOISY, 20, KEY),
        icl.Population(NOISY),
    ):
        np.testing.assert_allclose(value(loss, model), value(loss, stack), rtol=1e-12)
    gradient = eqx.filter_jit(eqx.filter_grad(lambda m, loss: loss(m)))
    whole = gradient(stack, icl.Population(NOISY)).stack.merged[:, 0]
    np.testing.assert_allclose(
        np.diagonal(whole, axis1=1, axis2=2), gradient(model, icl.Population(NOISY)).steps,
        rtol=1e-10,
    )  # fmt: skip
    whole = np.asarray(whole)
    assert np.abs(whole - whole * np.eye(4)).max() < 1e-12


@pytest.mark.parametrize(("task", "layers", "shared"), [(NOISY, 3, False), (WHITE, 6, True)])
def test_the_population_of_steps_is_the_mean_over_draws(task, layers, shared):
    """(D10) and (D6), label noise included, within three standard errors of (D5)."""
    sizes = 0.3 * jnp.abs(steps(task, layers, shared=shared).steps)  # no heavy tails
    model = icl.Steps(sizes, task.size, layers)
    draws = icl.Draws.sample(task, 20_000, KEY)
    parts = np.asarray(eqx.filter_jit(lambda d, m: d.each(m))(draws, model)).mean(axis=0)
    error = parts.std() / math.sqrt(len(parts))
    exact = float(value(icl.Population(task), model)) - float(task.target_noise) ** 2
    assert abs(parts.mean() - exact) < 3 * error


def test_white_inputs_are_an_average_over_one_eigenvalue():
    """(D6) by Gauss's rule against (D10), and at eight layers against fractions."""
    for layers in (2, 3):
        shared = steps(WHITE, layers, shared=True)
        apart = icl.Steps(jnp.broadcast_to(shared.steps, (layers, 3)), 3, layers)
        exact = value(icl.Population(WHITE), apart)
        np.testing.assert_allclose(value(icl.Population(WHITE), shared), exact, rtol=1e-12)
    task, moments = icl.Task([1.0] * 4, 31), trace_moments(4, 31, 16)
    best = best_untied(moments, 8)
    model = icl.Steps(jnp.asarray(best.steps)[:, None], 4, 8)
    found = float(value(icl.Population(task), model)) / 4
    np.testing.assert_allclose(found, white_loss(best.steps, moments), rtol=1e-6)
    assert round(found, 6) == 0.000026
    for size, context in ((4, 31), (6, 2)):
        nodes, weights = map(np.asarray, eigenvalue_rule(size, context, 4))
        moments = [float(m) for m in trace_moments(size, context, 7)]
        found = [weights @ nodes**k for k in range(8)]
        np.testing.assert_allclose(found, moments, rtol=1e-12)
        assert (weights > 0).all()
        assert nodes.min() > -1e-12


def test_the_step_of_eight_tied_layers():
    """L γ = 5.647560 is the minimum; 5.647577, which an earlier table had, is not."""
    population = icl.Population(icl.Task([1.0] * 4, 31))
    loss = lambda total: population(icl.Steps(jnp.full((1, 1), total / 8), 4, 8, tied=True))  # noqa: E731
    slope = jax.jit(jax.grad(loss))
    assert slope(5.6475595) < 0 < slope(5.6475605)
    assert slope(5.647577) > 10 * abs(float(slope(5.647560)))


def test_a_flow_of_steps_ends_in_the_best_untied_loss():
    """Three layers of white inputs from small steps, never symmetric, go to (D8)."""
    task = icl.Task([1.0] * 4, 31)
    model = icl.Steps.initialiser(task, layers=3, shared=True, scale=0.1)(KEY)
    run = icl.simulate(icl.Population(task), model, icl.Flow(1e-7), until=400.0)
    best = best_untied(trace_moments(4, 31, 6), 3)
    assert float(run.loss[-1]) / 4 == pytest.approx(best.loss, rel=1e-4)
    found = np.sort(np.asarray(run.state.model.steps)[:, 0])
    np.testing.assert_allclose(found, best.steps, atol=5e-3)


def test_what_steps_cannot_do_is_one_line():
    turned = icl.Task(SPECTRUM, 31, rotation=KEY)
    for make, words in (
        (lambda: icl.Population(NOISY)(steps(NOISY, 4)), "more than 3 steps covers white inputs"),
        (lambda: icl.Population(WHITE)(steps(WHITE, 9, shared=True)), "known up to 8, got 9"),
        (lambda: icl.Population(turned)(steps(turned, 3)), "leave the rotation out"),
        (lambda: icl.Population(NOISY)(steps(WHITE, 2)), "D = 3 inputs"),
        (lambda: icl.Steps.initialiser((4, 2), scale=1.0), "Steps have one output, got 2"),
        (lambda: icl.Steps.initialiser(4, layers=0, scale=1.0), "layers must be a whole number"),
        (lambda: icl.Steps(jnp.ones((2, 4)), 4, 3), r"shape \(3, 4\), or \(3, 1\)"),
        (lambda: icl.Steps(jnp.ones((2, 4)), 4, 2, tied=True), "2 tied layers of 4 inputs"),
    ):
        with pytest.raises(ValueError, match=words) as raised:
            make()
        assert "\n" not in str(raised.value)


def test_select_takes_the_closed_form_where_there_is_one():
    level = lambda task, model: icl.select(task, model, None).level  # noqa: E731
    assert level(NOISY, steps(NOISY, 3)) == "population"
    assert level(NOISY, steps(NOISY, 4)) == "draws"
    assert level(WHITE, steps(WHITE, 5, shared=True)) == "population"
    assert level(WHITE, steps(WHITE, 5)) == "draws"
    assert icl.select(NOISY, steps(NOISY, 2), 10).level == "statistics"
