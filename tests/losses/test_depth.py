"""Several layers of linear attention: the model, and the levels of its loss (D1)-(D18)."""

import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iclflow as icl
from iclflow.losses.population import WhiteTask
from iclflow.losses.wishart import trace_moments, two_layer_noise, two_layer_signal
from iclflow.models import empty_model
from iclflow.tasks.base import Normaliser
from tests.helpers.cases import KEY
from tests.helpers.stacks import of_matrices, of_steps, value
from tests.helpers.wick import wishart_mean

PLAIN = icl.Task([0.5, 0.3, 0.2], 9)
NOISY = icl.Task(
    [0.5, 0.3, 0.2],
    9,
    rotation=KEY,
    label_noise=0.4,
    target_noise=0.2,
    tasks=icl.Normal([1.0, 0.0, 2.0], [1.0, 0.5, 2.0]),
    lengths=(3, 9),
    normaliser=Normaliser.TOKENS,
)
# Two layers, tasks and context of the reference numbers, in white coordinates.
FIRST = np.array([[0.5, 0.2], [-0.1, 0.4]])
SECOND = np.array([[0.3, -0.2], [0.4, 0.6]])
TASKS = np.array([[0.7, 0.1], [0.1, 0.3]])
# The best two steps at D = 4, N = 31 white, untied and tied.
UNTIED, TIED = (0.61687, 1.25838), (0.838719, 0.838719)
WHITE = icl.Task([1.0] * 4, 31, tasks=icl.Normal(covariance=[0.25] * 4))


def drawn(task, layers, *, tied=False, rank=2, scale=1.0):
    """Layers with weights of order one."""
    return icl.Layers.initialiser(task, layers=layers, tied=tied, heads=2, rank=rank, scale=scale)(
        KEY
    )


@eqx.filter_jit
def slope(loss, model):
    """The slope of a loss, in one array."""
    leaves = jax.tree.leaves(eqx.filter_grad(lambda m: loss(m))(model))
    return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])


def literal(model, prompt, *, masked=True, sign=-1.0):
    """(D1) token by token, head by head, in NumPy: the label slot of the query, read with a sign.

    `sign` is that of each update; the prediction is read with the same sign.
    """
    n = prompt.context if prompt.length is None else int(prompt.length)
    x, y = np.asarray(prompt.inputs)[: n + 1], np.asarray(prompt.labels)[: n + 1].copy()
    y[n] = 0.0
    for layer in model.attention_layers():
        values, matrices = np.asarray(layer.values), np.asarray(layer.key_query())
        update = np.zeros_like(y)
        for m in range(n + 1):
            for v, u in zip(values, matrices, strict=True):
                for j in range(n if masked else n + 1):
                    update[m] += v @ y[j] * (x[j] @ u[: x.shape[1]] @ x[m])
        y = y + sign * update / float(prompt.divisor)
    return sign * y[n]


@pytest.mark.parametrize("rank", [None, 1, 2])
@pytest.mark.parametrize("tied", [False, True])
def test_a_stack_predicts_as_the_literal_residual_stream(rank, tied):
    """(D1), and the prefixes of a prompt as prompts of their own."""
    model = drawn(NOISY, 3, tied=tied, rank=rank)
    prompt = NOISY.sample(KEY)
    for shown in (prompt, prompt.prefix(4)):
        np.testing.assert_allclose(model(shown), literal(model, shown), rtol=1e-12)


def test_several_outputs_go_through_the_stack():
    task = icl.Task([0.6, 0.4], 6, tasks=icl.Normal(outputs=2), label_noise=0.5)
    model, prompt = drawn(task, 3), task.sample(KEY)
    np.testing.assert_allclose(model(prompt), literal(model, prompt), rtol=1e-12)
    sequences = value(icl.Sequences.sample(task, 20, KEY), model)
    statistics = value(icl.Statistics.sample(task, 20, KEY), model)
    np.testing.assert_allclose(statistics, sequences, rtol=1e-12)


@pytest.mark.parametrize("rank", [None, 2])
def test_one_layer_is_the_one_layer_model_at_every_level(rank):
    model = drawn(NOISY, 1, rank=rank)
    if rank is None:
        one = icl.Merged.initialiser(NOISY, heads=2, scale=1.0)(KEY)
    else:
        one = icl.Separate.initialiser(NOISY, heads=2, rank=rank, scale=1.0)(KEY)
    assert eqx.tree_equal(model.as_attention(), one)
    prompt = NOISY.sample(KEY)
    np.testing.assert_allclose(model(prompt), one(prompt), rtol=1e-12)
    for loss in (
        icl.Sequences.sample(NOISY, 20, KEY),
        icl.Statistics.sample(NOISY, 20, KEY),
        icl.Draws.sample(NOISY, 20, KEY),
        icl.Population(NOISY),
    ):
        np.testing.assert_allclose(value(loss, model), value(loss, one), rtol=1e-12)
    for found in (model.visits(3), one.visits(3)):
        assert found == one.visits(3)


@pytest.mark.parametrize("layers", [1, 2, 3, 5])
def test_statistics_are_the_sequences(layers):
    """(D2): Λ̂ and β say all, at any depth, for any lengths and normaliser."""
    model = drawn(NOISY, layers)
    sequences = icl.Sequences.sample(NOISY, 30, KEY)
    statistics = icl.Statistics.sample(NOISY, 30, KEY)
    np.testing.assert_allclose(value(statistics, model), value(sequences, model), rtol=1e-12)
    expected = slope(sequences, model)
    np.testing.assert_allclose(slope(statistics, model), expected, rtol=1e-10, atol=1e-12)


def test_what_statistics_keep_does_not_grow_with_the_context():
    kept = [icl.Statistics.sample(PLAIN.replace(context=n), 5, KEY).statistic for n in (9, 900)]
    assert kept[0].shape == kept[1].shape == (5, 1, 9)


def test_features_and_moments_of_two_layers_are_the_sequences():
    """(D4), and a single layer as the first of two."""
    options = {"features": icl.TwoLayerFeatures()}
    features = icl.Features.sample(NOISY, 30, KEY, **options)
    moments = icl.Moments.sample(NOISY, 30, KEY, **options)
    sequences = icl.Sequences.sample(NOISY, 30, KEY)
    assert moments.second.shape[0] == icl.TwoLayerFeatures().count(NOISY) == 9 + 54
    one = icl.Separate.initialiser(NOISY, heads=2, rank=2, scale=1.0)(KEY)
    for model in (drawn(NOISY, 2), drawn(NOISY, 2, tied=True), one):
        np.testing.assert_allclose(value(features, model), value(sequences, model), rtol=1e-12)
        np.testing.assert_allclose(value(moments, model), value(sequences, model), rtol=1e-12)
    assert "two layers with one output, got 3" in moments.admits(drawn(NOISY, 3))


def population_of(first, second, tasks, n, variance=0.0):
    """The two-layer population loss of white inputs and any T, from the public door."""
    root = np.linalg.cholesky(tasks)
    law = icl.tasks.laws.Pool(math.sqrt(len(root)) * root.T)
    task = icl.Task([1.0] * len(root), n, tasks=law, label_noise=math.sqrt(variance))
    np.testing.assert_allclose(WhiteTask.of(task).tasks, tasks, rtol=1e-12)
    return float(value(icl.Population(task), of_matrices(first.T, second.T)))


def test_the_population_of_two_layers_has_the_reference_numbers():
    """(D16)(D17), and their slopes; swapped layers are another number."""
    assert round(population_of(FIRST, SECOND, TASKS, 5), 8) == 0.35093152
    assert round(population_of(SECOND, FIRST, TASKS, 5), 8) == 0.46084864
    assert round(population_of(FIRST, FIRST, TASKS, 5), 8) == 0.27072704
    assert round(population_of(FIRST, np.zeros((2, 2)), TASKS, 5), 8) == 0.4368
    noise = population_of(FIRST, SECOND, TASKS, 5, 2.0) - population_of(FIRST, SECOND, TASKS, 5)
    assert round(noise * 5 / 2.0, 8) == 0.71332
    slopes = jax.jit(jax.grad(two_layer_signal, (0, 1)))(
        *map(jnp.asarray, (FIRST, SECOND, TASKS)), jnp.asarray(5.0)
    )
    np.testing.assert_allclose(
        slopes,
        [
            [[0.0954656, 0.2356512], [-0.1626336, 0.0930016]],
            [[-0.1975488, -0.0972672], [0.2146944, -0.0254592]],
        ],
        rtol=1e-12,
    )


@pytest.mark.parametrize(("size", "n"), [(2, 3), (3, 2)])
def test_two_layers_against_all_pairings(size, n):
    """(D11)-(D17) against the 105 pairings of four factors of W, also with D > N."""
    rng = np.random.default_rng(size)
    g0, g1, root = rng.normal(size=(3, size, size))
    tasks = root @ root.T
    moments = {0: np.ones(())} | {k: wishart_mean(size, n, k) for k in (1, 2, 3, 4)}

    def mean(*factors):
        """E tr of a product of matrices, with None for each W."""
        left, terms, arrays, places = "z", [], [], []
        free = iter("ijklmnopqrstuvwxy")
        for number, factor in enumerate(factors):
            right = "z" if number == len(factors) - 1 else next(free)
            if factor is None:
                places.append(left + right)
            else:
                terms.append(left + right)
                arrays.append(factor)
            left = right
        spec = ",".join([*terms, "".join(places)]) + "->"
        return float(np.einsum(spec, *arrays, moments[len(places)], optimize="greedy"))

    # Q = 1 - (G₀ + G₁) W + G₁ W G₀ W and P = G₀ + G₁ - G₁ W G₀, expanded.
    q = [((np.eye(size),), 1.0), ((g0 + g1, None), -1.0), ((g1, None, g0, None), 1.0)]
    p = [((g0 + g1,), 1.0), ((g1, None, g0), -1.0)]
    flip = lambda factors: tuple(f if f is None else f.T for f in reversed(factors))  # noqa: E731
    signal = sum(
        s * t * mean(*a, tasks, *flip(b)) for (a, s), (b, t) in itertools.product(q, repeat=2)
    )
    noise = sum(
        s * t * mean(*a, None, *flip(b)) for (a, s), (b, t) in itertools.product(p, repeat=2)
    )
    arrays = [jnp.asarray(a) for a in (g0, g1)]
    found = two_layer_signal(*arrays, jnp.asarray(tasks), jnp.asarray(float(n)))
    np.testing.assert_allclose(found, signal, rtol=1e-12)
    np.testing.assert_allclose(two_layer_noise(*arrays, jnp.asarray(float(n))), noise, rtol=1e-12)


def test_trace_moments_have_the_reference_numbers():
    """(D7), the closed forms of m₂, m₃ and m₄, and D > N."""
    found = [round(float(m), 6) for m in trace_moments(4, 31, 8)]
    assert found == [
        1, 1, 1.161290, 1.517170, 2.169111, 3.325295, 5.390352, 9.153465, 16.181090,
    ]  # fmt: skip
    found = [round(float(m), 10) for m in trace_moments(8, 5, 6)]
    assert found == [1, 1, 2.8, 10.08, 42.112, 195.6864, 990.2592]
    for d, n in ((3, 2), (7, 50)):
        second = 1 + (d + 1) / n
        third = 1 + 3 * (d + 1) / n + (d**2 + 3 * d + 4) / n**2
        fourth = (
            1 + 6 * (d + 1) / n + (6 * d**2 + 17 * d + 21) / n**2
            + (d**3 + 6 * d**2 + 21 * d + 20) / n**3
        )  # fmt: skip
        moments = [float(m) for m in trace_moments(d, n, 4)]
        np.testing.assert_allclose(moments, [1, 1, second, third, fourth], rtol=1e-14)
    with pytest.raises(ValueError, match="context must be a whole number of at least 1, got 0"):
        trace_moments(4, 0, 2)


@pytest.mark.parametrize("task", [PLAIN, NOISY], ids=["plain", "noisy"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_population_is_the_mean_over_prompts(task, tied):
    """Value and slope of (D16)(D17) against Monte Carlo, within three standard errors."""
    model = drawn(task, 2, tied=tied)
    statistics = icl.Statistics.sample(task, 20_000, KEY)
    parts = [statistics.take(jnp.arange(i, i + 1000)) for i in range(0, 20_000, 1000)]
    values = np.asarray([value(part, model) for part in parts])
    slopes = np.asarray([slope(part, model) for part in parts])
    population = icl.Population(task)
    for mean, found in ((value(population, model), values), (slope(population, model), slopes)):
        error = np.std(found, axis=0, ddof=1) / math.sqrt(len(found))
        assert np.mean(np.abs(mean - np.mean(found, axis=0)) < 3 * error) > 0.95


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_draws_are_unbiased(layers):
    """(D5): the mean over draws of Λ̂ is that over prompts, within three standard errors of both."""
    model = drawn(NOISY, layers, scale=0.7)
    draws = icl.Draws.sample(NOISY, 4000, KEY)
    parts = np.asarray(eqx.filter_jit(lambda d, m: d.each(m))(draws, model))
    statistics = icl.Statistics.sample(NOISY, 40_000, jax.random.key(1))
    chunks = [statistics.take(jnp.arange(i, i + 2000)) for i in range(0, 40_000, 2000)]
    values = np.asarray([value(chunk, model) for chunk in chunks])
    target = float(NOISY.target_noise) ** 2
    own = np.std(parts, ddof=1) / math.sqrt(parts.size)
    error = math.hypot(own, np.std(values, ddof=1) / math.sqrt(len(values)))
    assert abs(np.mean(parts) + target - np.mean(values)) < 3 * error
    if layers <= 2:
        assert abs(np.mean(parts) + target - float(value(icl.Population(NOISY), model))) < 3 * own


def test_draws_converge_as_one_over_the_root_of_their_number():
    model = drawn(PLAIN, 2)
    exact = float(value(icl.Population(PLAIN), model))
    found = eqx.filter_jit(lambda m, key, count: icl.Draws.sample(PLAIN, count, key)(m))
    errors = []
    for count in (16, 256, 4096):
        values = [float(found(model, jax.random.fold_in(KEY, i), count)) for i in range(24)]
        errors.append(np.sqrt(np.mean((np.asarray(values) - exact) ** 2)))
    slope = np.polyfit(np.log([16, 256, 4096]), np.log(errors), 1)[0]
    assert abs(slope + 0.5) < 0.1


def test_control_variates_make_the_error_of_draws_smaller():
    """The same draws, weighed: the exact loss (D16), with far less error where it is smooth."""
    exact_of = icl.Population(WHITE)
    found = eqx.filter_jit(
        lambda m, key, controls: icl.Draws.sample(WHITE, 200, key, controls=controls)(m)
    )
    gains = []
    for steps in ((0.1, 0.2), UNTIED):
        model = of_steps(steps)
        exact = float(value(exact_of, model))
        errors = [
            [float(found(model, jax.random.fold_in(KEY, i), controls)) - exact for i in range(40)]
            for controls in (False, True)
        ]
        plain, weighed = np.asarray(errors)
        gains.append(np.std(plain) / np.std(weighed))
        assert abs(np.mean(weighed)) < 3 * np.std(weighed) / math.sqrt(40) + exact / 200
    assert gains[0] > 20  # the loss is nearly linear in Δ
    assert gains[1] > 1.1
    loss = icl.Draws.sample(WHITE, 200, KEY, controls=True)
    np.testing.assert_allclose(loss.weights.sum(axis=1), 1.0, rtol=1e-12)
    delta = np.asarray(loss.matrices[0]) - np.eye(4)
    moment = np.einsum("m,mdc->dc", np.asarray(loss.weights[0]), delta**2)
    np.testing.assert_allclose(moment, (1 + np.eye(4)) / 31, rtol=1e-9)
    for task, draws in ((WHITE, 20), (WHITE.replace(inputs=icl.tasks.laws.Sphere()), 200)):
        with pytest.raises(ValueError, match="control variates need Gaussian inputs"):
            icl.Draws.sample(task, draws, KEY, controls=True)


def test_draws_have_the_law_of_the_inputs():
    """Bartlett's factor and the sum over tokens have the same mean of W², and that of (D7)."""
    for context in (5, 31):  # below and above 2 D
        task = icl.Task([1.0] * 3, context)
        matrices = np.asarray(icl.Draws.sample(task, 20_000, KEY).matrices[0])
        squares = np.trace(matrices @ matrices, axis1=1, axis2=2) / 3
        error = squares.std() / math.sqrt(len(squares))
        assert abs(squares.mean() - float(trace_moments(3, context, 2)[2])) < 3 * error
    signs = icl.Task([1.0] * 3, 5, inputs=icl.tasks.laws.Rademacher())
    matrices = np.asarray(icl.Draws.sample(signs, 10, KEY).matrices[0])
    np.testing.assert_allclose(np.diagonal(matrices, axis1=1, axis2=2), 1.0)  # z² = 1


def test_every_step_on_draws_sees_new_ones():
    loss = icl.Draws.sample(PLAIN, 8, KEY)
    assert loss.stochastic
    other = loss.draw(jax.random.key(1))
    assert not np.allclose(other.matrices, loss.matrices)
    assert "new batch for every step" in icl.Flow().admits(loss, drawn(PLAIN, 3))


def test_the_query_is_masked_and_the_sign_is_minus():
    """Negative controls: the same weights, white D = 4, N = 31, with another mask or sign.

    Masked they have the loss of (D6); unmasked .0608 instead of .0262 and .1007 instead of .0394;
    with the other sign the best untied steps are 2.22424 and -.34900.
    """
    population = icl.Population(WHITE)
    assert round(float(value(population, of_steps(UNTIED))), 6) == 0.026207
    assert round(float(value(population, of_steps(TIED))), 6) == 0.039446
    rng = np.random.default_rng(0)
    count, n = 40_000, 31
    x, w = rng.normal(size=(count, n + 1, 4)), rng.normal(size=(count, 4)) / 2
    y = np.einsum("pnd,pd->pn", x, w)

    def loss_of(steps, *, masked, sign):
        r = y.copy()
        r[:, n] = 0
        for g in steps:
            read = r[:, :n] if masked else r
            u = np.einsum("pn,pnd->pd", read, x[:, : read.shape[1]]) / n
            r = r + sign * g * np.einsum("pd,pnd->pn", u, x)
        errors = (y[:, n] - sign * r[:, n]) ** 2
        return errors.mean(), errors.std() / math.sqrt(count)

    for steps, masked, sign, expected in (
        (UNTIED, True, -1, 0.026207),
        (UNTIED, False, -1, 0.06078),
        (TIED, False, -1, 0.1007),
        ((2.22424, -0.34900), True, 1, 0.026207),
    ):
        mean, error = loss_of(steps, masked=masked, sign=sign)
        assert abs(mean - expected) < 3 * error + 2e-3 * (not masked)  # those were sampled too
    for wrong, sign in ((UNTIED, 1), (UNTIED[::-1], 1)):
        assert loss_of(wrong, masked=True, sign=sign)[0] > 1


def test_conserved_quantities_of_each_layer_are_conserved_along_the_flow():
    task = icl.Task([0.6, 0.4], 9)
    for rank in (None, 1):
        model = icl.Layers.initialiser(task, heads=2, rank=rank, scale=0.5)(KEY)
        run = icl.simulate(
            icl.Population(task), model, icl.Flow(1e-9), saveat=[0.0, 20.0], record=["conserved"]
        )
        moved = np.abs(run.record["conserved"][-1] - run.record["conserved"][0])
        assert moved.max() < 1e-6
        assert all(len(rows) == 2 for rows in model.conserved().values())  # a row per layer


def test_a_tied_stack_is_the_untied_one_with_equal_layers():
    model = drawn(PLAIN, 3, tied=True)
    untied = icl.Layers.of(model.attention_layers())
    prompt = PLAIN.sample(KEY)
    np.testing.assert_allclose(model(prompt), untied(prompt), rtol=1e-12)
    assert eqx.tree_equal(icl.Layers.of(untied.attention_layers(), tied=True), model)
    assert {name: a.shape[0] for name, a in model.weights().items()} == dict.fromkeys(
        ("values", "keys", "queries"), 1
    )


def test_a_stack_shows_how_many_layers_it_has():
    assert "layers=3" in repr(drawn(PLAIN, 3))
    assert "layers=3" in repr(drawn(PLAIN, 3, tied=True))
    assert "tied=True" in repr(drawn(PLAIN, 3, tied=True))


def test_mistakes_are_one_line():
    one, two = (drawn(PLAIN, 1, scale=s).layer(0) for s in (1.0, 2.0))
    merged = icl.Merged.initialiser(PLAIN, heads=2, scale=1.0)(KEY)
    full = icl.Merged.initialiser(PLAIN, heads=2, scale=1.0, blocks=icl.Blocks.FULL)(KEY)
    other = drawn(icl.Task([1.0, 0.5], 9), 2)
    for make, words in (
        (lambda: icl.Layers.of([one]).layer(1), "numbered 0 to 0, got 1"),
        (lambda: icl.Population(PLAIN)(other), "the model has D = 2 inputs and O = 1 outputs"),
        (lambda: icl.Draws.sample(PLAIN, 5, KEY)(other), "the model has D = 2 inputs"),
        (lambda: icl.Layers.initialiser(PLAIN, layers=0, scale=1.0), "layers must be a whole"),
        (lambda: icl.Layers.of([]), "at least one layer"),
        (lambda: icl.Layers.of([one, two], tied=True), "tied layers share one set of weights"),
        (lambda: icl.Layers.of([one, merged]), "Merged or Separate attention of one shape"),
        (lambda: icl.Layers.of([full, full]), "no trained zero blocks"),
        (lambda: icl.Layers(icl.Layers.of([one]).stack, 2), "a leading axis of 2, got shape"),
        (lambda: icl.Population(PLAIN)(drawn(PLAIN, 3)), "one or two layers, got 3; use Draws"),
        (lambda: icl.Draws.sample(PLAIN, 0, KEY), "at least 1, got 0"),
        (lambda: icl.Draws.sample(PLAIN, 10**12, KEY), "are free; use fewer draws"),
        (lambda: icl.Statistics.sample(PLAIN, 2 * 10**9, KEY), "are free; use fewer sequences"),
        (
            lambda: icl.Draws.sample(icl.Task([1.0, 0.5], 9, tasks=icl.Normal(outputs=2)), 5, KEY),
            "one output, got 2",
        ),
        (
            lambda: icl.Population(icl.Task([1.0, 0.5], 9, inputs=icl.tasks.laws.Sphere()))(
                drawn(icl.Task([1.0, 0.5], 9), 2)
            ),
            "covers Gaussian inputs",
        ),
    ):
        with pytest.raises(ValueError, match=words) as raised:
            make()
        assert "\n" not in str(raised.value)


def test_select_says_which_level_and_why():
    task, sphere = PLAIN, PLAIN.replace(inputs=icl.tasks.laws.Sphere())
    level = lambda task, layers, p: icl.select(task, drawn(task, layers), p).level  # noqa: E731
    assert [level(task, layers, None) for layers in (1, 2, 3)] == [
        "population",
        "population",
        "draws",
    ]
    assert level(sphere, 2, None) == "draws"
    assert level(task, 2, 10) == level(task, 3, 10**5) == "statistics"
    assert level(task, 2, 10**5) == "moments"
    assert "sampled" in icl.select(task, drawn(task, 3), None).reason
    two_outputs = icl.Task([1.0, 0.5], 9, tasks=icl.Normal(outputs=2))
    with pytest.raises(ValueError, match="give a number of sequences"):
        icl.select(two_outputs, drawn(two_outputs, 2), None)
    for layers, p in ((1, None), (2, None), (3, None), (2, 10), (2, 10**3), (3, 10)):
        model = drawn(task, layers)
        choice = icl.select(task, model, p)
        assert choice.build(task, p, KEY).admits(model) is None


def test_more_layers_than_memory_holds_are_refused():
    loss = icl.Draws.sample(WHITE, 1000, KEY)
    deep = empty_model(icl.Layers.initialiser(WHITE, layers=10**9, heads=1, scale=0.1, tied=True))
    reason = loss.admits(deep)
    assert reason is not None
    assert "the gradient of 1,000,000,000 layers keeps" in reason
