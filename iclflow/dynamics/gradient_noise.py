"""Gradient noise: the covariance of a minibatch's gradient about that of the full batch."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from iclflow.losses import AbstractLoss, Minibatch
from iclflow.models import AbstractModel
from iclflow.tasks.checks import require_memory

BATCH = 256  # sequences whose gradients are computed together


class GradientNoise(eqx.Module):
    """The gradient of the full batch, and how that of a minibatch scatters about it.

    - `gradient`: of the loss of all sequences, flattened over the weights.
    - `covariance`: of the gradient of one minibatch.
    - `size`: sequences per minibatch.
    """

    gradient: Float[Array, " n"]
    covariance: Float[Array, "n n"]
    size: int = eqx.field(static=True)

    @property
    def trace(self) -> Float[Array, ""]:
        """E|g_batch - g|², the sum of the variances over all weights."""
        return jnp.trace(self.covariance)

    @property
    def noise_scale(self) -> Float[Array, ""]:
        """size · tr C/|g|²: the batch at which noise and gradient are of equal size."""
        return self.size * self.trace / jnp.sum(self.gradient**2)


def gradient_noise(
    loss: AbstractLoss, model: AbstractModel, *, size: int | None = None
) -> GradientNoise:
    """The covariance of the gradient of minibatches, drawn without replacement, at given weights.

    - `loss`: `Minibatch`, or a loss that keeps its prompts (`Features`, `Sequences`) and `size`.
    - `model`: the weights.
    - `size`: sequences per minibatch; that of a `Minibatch` if it is not given.

    With C the covariance over single sequences (divisor P), a batch of B of the P sequences has
    C/B · (P - B)/(P - 1): none if it is the full batch.

    >>> import jax, iclflow as icl
    >>> task = icl.Task(spectrum=[0.6, 0.4], context=15)
    >>> model = icl.Merged.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> whole = icl.Features.sample(task, 100, key=jax.random.key(1))
    >>> float(icl.gradient_noise(whole, model, size=100).trace)
    0.0
    """
    whole = loss.reported
    if size is None and isinstance(loss, Minibatch):
        size = loss.size
    count, take = getattr(whole, "count", None), getattr(whole, "take", None)
    if count is None or take is None:
        raise ValueError(
            f"gradient noise needs minibatches of kept prompts, and {type(loss).__name__} "
            f"keeps none; use Minibatch(Features.sample(...), size)"
        )
    if size is None or not 1 <= size <= count:
        raise ValueError(f"size must be between 1 and {count} sequences, got {size}")
    weights, static = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(weights)
    require_memory(
        8 * (2 * count * flat.size + flat.size**2), "a gradient per sequence", "give fewer"
    )

    def one(index: Array) -> Array:
        single = take(index[None])
        return jax.grad(lambda w: single(eqx.combine(unravel(w), static)))(flat)

    gradients = jax.lax.map(one, jnp.arange(count), batch_size=min(BATCH, count))
    mean = jnp.mean(gradients, axis=0)
    apart = gradients - mean[None]
    share = (count - size) / (size * max(count - 1, 1))
    return GradientNoise(mean, share * (apart.T @ apart) / count, size)
