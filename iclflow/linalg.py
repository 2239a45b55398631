"""Linear algebra shared by the science: symmetric roots, random rotations, symmetric packing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray


def random_rotation(key: PRNGKeyArray, size: int) -> Float[Array, "D D"]:
    """An orthogonal matrix from the Haar measure (QR of a Gaussian matrix, signs fixed)."""
    q, r = jnp.linalg.qr(jax.random.normal(key, (size, size)))
    return q * jnp.sign(jnp.diagonal(r))[None, :]


def symmetric_power(matrix: Float[Array, "D D"], power: float) -> Float[Array, "D D"]:
    """`matrix ** power` for a positive semidefinite matrix; a pseudo-inverse power if negative."""
    values, vectors = jnp.linalg.eigh(matrix)
    cutoff = values.shape[0] * jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values))
    safe = jnp.where(values > cutoff, values, 1.0)
    raised = jnp.where(values > cutoff, safe**power, 0.0)
    return (vectors * raised[None, :]) @ vectors.T


@functools.lru_cache(maxsize=32)
def packed_pairs(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each entry on or above the diagonal, in row order."""
    return np.triu_indices(size)


def pack_symmetric(matrix: Float[Array, "n n"]) -> Float[Array, " K"]:
    """The entries of a symmetric matrix on or above its diagonal."""
    rows, columns = packed_pairs(matrix.shape[0])
    return matrix[rows, columns]


def pack_dual(matrix: Float[Array, "*batch n n c"]) -> Float[Array, "*batch K c"]:
    """Weights on the packed entries: `sum(W * S) == sum(pack_dual(W) * pack_symmetric(S))`."""
    rows, columns = packed_pairs(matrix.shape[-2])
    both = matrix[..., rows, columns, :] + matrix[..., columns, rows, :]
    return both * jnp.where(rows == columns, 0.5, 1.0)[:, None].astype(matrix.dtype)
