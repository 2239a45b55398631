"""Products kept as factors against the dense product."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclflow.linalg import FactoredMatrix


@pytest.fixture(params=[(12, 3, 9), (5, 8, 4), (6, 6, 6), (7, 1, 2)])
def factors(request):
    rows, inner, columns = request.param
    rng = np.random.default_rng(rows * inner)
    return rng.normal(size=(rows, inner)), rng.normal(size=(inner, columns))


def test_singular_values_are_those_of_the_product(factors):
    left, right = factors
    dense = np.linalg.svd(left @ right, compute_uv=False)
    values = np.asarray(FactoredMatrix(left, right).singular_values())
    np.testing.assert_allclose(values, dense[: values.size], atol=1e-13 * dense[0])
    assert np.all(dense[values.size :] < 1e-13 * dense[0])


def test_svd_rebuilds_the_product_with_orthonormal_vectors(factors):
    left, right = factors
    u, values, vt = (np.asarray(part) for part in FactoredMatrix(left, right).svd())
    np.testing.assert_allclose((u * values) @ vt, left @ right, atol=1e-12)
    np.testing.assert_allclose(u.T @ u, np.eye(values.size), atol=1e-13)
    np.testing.assert_allclose(vt @ vt.T, np.eye(values.size), atol=1e-13)


def test_right_svd_is_the_leading_part_of_the_svd(factors):
    left, right = factors
    matrix = FactoredMatrix(left, right)
    values, rows = matrix.right_svd(2 if min(left.shape[1], *right.shape) > 1 else 1)
    _, expected, vt = matrix.svd()
    np.testing.assert_allclose(values, expected, atol=1e-13)
    overlap = np.abs(np.asarray(rows @ vt[: len(rows)].T))
    np.testing.assert_allclose(overlap, np.eye(len(rows)), atol=1e-10)
    _, zero = FactoredMatrix(np.zeros((5, 3)), np.zeros((3, 4))).right_svd(2)
    np.testing.assert_allclose(zero @ zero.T, np.eye(2), atol=1e-14)


def test_norm_trace_and_eigenvalues(factors):
    left, right = factors
    matrix = FactoredMatrix(left, right)
    dense = left @ right
    np.testing.assert_allclose(
        np.linalg.norm(matrix.singular_values()), np.linalg.norm(dense), rtol=1e-13
    )
    if dense.shape[0] == dense.shape[1]:
        np.testing.assert_allclose(matrix.trace(), np.trace(dense), rtol=1e-12)
        np.testing.assert_allclose(
            np.sort(np.abs(np.linalg.eigvals(dense)))[::-1],
            np.sort(np.abs(np.asarray(matrix.eigenvalues())))[::-1],
            rtol=1e-10,
        )


def test_norm_keeps_its_digits_when_the_product_nearly_cancels():
    # A B = δ while A and B have norms of order one: Gram traces would return rounding noise
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))[0]
    left, right = rotation[:, :4] @ np.diag([1, 1, 1, 1e-9]), np.zeros((4, 6))
    right[3, 0] = 1.0
    norm = np.linalg.norm(FactoredMatrix(left, right).singular_values())
    np.testing.assert_allclose(norm, 1e-9, rtol=1e-6)


def test_products_with_vectors_matrices_and_factored_matrices(factors):
    left, right = factors
    matrix, dense = FactoredMatrix(left, right), left @ right
    rng = np.random.default_rng(1)
    vector, other = rng.normal(size=dense.shape[1]), rng.normal(size=(dense.shape[1], 5))
    np.testing.assert_allclose(matrix @ vector, dense @ vector, atol=1e-12)
    np.testing.assert_allclose((matrix @ other).dense(), dense @ other, atol=1e-12)
    row, before = rng.normal(size=dense.shape[0]), rng.normal(size=(3, dense.shape[0]))
    np.testing.assert_allclose(row @ matrix, row @ dense, atol=1e-12)
    np.testing.assert_allclose((before @ matrix).dense(), before @ dense, atol=1e-12)
    np.testing.assert_allclose((jnp.asarray(before) @ matrix).dense(), before @ dense, atol=1e-12)
    product = matrix.transpose() @ matrix
    assert product.left.shape[1] <= matrix.left.shape[1]
    np.testing.assert_allclose(product.dense(), dense.T @ dense, atol=1e-11)


def test_a_batch_comes_from_vmap():
    rng = np.random.default_rng(2)
    left, right = jnp.asarray(rng.normal(size=(3, 6, 2))), jnp.asarray(rng.normal(size=(3, 2, 5)))
    batch = jax.vmap(FactoredMatrix)(left, right)
    values = jax.jit(jax.vmap(FactoredMatrix.singular_values))(batch)
    dense = np.linalg.svd(np.asarray(left @ right), compute_uv=False)[:, :2]
    np.testing.assert_allclose(values, dense, atol=1e-13)


def test_factors_must_fit():
    with pytest.raises(ValueError, match="inner size"):
        FactoredMatrix(np.ones((3, 2)), np.ones((3, 2)))
