"""The modes of a task and the loss levels that follow from them."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

from iclflow.losses import Population
from iclflow.tasks.laws import Normal
from iclflow.tasks.task import ContextLabels, Task
from iclflow.theory import (
    LinearPredictor,
    Modes,
    conspicuous_plateaus,
    drop_sizes,
    final_loss,
    fixed_point_count,
    level_count,
    plateau_losses,
)
from tests.helpers.theory_tasks import NAMES, named_or_random, random_covariance, seeds, tasks

NON_COMMUTING = ("non-commuting", "non-commuting rotated", "task mean", "in weight")
ALL = pytest.mark.parametrize("task", [*NAMES, *seeds(3, 12)], indirect=True)


@pytest.fixture
def task(request):
    return named_or_random(request.param)


def loss_of(population, weight):
    return float(population(LinearPredictor(weight[None, None])))


def close(a, b, tolerance=1e-12):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_paper_levels():
    """(24)(32) for λ = .4 .3 .2 .1, N = 31, and the weights (23)(25) with them."""
    levels = plateau_losses(Task([0.4, 0.3, 0.2, 0.1], 31))
    np.testing.assert_allclose(levels, [1, 0.640580, 0.377372, 0.209805, 0.135995], atol=5e-7)
    lam = np.array([0.4, 0.3, 0.2, 0.1])
    a = lam**2 * (1 + (1 + 1 / lam) / 31)
    close(levels, 1 - np.concatenate([[0], np.cumsum(lam**3 / a)]))
    modes = Modes.of(Task(lam, 31))
    close(modes.eigenvalue, lam)
    close(modes.b, a)
    close(modes.g, lam**2)
    close(modes.m, lam / a)
    np.testing.assert_allclose(1 / modes.c, [1.3097, 1.4301, 1.6120, 1.9470], atol=5e-5)


@ALL
def test_decomposition_against_scipy(task):
    """Y by SciPy's matrix square roots (pseudo-inverse by hand where singular)."""
    population, modes = Population(task), Modes.of(task)

    def root_inverse(matrix):
        values, vectors = scipy.linalg.eigh(np.asarray(matrix))
        kept = values > 1e-12 * values.max()
        return (vectors[:, kept] / np.sqrt(values[kept])) @ vectors[:, kept].T

    y = root_inverse(population.second) @ np.asarray(population.cross[0])
    y = y @ root_inverse(population.covariance)
    sigma = scipy.linalg.svdvals(y)
    close(modes.singular, sigma[: modes.rank], 1e-10)
    assert np.all(sigma[modes.rank :] < 1e-10)
    close((modes.left * modes.singular[None]) @ modes.right.T, y, 1e-10)
    identity = np.eye(modes.rank)
    close(modes.left.T @ modes.left, identity, 1e-10)
    close(modes.right.T @ modes.right, identity, 1e-10)


@ALL
def test_weights_levels_and_residuals(task):
    """(55), (59) and (56) of every set of modes, by the loss itself."""
    population, modes = Population(task), Modes.of(task)
    for count in range(modes.rank + 1):
        for index_set in itertools.combinations(range(modes.rank), count):
            weight = modes.weight(index_set)
            close(modes.level(index_set), loss_of(population, weight))
            literal = population.cross[0] - population.second @ weight @ population.covariance
            close(modes.residual(index_set), literal)
            gains = modes.gains(index_set)
            assert gains.values.shape == (modes.rank - count,)
            assert bool(jnp.all(gains.values > 0))
            assert bool(jnp.all(jnp.diff(gains.values) <= 1e-15))
            close((gains.left * gains.values[None]) @ gains.right.T, literal)


@ALL
def test_least_loss_of_every_rank(task):
    """No matrix of rank m does better than M_m: gradient-free check on random competitors."""
    population, modes = Population(task), Modes.of(task)
    levels = plateau_losses(task)
    rng = np.random.default_rng(0)
    for m in range(modes.rank + 1):
        close(levels[m], loss_of(population, modes.weight(range(m))))
        best = np.asarray(modes.weight(range(m)))
        for scale in (1e-3, 1e-1, 1.0):
            if m == 0:
                break
            left = scipy.linalg.svd(best)[0][:, :m]
            right = left.T @ best
            noise = [scale * rng.normal(size=a.shape) for a in (left, right)]
            rival = (left + noise[0]) @ (right + noise[1])
            assert loss_of(population, jnp.asarray(rival)) >= float(levels[m]) - 1e-14


@ALL
def test_commuting_flag_is_the_commutator(task):
    population = Population(task)
    matrices = [population.covariance, population.second, population.cross[0]]
    gap = max(float(jnp.abs(a @ b - b @ a).max()) for a, b in itertools.combinations(matrices, 2))
    assert Modes.of(task).commuting == (gap < 1e-12)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NON_COMMUTING])
def test_commuting_modes(name):
    """(33): one set of eigenvectors for Λ, B and G."""
    modes = Modes.of(tasks()[name])
    assert modes.commuting
    close(modes.drops, modes.g**2 / (modes.eigenvalue * modes.b))
    close(modes.singular, modes.g * jnp.sqrt(modes.m / modes.g))
    close(modes.c**-3, modes.m)
    close(modes.weight(range(modes.rank)), (modes.right * modes.m[None]) @ modes.right.T)
    lam, b, g = modes.directions()
    close(np.sort(lam), np.linalg.eigvalsh(modes.covariance))
    close(np.sort(b), np.linalg.eigvalsh(modes.second))
    close(np.sort(g), np.linalg.eigvalsh(modes.cross))


def test_drop_order_is_not_always_gain_order():
    """E1: lambda = (1, .5), s_w = (1, 3), N = 200: g = (1, .75), drops = (.983, 1.480)."""
    modes = Modes.of(tasks()["swapped order"])
    np.testing.assert_allclose(modes.drops, [1.480, 0.983], atol=5e-4)
    close(modes.g, [0.75, 1.0])
    close(drop_sizes(tasks()["swapped order"]), modes.drops)
    close(modes.gains(()).values, [1.0, 0.75])


def test_limits():
    assert Modes.of(tasks()["zero eigenvalue"]).rank == 2
    assert Modes.of(tasks()["singular tasks"]).rank == 2
    empty = Modes.of(Task([0.0, 0.0], 3))
    assert empty.rank == 0
    close(plateau_losses(empty), [0.0])
    noise = Modes.of(Task([0.5, 0.3], 3, context_labels=ContextLabels.NOISE))
    close(plateau_losses(noise), [0.8])
    close(noise.gains(()).values, [])
    one = Modes.of(Task([2.0], 1))
    close(plateau_losses(one), [2.0, 2.0 - 8 / (4 * (1 + 2))])
    # Ten decades of eigenvalues keep their relative accuracy in coordinates.
    lam = 10.0 ** -np.arange(0, 10, 2)
    wide = Modes.of(Task(lam, 1000))
    close(wide.drops / (lam**3 / (lam**2 * (1 + (1 + lam.sum() / lam) / 1000))), np.ones(5), 1e-9)


def test_degenerate_groups_and_counts():
    assert level_count(tasks()["white"]) == 4
    assert level_count(tasks()["doubled"]) == 9
    assert level_count(tasks()["paper"]) == 16
    for name in ("white", "doubled", "paper", "non-commuting"):
        modes = Modes.of(tasks()[name])
        levels = [
            float(modes.level(s))
            for m in range(modes.rank + 1)
            for s in itertools.combinations(range(modes.rank), m)
        ]
        assert len(levels) == fixed_point_count(modes)
        assert len(np.unique(np.round(levels, 9))) == level_count(modes)
    assert fixed_point_count(Task(1 / np.arange(1.0, 201), 50)) == 2**200


@pytest.mark.parametrize("name", ["white", "doubled"])
def test_rotation_within_a_group(name):
    modes = Modes.of(tasks()[name])
    group = modes.groups()[0]
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(len(group),) * 2))[0]
    turned = modes.rotated(group, jnp.asarray(rotation))
    assert turned.commuting
    close(turned.weight(group), modes.weight(group))
    part = group[:1]
    assert float(jnp.abs(turned.weight(part) - modes.weight(part)).max()) > 1e-2
    close(loss_of(Population(tasks()[name]), turned.weight(part)), modes.level(part))
    close(turned.m, modes.m)


def test_rotation_that_breaks_commutation():
    """Equal drops with different eigenvalues: rotated modes are no eigenvectors of Λ."""
    lam = np.array([0.6, 0.3])

    def gap(s):
        modes = Modes.of(Task(lam, 30, tasks=Normal(covariance=[1.0, s])))
        by_eigenvalue = np.asarray(modes.drops)[np.argsort(-np.asarray(modes.eigenvalue))]
        return by_eigenvalue[0] - by_eigenvalue[1]

    s = scipy.optimize.brentq(gap, 1.0, 6.0, xtol=1e-15)
    task = Task(lam, 30, tasks=Normal(covariance=[1.0, s]))
    modes = Modes.of(task)
    assert len(modes.groups()) == 1
    angle = 0.3
    rotation = jnp.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turned = modes.rotated((0, 1), rotation)
    assert not turned.commuting
    close(loss_of(Population(task), turned.weight((0,))), turned.level((0,)), 1e-10)
    with pytest.raises(ValueError, match="no common eigenvectors"):
        _ = turned.g
    swapped = modes.rotated((0, 1), jnp.array([[0.0, 1.0], [1.0, 0.0]]))
    assert swapped.commuting
    close(swapped.eigenvalue, modes.eigenvalue[::-1])
    close(swapped.weight((0,)), modes.weight((1,)))


def test_conspicuous_plateaus_and_final_loss():
    task = tasks()["paper"]
    levels = plateau_losses(task)
    for rank, expected in ((1, (0, 1, 2, 3, 4)), (2, (0, 2, 4)), (3, (0, 3, 4)), (9, (0, 4))):
        counts, values = conspicuous_plateaus(task, rank)
        assert counts == expected
        close(values, levels[jnp.asarray(expected)])
    close(final_loss(task, heads=2), levels[2])
    close(final_loss(task, heads=1, rank=3), levels[3])
    close(final_loss(task, heads=9, rank=3), levels[4])


def test_mistakes():
    modes = Modes.of(tasks()["paper"])
    with pytest.raises(ValueError, match="distinct mode numbers from 0 to 3"):
        modes.weight([4])
    with pytest.raises(ValueError, match="distinct mode numbers"):
        modes.level([1, 1])
    with pytest.raises(ValueError, match="one output, got 2"):
        Modes.of(Task([0.5, 0.3], 4, tasks=Normal(outputs=2)))
    with pytest.raises(ValueError, match="no common eigenvectors"):
        _ = Modes.of(tasks()["non-commuting"]).m
    with pytest.raises(ValueError, match="at least 1, got 0"):
        conspicuous_plateaus(modes, 0)


def test_large_dimension():
    """D = 200: everything finite, levels strictly decreasing to the least-squares loss."""
    lam = 1 / np.arange(1.0, 201)
    for covariance in (None, random_covariance(0, 200)):
        law = None if covariance is None else Normal(covariance=covariance)
        task = Task(lam, 50, tasks=law)
        modes = Modes.of(task)
        levels = plateau_losses(modes)
        assert modes.rank == 200
        assert math.isfinite(float(levels[-1]))
        assert bool(jnp.all(jnp.diff(levels) < 0))
        close(levels[-1], loss_of(Population(task), modes.weight(range(200))), 1e-10)


def test_single_precision_follows_the_inputs():
    population = Population(tasks()["non-commuting"])
    single = jax.tree.map(lambda a: a.astype(jnp.float32), population)
    modes = Modes.of(single)
    assert modes.singular.dtype == jnp.float32
    np.testing.assert_allclose(modes.singular, Modes.of(population).singular, rtol=1e-5)
