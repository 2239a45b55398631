"""Curvature of a loss without its Hessian: Lanczos on Hessian-vector products."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray


class Ritz(eqx.Module):
    """Approximate eigenpairs of a symmetric operator, largest first.

    A true eigenvalue lies within `residuals[i]` = ‖A yᵢ - θᵢ yᵢ‖ of θᵢ = `values[i]`.

    - `vectors`: the yᵢ, as rows.
    """

    values: Float[Array, " m"]
    residuals: Float[Array, " m"]
    vectors: Float[Array, "m n"]


def hessian_vector_product(
    function: Callable[[Any], Array], point: Any
) -> Callable[[Array], Array]:
    """v ↦ H v for the Hessian of a scalar function of a pytree, on flattened vectors.

    The product is computed in the precision of the point, and has that of the vector.

    - `function`: takes the pytree and returns one number.
    - `point`: the pytree at which the Hessian is taken.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> product = icl.measures.hessian_vector_product(lambda x: jnp.sum(x**4), jnp.ones(2))
    >>> product(jnp.asarray([1.0, 0.0])).tolist()
    [12.0, 0.0]
    """
    flat, unravel = ravel_pytree(point)
    # linearised once: a product then costs the tangent alone
    product = jax.linearize(jax.grad(lambda vector: function(unravel(vector))), flat)[1]
    return lambda vector: product(vector.astype(flat.dtype)).astype(vector.dtype)


def lanczos(
    product: Callable[[Array], Array], size: int, key: PRNGKeyArray, *, steps: int = 40
) -> Ritz:
    """Ritz pairs of a symmetric operator v ↦ A v on R^size, after `steps` products.

    The basis is made orthogonal twice at each step, and when it closes early (an invariant
    subspace is exhausted) a fresh direction is taken: repeated eigenvalues are then found with
    their multiplicity, and with `steps >= size` all of them. The ends of the spectrum converge
    first. Runs under `jit` and `vmap`; dtype is that of JAX's default float.

    - `product`: multiplies a vector of R^n with the operator; n is `size`.
    - `key`: draws the first direction.

    >>> import jax, jax.numpy as jnp, iclflow as icl
    >>> matrix = jnp.diag(jnp.asarray([3.0, 1.0, 1.0]))
    >>> found = icl.measures.lanczos(lambda v: matrix @ v, 3, jax.random.key(0))
    >>> found.values.round(6).tolist()
    [3.0, 1.0, 1.0]
    """
    diagonal, beta, basis = _krylov(product, size, key, steps)
    count = diagonal.shape[0]
    values, coordinates = jnp.linalg.eigh(_tridiagonal(diagonal, beta))
    last = jnp.where(count == size, 0.0, beta[-1])
    residuals = jnp.abs(coordinates[-1]) * last
    return Ritz(values[::-1], residuals[::-1], (coordinates.T @ basis)[::-1])


def _krylov(
    product: Callable[[Array], Array],
    size: int,
    key: PRNGKeyArray,
    steps: int,
    start: Float[Array, " n"] | None = None,
) -> tuple[Float[Array, " m"], Float[Array, " m"], Float[Array, "m n"]]:
    """Diagonal and off-diagonal of the tridiagonal matrix, and the orthonormal basis."""
    if steps < 1 or size < 1:
        raise ValueError(f"Lanczos needs at least one step and one dimension, got {steps}, {size}")
    count = min(steps, size)
    draws = jax.random.normal(key, (count + 1, size), None if start is None else start.dtype)
    first = draws[0] if start is None else start
    eps = jnp.finfo(draws.dtype).eps

    def step(carry: tuple, index: Array) -> tuple[tuple, tuple]:
        basis, current, scale = carry
        basis = basis.at[index].set(current)
        image = product(current)
        diagonal = current @ image
        rest = image - (basis @ image) @ basis
        scale = jnp.maximum(scale, jnp.linalg.norm(image))
        closed = jnp.linalg.norm(rest) <= 10 * size**0.5 * eps * scale
        following = jnp.where(closed, draws[index + 1], rest)
        # the second pass removes what rounding left of the first
        following = following - (basis @ following) @ basis
        norm = jnp.linalg.norm(following)
        following = following / jnp.maximum(norm, jnp.finfo(draws.dtype).tiny)
        return (basis, following, scale), (diagonal, jnp.where(closed, 0, norm))

    empty = jnp.zeros((count, size), draws.dtype)
    begin = (empty, first / jnp.linalg.norm(first), jnp.zeros((), draws.dtype))
    (basis, _, _), (diagonal, beta) = jax.lax.scan(step, begin, jnp.arange(count))
    return diagonal, beta, basis


def _tridiagonal(diagonal: Float[Array, " m"], beta: Float[Array, " m"]) -> Float[Array, "m m"]:
    return jnp.diag(diagonal) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1)


def top_eigenvalues(
    product: Callable[[Array], Array],
    size: int,
    key: PRNGKeyArray,
    *,
    count: int = 1,
    steps: int = 40,
    start: Float[Array, " n"] | None = None,
) -> Float[Array, " k"]:
    """The `count` largest eigenvalues by `lanczos`; the first is the sharpness of a Hessian.

    `start` is the first direction, of the weights' dtype; random, if not given.

    - `product`, `size`, `key`, `steps`: as in `lanczos`.

    >>> import jax, jax.numpy as jnp, iclflow as icl
    >>> matrix = jnp.diag(jnp.asarray([3.0, 1.0, 1.0]))
    >>> top = icl.measures.top_eigenvalues(lambda v: matrix @ v, 3, jax.random.key(0), count=2)
    >>> top.round(6).tolist()
    [3.0, 1.0]
    """
    return spectrum_ends(product, size, key, count=count, steps=steps, start=start)[0]


def spectrum_ends(
    product: Callable[[Array], Array],
    size: int,
    key: PRNGKeyArray,
    *,
    count: int = 1,
    steps: int = 40,
    start: Float[Array, " n"] | None = None,
) -> tuple[Float[Array, " k"], Float[Array, ""]]:
    """The `count` largest eigenvalues and the lowest one, from one Lanczos process.

    - `product`: v ↦ A v of a symmetric operator on R^size.
    - `key`: of the random directions.
    - `count`: how many of the largest eigenvalues are returned, largest first.
    - `steps`: products with the operator. The ends converge first, and with as many steps as
      dimensions both are exact.
    - `start`: the first direction; random, if not given.

    The lowest eigenvalue of a Hessian is negative at a saddle.

    - `size`: the dimension of the vectors.

    >>> import jax, jax.numpy as jnp
    >>> from iclflow.measures import spectrum_ends
    >>> top, lowest = spectrum_ends(lambda v: jnp.array([3.0, 1.0, -2.0]) * v, 3, jax.random.key(0))
    >>> round(float(top[0]), 5), round(float(lowest), 5)
    (3.0, -2.0)
    """
    diagonal, beta, _ = _krylov(product, size, key, max(steps, count), start)
    values = jnp.linalg.eigvalsh(_tridiagonal(diagonal, beta))
    return values[::-1][:count], values[0]


def operator_trace(
    product: Callable[[Array], Array], size: int, key: PRNGKeyArray, *, probes: int = 256
) -> Float[Array, ""]:
    """The trace of a symmetric operator from its products with vectors.

    - `product`: v ↦ A v on R^size.
    - `key`: of the random signs.
    - `probes`: products. Where there are as many as dimensions the trace is exact, by unit vectors.
      Otherwise it is the mean of zᵀA z over vectors of random signs (Hutchinson), with the standard
      error (2 Σ_{i≠j} A_ij² / probes)^(1/2).
    - `size`: the dimension of the vectors.

    >>> import jax, jax.numpy as jnp
    >>> from iclflow.measures import operator_trace
    >>> float(operator_trace(lambda v: jnp.array([3.0, 1.0, -2.0]) * v, 3, jax.random.key(0)))
    2.0
    """
    if size < 1 or probes < 1:
        raise ValueError(f"a trace needs a dimension and a probe, got {size} and {probes}")
    kind = jnp.result_type(float)
    if probes >= size:
        vectors, share = jnp.eye(size, dtype=kind), 1.0
    else:
        vectors, share = jax.random.rademacher(key, (probes, size), kind), 1 / probes
    return share * jnp.sum(jax.lax.map(lambda v: v @ product(v), vectors))
