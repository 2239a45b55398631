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
    """

    values: Float[Array, " m"]
    residuals: Float[Array, " m"]
    vectors: Float[Array, "m n"]


def hessian_product(function: Callable[[Any], Array], point: Any) -> Callable[[Array], Array]:
    """v ↦ H v for the Hessian of a scalar function of a pytree, on flattened vectors."""
    flat, unravel = ravel_pytree(point)
    gradient = jax.grad(lambda vector: function(unravel(vector)))
    return lambda vector: jax.jvp(gradient, (flat,), (vector,))[1]


def lanczos(
    product: Callable[[Array], Array], size: int, key: PRNGKeyArray, *, steps: int = 40
) -> Ritz:
    """Ritz pairs of a symmetric operator v ↦ A v on R^size, after `steps` products.

    The basis is made orthogonal twice at each step, and when it closes early (an invariant
    subspace is exhausted) a fresh direction is taken: repeated eigenvalues are then found with
    their multiplicity, and with `steps >= size` all of them. The ends of the spectrum converge
    first. Runs under `jit` and `vmap`; dtype is that of JAX's default float.
    """
    if steps < 1 or size < 1:
        raise ValueError(f"Lanczos needs at least one step and one dimension, got {steps}, {size}")
    count = min(steps, size)
    draws = jax.random.normal(key, (count + 1, size))
    eps = jnp.finfo(draws.dtype).eps

    def orthogonalise(vector: Array, basis: Array) -> Array:
        for _ in range(2):  # the second pass removes what rounding left of the first
            vector = vector - (basis @ vector) @ basis
        return vector

    def fresh(index: Array, basis: Array) -> Array:
        vector = orthogonalise(draws[index], basis)
        return vector / jnp.maximum(jnp.linalg.norm(vector), jnp.finfo(draws.dtype).tiny)

    def step(carry: tuple, index: Array) -> tuple[tuple, tuple]:
        basis, current, scale = carry
        basis = basis.at[index].set(current)
        image = product(current)
        diagonal = current @ image
        rest = orthogonalise(image, basis)
        beta = jnp.linalg.norm(rest)
        scale = jnp.maximum(scale, jnp.linalg.norm(image))
        closed = beta <= 10 * size**0.5 * eps * scale
        beta = jnp.where(closed, 0, beta)
        following = jnp.where(
            closed, fresh(index + 1, basis), rest / jnp.where(closed, 1, jnp.linalg.norm(rest))
        )
        return (basis, following, scale), (diagonal, beta)

    empty = jnp.zeros((count, size), draws.dtype)
    start = (empty, draws[0] / jnp.linalg.norm(draws[0]), jnp.zeros((), draws.dtype))
    (basis, _, _), (diagonal, beta) = jax.lax.scan(step, start, jnp.arange(count))
    triangle = jnp.diag(diagonal) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1)
    values, coordinates = jnp.linalg.eigh(triangle)
    last = jnp.where(count == size, 0.0, beta[-1])
    residuals = jnp.abs(coordinates[-1]) * last
    return Ritz(values[::-1], residuals[::-1], (coordinates.T @ basis)[::-1])


def top_eigenvalues(
    product: Callable[[Array], Array],
    size: int,
    key: PRNGKeyArray,
    *,
    count: int = 1,
    steps: int = 40,
) -> Float[Array, " k"]:
    """The `count` largest eigenvalues by `lanczos`; the first is the sharpness of a Hessian."""
    return lanczos(product, size, key, steps=max(steps, count)).values[:count]
