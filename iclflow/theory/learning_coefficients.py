"""Learning coefficients that are known exactly: reduced-rank regression, minima of attention."""

from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from iclflow.models import AbstractLinearModel


class ExactCoefficient(NamedTuple):
    """λ and its multiplicity m: the volume with loss below ε is of order ε^λ (ln 1/ε)^(m-1).

    - `coefficient`, `multiplicity`: λ and m.
    """

    coefficient: float
    multiplicity: int


def reduced_rank_coefficient(
    *, inputs: int, outputs: int, hidden: int, rank: int = 0
) -> ExactCoefficient:
    """λ of |A B - A₀B₀|² at its most degenerate minimum (Aoyagi & Watanabe 2005, Theorem 2).

    - `inputs`, `outputs`, `hidden`: the sizes of B [hidden, inputs] and of A [outputs, hidden].
    - `rank`: r, that of the target A₀B₀.

    >>> from iclflow.theory import reduced_rank_coefficient
    >>> reduced_rank_coefficient(inputs=2, outputs=2, hidden=2)
    ExactCoefficient(coefficient=1.5, multiplicity=1)
    """
    m, n, h, r = inputs, outputs, hidden, rank
    if min(m, n, h) < 1 or not 0 <= r <= min(m, n, h):
        raise ValueError(
            f"sizes must be at least 1 and the rank between 0 and {min(m, n, h)}, got inputs {m}, "
            f"outputs {n}, hidden {h}, rank {r}"
        )
    if m + h < n + r:
        return ExactCoefficient((h * m - h * r + n * r) / 2, 1)
    if n + h < m + r:
        return ExactCoefficient((h * n - h * r + m * r) / 2, 1)
    if m + n < h + r:
        return ExactCoefficient(m * n / 2, 1)
    whole = 2 * (h + r) * (m + n) - (m - n) ** 2 - (h + r) ** 2
    odd = (m + n + h + r) % 2
    return ExactCoefficient((whole + odd) / 8, 1 + odd)


def attention_coefficient(model: AbstractLinearModel) -> ExactCoefficient:
    """λ of the loss of linear attention at a minimum, whatever the number of heads.

    - `model`: weights at which the loss is least, with as many heads as it needs or more.

    The loss is a strictly convex function of the effective weights M. Where dM/dw has full rank at
    w*, the weights around w* are coordinates for M and flat directions, so that λ is half the
    number of entries of M (D²/2 for one output), and m = 1. That holds at every minimum of merged
    attention, and of separate attention whose heads can represent every M.

    >>> import jax, iclflow as icl
    >>> task = icl.Task(spectrum=[0.6, 0.4], context=15)
    >>> loss = icl.Population(task)
    >>> start = icl.Merged.initialiser(task, heads=3, scale=0.1)(jax.random.key(0))
    >>> icl.theory.attention_coefficient(icl.dynamics.reference_minimum(loss, start))
    ExactCoefficient(coefficient=2.0, multiplicity=1)
    """
    if not isinstance(model, AbstractLinearModel):
        raise ValueError(f"the model must be linear attention, got {type(model).__name__}")
    weights, static = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(weights)

    def effective(vector: jax.Array) -> jax.Array:
        return eqx.combine(unravel(vector), static).reduced_weights().reshape(-1)

    jacobian = np.asarray(jax.jacobian(effective)(flat))
    rank = int(np.linalg.matrix_rank(jacobian))
    if rank < jacobian.shape[0]:
        raise ValueError(
            f"the effective weights have {jacobian.shape[0]} entries and move in {rank} directions "
            f"here; λ is known where they move in all, at a minimum with enough heads"
        )
    return ExactCoefficient(rank / 2, 1)
