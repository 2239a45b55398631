"""The data that Figs 1, 3, 6 and 7 share: D = 4, λ = .4 .3 .2 .1, N = 31 pairs, P = 80,000.

The paper's first version counts 32 tokens, the query included; its formulas, its second version
and this page count the 31 labelled pairs. As in the published code the inputs are centred over
the sample and the task vectors whitened.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.losses import Moments, population_moments
from iclflow.tasks.task import Task
from iclflow.theory.algorithms.linear import LinearPredictor

SPECTRUM = (0.4, 0.3, 0.2, 0.1)
CONTEXT = 31
SEQUENCES = 80_000
SEEDS = 6
QUICK_SEQUENCES, QUICK_SEEDS = 8_000, 3
ROTATION_KEY, DATA_KEY = 2, 1


def seed_count(quick: bool) -> int:
    """How many initialisations are trained; Fig. 3 always has six, for the spread of its drops."""
    return QUICK_SEEDS if quick else SEEDS


@functools.cache
def four_input_task() -> Task:
    """The task, its eigenvectors a fixed random rotation."""
    return Task(SPECTRUM, CONTEXT, rotation=jax.random.key(ROTATION_KEY))


@functools.cache
def four_input_moments(quick: bool) -> Moments:
    """The moments of one training set, all blocks; sampled once a process."""
    sequences = QUICK_SEQUENCES if quick else SEQUENCES
    return Moments.sample(four_input_task(), sequences, jax.random.key(DATA_KEY), matched=True)


@functools.cache
def four_input_population() -> Moments:
    """The same moments at P → ∞, all blocks."""
    return population_moments(four_input_task())


def correlations(loss: Moments) -> tuple[np.ndarray, np.ndarray]:
    """E[y z] (D²) and E[z zᵀ] (D² x D²) of a training set, z = vec(β x_qᵀ) (41)(42).

    In the order in which `Merged.merged` is flattened: row (key side), then column.
    """
    gradient, curvature = _derivatives(loss, jnp.zeros(len(SPECTRUM) ** 2))
    return np.asarray(-gradient / 2), np.asarray(curvature / 2)


@eqx.filter_jit
def _derivatives(loss: Moments, weights: Float[Array, " F"]) -> tuple[Array, Array]:
    """Of the loss of a linear predictor: the loss is quadratic, so these are its moments."""
    size = len(SPECTRUM)

    def of_weights(flat: Float[Array, " F"]) -> Float[Array, ""]:
        return loss(LinearPredictor(flat.reshape(1, 1, size, size)))

    return jax.grad(of_weights)(weights), jax.hessian(of_weights)(weights)


def label_deviation(sequences: int, spectrum: Any = SPECTRUM) -> float:
    """The standard error of the mean of P squared labels, y = wᵀx: Var y² = 3 (1 + 2 tr Λ²) - 1.

    It is the sampling error of the first plateau; those of the later ones are smaller.
    """
    square = float(np.sum(np.square(spectrum)))
    return float(np.sqrt((3 * (1 + 2 * square) - 1) / sequences))


def regression_deviation(sequences: int, features: int, residual: float, explained: float) -> float:
    """Relative error of a least-squares predictor from P sequences: sqrt(F L*/(P explained))."""
    return float(np.sqrt(features * residual / (sequences * explained)))
