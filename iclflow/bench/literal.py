"""The yardstick: attention as it is written (5), the whole map of every prompt, and autograd."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from iclflow.models import AbstractModel
from iclflow.tasks.base import Prompt


class Weights(NamedTuple):
    """W^V and W^{KQ} of every head, whole; rows and columns that never matter are zero."""

    value: Float[Array, "H T T"]
    key_query: Float[Array, "H T T"]


def literal_weights(model: AbstractModel) -> Weights:
    """The whole matrices of an attention layer."""
    attention = model.as_attention()
    assert attention is not None, "the yardstick is attention"
    rows, columns = attention.value_rows(), attention.key_query()
    missing = rows.shape[2] - rows.shape[1]
    value = jnp.pad(rows, ((0, 0), (missing, 0), (0, 0)))
    return Weights(value, jnp.pad(columns, ((0, 0), (0, 0), (0, rows.shape[1]))))


def literal_loss(weights: Weights, prompts: Prompt, softmax: bool) -> Float[Array, ""]:
    """Mean |y_q - ŷ_q|², ŷ_q at the bottom right of X + Σᵢ W^Vᵢ X A(Xᵀ W^{KQ}ᵢ X) (5).

    A divides by the number of pairs N, or is the softmax over each column.
    """

    def error(prompt: Prompt) -> Float[Array, ""]:
        x = prompt.tokens.T

        def head(value: Array, key_query: Array) -> Array:
            scores = x.T @ key_query @ x
            shares = jax.nn.softmax(scores, axis=0) if softmax else scores / prompt.divisor
            return value @ x @ shares

        output = x + jnp.sum(jax.vmap(head)(*weights), axis=0)
        target = prompt.target
        return jnp.sum((target - output[-target.shape[0] :, -1]) ** 2)

    return jnp.mean(jax.vmap(error)(prompts))


@functools.partial(jax.jit, static_argnames="softmax")
def train(weights: Weights, prompts: Prompt, rate: Any, steps: Any, softmax: bool) -> Weights:
    """Gradient descent on `literal_loss`, one run."""

    def step(_: Any, now: Weights) -> Weights:
        gradient = jax.grad(literal_loss)(now, prompts, softmax)
        return jax.tree.map(lambda w, g: w - rate * g, now, gradient)

    return jax.lax.fori_loop(0, steps, step, weights)
