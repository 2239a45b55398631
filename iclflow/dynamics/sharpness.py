"""Sharpness: the largest curvature of the loss, which bounds the rate of stable descent."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from iclflow.dynamics.flow import Flow
from iclflow.losses import AbstractLoss
from iclflow.losses.base import require_loss
from iclflow.measures.curvature import hessian_vector_product, top_eigenvalues
from iclflow.models import AbstractLinearModel, AbstractModel, Merged
from iclflow.models.base import require_model
from iclflow.results.trajectory import RESULTS

STABLE_FRACTION = 0.25  # of the limit 2 / sharpness: the default rate
CLOSE = 0.01  # of the whole fall: what a flow may still lack of the least loss
LONGEST, DOUBLINGS = 20, 4  # doublings of the time that a flow is given, and of one at rest


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
    require_loss(loss)
    require_model(model)
    weights, static = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(weights)
    product = hessian_vector_product(lambda w: loss(eqx.combine(unravel(w), static)), flat)
    # Any start with a share of every direction will do; a fixed one keeps the function pure.
    start = jnp.cos(jnp.arange(flat.size, dtype=flat.dtype) + 1)
    return top_eigenvalues(product, flat.size, jax.random.key(0), steps=iterations, start=start)[0]


def reference_minimum(loss: AbstractLoss, model: AbstractModel) -> AbstractModel:
    """Weights of the model's kind at the least-squares solution, balanced, extra blocks zero.

    This is where training from small weights ends, up to O(1/P) (merged: all heads parallel;
    separate: one head for R modes, E9), so its sharpness tells the stable rate beforehand. Of a
    linear model of your own, which need not know such weights, it is where its own gradient flow
    from the given weights comes within a hundredth of the least loss.
    """
    layers = model.attention_layers()
    found = model.at_minimum(_minimum(loss, layers[0])) if layers else None
    if found is None and not layers and isinstance(model, AbstractLinearModel):
        found = _flowed(loss, model)
    if found is None:
        raise ValueError(
            f"the least-squares weights of {type(model).__name__} are not known in advance; "
            f"give the rate"
        )
    return found


def _flowed(loss: AbstractLoss, model: AbstractLinearModel) -> AbstractModel:
    """Where the gradient flow of a linear model comes close to the least loss, or to rest."""
    shape = model.reduced_weights().shape
    heads, size = shape[0] * shape[1], shape[2]
    values = jnp.eye(heads).reshape(heads, *shape[:2])
    best = _minimum(loss, Merged(values=values, merged=jnp.zeros((heads, size, size))))
    least = loss(Merged(values=values, merged=best.reshape(heads, size, size)))
    flow = Flow(1e-6)
    state = eqx.filter_jit(flow.init)(loss, model, jax.random.key(0))
    losses = [float(loss(model))]
    for end in 2.0 ** np.arange(LONGEST):
        state = _advanced(flow, loss, state, jnp.asarray([end])).state
        losses.append(float(loss(state.model)))
        near = losses[-1] - float(least) <= CLOSE * (losses[0] - float(least))
        # At rest, and not only on a plateau: several doublings of the time changed nothing.
        rests = len(losses) > DOUBLINGS and abs(losses[-DOUBLINGS] / losses[-1] - 1) < 1e-6
        if near or (rests and end > 2**14) or state.result != RESULTS.finished:
            break
    return state.model


@eqx.filter_jit
def _advanced(flow: Flow, loss: AbstractLoss, state: Any, marks: Any) -> Any:
    return flow.advance(loss, state, marks, {})


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
    require_loss(loss)
    require_model(model)
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
