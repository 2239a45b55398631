"""What theory says of several layers: best steps, their limits, saddle and plateaus (D6)-(D20)."""

import json
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

import iclflow as icl
from iclflow.cli import main
from iclflow.losses.wishart import trace_moments
from iclflow.theory import depth
from tests.helpers.stacks import of_steps, value

TASK = icl.Task([0.4, 0.3, 0.2, 0.1], 31)
TABLE = np.array(
    [
        [1, 0.64058, 0.37737, 0.20980, 0.13600],
        [0.64058, 0.36840, 0.19244, 0.11065, 0.09290],
        [0.37737, 0.19458, 0.10626, 0.08217, 0.05928],
        [0.20980, 0.11616, 0.08871, 0.06161, 0.03652],
        [0.13600, 0.10383, 0.07386, 0.04697, 0.02564],
    ]
)


def test_best_steps_have_the_reference_numbers():
    """(D6)(D8) at D = 4, N = 31 for one to eight layers."""
    moments = trace_moments(4, 31, 16)
    tied = [depth.best_tied(moments, layers) for layers in (1, 2, 3, 4, 8)]
    untied = [depth.best_untied(moments, layers) for layers in (1, 2, 3, 4, 8)]
    assert [round(t.loss, 6) for t in tied] == [0.138889, 0.039446, 0.014711, 0.006468, 0.000610]
    assert [round(u.loss, 6) for u in untied] == [0.138889, 0.026207, 0.006089, 0.001644, 0.000026]
    sums = [round(sum(t.steps), 6) for t in tied[:4]]
    assert sums == [0.861111, 1.677438, 2.446698, 3.169133]
    np.testing.assert_allclose(untied[2].steps, [0.51949, 0.79289, 1.58494], atol=5e-6)
    for size, context, expected in (
        (32, 64, (0.192985, 0.090359, 0.150660, 0.038279)),
        (32, 32, (0.384845, 0.285610, 0.343915, 0.214055)),
    ):
        moments = trace_moments(size, context, 8)
        found = [
            f(moments, layers).loss
            for f in (depth.best_tied, depth.best_untied)
            for layers in (2, 4)
        ]
        np.testing.assert_allclose(found, expected, atol=5e-7)


def test_the_best_untied_loss_is_the_ratio_of_determinants_and_is_reached():
    """(D8) by determinants in floating point, and by (D6) at its own steps."""
    moments = trace_moments(4, 31, 8)
    for layers in (1, 2, 3, 4):
        hankel = [[float(moments[i + j]) for j in range(layers + 1)] for i in range(layers + 1)]
        ratio = np.linalg.det(hankel) / np.linalg.det(np.asarray(hankel)[1:, 1:])
        found = depth.best_untied(moments, layers)
        np.testing.assert_allclose(found.loss, ratio, rtol=1e-7)
        np.testing.assert_allclose(depth.white_loss(found.steps, moments), found.loss, rtol=1e-9)
    with pytest.raises(ValueError, match="3 layers need 7 moments, got 5"):
        depth.white_loss([1.0, 1.0, 1.0], moments[:5])
    with pytest.raises(ValueError, match="layers must be a whole number of at least 1, got 0"):
        depth.best_tied(moments, 0)


def test_isotropic_layers_have_the_loss_of_their_polynomial():
    """(D6) against (D16) at two layers and against draws at three, also with D > N."""
    for size, context in ((4, 31), (6, 4)):
        task = icl.Task([1.0] * size, context, tasks=icl.Normal(covariance=[1 / size] * size))
        moments = trace_moments(size, context, 6)
        exact = value(icl.Population(task), of_steps((0.5, 0.3), size))
        np.testing.assert_allclose(depth.white_loss([0.5, 0.3], moments), exact, rtol=1e-12)
        draws = icl.Draws.sample(task, 4000, jax.random.key(2))
        parts = np.asarray(draws.each(of_steps((0.5, 0.3, 0.4), size)))
        error = parts.std() / np.sqrt(parts.size)
        assert abs(depth.white_loss([0.5, 0.3, 0.4], moments) - parts.mean()) < 3 * error


def test_the_limit_is_that_of_marchenko_and_pastur():
    """(D9), its reference numbers, and the error of the limit, which falls as 1/D."""
    ratio = Fraction(4, 31)
    tied = [depth.best_tied(depth.limit_moments(ratio, 8), n).loss for n in (1, 2, 3, 4)]
    untied = [depth.best_untied(depth.limit_moments(ratio, 8), n).loss for n in (1, 2, 3, 4)]
    assert [round(x, 6) for x in tied] == [0.114286, 0.024630, 0.006479, 0.001886]
    assert [round(x, 6) for x in untied] == [0.114286, 0.014532, 0.001872, 0.000241]
    np.testing.assert_allclose(untied, [depth.untied_limit(4 / 31, n) for n in (1, 2, 3, 4)])
    np.testing.assert_allclose([depth.untied_limit(1, n) for n in (2, 4)], [1 / 3, 1 / 5])
    square = depth.limit_moments(Fraction(1), 8)  # C(2L, L)/4^L
    np.testing.assert_allclose([depth.best_tied(square, n).loss for n in (2, 4)], [0.375, 35 / 128])
    limit = depth.best_tied(depth.limit_moments(Fraction(1, 2), 4), 2).loss
    sizes = (8, 32, 128)
    errors = [depth.best_tied(trace_moments(d, 2 * d, 4), 2).loss - limit for d in sizes]
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert abs(slope + 1) < 0.05
    with pytest.raises(ValueError, match="must be positive"):
        depth.limit_moments(Fraction(0), 4)


def test_with_the_other_sign_tied_layers_are_worse_than_one():
    """ŷ = + slot without a minus in (D1): the error is 2 - Π (1 + g_l s) instead of Π (1 - g_l s).

    Untied layers reach the same least loss, with steps of both signs; tied ones .175985.
    """
    m = [float(x) for x in trace_moments(4, 31, 4)]

    def loss(steps):
        error = np.polynomial.Polynomial([2.0]) - np.prod(
            [np.polynomial.Polynomial([1.0, g]) for g in steps]
        )
        return float(np.dot((error**2).coef, m))

    tied = minimize_scalar(lambda g: loss((g, g)), bounds=(0, 1), options={"xatol": 1e-12})
    assert round(tied.fun, 6) == 0.175985 > 0.138889
    untied = minimize(loss, [2.0, -0.3], options={"gtol": 1e-9})
    assert round(untied.fun, 6) == 0.026207
    np.testing.assert_allclose(untied.x, [2.22424, -0.34900], atol=1e-5)


def test_the_looped_optimum_need_not_be_symmetric():
    """An antisymmetric part of Γ gains where N is above about D², against the best γ I (D6)."""
    for size, context, loss, symmetric in (
        (4, 31, 0.0394175, 0.0394458),
        (4, 400, 0.0003389, 0.0003442),
        (4, 8, 0.2486431, 0.2486431),
    ):
        covariance = [1 / size] * size
        task = icl.Task([1.0] * size, context, tasks=icl.Normal(covariance=covariance))
        best = depth.best_tied(trace_moments(size, context, 4), 2).loss
        found = depth.tied_levels(task)[-1]
        assert (round(found, 7), round(best, 7)) == (loss, symmetric)


def test_the_tied_solution_is_a_saddle():
    """Two layers g ± δ fall below the tied optimum, by the curvature stated."""
    assert round(depth.tied_curvature(4, 31), 6) == -0.568771
    moments = trace_moments(4, 31, 4)
    best = depth.best_tied(moments, 2)
    g, step = best.steps[0], 1e-2
    split = depth.white_loss([g - step, g + step], moments)
    np.testing.assert_allclose(2 * (split - best.loss) / step**2, -0.568771, rtol=1e-3)


def test_an_idle_layer_grows_at_the_rate_of_its_residual():
    """(D19), white and not, and the gains that idle heads of either layer see."""
    _, _, second, third = trace_moments(4, 31, 3)  # white: its rate over that of the first drop
    np.testing.assert_allclose(float(third / second**2 - 1), 0.125)
    rates = depth.second_drop_rates(TASK)
    np.testing.assert_allclose(rates, [0.0230, 0.0190], atol=5e-5)
    # The same rate as minus the least eigenvalue of half the Hessian in the weights of the layer
    # that is idle: w (v, U) with v U added to its Γ.
    best = icl.theory.least_squares(TASK).reduced_weights()[0, 0]
    population = icl.Population(TASK)

    @jax.jit
    def curvature(idle):
        def loss(weights):
            gamma = weights[0] * weights[1:].reshape(4, 4)
            layers = jnp.where(jnp.arange(2)[:, None, None] == idle, gamma, best)
            assert population.white is not None
            return population.white.two_layers(layers) / 2

        return jnp.linalg.eigvalsh(jax.hessian(loss)(jnp.zeros(17)))

    np.testing.assert_allclose([-curvature(idle)[0] for idle in (0, 1)], rates, rtol=1e-9)
    held = jnp.zeros((4, 4)).at[0, 0].set(float(icl.theory.Modes.of(TASK).weight([0])[0, 0]))
    zero = jnp.zeros((4, 4))
    gains = depth.layer_gains(TASK, jnp.stack([held, zero]))
    np.testing.assert_allclose(gains[0], [0.09, 0.04, 0.01, 0], atol=5e-6)
    np.testing.assert_allclose(gains[1], [0.08739, 0.03884, 0.00971, 0.00887], atol=5e-6)
    gains = depth.layer_gains(TASK, jnp.stack([zero, held]))
    np.testing.assert_allclose(gains[0], [0.09242, 0.04108, 0.01027, 0.00887], atol=5e-6)
    best = icl.theory.least_squares(TASK).reduced_weights()[0, 0]
    gains = depth.layer_gains(TASK, jnp.stack([best, zero]))
    np.testing.assert_allclose(gains[1], [0.0149, 0.0100, 0.0058, 0.0023], atol=5e-5)


def test_two_untied_layers_have_two_minima_and_tied_ones_a_higher():
    assert [round(x, 9) for x in depth.untied_minima(TASK)] == [0.025640115, 0.025890124]
    levels = depth.tied_levels(TASK, restarts=0)
    np.testing.assert_allclose(levels, [1, 0.621839, 0.329913, 0.133446, 0.038523], atol=6e-7)


def test_the_plateaus_of_one_layer_are_the_edges_of_the_table():
    """(D20) at D = 2: ranks (r, 0) and (0, r) are the levels of one layer."""
    task = icl.Task([0.6, 0.3], 12)
    table = depth.plateau_table(task, restarts=1)
    levels = np.asarray(icl.theory.plateau_losses(task))
    np.testing.assert_allclose(table[0], levels, rtol=1e-8)
    np.testing.assert_allclose(table[:, 0], levels, rtol=1e-8)
    np.testing.assert_allclose(table[2, 2], depth.untied_minima(task)[0], rtol=1e-7)
    assert (np.diff(table, axis=0) < 0).all()
    assert (np.diff(table, axis=1) < 0).all()


@pytest.mark.slow
def test_the_table_of_plateaus_has_the_reference_numbers():
    """(D20) at four inputs."""
    np.testing.assert_allclose(depth.plateau_table(TASK), TABLE, atol=6e-6)


def test_theory_of_layers_on_the_command_line(capsys):
    given = ["theory", "--spectrum", "0.6,0.3", "--context", "12", "--layers"]
    assert main([*given, "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert np.shape(found["plateau_table"]) == (3, 3)
    assert found["tied_loss"] > max(found["untied_losses"])
    limit = depth.untied_limit(2 / 12, 2)
    np.testing.assert_allclose(found["asymptotic_untied_loss"], 0.9 * limit)
    assert found["asymptotic_untied_loss"] < found["asymptotic_tied_loss"] < found["tied_loss"]
    assert main([*given, "2"]) == 0
    assert "plateaus of two layers" in capsys.readouterr().out
    assert main([*given, "3", "--json"]) == 0
    deeper = json.loads(capsys.readouterr().out)
    assert deeper["untied_losses"][0] < found["untied_losses"][0]
    assert deeper["plateau_table"] is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--layers", "0"), "--layers: must be at least 1, got 0"),
        (("--layers", "2", "--plot", "no.png"), "give its --scale"),
        (("--layers", "2", "--model", "softmax-merged"), "layers does nothing with model"),
        (("--tied",), "tied does nothing with model separate"),
        (("--layers", "2", "--inputs", "sphere"), "known for Gaussian inputs, got Sphere"),
        (("--layers", "25"), "exact losses are known up to 24 layers, got 25"),
        (("--layers", "1001"), "--layers: must be at most 1000, got 1001"),
        (("--layers", "3", "--noise", "0.1"), "one context length and no noise"),
        (("--layers", "3", "--lengths", "5,12"), "one context length and no noise"),
        (("--layers", "2", "--spectrum", "0.6,0"), "got an eigenvalue 0; leave it out"),
    ],
)
def test_what_layers_cannot_do_is_one_line(options, words, capsys):
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["theory", "--spectrum", "0.6,0.3", "--context", "12", *options]))
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_what_is_known_of_a_family_without_noise_is_not_said_with_noise(monkeypatch):
    """Its least loss without noise would be below that of any weights with noise."""
    task = icl.Task([0.6, 0.3], 12)
    monkeypatch.setattr(depth, "TABLE_SIZE", 0)  # not the tables, which take seconds
    for other in (task.replace(label_noise=0.5), task.replace(lengths=(5, 12))):
        found = depth.depth_summary(other, 2)
        assert {found[name] for name in depth.FAMILY} == {None}
        assert 0.06 < found["untied_losses"][0] < found["tied_loss"]
    plain = depth.depth_summary(task.replace(target_noise=0.1), 2)
    names = ("untied", "tied")
    any_weights = plain["untied_losses"][0], plain["tied_loss"]
    for name, least in zip(names, any_weights, strict=True):
        assert 0.01 < least <= plain[f"isotropic_{name}_loss"]


@pytest.mark.slow
def test_two_layers_are_simulated_on_the_command_line(capsys, tmp_path):
    given = ["simulate", "--spectrum", "0.6,0.3", "--context", "12", "--scale", "0.2"]
    given += ["--heads", "3", "--steps", "400", "--save", "0,400", "--json"]
    for more, level in (
        (("--layers", "2"), "population"),
        (("--layers", "2", "--tied", "--model", "merged"), "population"),
        (("--layers", "3", "--out", str(tmp_path / "run.nc")), "draws"),
        (("--layers", "3", "--sequences", "30"), "statistics"),
    ):
        assert main([*given, *more]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["level"] == level
        assert found["final_loss"][0] < 0.7 * found["initial_loss"][0]
        assert found["model"].startswith("layers-")
    runs = icl.load(tmp_path / "run.nc")
    assert runs["keys"].dims == ("seed", "time", "layer", "head", "pair", "row")
