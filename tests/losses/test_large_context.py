"""The loss of softmax attention to first order in 1/N: (S1)-(S11) of the page on softmax."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import iclflow as icl
from iclflow.cli import main
from iclflow.losses.large_context import (
    corrected_loss,
    exponential_means,
    first_order,
    largest_exponent,
    small_keys,
)
from tests.helpers.softmax_oracle import head_means, one_head_loss

KEY = jax.random.key(2)
SPECTRUM = [0.6, 0.4]
VALUES = jnp.array([1.5, -1.0])
SCORES = jnp.array([[[0.4, 0.1], [0.0, 0.3]], [[-0.3, 0.0], [0.1, -0.2]]])


def softmax_of(values, scores):
    return icl.Softmax(icl.Merged(jnp.asarray(values)[:, None, None], jnp.asarray(scores)))


def white_of(spectrum, scores):
    root = jnp.sqrt(jnp.asarray(spectrum))
    return root[None, :, None] * scores * root[None, None, :], jnp.diag(jnp.asarray(spectrum))


@pytest.mark.parametrize(
    ("pairs", "query", "expected"),
    [
        (16, True, (0.48504021, 0.49482870, 0.44479542, 0.47273563)),
        (16, False, (0.43522858, 0.44501707, 0.42794141, 0.43379499)),
        (31, True, (0.41979495, 0.42484707, 0.40191751, 0.41633826)),
        (31, False, (0.39408572, 0.39913784, 0.39068262, 0.39370383)),
        (64, True, (0.38391005, 0.38635717, 0.37608904, 0.38307409)),
        (64, False, (0.37145715, 0.37390427, 0.36990415, 0.37136755)),
    ],
)
def test_reference_numbers(pairs, query, expected):
    """(S5) without and with noise, (S7) and (S9), computed independently by the specification."""
    heads, tasks = white_of(SPECTRUM, SCORES)
    n, none, noise = jnp.array(float(pairs)), jnp.zeros(()), jnp.array(0.25)
    found = [
        first_order(VALUES, heads, tasks, none, n, query=query),
        first_order(VALUES, heads, tasks, noise, n, query=query),
        small_keys(VALUES, heads, tasks, none, n, query=query)[0],
        corrected_loss(VALUES, heads, tasks, none, n, query=query),
    ]
    np.testing.assert_allclose(found, expected, atol=5.1e-9)
    np.testing.assert_allclose(largest_exponent(heads), 0.12149140, atol=5e-9)


def test_the_loss_is_the_formula_in_any_basis():
    """A rotated task with the same law in white coordinates; noise on the target adds up."""
    task = icl.Task(SPECTRUM, 31, rotation=KEY, label_noise=0.5, target_noise=0.3)
    turned = jnp.einsum("dk,hkl,cl->hdc", task.basis, SCORES, task.basis)
    loss, model = icl.LargeContext(task), softmax_of(VALUES, turned)
    heads, tasks = white_of(SPECTRUM, SCORES)
    n, noise = jnp.array(31.0), jnp.array(0.25)
    wanted = corrected_loss(VALUES, heads, tasks, noise, n) + 0.09
    np.testing.assert_allclose(loss(model), wanted, rtol=1e-12)
    unseen = icl.Softmax(model.attention, query_key=False)
    wanted = corrected_loss(VALUES, heads, tasks, noise, n, query=False) + 0.09
    np.testing.assert_allclose(loss(unseen), wanted, rtol=1e-12)
    lengths = task.replace(lengths=(8, 31))
    both = [icl.LargeContext(task.replace(context=n))(model) for n in (8, 31)]
    np.testing.assert_allclose(icl.LargeContext(lengths)(model), np.mean(both), rtol=1e-12)


def test_separate_keys_are_their_products():
    task = icl.Task([0.5, 0.3, 0.2], 20)
    separate = icl.Separate.initialiser(task, heads=3, rank=2, scale=0.8)(KEY)
    merged = softmax_of(separate.values[:, 0, 0], separate.key_query()[:, :3])
    loss = icl.LargeContext(task)
    np.testing.assert_allclose(loss(icl.Softmax(separate)), loss(merged), rtol=1e-12)


@pytest.mark.parametrize(
    ("q", "pairs", "alone", "expected", "expanded"),
    [
        (0.5, 16, 0.0, (0.639550, 0.095539, 0.537036), (0.634243, 0.103045, 0.551523)),
        (1.0, 16, 0.7, (0.833120, 0.121202, 0.877336), (0.786357, 0.169893, 0.912500)),
        (1.0, 31, 1.2, (0.891564, 0.069368, 0.909847), (0.873604, 0.087687, 0.922581)),
        (3.0, 31, 0.0, (1.414464, 0.183359, 2.252448), (0.609820, 0.647921, 1.704159)),
    ],
)
def test_the_oracle_of_one_head(q, pairs, alone, expected, expanded):
    """(S10) by quadrature: the specification's digits, and Monte Carlo of plain softmax.

    Beside it the first order (S2)(S3), which is close to it for small q only.
    """
    found = head_means(q, pairs, alone)
    np.testing.assert_allclose(found, expected, atol=5.1e-7)
    z = np.random.default_rng(0).normal(size=(20_000, pairs))
    u = np.exp(np.sqrt(q) * z - q / 2)
    p = u / (u.sum(1, keepdims=True) + alone)
    sampled = np.array([(z * p).sum(1), (p**2).sum(1), (z * p).sum(1) ** 2])
    error = sampled.std(axis=1) / len(z) ** 0.5
    assert np.all(np.abs(sampled.mean(axis=1) - found) < 4.5 * error)
    lost = (np.exp(q) + alone) / pairs
    spread = np.exp(q) / pairs
    first = [np.sqrt(q) * (1 - lost), spread, q * (1 - 2 * lost) + spread * (1 + q)]
    np.testing.assert_allclose(first, expanded, atol=5.1e-7)


def test_the_error_falls_as_the_square_of_the_context():
    """Two equal heads are one head of both values, whose loss is known without sampling."""
    rho, pairs = 0.1, [64, 128, 256, 512]
    score = (rho / 2) ** 0.5
    model = softmax_of([0.7, 0.5], np.full((2, 1, 1), score))
    errors = []
    for n in pairs:
        loss = icl.LargeContext(icl.Task([1.0], n, label_noise=0.5))
        exact = one_head_loss(1.2, score, 1.0, n, 0.25)
        errors.append(abs(float(loss(model)) - exact))
        # Without the terms of order 1/N the error would fall as 1/N only.
        assert errors[-1] < 0.05 * abs(exact - (1 - 1.2 * score) ** 2)
    np.testing.assert_allclose(loss.rho(model), rho, rtol=1e-12)
    slope = np.polyfit(np.log(pairs), np.log(errors), 1)[0]
    assert -2.05 < slope < -1.85  # -1.89 to -1.95 here, and nearer to -2 at longer contexts


def test_a_large_exponent_spoils_the_slope():
    """(S6): at ρ = .75 the error falls as N^(-7/6) in the end, not as N⁻²."""
    score = (0.75 / 2) ** 0.5
    model, errors = softmax_of([0.7, 0.5], np.full((2, 1, 1), score)), []
    for n in (128, 512):
        exact = one_head_loss(1.2, score, 1.0, n)
        errors.append(abs(float(icl.LargeContext(icl.Task([1.0], n))(model)) - exact))
    slope = np.log(errors[1] / errors[0]) / np.log(4)
    assert -1.3 < slope < -0.8


@pytest.mark.slow
@pytest.mark.parametrize("query", [True, False])
def test_the_error_of_two_heads_falls_as_the_square_too(query):
    """Monte Carlo with a control variate whose mean is (S5) without its bias.

    The vector z - Mz - ε with ε = Σ v_h mean_n[(z_n - a_h) u_n] has this mean square exactly, and
    is close to what the prompt's own loss is, so that the small difference is seen.
    """
    heads, tasks = white_of(SPECTRUM, SCORES)
    values, identity = VALUES, jnp.eye(2)
    gram = jnp.einsum("hki,hkj->hij", heads, heads)
    lost = exponential_means(gram)[1]
    if query:
        alone = (heads + jnp.swapaxes(heads, 1, 2)) / 2 - gram / 2
        lost = lost + exponential_means(alone)[1]
    missed = identity - jnp.einsum("h,hij->ij", values, heads)
    bias = 2 * jnp.einsum("h,hij,hij->", values, missed.T @ tasks @ heads, lost)

    def difference(n, key):
        z = jax.random.normal(key, (n + 1, 2))
        pairs, z_q = z[:n], z[n]
        a = heads @ z_q
        u = jnp.exp(a @ pairs.T - jnp.sum(a**2, axis=1)[:, None] / 2)
        own = jnp.exp(a @ z_q - jnp.sum(a**2, axis=1) / 2) if query else 0.0
        p = u / (jnp.sum(u, axis=1) + own)[:, None]
        left = z_q - jnp.einsum("h,hn,nd->d", values, p, pairs)
        off = jnp.einsum("h,hnd,hn->d", values, pairs[None] - a[:, None], u) / n
        control = missed @ z_q - off
        return left @ tasks @ left - control @ tasks @ control

    sizes, errors = [16, 32, 64, 128], []
    for n in sizes:
        keys = jax.random.split(jax.random.key(n), 400_000)
        sampled = jax.jit(
            lambda k, n=n: jax.lax.map(lambda k: difference(n, k), k, batch_size=4000)
        )(keys)
        errors.append(float(sampled.mean()) - float(bias) / n)
    slope = np.polyfit(np.log(sizes), np.log(np.abs(errors)), 1)[0]
    assert abs(slope + 2) < 0.25


def test_small_keys_are_exact_at_any_context():
    """(S7) and (S9) against Monte Carlo with tasks averaged, N = 5, noise, tiny keys."""
    task = icl.Task(SPECTRUM, 5, label_noise=0.4)
    scores = 1e-4 * jnp.stack([SCORES[0], -SCORES[0] + 0.2 * SCORES[1]])
    model = softmax_of([9000.0, -8999.0], scores)
    exact = float(icl.LargeContext(task)(model))
    losses = jax.jit(
        lambda key: jax.vmap(lambda k: icl.Sequences.sample(task, 1000, k, averaged=True)(model))(
            jax.random.split(key, 60)
        )
    )(KEY)
    error = float(jnp.std(losses)) / 60**0.5
    assert abs(float(losses.mean()) - exact) < 4 * error
    assert error < 0.02 * exact
    heads, tasks = white_of(SPECTRUM, SCORES)
    eps = jnp.array([1e-1, 1e-2])
    gaps = []
    for e in eps:  # (S5) - (S8) → 0 as the square of the keys
        pair = (jnp.array([1 / e + 0.3, -1 / e + 0.5]), e * jnp.stack([heads[0], -heads[0]]))
        given = (*pair, tasks, jnp.zeros(()), jnp.array(31.0))
        gaps.append(float(first_order(*given) - small_keys(*given)[1]))
    assert 95 < gaps[0] / gaps[1] < 105


def test_the_best_small_keys_are_linear_attention_with_one_pair_less():
    """Without the query's token; with it the best V is tr(B)/(N + 1). Three contexts, and white."""

    def loss(w, spectrum, n, query):
        heads = jnp.stack([jnp.zeros((4, 4)), jnp.diag(w[1:])])
        values = jnp.array([w[0] - 1, 1.0])
        return small_keys(values, heads, jnp.diag(spectrum), jnp.zeros(()), n, query=query)[0]

    step = jax.jit(jax.value_and_grad(loss), static_argnums=3)

    def best(spectrum, n, query):
        """The least loss over V and diagonal B, as one head without keys and one with them."""
        given = (jnp.asarray(spectrum), jnp.array(float(n)), query)
        return scipy.optimize.minimize(
            lambda w: tuple(map(np.asarray, step(w, *given))), np.ones(5), jac=True, tol=1e-13
        )

    spectrum, white = [0.4, 0.3, 0.2, 0.1], [0.25] * 4
    for n, known, value, apart in (
        (31, 0.139764, 0.11104, 0.139818),
        (64, 0.072609, 0.05788, 0.072616),
        (128, 0.037619, 0.03004, 0.037620),
    ):
        found = best(spectrum, n, True)
        np.testing.assert_allclose(found.fun, known, atol=5.1e-7)
        np.testing.assert_allclose(found.x[0], value, atol=5.1e-6)
        np.testing.assert_allclose(found.x[0], found.x[1:].sum() / (n + 1), rtol=1e-5)
        linear = icl.theory.plateau_losses(icl.Task(spectrum, n - 1))[-1]
        np.testing.assert_allclose(best(spectrum, n, False).fun, linear, rtol=1e-9)
        np.testing.assert_allclose(linear, apart, atol=5.1e-7)
    np.testing.assert_allclose(best(white, 31, True).fun, 0.142804, atol=5.1e-7)
    np.testing.assert_allclose(best(white, 31, False).fun, 5 / 35, rtol=1e-9)


def test_two_heads_of_opposite_sign_late_in_a_run():
    """White inputs: the formula may be below the true loss, which is .143089 with the query."""
    task = icl.Task([0.25] * 4, 31)
    for values, keys, query, known in (
        ((20.146, -20.146), (0.0879, -0.0879), False, 0.142876),
        ((27.306, -27.193), (0.0119, -0.1218), True, 0.142422),
    ):
        scores = np.asarray(keys)[:, None, None] * np.eye(4)
        model = icl.Softmax(softmax_of(values, scores).attention, query_key=query)
        # The weights are stated to as few digits as the loss then has.
        np.testing.assert_allclose(icl.LargeContext(task)(model), known, atol=1e-6)


def test_a_long_context_needs_no_formula():
    task = icl.Task(SPECTRUM, 10**9)
    np.testing.assert_allclose(
        icl.LargeContext(task)(softmax_of([3.0, 0.0], 0.2 * jnp.stack([jnp.eye(2)] * 2))),
        np.sum([s * (1 - 0.6 * s) ** 2 for s in SPECTRUM]),
        rtol=1e-7,
    )


def test_outside_the_region_the_loss_is_infinite():
    """Also with two negative factors, where a determinant would give a plausible number."""
    mean, second = exponential_means(jnp.stack([jnp.diag(jnp.array([0.6, 0.7])), jnp.eye(2) / 9]))
    assert np.isnan(mean[0])
    assert np.isnan(second[0]).all()
    np.testing.assert_allclose(mean[1], 9 / 7, rtol=1e-12)
    task = icl.Task(SPECTRUM, 31)
    loss, model = icl.LargeContext(task), softmax_of(VALUES, 4 * SCORES)
    assert float(jax.jit(lambda: loss(model.with_weights(model.weights())))()) == np.inf
    with pytest.raises(ValueError, match=r"ρ < 1, and these weights have ρ = 1\.94"):
        loss(model)
    with pytest.raises(ValueError, match=r"ρ = 1\.94"):
        icl.simulate(loss, model, icl.Flow(), saveat=[0, 1])


def test_training_records_how_near_the_end_is():
    task = icl.Task([0.5, 0.3], 31)
    loss = icl.LargeContext(task)
    model = icl.Softmax.initialiser(task, heads=3, rank=1, scale=0.3)(jax.random.key(0))
    run = icl.simulate(loss, model, icl.Descent(0.1), saveat=[0, 500, 1000], record=["loss", "rho"])
    assert run.loss[-1] < 0.2 * run.loss[0]
    rho = np.asarray(run.record["rho"])
    assert rho[0] < 0.01
    assert rho[1] > rho[2] > 0.1
    np.testing.assert_allclose(loss.rho(run.model), rho[-1], rtol=1e-12)
    averaged = icl.Sequences.sample(task, 10_000, KEY, averaged=True)
    assert abs(float(averaged(run.model)) / float(run.loss[-1]) - 1) < 0.1


def test_a_run_that_leaves_the_region_ends_there():
    """Three heads in two dimensions come to ρ = 1 from this start, sampled attention to .97."""
    task = icl.Task([0.5, 0.3], 31)
    model = icl.Softmax.initialiser(task, heads=3, rank=1, scale=0.3)(jax.random.key(2))
    run = icl.simulate(icl.LargeContext(task), model, icl.Descent(0.1), saveat=[0, 250, 1000])
    assert run.result != icl.RESULTS.finished
    assert 250 < run.stopped < 1000
    assert np.isfinite(run.loss[:2]).all()
    assert np.isnan(run.loss[2])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"inputs": icl.Sphere()}, "Gaussian inputs, got Sphere"),
        ({"tasks": icl.Normal(outputs=2)}, "one output, got 2"),
        ({"tasks": icl.Normal(mean=1.0)}, "have a mean"),
        ({"context_labels": icl.ContextLabels.NOISE}, "context are noise"),
    ],
)
def test_tasks_that_it_does_not_cover(change, said):
    with pytest.raises(ValueError, match=said):
        icl.LargeContext(icl.Task(SPECTRUM, 31).replace(**change))


def test_models_that_it_does_not_cover():
    task = icl.Task(SPECTRUM, 31)
    loss = icl.LargeContext(task)
    linear = icl.Merged.initialiser(task, heads=2, scale=0.1)(KEY)
    full = icl.Softmax.initialiser(task, heads=2, scale=0.1, blocks=icl.Blocks.FULL)(KEY)
    one = icl.Softmax.initialiser(task, heads=1, scale=0.1)(KEY)
    for model, said in ((linear, "got Merged"), (full, "freeze them"), (one, "two or more heads")):
        assert said in loss.admits(model)
    with pytest.raises(ValueError, match="rho is a number of softmax attention"):
        loss.rho(linear)
    with pytest.raises(ValueError, match="leave rho out"):
        icl.simulate(icl.Population(task), linear, icl.Flow(), saveat=[0, 1], record=["rho"])


def test_it_knows_no_stable_rate():
    task = icl.Task(SPECTRUM, 31)
    model = icl.Softmax.initialiser(task, heads=2, scale=0.1)(KEY)
    with pytest.raises(ValueError, match="LargeContext knows no least-squares weights"):
        icl.stable_rate(icl.LargeContext(task), model)


def test_it_is_trained_on_the_command_line(capsys):
    given = "simulate --model softmax-separate --spectrum 0.6,0.4 --heads 2 --loss large-context"
    given = [*given.split(), "--steps", "4", "--json"]
    assert main([*given, "--rate", "0.2"]) == 0
    assert json.loads(capsys.readouterr().out)["level"] == "large-context"
    for more, said in (
        ((), "give the rate"),
        (("--rate", "0.2", "--scale", "3"), "the formula ends at ρ = 1, so give a smaller --scale"),
    ):
        with pytest.raises(SystemExit) as ended:
            raise SystemExit(main([*given, *more]))
        assert ended.value.code == 2
        assert said in capsys.readouterr().err


def test_it_is_taken_only_when_asked_for():
    task = icl.Task(SPECTRUM, 31)
    model = icl.Softmax.initialiser(task, heads=2, scale=0.1)(KEY)
    assert icl.select(task, model, 100).level == "sequences"
    with pytest.raises(ValueError, match="or LargeContext, approximate"):
        icl.select(task, model, None)


def test_its_gradient_is_that_of_differences():
    task = icl.Task(SPECTRUM, 12, label_noise=0.2)
    loss, model = icl.LargeContext(task), softmax_of(VALUES, SCORES)
    slope = eqx.filter_grad(lambda m: loss(m))(model).attention.merged[0, 0, 1]
    moved = [softmax_of(VALUES, SCORES.at[0, 0, 1].add(h)) for h in (1e-5, -1e-5)]
    np.testing.assert_allclose(slope, (loss(moved[0]) - loss(moved[1])) / 2e-5, rtol=1e-7)
