"""Stacks of layers with given matrices, and their loss."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

import iclflow as icl


def of_matrices(*matrices):
    """The stack whose layers have these matrices Γ, one merged head each."""
    one = lambda m: icl.Merged(jnp.ones((1, 1, 1)), jnp.asarray(m, float)[None])  # noqa: E731
    return icl.Layers.of([one(m) for m in matrices])


def of_steps(steps, size=4):
    """The stack of layers γ I."""
    return of_matrices(*(g * np.eye(size) for g in steps))


@eqx.filter_jit
def value(loss, model):
    """The loss of a model, compiled in one piece."""
    return loss(model)
