"""Sharpness: the largest curvature of the loss, which bounds the rate of stable descent."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from iclflow.losses import AbstractLoss
from iclflow.measures.curvature import hessian_vector_product, top_eigenvalues
from iclflow.models import AbstractModel, Merged

STABLE_FRACTION = 0.25  # of the limit 2 / sharpness: the default rate


@eqx.filter_jit
def sharpness(loss: AbstractLoss, model: AbstractModel, iterations: int = 40) -> Float[Array, ""]:
    """The largest eigenvalue of the Hessian of L at the given weights (Lanczos, matrix-free).

    Descent at rate η is stable there while η · sharpness < 2. Only weights that exist are
    counted: full blocks are several times sharper than frozen ones.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Merged.initialiser(task, heads=1, scale=0.0)(jax.random.key(0))
    >>> round(float(icl.sharpness(icl.Population(task), model)), 2)
    0.74
    """
    weights, static = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(weights)
    product = hessian_vector_product(lambda w: loss(eqx.combine(unravel(w), static)), flat)
    # Any start with a share of every direction will do; a fixed one keeps the function pure.
    start = jnp.cos(jnp.arange(flat.size, dtype=flat.dtype) + 1)
    return top_eigenvalues(product, flat.size, jax.random.key(0), steps=iterations, start=start)[0]


def reference_minimum(loss: AbstractLoss, model: AbstractModel) -> AbstractModel:
    """Weights of the model's kind at the least-squares solution, balanced, extra blocks zero.

    This is where training from small weights ends, up to O(1/P) (merged: all heads parallel;
    separate: one head for R modes, E9), so its sharpness tells the stable rate beforehand.
    """
    layers = model.attention_layers()
    found = model.at_minimum(_minimum(loss, layers[0])) if layers else None
    if found is None:
        raise ValueError(
            f"the least-squares weights of {type(model).__name__} are not known in advance; "
            f"give the rate"
        )
    return found


def stable_rate(
    loss: AbstractLoss, model: AbstractModel, fraction: float = STABLE_FRACTION
) -> Float[Array, ""]:
    """The rate at the stated fraction of descent's stability limit 2 / sharpness at the end.

    Of a `Curriculum` it is the smallest of its losses' rates.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Merged.initialiser(task, heads=1, scale=0.0)(jax.random.key(0))
    >>> bool(icl.stable_rate(icl.Population(task), model) > 0)
    True
    """
    if loss.drifts:
        raise ValueError(
            "the sharpness of a loss that drifts changes with it; give the rate, or ask for "
            "stable_rate(loss.at(step), model) at the steps that matter"
        )
    limits = [sharpness(one, reference_minimum(one, model)) for _, one in loss.pieces]
    return 2 * fraction / jnp.max(jnp.stack(limits))


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
