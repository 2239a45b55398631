"""Sharpness: the largest curvature of the loss, which bounds the rate of stable descent."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from iclflow.losses import AbstractLoss
from iclflow.models import MLP, AbstractModel, ConvNet, Merged, Separate, Softmax

STABLE_FRACTION = 0.25  # of the limit 2 / sharpness: the default rate


@eqx.filter_jit
def sharpness(loss: AbstractLoss, model: AbstractModel, iterations: int = 40) -> Float[Array, ""]:
    """The largest eigenvalue of the Hessian of L at the given weights (Lanczos, matrix-free).

    Descent at rate η is stable there while η · sharpness < 2. Only weights that exist are
    counted: full blocks are several times sharper than frozen ones.
    """
    weights, static = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(weights)
    gradient = jax.grad(lambda w: loss(eqx.combine(unravel(w), static)))
    count = min(iterations, flat.size)

    def product(vector: Array) -> Array:
        return jax.jvp(gradient, (flat,), (vector,))[1]

    def step(carry: tuple, _: None) -> tuple:
        vector, before, norm = carry
        image = product(vector)
        diagonal = jnp.vdot(vector, image)
        image = image - diagonal * vector - norm * before
        norm = jnp.linalg.norm(image)
        return (image / jnp.where(norm > 0, norm, 1.0), vector, norm), (diagonal, norm)

    # Any start with a share of every direction will do; a fixed one keeps the function pure.
    start = jnp.cos(jnp.arange(flat.size, dtype=flat.dtype) + 1)
    start = start / jnp.linalg.norm(start)
    carry = (start, jnp.zeros_like(start), jnp.zeros((), flat.dtype))
    # Three-term recurrence: lost orthogonality repeats eigenvalues, it does not move the largest.
    _, (diagonal, off) = jax.lax.scan(step, carry, None, length=count)
    # An off-diagonal at rounding level ends the Krylov space: what follows is disconnected.
    scale = jnp.max(jnp.abs(diagonal)) + jnp.max(off)
    connected = jnp.cumprod(off > 1e-12 * scale)
    kept = jnp.concatenate([jnp.ones(1), connected[:-1]]) > 0
    diagonal = jnp.where(kept, diagonal, diagonal[0])
    off = (off * connected)[:-1]
    return jnp.linalg.eigvalsh(jnp.diag(diagonal) + jnp.diag(off, 1) + jnp.diag(off, -1))[-1]


def reference_minimum(loss: AbstractLoss, model: AbstractModel) -> AbstractModel:
    """Weights of the model's kind at the least-squares solution, balanced, extra blocks zero.

    This is where training from small weights ends, up to O(1/P) (merged: all heads parallel;
    separate: one head for R modes, E9), so its sharpness tells the stable rate beforehand.
    """
    if isinstance(model, Softmax):
        attention = reference_minimum(loss, model.attention)
        return eqx.tree_at(lambda m: m.attention, model, attention)
    if isinstance(model, MLP):
        return MLP.from_attention(_merged_at(_minimum(loss, model), model.as_attention()))
    if isinstance(model, ConvNet):
        return ConvNet.from_attention(_separate_at(_minimum(loss, model), model.as_attention()))
    if isinstance(model, Merged):
        return _merged_at(_minimum(loss, model), model)
    if isinstance(model, Separate):
        return _separate_at(_minimum(loss, model), model)
    raise ValueError(
        f"the least-squares weights of {type(model).__name__} are not known in advance; "
        f"give the rate"
    )


def stable_rate(
    loss: AbstractLoss, model: AbstractModel, fraction: float = STABLE_FRACTION
) -> Float[Array, ""]:
    """The rate at the stated fraction of descent's stability limit 2 / sharpness at the end."""
    return 2 * fraction / sharpness(loss, reference_minimum(loss, model))


@eqx.filter_jit
def _minimum(loss: AbstractLoss, model: AbstractModel) -> Float[Array, "O O D D"]:
    """The best reduced weights M: conjugate gradients on the quadratic loss of one linear map."""
    shape = jax.eval_shape(lambda m: m.reduced_weights(), model).shape
    outputs, size = shape[0], shape[2]

    def of_weights(weights: Array) -> Array:
        # One head for each pair of output and label slot carries any M.
        pairs = outputs * outputs
        values = jnp.eye(pairs).reshape(pairs, outputs, outputs)
        return loss(Merged(values=values, merged=weights.reshape(pairs, size, size)))

    gradient = jax.grad(of_weights)
    zero = jnp.zeros(outputs * outputs * size * size)

    def product(vector: Array) -> Array:
        return jax.jvp(gradient, (zero,), (vector,))[1]

    solution, _ = jax.scipy.sparse.linalg.cg(product, -gradient(zero), tol=1e-8, maxiter=500)
    return solution.reshape(shape)


def _merged_at(minimum: Float[Array, "O O D D"], like: Merged) -> Merged:
    outputs = minimum.shape[0]
    zero = jax.tree.map(jnp.zeros_like, like)
    # [(o, p), (d, c)]: the SVD splits any M over heads, each balanced.
    left, singular, right = jnp.linalg.svd(
        minimum.reshape(outputs * outputs, -1), full_matrices=False
    )
    used = min(singular.size, like.values.shape[0])
    root = jnp.sqrt(singular[:used])[:, None]
    values = (left.T[:used] * root).reshape(used, outputs, outputs)
    merged = (right[:used] * root).reshape(used, *minimum.shape[2:])
    return eqx.tree_at(
        lambda m: (m.values, m.merged),
        zero,
        (zero.values.at[:used].set(values), zero.merged.at[:used].set(merged)),
    )


def _separate_at(minimum: Float[Array, "O O D D"], like: Separate) -> Separate:
    heads, rank, size = like.keys.shape
    outputs = minimum.shape[0]
    # Several outputs are averaged into one map: exact for one output, a guide for more.
    matrix = jnp.einsum("oodc->dc", minimum) / outputs
    left, singular, right = jnp.linalg.svd(matrix)
    singular = jnp.where(jnp.arange(size) < heads * rank, singular, 0.0)
    slots = jnp.zeros(max(heads * rank, size)).at[:size].set(singular)[: heads * rank]
    slots = slots.reshape(heads, rank)
    value = jnp.sum(slots, axis=1) ** (1 / 3)
    amplitude = jnp.sqrt(slots / jnp.where(value > 0, value, 1.0)[:, None]).reshape(-1)
    used = min(heads * rank, size)
    keys = jnp.zeros((heads * rank, size)).at[:used].set(left.T[:used])
    queries = jnp.zeros((heads * rank, size)).at[:used].set(right[:used])
    zero: Any = jax.tree.map(jnp.zeros_like, like)
    return eqx.tree_at(
        lambda m: (m.values, m.keys, m.queries),
        zero,
        (
            value[:, None, None] * jnp.eye(outputs)[None],
            (keys * amplitude[:, None]).reshape(heads, rank, size),
            (queries * amplitude[:, None]).reshape(heads, rank, size),
        ),
    )
