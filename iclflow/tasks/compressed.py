"""Prompts of at most D pairs that say as much as prompts of N pairs.

Least squares, ridge and the posteriors of `theory` take from a context only XᵀX and Xᵀy. For N > D
these are those of D pairs: with the orthogonal-triangular form X = Q R the D rows of R and Qᵀy have
the same XᵀX and Xᵀy, and what is left of |y|² does not depend on the task. R can be drawn directly
(Bartlett): for white inputs its diagonal is the root of χ² variables with N, N - 1, … degrees of
freedom, and above it are normal numbers.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.tasks.base import AbstractTask, Normaliser, Prompt
from iclflow.tasks.checks import require_size
from iclflow.tasks.laws import Gaussian
from iclflow.tasks.task import ContextLabels, Task


def compressed_prompts(task: AbstractTask, sequences: int, key: PRNGKeyArray) -> Prompt:
    """Prompts with min(N, D) pairs whose XᵀX and Xᵀy have the law of N pairs.

    Predictors that depend on the context through these two only, `PoolBayes`, `NormalBayes`,
    `Ridge` and (for N > D) `OrdinaryLeastSquares`, have on these prompts exactly the errors that
    they have on whole ones, at a cost independent of N. Others have not: |y|² is not kept.

    - `task`: with Gaussian inputs, one context length, and labels made by the task.
    - `sequences`: how many prompts, along the leading axis.
    - `key`: draws the prompts.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=100_000, label_noise=0.5)
    >>> icl.compressed_prompts(task, 5, jax.random.key(0)).inputs.shape
    (5, 3, 2)
    """
    if not isinstance(task, Task) or not isinstance(task.inputs, Gaussian):
        raise ValueError(
            "prompts are compressed for a Task with Gaussian inputs; sample whole ones with "
            "task.sample"
        )
    if len(task.lengths) != 1 or task.context_labels is ContextLabels.NOISE:
        raise ValueError(
            "prompts are compressed for one context length and labels made by the task; sample "
            "whole ones with task.sample"
        )
    count = require_size("sequences", sequences)
    return _drawn(task, jax.random.split(key, count))


@eqx.filter_jit
def _drawn(task: Task, keys: Array) -> Prompt:
    return jax.vmap(lambda key: _prompt(task, key))(keys)


def _prompt(task: Task, key: PRNGKeyArray) -> Prompt:
    size, context = task.size, task.lengths[0]
    short = min(size, context)
    plain = task.replace(context=short, lengths=(short,), normaliser=Normaliser.NONE)
    draw = plain.draw(key)
    if context <= size:
        return plain.prompt(draw)
    freedom = (context - jnp.arange(size)) / 2
    diagonal = jnp.sqrt(2 * jax.random.gamma(jax.random.fold_in(key, 2), freedom))
    white: Float[Array, "D D"] = jnp.triu(
        jax.random.normal(jax.random.fold_in(key, 3), (size, size)), 1
    ) + jnp.diag(diagonal)
    rows = (white * jnp.sqrt(task.spectrum)[None, :]) @ task.basis.T
    inputs = jnp.concatenate([rows, draw.inputs[-1:]])
    return plain.prompt(eqx.tree_at(lambda d: d.inputs, draw, inputs))
