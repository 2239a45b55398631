"""Moments of all features in the population: the limit P → ∞ with every weight block trained.

Beyond the paper, which stops at the reduced model: given the task matrix W, the context tokens
t = (x, Wx + ε) are independent Gaussian vectors with a covariance C(W) quadratic in (1, W), so
the moments of S = (Σ ttᵀ + t_q t_qᵀ)/z follow from Wick's theorem and the first four moments of
W. This is what an in-weight mixture needs (87), where the extra blocks do not stay zero.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from iclflow.linalg import gaussian_moment, packed_pairs
from iclflow.losses.features import FullFeatures
from iclflow.losses.moments import Moments
from iclflow.losses.population import LengthMoments
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.inputs import Gaussian
from iclflow.tasks.task import ContextLabels, Task, require_task


def population_moments(task: AbstractTask) -> Moments:
    """The exact P → ∞ moments of the full features; Gaussian inputs, any law of the tasks.

    >>> import iclflow as icl
    >>> round(float(icl.population_moments(icl.Task([0.6, 0.3], context=31)).power), 6)
    0.9
    """
    task = require_task(task, "population moments are")
    if not isinstance(task.inputs, Gaussian):
        raise ValueError(
            f"population moments of all blocks need Gaussian inputs, got "
            f"{type(task.inputs).__name__}; freeze the zero blocks, or sample sequences"
        )
    return _moments(task)


@eqx.filter_jit
def _moments(task: Task) -> Moments:
    size, outputs = task.size, task.outputs
    token = size + outputs
    covariance, lengths = task.covariance, LengthMoments.of(task)
    quadratic = _token_covariance(task)
    fourth = task.tasks.fourth_moment()

    # E[C_ab C_cd] and E[C_ab] over the tasks.
    pairs = jnp.einsum("abij,cdkl,ijkl->abcd", quadratic, quadratic, fourth, optimize="optimal")
    single = jnp.einsum("abij,ij->ab", quadratic, fourth[:, :, 0, 0])

    rows, columns = (jnp.asarray(i) for i in packed_pairs(token))
    inputs = jnp.arange(size)
    padded = jnp.pad(covariance, ((0, outputs), (0, outputs)))  # the query's label slot is 0
    a, b = rows[:, None, None, None], columns[:, None, None, None]
    a2, b2 = rows[None, :, None, None], columns[None, :, None, None]
    c, c2 = inputs[None, None, :, None], inputs[None, None, None, :]
    four = gaussian_moment(padded, None, a, b, c, c2)  # E[q_a q_b x_c x_c']
    six = gaussian_moment(padded, None, a, b, a2, b2, c, c2)
    four2 = jnp.swapaxes(four, 0, 1)

    across = lengths.pairs_squared * pairs[a, b, a2, b2]
    within = lengths.pairs_single * (pairs[a, a2, b, b2] + pairs[a, b2, b, a2])
    mixed = single[a, b] * four2 + single[a2, b2] * four
    second = (
        (across + within) * covariance[c, c2]
        + lengths.pairs_single * mixed
        + lengths.query_squared * six
    )
    count = rows.size * size
    second = jnp.transpose(second, (0, 2, 1, 3)).reshape(count, count)

    # E[y_o x_c S_ab] with y_o = W_o x_q: the context's share, then the query token's own.
    task_rows = fourth[1:, 0].reshape(outputs, size, *fourth.shape[2:])
    context = jnp.einsum("ci,oijk,abjk->oabc", covariance, task_rows, quadratic)
    mean = fourth[1:, 0, 0, 0].reshape(outputs, size)
    query = jnp.einsum("kci,oi->okc", four[:, 0], mean)
    cross = lengths.pairs * context[:, rows, columns, :] + lengths.query * query

    power = jnp.einsum("ocod,cd->", task.second_moment(), covariance)
    power = power + outputs * task.target_noise**2
    return Moments(power, cross.reshape(outputs, count), second, FullFeatures())


def _token_covariance(task: Task) -> Float[Array, "T T U U"]:
    """Coefficients of C(W)_ab = Σ A[a,b,i,j] u_i u_j with u = (1, vec W)."""
    size, outputs = task.size, task.outputs
    token, extended = size + outputs, 1 + outputs * size
    covariance: Array = task.covariance
    result = jnp.zeros((token, token, extended, extended))
    result = result.at[:size, :size, 0, 0].set(covariance)
    for o in range(outputs):
        label, block = size + o, slice(1 + o * size, 1 + (o + 1) * size)
        if task.context_labels is ContextLabels.NOISE:
            result = result.at[label, label, 0, 0].set(1.0)
            continue
        result = result.at[:size, label, 0, block].set(covariance)
        result = result.at[label, :size, 0, block].set(covariance)
        result = result.at[label, label, 0, 0].set(task.label_noise**2)
        for p in range(outputs):
            other = slice(1 + p * size, 1 + (p + 1) * size)
            result = result.at[label, size + p, block, other].set(covariance)
    return result
