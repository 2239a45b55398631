"""Fixed points: weights, stationarity conditions, and which one a model is near."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.losses import Population
from iclflow.models import MLP, Blocks, ConvNet, Merged, Separate
from iclflow.tasks.task import Task
from iclflow.theory import (
    FixedPoint,
    Modes,
    all_fixed_points,
    conditions,
    descent_direction,
    gradient_residual,
    merged_weights,
    nearest_fixed_point,
    plateau_losses,
    saddle_path,
)
from tests.helpers.theory_tasks import FEW, NAMES, key, named_or_random, random_task, seeds, tasks
from tests.helpers.tiers import some

ALL = pytest.mark.parametrize("task", [*NAMES, *seeds(3, 6)], indirect=True)


@pytest.fixture
def task(request):
    return named_or_random(request.param)


def close(a, b, tolerance=1e-12):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@jax.jit
def autodiff(population, model):
    """-½ ∂L/∂W."""
    return jax.tree.map(lambda a: -a / 2, jax.grad(lambda m: population(m))(model))


def squared_norm(model):
    return float(sum(jnp.sum(a**2) for a in jax.tree.leaves(model)))


@jax.jit
def matrix_of(model):
    return model.reduced_weights()[0, 0]


# Compiled once for every shape, where the library is called many times.
direction_at = eqx.filter_jit(descent_direction)
residual_at = eqx.filter_jit(gradient_residual)
conditions_at = eqx.filter_jit(conditions)
evaluate = jax.jit(lambda population, model: population(model))


@pytest.mark.parametrize("name", ["paper", "non-commuting", "task mean", "zero eigenvalue"])
def test_descent_direction_is_the_gradient(name):
    """(13)(19)(80) by automatic differentiation."""
    task = tasks()[name]
    population = Population(task)
    for model in (
        Merged.initialiser(task, heads=2, scale=1.0)(key(0)),
        Separate.initialiser(task, heads=2, rank=2, scale=1.0)(key(1)),
    ):
        ours, theirs = direction_at(model, Modes.of(task)), autodiff(population, model)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            close(a, b)
        norm = np.sqrt(squared_norm(theirs))
        close(residual_at(model, Modes.of(task)), norm)


@ALL
def test_every_fixed_point_has_weights_at_rest(task):
    """(21)(57)(81)(83), E1: the gradient vanishes there, and the function is M(S) (23)(C1)."""
    population = Population(task)
    heads = 5  # two shapes for every dimension keep compilation short
    for point in itertools.islice(all_fixed_points(task), 32):
        for rank, holdings in (
            (1, None),
            (1, point.learned_holdings(1)),
            (2, None),
            (2, point.learned_holdings(2)),
        ):
            model = point.weights(heads, rank, holdings)
            assert model.keys.shape == (heads, rank, task.size)
            close(matrix_of(model), point.weight)
            close(evaluate(population, model), point.loss)
            gradient = autodiff(population, model)
            assert all(float(jnp.abs(a).max()) < 1e-12 for a in jax.tree.leaves(gradient))
            assert conditions_at(model, Modes.of(task)).satisfied(1e-11)
            # balanced: |k_r| = |q_r| and sum |k|^2 = v^2 (79)(85)
            k, q, v = (np.asarray(a) for a in (model.keys, model.queries, model.values))
            close(np.sum(k**2, 2), np.sum(q**2, 2))
            close(np.sum(k**2, (1, 2)), v[:, 0, 0] ** 2)


@pytest.mark.parametrize("name", ["paper", "task covariance", "non-commuting rotated"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_least_norm(name, rank):
    """Least over all partitions of the modes, and over random weights of the same function."""
    point = saddle_path(tasks()[name])[3]
    least = squared_norm(point.weights(4, rank))
    members = point.index_set
    for assignment in itertools.product(range(3), repeat=3):
        holdings = tuple(
            tuple(s for s, i in zip(members, assignment, strict=True) if i == head)
            for head in range(3)
        )
        holdings = tuple(h for h in holdings if h)
        if max(map(len, holdings)) <= rank:
            assert squared_norm(point.weights(4, rank, holdings)) >= least - 1e-12
    left, values, right = np.linalg.svd(np.asarray(point.weight))
    left, right = left[:, :3] * np.sqrt(values[:3]), (right[:3].T) * np.sqrt(values[:3])
    rng = np.random.default_rng(0)
    for scale in (0.03, 0.3, 1.0):
        mix = np.eye(3) + scale * rng.normal(size=(3, 3))
        pairs = left @ mix, right @ np.linalg.inv(mix).T  # the same product
        norms = 0.0
        for start in range(0, 3, rank):  # each head then takes its own least norm, 3 ν^(2/3)
            part = pairs[0][:, start : start + rank] @ pairs[1][:, start : start + rank].T
            norms += 3 * np.linalg.norm(part, "nuc") ** (2 / 3)
        assert norms >= least - 1e-12


def test_paper_weights():
    """(25)(78): k = q = v e_d with v = (lambda/a)^(1/3)."""
    task = tasks()["paper"]
    model = saddle_path(task)[4].weights(5)
    v = np.asarray(model.values[:, 0, 0])
    np.testing.assert_allclose(v, [1.3097, 1.4301, 1.6120, 1.9470, 0], atol=5e-5)
    close(model.keys[:4, 0], np.diag(v[:4]))
    close(model.queries[:4, 0], np.diag(v[:4]))


def test_rank_two_head():
    """E9: v = (Σ m)^(1/3), |k_r| = (m/v)^(1/2), and a smaller norm than separate heads."""
    point = saddle_path(tasks()["paper"])[2]
    model, m = point.weights(2, rank=2), np.asarray(Modes.of(tasks()["paper"]).m)[:2]
    v = m.sum() ** (1 / 3)
    close(model.values[:, 0, 0], [v, 0])
    close(jnp.linalg.norm(model.keys[0], axis=1), np.sqrt(m / v))
    assert squared_norm(model) < squared_norm(point.weights(2, rank=1))


def test_exact_conditions_go_beyond_sufficient_ones():
    """E4: a silent head with key and query both outside span(S) can be at rest."""
    task = tasks()["paper"]
    population, point = Population(task), saddle_path(task)[1]
    model = point.weights(3)
    modes = point.modes
    g = np.asarray(modes.g)
    # kᵀ A q = g_2 a c + g_3 b d = 0 with no component zero
    k = modes.right[:, 1] + modes.right[:, 2]
    q = modes.right[:, 1] / g[1] - modes.right[:, 2] / g[2]
    resting = Separate(
        values=model.values, keys=model.keys.at[2, 0].set(k), queries=model.queries.at[2, 0].set(q)
    )
    assert conditions(resting, task).satisfied()
    assert float(gradient_residual(resting, task)) < 1e-12
    assert max(float(jnp.abs(a).max()) for a in jax.tree.leaves(autodiff(population, resting))) < (
        1e-12
    )
    moved = Separate(
        values=resting.values, keys=resting.keys.at[2, 0, 1].add(0.1), queries=resting.queries
    )
    assert not conditions(moved, task).satisfied()
    # an active head off the span is not at rest
    active = Separate(
        values=resting.values.at[2].set(0.1), keys=resting.keys, queries=resting.queries
    )
    assert not conditions(active, task).satisfied()
    assert float(gradient_residual(active, task)) > 1e-3


@ALL
def test_merged_zero_set_and_manifold(task):
    """(14)(16): v = 0 with ⟨U, G⟩ = 0, and Σ v U = M*."""
    modes = Modes.of(task)
    direction = jnp.array([0.3, -2.0, 1.0])
    for best in (merged_weights(task, 3), merged_weights(task, 3, direction)):
        close(matrix_of(best), modes.weight(range(modes.rank)))
        assert conditions_at(best, modes).satisfied(1e-11)
        assert float(residual_at(best, modes)) < 1e-12
        close(evaluate(Population(task), best), plateau_losses(task)[-1])
        second = best.values[:, 0, 0]
        first = best.merged.reshape(3, -1)
        close(jnp.outer(second, second), first @ first.T)  # balanced (17)
    first = jax.random.normal(key(3), (2, task.size, task.size))
    unit = modes.cross / jnp.linalg.norm(modes.cross)
    resting = first - jnp.einsum("hdc,dc->h", first, unit)[:, None, None] * unit[None]
    values = jnp.zeros((2, 1, 1))
    model = Merged(values=values, merged=resting)
    assert conditions_at(model, modes).satisfied(1e-11)
    assert float(residual_at(model, modes)) < 1e-12
    moved = Merged(values=values, merged=resting + unit[None])
    assert not conditions_at(moved, modes).satisfied()


def test_white_merged_weight():
    """(16) for Λ: (Λ + (Λ + tr(Λ) I)/N)⁻¹."""
    lam = np.array([0.4, 0.3, 0.2, 0.1])
    close(matrix_of(merged_weights(Task(lam, 31), 2)), np.diag(1 / (lam + (lam + 1) / 31)))


@pytest.mark.parametrize("name", some(NAMES, *FEW))
def test_nearest_recovers_every_fixed_point(name):
    task = tasks()[name]
    population = Population(task)
    for point in all_fixed_points(task):
        model = point.weights(4, 1)
        found = nearest_fixed_point(model, task)
        close(found.point.weight, point.weight, 1e-9)
        assert float(found.distance) < 1e-9
        assert abs(float(found.loss_gap)) < 1e-12
        noise = Separate.initialiser(task, heads=4, scale=1e-4)(key(0))
        near = jax.tree.map(jnp.add, model, noise)
        found = nearest_fixed_point(near, task)
        assert len(found.point.index_set) == len(point.index_set)
        assert 0 < float(found.distance) < 1e-3
        close(found.loss_gap, evaluate(population, near) - point.loss, 1e-12)


def test_nearest_against_enumeration():
    for seed in range(6):
        task = random_task(seed)
        modes = Modes.of(task)
        model = Separate.initialiser(task, heads=6, rank=2, scale=6.0)(key(seed))
        found = nearest_fixed_point(model, task)

        def distance(point, model=model, modes=modes):
            change = np.asarray(matrix_of(model) - point.weight)
            curved = np.asarray(modes.second) @ change @ np.asarray(modes.covariance)
            return float(np.sqrt(np.sum(change * curved)))

        best = min(all_fixed_points(task), key=distance)
        assert found.point.index_set == best.index_set
        close(found.distance, distance(best))


def test_distance_is_that_of_predictions():
    task = tasks()["non-commuting"]
    model = Separate.initialiser(task, heads=4, scale=2.0)(key(1))
    found = nearest_fixed_point(model, task)
    predictor = found.point.predictor()
    prompts = jax.jit(jax.vmap(task.sample))(jax.random.split(key(2), 40_000))
    gaps = jax.jit(jax.vmap(lambda p: jnp.sum((model(p) - predictor(p)) ** 2)))(prompts)
    error = float(jnp.std(gaps)) / 200
    assert abs(float(jnp.mean(gaps)) - float(found.distance) ** 2) < 4 * error


def test_nearest_in_a_degenerate_family():
    """White spectrum: a head along any direction is exactly on a level-one fixed point."""
    task = tasks()["white"]
    direction = np.array([0.6, -0.64, 0.48])
    v = float(Modes.of(task).m[0]) ** (1 / 3)
    k = jnp.asarray(v * direction)[None, None]
    model = Separate(values=jnp.full((1, 1, 1), v), keys=k, queries=k)
    assert float(residual_at(model, Modes.of(task))) < 1e-12
    found = nearest_fixed_point(model, task)
    assert len(found.point.index_set) == 1
    assert float(found.distance) < 1e-7  # the square root of rounding error
    close(found.point.weight, matrix_of(model), 1e-9)
    close(found.point.loss, plateau_losses(task)[1])


def test_nearest_respects_the_architecture():
    task = tasks()["paper"]
    middle = saddle_path(task)[2]
    merged = Merged(values=jnp.ones((1, 1, 1)), merged=middle.weight[None])
    for model in (merged, MLP.from_attention(merged)):
        assert nearest_fixed_point(model, task).point.index_set in ((), (0, 1, 2, 3))
    crowded = Separate(
        values=jnp.ones((1, 1, 1)), keys=jnp.ones((1, 1, 4)), queries=jnp.ones((1, 1, 4))
    )
    assert len(nearest_fixed_point(crowded, task).point.index_set) <= 1
    net = ConvNet.from_attention(middle.weights(2))
    assert nearest_fixed_point(net, task).point.index_set == (0, 1)


def test_enumeration_is_lazy_and_complete():
    """(22)(82): every set once, the small ones first."""
    sizes = [
        len(p.index_set) for p in itertools.islice(all_fixed_points(Task(np.ones(30), 31)), 40)
    ]
    assert sizes == [0] + [1] * 30 + [2] * 9
    for name in ("paper", "zero eigenvalue"):
        found = [p.index_set for p in all_fixed_points(tasks()[name])]
        assert len(set(found)) == len(found) == 2 ** Modes.of(tasks()[name]).rank


def test_names_and_path():
    points = saddle_path(tasks()["paper"])
    assert [p.algorithm for p in points] == [
        "zero prediction",
        "principal component regression, 1 component",
        "principal component regression, 2 components",
        "principal component regression, 3 components",
        "least squares",
    ]
    assert all(p.visited for p in points)
    odd = FixedPoint.of(tasks()["paper"], [2, 0])
    assert odd.index_set == (0, 2)
    assert odd.algorithm == "regression on modes 1, 3"
    assert not odd.visited
    # E1: the largest drop belongs to the smaller eigenvalue, so its regression is not principal
    assert saddle_path(tasks()["swapped order"])[1].algorithm == "regression on modes 1"
    assert saddle_path(tasks()["non-commuting"])[1].algorithm == "regression on modes 1"


def test_mistakes():
    point = saddle_path(tasks()["paper"])[3]
    with pytest.raises(ValueError, match="hold at most 2 modes, this fixed point has 3"):
        point.weights(2)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        point.weights(0)
    with pytest.raises(ValueError, match="must share out the modes"):
        point.weights(3, 2, ((0, 1), (1, 2)))
    with pytest.raises(ValueError, match="1 to 1 per head"):
        point.weights(3, 1, ((0, 1), (2,)))
    with pytest.raises(ValueError, match="need as many heads"):
        point.weights(2, 2, ((0,), (1,), (2,)))
    with pytest.raises(ValueError, match="distinct mode numbers"):
        FixedPoint.of(tasks()["paper"], [7])
    with pytest.raises(ValueError, match="not all zero"):
        merged_weights(tasks()["paper"], 2, jnp.zeros(2))
    full = Separate.initialiser(tasks()["paper"], heads=2, scale=1.0, blocks=Blocks.FULL)(key(0))
    with pytest.raises(ValueError, match="frozen zero blocks"):
        nearest_fixed_point(full, tasks()["paper"])
