"""Hessians, escape orders, rates and directions against automatic differentiation."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from iclflow.dynamics import Descent
from iclflow.losses import Population
from iclflow.models import Merged, Separate
from iclflow.runs.simulate import simulate
from iclflow.tasks.laws import Normal
from iclflow.tasks.task import ContextLabels, Task
from iclflow.theory import (
    FixedPoint,
    Modes,
    Order,
    all_fixed_points,
    hessian_matrix,
    hessian_product,
    saddle_path,
    separate_stability,
)
from tests.helpers.theory_tasks import FEW, NAMES, key, random_covariance, random_task, seeds, tasks
from tests.helpers.tiers import some

TOLERANCE = 1e-10


def close(a, b, tolerance=TOLERANCE):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@jax.jit
def autodiff_hessian(population, model):
    """The Hessian of L by forward over reverse differentiation."""
    flat, unravel = ravel_pytree(model)
    return jax.hessian(lambda w: population(unravel(w)))(flat)


@jax.jit
def autodiff_product(population, model, direction):
    gradient = jax.grad(lambda m: population(m))
    return jax.jvp(gradient, (model,), (direction,))[1]


product = eqx.filter_jit(hessian_product)


@jax.jit
def line_derivatives(population, model, direction):
    """The first three derivatives of L/2 along a line through the model's weights."""

    def along(t):
        return population(jax.tree.map(lambda w, d: w + t * d, model, direction)) / 2

    second = jax.grad(jax.grad(along))
    return jax.grad(along)(0.0), second(0.0), jax.grad(second)(0.0)


@pytest.mark.parametrize("name", ["paper", "non-commuting", "task mean", "zero eigenvalue"])
def test_hessian_product_at_any_weights(name):
    task = tasks()[name]
    for initialiser in (
        Separate.initialiser(task, heads=3, rank=2, scale=2.0),
        Merged.initialiser(task, heads=3, scale=2.0),
    ):
        model, direction = initialiser(key(0)), initialiser(key(1))
        ours = product(model, direction, Modes.of(task))
        theirs = autodiff_product(Population(task), model, direction)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            close(a, b, 1e-12)


def test_dense_hessian():
    task = tasks()["non-commuting"]
    for initialiser in (
        Separate.initialiser(task, heads=2, rank=2, scale=1.0),
        Merged.initialiser(task, heads=2, scale=1.0),
    ):
        model = initialiser(key(0))
        close(hessian_matrix(model, task), autodiff_hessian(Population(task), model), 1e-12)


def test_a_run_records_the_sharpness_of_the_same_hessian():
    """The largest eigenvalue that a run records is that of `hessian_matrix`, not twice or half."""
    task = tasks()["paper"]
    model = Separate.initialiser(task, heads=2, scale=1.0)(key(0))
    run = simulate(Population(task), model, Descent(0.1), saveat=[0], record=["sharpness"])
    dense = np.linalg.eigvalsh(np.asarray(hessian_matrix(model, task)))
    assert float(run["sharpness"][0]) == pytest.approx(dense[-1], rel=1e-9)


def check(found, population):
    """Everything a Stability says, against the Hessian by automatic differentiation."""
    matrix = np.asarray(autodiff_hessian(population, found.model))
    literal = np.linalg.eigvalsh(matrix)
    close(found.eigenvalues, literal)
    negative = literal[literal < -1e-9]
    assert found.index == negative.size
    close(found.rates, -negative / 2)
    for number in range(found.index):
        vector = ravel_pytree(found.direction(number))[0]
        close(jnp.linalg.norm(vector), 1.0)
        close(matrix @ vector, -2 * float(found.rates[number]) * np.asarray(vector))


@pytest.mark.parametrize("name", some(NAMES, *FEW))
def test_rank_one_spectrum_of_every_fixed_point(name):
    task = tasks()[name]
    population = Population(task)
    for point in all_fixed_points(task):
        check(separate_stability(point, heads=4), population)


@pytest.mark.parametrize("seed", seeds(3, 9))
def test_random_tasks(seed):
    task = random_task(seed)
    population = Population(task)
    points = list(all_fixed_points(task))
    rng = np.random.default_rng(seed)
    for number in rng.choice(len(points), min(6, len(points)), replace=False):
        check(separate_stability(points[number], heads=4), population)


CONFIGURATIONS = [
    ((), None),
    ((0,), None),
    ((0, 1), None),
    ((0, 1), ((0,), (1,))),
    ((1,), None),
    ((0, 2), ((0,), (2,))),
    ((0, 1, 2), ((0, 1), (2,))),
    ((0, 1, 2), None),
    ((1, 2), ((1, 2),)),
]


@pytest.mark.parametrize(("index_set", "holdings"), CONFIGURATIONS)
@pytest.mark.parametrize("name", ["non-commuting", "singular", "rotated"])
def test_higher_rank(name, index_set, holdings):
    """Partial heads, full heads, shared values; rank two, three heads."""
    task = {
        "non-commuting": tasks()["non-commuting"],
        "singular": Task(
            [0.5, 0.3, 0.2, 0.0], 6, tasks=Normal(covariance=[1.0, 2.0, 2.5, 1.0]), label_noise=0.2
        ),
        "rotated": Task(
            [0.8, 0.5, 0.3], 9, rotation=key(7), tasks=Normal(covariance=[0.4, 1.0, 3.0])
        ),
    }[name]
    point = FixedPoint.of(task, index_set)
    check(separate_stability(point, 3, 2, holdings), Population(task))


def test_orders_along_and_off_the_path():
    """Visited saddles are left at third order while a head is free; all others are strict."""
    task = tasks()["paper"]
    for point in all_fixed_points(task):
        found = separate_stability(point, heads=5)
        if point.visited:
            last = len(point.index_set) == 4
            assert found.order is (Order.MINIMUM if last else Order.THIRD)
            assert found.index == 0
        else:
            assert found.order is Order.SECOND
            swaps = [(d, j) for d in point.index_set for j in range(4) if j not in point.index_set]
            assert found.index == sum(j < d for d, j in swaps)
    # no head left: the best of its rank, a minimum
    assert separate_stability(saddle_path(task)[2], heads=2).order is Order.MINIMUM
    # a head with an empty pair learns on at second order, a full one does not
    assert separate_stability(saddle_path(task)[1], heads=2, rank=2).order is Order.SECOND
    assert separate_stability(saddle_path(task)[2], heads=2, rank=2).order is Order.THIRD
    assert separate_stability(saddle_path(task)[4], heads=2, rank=2).order is Order.MINIMUM
    assert separate_stability(saddle_path(task)[4], heads=3, rank=9).order is Order.MINIMUM


def test_gain_order_saddle_is_strict():
    """E1: with drops (1.480, .983) against g = (.75, 1) the set {largest g} is a strict saddle."""
    task = tasks()["swapped order"]
    assert separate_stability(FixedPoint.of(task, [0]), heads=3).order is Order.THIRD
    found = separate_stability(FixedPoint.of(task, [1]), heads=3)
    assert found.order is Order.SECOND
    assert found.index == 1


@pytest.mark.parametrize("name", ["paper", "non-commuting", "task covariance"])
def test_third_order_escape(name):
    """Along a zero head L/2 falls by exactly -g (ε/√3)³ to leading order, on top of no change."""
    task = tasks()[name]
    population = Population(task)
    for point in saddle_path(task)[:-1]:
        found = separate_stability(point, heads=4)
        close(found.cubic_gain, found.gains.values[0])
        for gain in range(found.gains.values.shape[0]):
            direction = found.cubic_direction(3, gain)
            close(jnp.linalg.norm(ravel_pytree(direction)[0]), 1.0)
            first, second, third = line_derivatives(population, found.model, direction)
            close(first, 0.0)
            close(second, 0.0)
            close(third, -6 * found.gains.values[gain] / 3**1.5)


def test_off_minimal_norm_the_index_changes():
    """v = 0, q = 0, k ≠ 0: one eigenvalue -2 |A_Sᵀ k|."""
    task = tasks()["paper"]
    point = saddle_path(task)[1]
    model = point.weights(2)
    k = jnp.array([0.1, 0.2, -0.3, 0.4])
    moved = Separate(values=model.values, keys=model.keys.at[1, 0].set(k), queries=model.queries)
    literal = np.linalg.eigvalsh(np.asarray(hessian_matrix(moved, task)))
    assert np.sum(literal < -1e-9) == 1
    close(literal[0], -2 * jnp.linalg.norm(point.residual.T @ k))


@pytest.mark.parametrize("name", NAMES)
def test_merged_key_and_query_leave_zero_at_the_rate_of_the_cross_moments(name):
    """(50): at zero weights the Hessian has the eigenvalues ±2‖G‖, one pair for each head."""
    task = tasks()[name]
    zero = Merged(values=jnp.zeros((2, 1, 1)), merged=jnp.zeros((2, task.size, task.size)))
    norm = float(jnp.linalg.norm(Modes.of(task).cross))
    found = np.linalg.eigvalsh(np.asarray(hessian_matrix(zero, task)))
    close(found[[0, 1, -2, -1]], [-2 * norm, -2 * norm, 2 * norm, 2 * norm])
    close(found[2:-2], 0.0)


def test_nothing_to_learn():
    task = Task([0.5, 0.3], 4, context_labels=ContextLabels.NOISE)
    assert separate_stability(saddle_path(task)[0], heads=2).order is Order.MINIMUM


def test_large_dimension():
    """D = 200: a spectrum of 80,200 numbers in closed form, and what stays known without one."""
    lam = 1 / np.arange(1.0, 201)
    modes = Modes.of(Task(lam, 50))
    found = separate_stability(saddle_path(modes)[100], heads=200)
    assert found.eigenvalues.shape == (200 * 401,)
    assert bool(jnp.all(jnp.isfinite(found.eigenvalues)))
    assert found.order is Order.THIRD
    close(found.cubic_gain, lam[100] ** 2)
    off = separate_stability(FixedPoint.of(modes, range(100, 200)), heads=200)
    assert off.index == 100 * 100
    assert float(off.eigenvalues[0]) == -2 * float(off.rates[0]) < 0
    mixed = Modes.of(Task(lam, 50, tasks=Normal(covariance=random_covariance(0, 200))))
    found = separate_stability(saddle_path(mixed)[7], heads=20)
    assert found.eigenvalues is None
    assert (found.order, found.index) == (Order.THIRD, 0)
    with pytest.raises(ValueError, match="no closed Hessian spectrum"):
        _ = found.rates


def test_mistakes():
    task = tasks()["paper"]
    found = separate_stability(saddle_path(task)[1], heads=2)
    with pytest.raises(ValueError, match="there are 0 unstable directions"):
        found.direction(0)
    with pytest.raises(ValueError, match="not one of the 1 zero heads"):
        found.cubic_direction(0, 0)
    with pytest.raises(ValueError, match="there are 3 gains"):
        found.cubic_direction(1, 3)
    with pytest.raises(ValueError, match="hold at most 1 modes"):
        separate_stability(saddle_path(task)[2], heads=1)


def test_index_is_that_of_any_full_weights():
    """Non-commuting tasks: the same count at other weights of the same function (Sylvester)."""
    task = tasks()["non-commuting rotated"]
    for index_set in itertools.combinations(range(4), 2):
        point = FixedPoint.of(task, index_set)
        expected = separate_stability(point, heads=3).index
        for holdings in (point.learned_holdings(1), None):
            model = point.weights(3, 1, holdings)
            stretched = Separate(
                values=2 * model.values, keys=0.7 * model.keys, queries=model.queries / 1.4
            )
            literal = np.linalg.eigvalsh(np.asarray(hessian_matrix(stretched, task)))
            assert np.sum(literal < -1e-9) == expected
