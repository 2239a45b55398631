"""Geometry of weights: constructed matrices, invariances, SciPy, dense linear algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from iclflow import measures as dg
from iclflow.linalg import FactoredMatrix, random_rotation


def rotation(seed: int, size: int) -> jax.Array:
    return random_rotation(jax.random.key(seed), size)


def with_values(values, rows: int, columns: int, seed: int = 0) -> jax.Array:
    """A matrix with these singular values and Haar-random singular vectors."""
    u, v = rotation(seed, rows)[:, : len(values)], rotation(seed + 1, columns)[:, : len(values)]
    return (u * jnp.asarray(values, float)[None, :]) @ v.T


# --- spectrum ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_equal_singular_values_give_their_number(rank):
    values = dg.singular_values(with_values([2.5] * rank, 7, 6))
    np.testing.assert_allclose(dg.effective_rank(values), rank, rtol=1e-12)
    np.testing.assert_allclose(dg.stable_rank(values), rank, rtol=1e-12)


def test_effective_rank_is_equation_15():
    """Second paper (15), term by term."""
    values = np.array([3.0, 1.0, 0.5, 0.0])
    share = values[:3] / values.sum()
    expected = np.exp(-np.sum(share * np.log(share)))
    np.testing.assert_allclose(dg.effective_rank(jnp.asarray(values)), expected, rtol=1e-14)
    np.testing.assert_allclose(dg.stable_rank(jnp.asarray(values)), 10.25 / 9, rtol=1e-14)


def test_rank_measures_ignore_scale_and_rotation_and_know_zero():
    matrix = with_values([4, 2, 1, 0.1], 6, 5)
    turned = 7.0 * rotation(8, 6) @ matrix @ rotation(9, 5)
    for measure in (dg.effective_rank, dg.stable_rank):
        one, two = measure(dg.singular_values(matrix)), measure(dg.singular_values(turned))
        np.testing.assert_allclose(one, two, rtol=1e-12)
        assert measure(jnp.zeros(4)) == 0.0


def test_factored_spectrum_equals_dense_one_for_a_large_product():
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(600, 16)), rng.normal(size=(16, 500))
    dense = np.linalg.svd(left @ right, compute_uv=False)[:16]
    factored = dg.singular_values(FactoredMatrix(left, right))
    np.testing.assert_allclose(factored, dense, rtol=1e-12)
    share = dense / dense.sum()
    np.testing.assert_allclose(
        dg.effective_rank(factored), np.exp(-np.sum(share * np.log(share))), rtol=1e-12
    )


def test_marginalised_rank_drops_the_largest():
    values = jnp.array([1.0, 9.0, 1.0, 1.0])
    np.testing.assert_allclose(dg.marginalised_effective_rank(values, 1), 3.0, rtol=1e-13)
    np.testing.assert_allclose(
        dg.marginalised_effective_rank(values, 0), dg.effective_rank(values), rtol=1e-15
    )
    with pytest.raises(ValueError, match="leave at least one"):
        dg.marginalised_effective_rank(values, 4)


def test_tracked_reading_drops_the_mode_that_converged_first_though_it_is_small():
    time = jnp.arange(40.0)
    final = np.array([3.0, 0.5, 2.0])
    middle = np.array([20.0, 5.0, 30.0])  # the small mode is first
    growth = jax.nn.sigmoid(time[:, None] - middle[None, :]) * final[None, :]
    left, right = rotation(1, 6)[:, :3], rotation(2, 5)[:, :3]
    matrices = jnp.einsum("mk,tk,nk->tmn", left, growth, right)
    strengths = jax.vmap(lambda m: dg.mode_strengths(m, left, right))(matrices)
    np.testing.assert_allclose(strengths, growth, atol=1e-14)
    order, settled = dg.convergence_order(strengths)
    assert list(np.asarray(order)) == [1, 0, 2]
    # within 10% of the last value from ln 9 = 2.2 time units after the middle
    assert list(np.asarray(settled)) == [23, 8, 33]
    tracked = dg.tracked_effective_rank(strengths, drop=1)
    share = np.array([3.0, 2.0]) / 5
    np.testing.assert_allclose(tracked[-1], np.exp(-np.sum(share * np.log(share))), rtol=1e-3)
    # the first reading drops σ = 3 instead and keeps 2 and 0.5
    top = dg.marginalised_effective_rank(dg.singular_values(matrices[-1])[:3], 1)
    share = np.array([2.0, 0.5]) / 2.5
    np.testing.assert_allclose(top, np.exp(-np.sum(share * np.log(share))), rtol=1e-3)


def test_removing_modes_leaves_the_others_in_both_forms():
    left, right = rotation(3, 6)[:, :3], rotation(4, 5)[:, :3]
    matrix = (left * jnp.array([3.0, 2.0, 1.0])[None, :]) @ right.T
    expected = (left[:, 1:] * jnp.array([2.0, 1.0])[None, :]) @ right[:, 1:].T
    dense = dg.remove_modes(matrix, left[:, :1], right[:, :1])
    np.testing.assert_allclose(dense, expected, atol=1e-14)
    factored = FactoredMatrix(matrix, jnp.eye(5))
    rest = dg.remove_modes(factored, left[:, :1], right[:, :1])
    np.testing.assert_allclose(rest.dense(), expected, atol=1e-14)
    np.testing.assert_allclose(
        dg.mode_strengths(factored, left, right), [3.0, 2.0, 1.0], atol=1e-13
    )


def test_relative_to_start():
    series = jnp.array([[2.0, 0.0], [4.0, 1.0]])
    np.testing.assert_allclose(dg.relative_to_start(series), [[1, 1], [2, 1]])


# --- subspaces --------------------------------------------------------------------------------


def test_principal_angles_agree_with_scipy_over_all_sizes_of_angle():
    rng = np.random.default_rng(0)
    for angles in ([1e-10, 1e-5, 0.3], [1.2, np.pi / 2, 1e-3], [0, 0, 0]):
        frame = np.asarray(rotation(5, 8))
        first = frame[:, :3]
        second = first * np.cos(angles) + frame[:, 3:6] * np.sin(angles)
        second = second @ np.linalg.qr(rng.normal(size=(3, 3)))[0]
        ours = dg.principal_angles(jnp.asarray(first.T), jnp.asarray(second.T))
        np.testing.assert_allclose(ours, np.sort(angles)[::-1], atol=1e-14)
        np.testing.assert_allclose(ours, scipy.linalg.subspace_angles(first, second), atol=1e-13)


def test_principal_angles_between_subspaces_of_different_size():
    first, second = np.asarray(rotation(0, 9))[:, :5], np.asarray(rotation(1, 9))[:, :2]
    expected = scipy.linalg.subspace_angles(first, second)
    for pair in ((first, second), (second, first)):
        ours = dg.principal_angles(*(jnp.asarray(part.T) for part in pair))
        np.testing.assert_allclose(ours, expected, atol=1e-12)


def test_subspace_distance_is_the_least_squares_minimum():
    """Second paper (16): min over A of ‖A M - M∞‖, by NumPy."""
    matrix, final = with_values([3, 2], 6, 7, seed=1), with_values([2, 1, 0.5], 6, 7, seed=5)
    solution = np.linalg.lstsq(np.asarray(matrix).T, np.asarray(final).T, rcond=1e-10)[0].T
    best = np.linalg.norm(solution @ matrix - final) / np.linalg.norm(final)
    np.testing.assert_allclose(dg.subspace_distance(matrix, final), best, rtol=1e-10)
    u, values, vt = np.linalg.svd(np.asarray(matrix), full_matrices=False)
    factored = FactoredMatrix(u[:, :2] * values[:2], vt[:2])
    thick = FactoredMatrix(final, jnp.eye(7))
    np.testing.assert_allclose(dg.subspace_distance(factored, thick), best, rtol=1e-10)


def test_subspace_distance_needs_truncation_for_an_invertible_matrix():
    matrix, final = with_values([3, 2, 1], 3, 3, seed=1), with_values([5, 0.1, 0.1], 3, 3, seed=7)
    assert dg.subspace_distance(matrix, final) < 1e-13
    truncated = dg.subspace_distance(matrix, final, 1)
    v = np.linalg.svd(np.asarray(matrix))[2][:1]
    expected = np.linalg.norm(final @ (np.eye(3) - v.T @ v)) / np.linalg.norm(final)
    np.testing.assert_allclose(truncated, expected, rtol=1e-12)
    # left rotations and scale of either matrix do not matter
    turned = dg.subspace_distance(-4 * rotation(3, 3) @ matrix, 0.1 * rotation(4, 3) @ final, 1)
    np.testing.assert_allclose(turned, truncated, rtol=1e-11)
    assert dg.subspace_distance(matrix, jnp.zeros((3, 3)), 1) == 0.0


def test_projector_distance_is_that_of_the_projectors():
    first, second = rotation(0, 6)[:, :2].T, rotation(1, 6)[:, :2].T
    expected = np.linalg.norm(first.T @ first - second.T @ second) / np.sqrt(4)
    np.testing.assert_allclose(dg.projector_distance(first, second), expected, rtol=1e-12)
    np.testing.assert_allclose(dg.projector_distance(second, first), expected, rtol=1e-12)
    assert dg.projector_distance(first, -first[::-1]) < 1e-15
    angles = dg.principal_angles(first, second)
    np.testing.assert_allclose(expected, np.sqrt(np.mean(np.sin(angles) ** 2)), rtol=1e-12)


def test_consecutive_distances_need_no_last_checkpoint():
    bases = jnp.stack([rotation(s, 5)[:, :2].T for s in range(4)])
    expected = [dg.projector_distance(bases[t], bases[t + 1]) for t in range(3)]
    np.testing.assert_allclose(dg.consecutive_distances(bases), expected, rtol=1e-12)


def test_the_speed_of_a_turning_subspace_does_not_depend_on_how_often_it_is_saved():
    """A line that turns by `rate` per unit of ln(step): the speed is `rate` to second order."""
    rate = 0.7
    for count in (200, 400):
        steps = np.geomspace(1, 100, count)
        angle = rate * np.log(steps)
        bases = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)[:, None]
        largest = rate * np.log(100) / (count - 1)  # the sine of a step instead of the step
        np.testing.assert_allclose(dg.subspace_speed(bases, steps), rate, rtol=largest**2 / 5)
    from_zero = dg.subspace_speed(bases[:3], np.array([0.0, 8.0, 16.0]))
    np.testing.assert_allclose(from_zero, dg.consecutive_distances(bases[:3]) / np.log(2))


def test_bad_subspace_size_is_refused():
    with pytest.raises(ValueError, match="between 1 and 3"):
        dg.right_basis(jnp.eye(3), 4)


# --- alignment --------------------------------------------------------------------------------


def test_alignment_of_constructed_heads_and_its_invariances():
    basis = rotation(0, 4)
    keys = jnp.stack([2.0 * basis[:, 1:2].T, -(basis[:, :1] + basis[:, 2:3]).T, jnp.zeros((1, 4))])
    expected = [[0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(dg.head_alignment(keys, basis), expected, atol=1e-14)
    thick = jax.random.normal(jax.random.key(1), (3, 2, 4))
    turned = jnp.einsum("rs,hsd->hrd", -3.0 * rotation(2, 2), thick)
    np.testing.assert_allclose(
        dg.head_alignment(thick, basis), dg.head_alignment(turned, basis), atol=1e-13
    )
    np.testing.assert_allclose(jnp.sum(dg.head_alignment(thick, basis), 1), np.ones(3), rtol=1e-12)


def test_contributions_sum_to_the_predictor_in_the_eigenbasis():
    keys, basis = jax.random.split(jax.random.key(0), 3), rotation(0, 4)
    shapes = ((3,), (3, 2, 4), (3, 2, 4))
    v, k, q = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    total = sum(v[i] * k[i].T @ q[i] for i in range(3))
    np.testing.assert_allclose(
        jnp.sum(dg.head_contributions(v, k, q, basis), axis=0),
        jnp.diagonal(basis.T @ total @ basis),
        atol=1e-12,
    )


def test_assignment_follows_a_permutation_of_heads():
    scores = np.array([[0.9, 0.8, 0.0], [0.85, 0.1, 0.0], [0.0, 0.0, 0.02], [0.1, 0.1, 0.01]])
    # greedy would give head 0 to mode 0; the best total gives it to mode 1
    assert list(dg.assign_heads(scores)) == [1, 0, 2]
    assert list(dg.assign_heads(scores, threshold=0.05)) == [1, 0, -1]
    order = np.array([2, 0, 3, 1])
    permuted = dg.assign_heads(scores[order])
    assert list(order[permuted]) == [1, 0, 2]
    assert list(dg.assign_heads(jnp.array([[0.2, 0.7]]))) == [-1, 0]


def test_parallelism_of_heads():
    line = jnp.array([1.0, -2.0, 0.5])[:, None, None] * rotation(0, 4)[None, :2]
    np.testing.assert_allclose(dg.head_parallelism(line), 1.0, rtol=1e-13)
    np.testing.assert_allclose(dg.head_parallelism(rotation(1, 5)), 0.0, atol=1e-14)
    mixed = jnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]])
    np.testing.assert_allclose(dg.head_parallelism(mixed), np.sqrt(2) / 3, rtol=1e-13)
    assert dg.head_parallelism(mixed[:1]) == 1.0


def test_active_heads():
    strengths = jnp.array([-1.3, 1e-3, 0.9, 2e-3])
    assert dg.active_head_count(strengths) == 2
    assert list(np.asarray(dg.active_heads(strengths))) == [True, False, True, False]
    dormant = jnp.array([1e-3, 1.1e-3])
    assert dg.active_head_count(dormant) == 2
    assert dg.active_head_count(dormant, floor=0.1) == 0


# --- curvature --------------------------------------------------------------------------------


def symmetric(values, seed: int) -> jax.Array:
    turn = rotation(seed, len(values))
    return (turn * jnp.asarray(values, float)[None, :]) @ turn.T


def test_lanczos_finds_the_ends_of_a_large_spectrum_with_true_error_bounds():
    rng = np.random.default_rng(0)
    spectrum = np.concatenate([rng.normal(size=497), [8.0, 7.0, -6.0]])
    matrix = symmetric(spectrum, 0)
    ritz = dg.lanczos(lambda v: matrix @ v, 500, jax.random.key(1), steps=60)
    np.testing.assert_allclose(ritz.values[:2], [8.0, 7.0], rtol=1e-10)
    np.testing.assert_allclose(ritz.values[-1], -6.0, rtol=1e-10)
    for value, bound, vector in zip(ritz.values, ritz.residuals, ritz.vectors, strict=True):
        assert np.min(np.abs(spectrum - value)) <= bound + 1e-12
        residual = np.linalg.norm(matrix @ vector - value * vector)
        np.testing.assert_allclose(residual, bound, atol=1e-10)


@pytest.mark.parametrize("values", [[3.0, 3.0, 3.0, 1.0, 0.0, 0.0], [2.0] * 6, [0.0] * 6])
def test_lanczos_finds_repeated_eigenvalues_with_their_multiplicity(values):
    matrix = symmetric(values, 3)
    ritz = dg.lanczos(lambda v: matrix @ v, 6, jax.random.key(2), steps=10)
    np.testing.assert_allclose(ritz.values, values, atol=1e-12)


@pytest.mark.long
def test_sharpness_of_a_loss_is_that_of_its_hessian():
    def loss(weights):
        return jnp.sum(jnp.tanh(weights["a"]) ** 2 @ weights["b"]) + jnp.sum(weights["b"] ** 4)

    key = jax.random.key(0)
    point = {"a": jax.random.normal(key, (3, 4)), "b": jax.random.normal(key, (4,))}
    flat, unravel = jax.flatten_util.ravel_pytree(point)
    dense = np.linalg.eigvalsh(jax.jit(jax.hessian(lambda v: loss(unravel(v))))(flat))[::-1]

    @jax.jit
    def top(weights):
        return dg.top_eigenvalues(dg.hessian_vector_product(loss, weights), flat.size, key, count=3)

    np.testing.assert_allclose(top(point), dense[:3], rtol=1e-11)
