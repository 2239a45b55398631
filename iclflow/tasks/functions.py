"""Regression of functions that are not linear: two-layer networks and decision trees.

Both have a law of f with mean zero whose covariance E[f(x) f(x')] is known exactly, so that the
best predictor among those that are linear in the labels is kernel regression with it
(`theory.kernel_predictor`).
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from iclflow.tasks.base import AbstractTask, Prompt
from iclflow.tasks.checks import require_lengths, require_real, require_size, require_within


class AbstractFunctions(AbstractTask):
    """x ~ N(0, I), and y = f(x) with a function f that is drawn for each prompt.

    >>> import iclflow as icl
    >>> isinstance(icl.DecisionTrees(4, context=16), icl.AbstractTask)
    True
    """

    size: eqx.AbstractVar[int]
    context: eqx.AbstractVar[int]
    lengths: eqx.AbstractVar[tuple[int, ...]]
    label_noise: eqx.AbstractVar[Float[Array, ""]]

    @property
    def outputs(self) -> int:  # pyright: ignore
        """One output."""
        return 1

    @abc.abstractmethod
    def values(self, inputs: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, " n"]:
        """f at every input, of the function that the key draws."""

    @abc.abstractmethod
    def covariance(
        self, one: Float[Array, "n D"], other: Float[Array, "m D"]
    ) -> Float[Array, "n m"]:
        """E[f(x) f(x')] over functions, for the rows of both."""

    def sample(self, key: PRNGKeyArray) -> Prompt:
        keys = jax.random.split(key, 3)
        inputs = jax.random.normal(keys[0], (self.context + 1, self.size))
        clean = self.values(inputs, keys[1])[:, None]
        noise = self.label_noise * jax.random.normal(keys[2], clean.shape)
        return Prompt(inputs, clean + noise, clean)


class TwoLayerNetworks(AbstractFunctions):
    """f(x) = Σ_i a_i relu(w_iᵀx) with a_i ~ N(0, 2/r) and w_i ~ N(0, I/D), r hidden units.

    The covariance does not depend on r: with θ the angle between x and x' it is
    E[f f'] = |x||x'| (sin θ + (π - θ) cos θ)/(π D), so that E f² = |x|²/D. As r → ∞, f becomes a
    Gaussian process, and kernel regression the best predictor of all.

    >>> import jax, iclflow as icl
    >>> icl.TwoLayerNetworks(4, context=16, hidden=50).sample(jax.random.key(0)).labels.shape
    (17, 1)
    """

    label_noise: Float[Array, ""]
    size: int = eqx.field(static=True)
    context: int = eqx.field(static=True)
    lengths: tuple[int, ...] = eqx.field(static=True)
    hidden: int = eqx.field(static=True)

    def __init__(
        self,
        size: int,
        context: int,
        *,
        hidden: int = 100,
        label_noise: ArrayLike = 0.0,
        lengths: Any = None,
    ) -> None:
        """State the task.

        - `size`: the input dimension D.
        - `context`: the number of labelled pairs N.
        - `hidden`: the hidden units r.
        - `label_noise`: standard deviation of the noise on context labels.
        - `lengths`: average the loss over prefixes of these many pairs; `(context,)` if omitted.
        """
        self.size, self.context, self.lengths, self.label_noise = _stated(
            size, context, label_noise, lengths
        )
        self.hidden = require_size("the hidden units", hidden)

    def values(self, inputs: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, " n"]:
        draw = jax.random.normal(key, (self.hidden, self.size + 1))
        active = jax.nn.relu(inputs @ draw[:, 1:].T / self.size**0.5)
        return active @ draw[:, 0] * (2 / self.hidden) ** 0.5

    def covariance(
        self, one: Float[Array, "n D"], other: Float[Array, "m D"]
    ) -> Float[Array, "n m"]:
        norms = jnp.linalg.norm(one, axis=1)[:, None] * jnp.linalg.norm(other, axis=1)[None, :]
        inner = one @ other.T
        across = jnp.sqrt(jnp.maximum(norms**2 - inner**2, 0.0))
        angle = jnp.arctan2(across, inner)
        return (across + (jnp.pi - angle) * inner) / (jnp.pi * self.size)


DEEPEST = 16  # trees


class DecisionTrees(AbstractFunctions):
    """f(x) is the value of a leaf: every node asks for the sign of one random entry of x.

    The tree has all 2^depth leaves, with values N(0, 1); the entry of each node is drawn
    uniformly, also again below itself. Two inputs whose signs agree in a share s of the entries
    reach the same leaf with probability s^depth, which is the covariance.

    >>> import jax, iclflow as icl
    >>> icl.DecisionTrees(4, context=16, depth=3).sample(jax.random.key(0)).labels.shape
    (17, 1)
    """

    label_noise: Float[Array, ""]
    size: int = eqx.field(static=True)
    context: int = eqx.field(static=True)
    lengths: tuple[int, ...] = eqx.field(static=True)
    depth: int = eqx.field(static=True)

    def __init__(
        self,
        size: int,
        context: int,
        *,
        depth: int = 4,
        label_noise: ArrayLike = 0.0,
        lengths: Any = None,
    ) -> None:
        """State the task.

        - `depth`: the questions on the way to a leaf, at most 16.
        - `size`, `context`, `label_noise`, `lengths`: as of `TwoLayerNetworks`.
        """
        self.size, self.context, self.lengths, self.label_noise = _stated(
            size, context, label_noise, lengths
        )
        self.depth = require_size("the depth of a tree", depth)
        if depth > DEEPEST:
            raise ValueError(
                f"a tree of depth {depth} has 2^{depth} leaves; give a depth of {DEEPEST} at most"
            )

    def values(self, inputs: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, " n"]:
        node_key, leaf_key = jax.random.split(key)
        asked = jax.random.randint(node_key, (2**self.depth,), 0, self.size)
        leaves = jax.random.normal(leaf_key, (2**self.depth,))
        positive = inputs > 0

        def value(signs: Array) -> Float[Array, ""]:
            node = jnp.ones((), int)  # the children of node i are 2i and 2i + 1
            for _ in range(self.depth):
                node = 2 * node + signs[asked[node]]
            return leaves[node - 2**self.depth]

        return jax.vmap(value)(positive)

    def covariance(
        self, one: Float[Array, "n D"], other: Float[Array, "m D"]
    ) -> Float[Array, "n m"]:
        same = (one[:, None, :] > 0) == (other[None, :, :] > 0)
        return jnp.mean(same, axis=2, dtype=one.dtype) ** self.depth


def _stated(
    size: Any, context: Any, label_noise: Any, lengths: Any
) -> tuple[int, int, tuple[int, ...], Float[Array, ""]]:
    """What all laws of functions have in common, checked."""
    size = require_size("the input dimension", size)
    context = require_size("the context", context)
    noise = require_real("label noise", label_noise, ndim=0)
    require_within("label noise (a standard deviation)", noise, lower=0.0)
    found = (context,) if lengths is None else require_lengths(lengths)
    if not found or min(found) < 1 or max(found) > context:
        raise ValueError(f"context lengths must lie between 1 and {context}, got {found}")
    return size, context, found, noise
