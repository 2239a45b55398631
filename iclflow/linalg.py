"""Linear algebra shared by the science: roots, rotations, packing, factored products."""

import functools
import graphlib
import itertools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Complex, Float, PRNGKeyArray


@functools.partial(jax.jit, static_argnames="size")
def random_rotation(key: PRNGKeyArray, size: int) -> Float[Array, "D D"]:
    """An orthogonal matrix from the Haar measure (QR of a Gaussian matrix, signs fixed)."""
    q, r = jnp.linalg.qr(jax.random.normal(key, (size, size)))
    return q * jnp.sign(jnp.diagonal(r))[None, :]


SMALL = 4096  # products in one contraction, up to which no matrix routine is worth its call


@functools.partial(jax.jit, static_argnums=0, inline=True)
def contract(subscripts: str, *arrays: Array) -> Array:
    """`jnp.einsum` of small arrays, in the form that is fast under `vmap` over thousands of runs.

    A GPU calls a matrix library for every batch of tiny products, and a CPU a routine for each of
    them, which costs more than they do; a product summed over axes is fused with what surrounds it
    (four times the runs per second on a GPU, ten on a CPU: benchmarks/runs.py).
    """
    terms, result = subscripts.split("->")
    names = terms.split(",")
    shapes = [zip(name, a.shape, strict=True) for name, a in zip(names, arrays, strict=True)]
    sizes = dict(itertools.chain(*shapes))
    if math.prod(sizes.values()) > SMALL:
        return jnp.einsum(subscripts, *arrays)
    order = _common_order((*names, result))
    product = None
    for name, array in zip(names, arrays, strict=True):
        present = [n for n in order if n in name]
        spread = jnp.transpose(array, [name.index(n) for n in present])
        spread = spread.reshape([sizes[n] if n in name else 1 for n in order])
        product = spread if product is None else product * spread
    assert product is not None
    whole = jnp.broadcast_to(product, [sizes[n] for n in order])
    summed = jnp.sum(whole, axis=tuple(i for i, n in enumerate(order) if n not in result))
    left = [n for n in order if n in result]
    return jnp.transpose(summed, [left.index(n) for n in result])


@functools.cache
def _common_order(names: tuple[str, ...]) -> str:
    """All indices in an order that turns no array round, if there is one."""
    sorter: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    for name in names:
        for place, index in enumerate(name):
            sorter.add(index, *name[max(place - 1, 0) : place])
    try:
        return "".join(sorter.static_order())
    except graphlib.CycleError:
        return "".join(dict.fromkeys("".join(names)))


@functools.partial(jax.jit, inline=True)
def with_eigenvectors(
    basis: Float[Array, "D r"], values: Float[Array, " r"]
) -> Float[Array, "D D"]:
    """The symmetric matrix with these eigenvectors, the columns of `basis`, and eigenvalues."""
    return (basis * values[None, :]) @ basis.T


@functools.partial(jax.jit, static_argnames="power")
def symmetric_power(matrix: Float[Array, "D D"], power: float) -> Float[Array, "D D"]:
    """`matrix ** power` for a positive semidefinite matrix; a pseudo-inverse power if negative."""
    values, vectors = jnp.linalg.eigh(matrix)
    cutoff = values.shape[0] * jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values))
    safe = jnp.where(values > cutoff, values, 1.0)
    raised = jnp.where(values > cutoff, safe**power, 0.0)
    return with_eigenvectors(vectors, raised)


@functools.lru_cache(maxsize=32)
def packed_pairs(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each entry on or above the diagonal, in row order."""
    return np.triu_indices(size)


def pack_symmetric(matrix: Float[Array, "n n"]) -> Float[Array, " K"]:
    """The entries of a symmetric matrix on or above its diagonal."""
    rows, columns = packed_pairs(matrix.shape[0])
    return matrix[rows, columns]


@functools.partial(jax.jit, inline=True)
def pack_dual(matrix: Float[Array, "*batch n n c"]) -> Float[Array, "*batch K c"]:
    """Weights on the packed entries: `sum(W * S) == sum(pack_dual(W) * pack_symmetric(S))`."""
    rows, columns = packed_pairs(matrix.shape[-2])
    both = matrix[..., rows, columns, :] + matrix[..., columns, rows, :]
    once = np.where(rows == columns, 0.5, 1.0).astype(matrix.dtype)
    return jnp.einsum("...kc,k->...kc", both, once)


@functools.partial(jax.jit, inline=True)
def gaussian_moment(
    covariance: Float[Array, "n n"], mean: Float[Array, " n"] | None, *index: Array
) -> Float[Array, "..."]:
    """`E[u_i u_j …]` of u ~ N(mean, covariance), by Isserlis; i, j, … broadcast.

    Without a mean it is zero, and an even number of indices has far fewer terms.
    """
    if not index:
        return jnp.ones((), covariance.dtype)
    first, rest = index[0], index[1:]
    terms = [] if mean is None else [mean[first] * gaussian_moment(covariance, mean, *rest)]
    for k, other in enumerate(rest):
        remaining = rest[:k] + rest[k + 1 :]
        factor = gaussian_moment(covariance, mean, *remaining)
        terms.append(covariance[first, other] * factor)
    return sum(terms[1:], terms[0]) if terms else jnp.zeros((), covariance.dtype)


class FactoredMatrix(eqx.Module):
    """The matrix M = A B kept as its factors: the product of size m x n is never formed.

    Everything goes through the r x r core of A = Q_a R_a and Bᵀ = Q_b R_b, at a cost of order
    (m + n) r². Batches come from `jax.vmap`, as in `jax.vmap(FactoredMatrix)(lefts, rights)`.
    """

    left: Float[Array, "m r"] = eqx.field(converter=jnp.asarray)  # A
    right: Float[Array, "r n"] = eqx.field(converter=jnp.asarray)  # B

    def __check_init__(self) -> None:
        if self.left.shape[-1] != self.right.shape[-2]:
            raise ValueError(
                f"the factors of a matrix must share their inner size, got {self.left.shape} and "
                f"{self.right.shape}; transpose one of them"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the product."""
        return self.left.shape[-2], self.right.shape[-1]

    def transpose(self) -> "FactoredMatrix":
        """Mᵀ = Bᵀ Aᵀ."""
        return FactoredMatrix(self.right.T, self.left.T)

    def _triangles(self) -> tuple[Float[Array, "a r"], Float[Array, "b r"]]:
        """R_a and R_b, by one call for both where A and Bᵀ have the same shape."""
        sides = self.left, self.right.T
        if sides[0].shape == sides[1].shape and sides[0].dtype == sides[1].dtype:
            outer, inner = jnp.linalg.qr(jnp.stack(sides), mode="r")
            return outer, inner
        return jnp.linalg.qr(sides[0], mode="r"), jnp.linalg.qr(sides[1], mode="r")

    def core(self) -> Float[Array, "a b"]:
        """R_a R_bᵀ, which has the singular values of M."""
        outer, inner = self._triangles()
        return outer @ inner.T

    def singular_values(self) -> Float[Array, " k"]:
        """The min(m, n, r) leading singular values, largest first; all others are zero."""
        return jnp.linalg.svd(self.core(), compute_uv=False)

    def svd(self) -> tuple[Float[Array, "m k"], Float[Array, " k"], Float[Array, "k n"]]:
        """U, σ and Vᵀ of M = U diag(σ) Vᵀ."""
        q_left, r_left = jnp.linalg.qr(self.left)
        q_right, r_right = jnp.linalg.qr(self.right.T)
        u, values, vt = jnp.linalg.svd(r_left @ r_right.T, full_matrices=False)
        return q_left @ u, values, vt @ q_right.T

    def right_svd(self, count: int) -> tuple[Float[Array, " k"], Float[Array, "c n"]]:
        """σ, and the `count` leading rows of Vᵀ: less than half the work of `svd`.

        V σ = Mᵀ U goes through the triangular factors alone; a last QR makes the rows
        orthonormal, also where σ is zero.
        """
        outer, inner = self._triangles()
        u, values, _ = jnp.linalg.svd(outer @ inner.T, full_matrices=False)
        rows = self.right.T @ (outer.T @ u[:, :count])
        return values, jnp.linalg.qr(rows)[0].T

    def trace(self) -> Float[Array, ""]:
        """tr(A B) = Σᵢⱼ Aᵢⱼ Bⱼᵢ, for a square M."""
        return jnp.sum(self.left * self.right.T)

    def eigenvalues(self) -> Complex[Array, " r"]:
        """The eigenvalues of B A: with zeros, those of a square M (CPU only, as JAX's `eig`)."""
        return jnp.linalg.eigvals(self.right @ self.left)

    def dense(self) -> Float[Array, "m n"]:
        """The product itself; for small matrices."""
        return self.left @ self.right

    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, FactoredMatrix):
            middle = self.right @ other.left
            if self.left.shape[-1] <= other.left.shape[-1]:
                return FactoredMatrix(self.left, middle @ other.right)
            return FactoredMatrix(self.left @ middle, other.right)
        if jnp.ndim(other) == 1:
            return self.left @ (self.right @ other)
        return FactoredMatrix(self.left, self.right @ other)

    def __rmatmul__(self, other: Any) -> Any:
        if jnp.ndim(other) == 1:
            return (other @ self.left) @ self.right
        return FactoredMatrix(other @ self.left, self.right)

    __array_ufunc__ = None  # NumPy arrays hand `array @ factored` over to us


def is_concrete(value: Any) -> bool:
    """Whether an array has numbers to show: no tracer, no random key."""
    if not isinstance(value, jax.Array | np.ndarray) or isinstance(value, Tracer):
        return False
    return not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
