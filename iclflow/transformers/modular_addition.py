"""Modular addition, a + b mod p: which pairs are trained on, and the full-batch cross-entropy."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.transformers.modular import ModularTransformer


class ModularAddition(AbstractLoss):
    """The mean cross-entropy of the answer a + b mod p over a set of pairs (a, b), in nats."""

    first: Int[Array, " n"]  # a
    second: Int[Array, " n"]  # b
    modulus: int = eqx.field(static=True)

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        return jnp.mean(cross_entropies(self._logits(model), self.answers))

    @property
    def answers(self) -> Int[Array, " n"]:
        """a + b mod p."""
        return (self.first + self.second) % self.modulus

    def accuracy(self, model: AbstractModel) -> Float[Array, ""]:
        """The share of pairs whose answer has the largest logit."""
        return jnp.mean(jnp.argmax(self._logits(model), axis=1) == self.answers)

    def admits(self, model: AbstractModel) -> str | None:
        if not isinstance(model, ModularTransformer):
            return "modular addition needs a model of its three tokens, a ModularTransformer"
        if model.modulus != self.modulus:
            return f"the model adds modulo {model.modulus}, the pairs are modulo {self.modulus}"
        return None

    def _logits(self, model: Any) -> Float[Array, "n p"]:
        return model.logits(self.first, self.second)


def split_pairs(
    modulus: int, fraction: float, key: PRNGKeyArray
) -> tuple[ModularAddition, ModularAddition]:
    """Training and test loss: a random ⌊fraction p²⌋ of the p² ordered pairs, and the others."""
    if modulus < 2 or not 0 < fraction < 1:
        raise ValueError(
            f"a split needs a modulus of at least 2 and a fraction between 0 and 1, got {modulus} "
            f"and {fraction}; the standard set-up has 113 and 0.3"
        )
    count = int(fraction * modulus**2)
    if count == 0:
        raise ValueError(f"{fraction:g} of {modulus**2} pairs is none; take a larger fraction")
    order = np.asarray(jax.random.permutation(key, modulus**2))

    def loss(pairs: np.ndarray) -> ModularAddition:
        first, second = np.divmod(np.sort(pairs).astype(np.int32), modulus)
        return ModularAddition(jnp.asarray(first), jnp.asarray(second), modulus)

    return loss(order[:count]), loss(order[count:])


def cross_entropies(logits: Float[Array, "n p"], answers: Int[Array, " n"]) -> Float[Array, " n"]:
    """-ln softmax(l)_y as softplus(ln Σ_{j≠y} exp l_j - l_y), for every example.

    The usual difference l_y - ln Σ_j exp l_j has an absolute error of one rounding: below 1e-7
    the loss in single precision is then noise and its gradient does not sum to zero, which sets
    off spikes late in training. This form keeps the relative precision of loss and gradient
    however small they are, in either precision.
    """
    right: Bool[Array, "n p"] = jnp.arange(logits.shape[1])[None] == answers[:, None]
    others = jax.nn.logsumexp(jnp.where(right, -jnp.inf, logits), axis=1)
    return jax.nn.softplus(others - jnp.sum(jnp.where(right, logits, 0), axis=1))
