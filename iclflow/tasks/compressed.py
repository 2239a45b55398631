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
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.tasks.base import AbstractTask, Normaliser, Prompt
from iclflow.tasks.checks import require_memory, require_size
from iclflow.tasks.laws import AbstractTaskVectors, Gaussian, Pool
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
    task = require_compressible(task)
    count = require_size("sequences", sequences)
    squares = diagonal_squares(jax.random.fold_in(key, 1), count, task.size, task.lengths[0])
    return _drawn(task, jax.random.split(key, count), squares)


def require_compressible(task: AbstractTask) -> Task:
    """The task, or `ValueError` where N pairs cannot be replaced by D of them."""
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
    return task


@eqx.filter_jit
def _drawn(task: Task, keys: Array, squares: Float[Array, "P D"]) -> Prompt:
    return jax.vmap(lambda key, chi: _prompt(task, key, chi))(keys, squares)


def _prompt(task: Task, key: PRNGKeyArray, squares: Float[Array, " D"]) -> Prompt:
    size, context = task.size, task.lengths[0]
    short = min(size, context)
    plain = task.replace(context=short, lengths=(short,), normaliser=Normaliser.NONE)
    draw = plain.draw(key)
    if context <= size:
        return plain.prompt(draw)
    white = triangular_rows(jax.random.fold_in(key, 2), squares)
    rows = (white * jnp.sqrt(task.spectrum)[None, :]) @ task.basis.T
    inputs = jnp.concatenate([rows, draw.inputs[-1:]])
    return plain.prompt(eqx.tree_at(lambda d: d.inputs, draw, inputs))


def triangular_rows(key: PRNGKeyArray, squares: Float[Array, " D"]) -> Float[Array, "D D"]:
    """R of X = Q R for at least D pairs of white inputs, from its squared diagonal."""
    size = len(squares)
    above = jnp.triu(jax.random.normal(key, (size, size), squares.dtype), 1)
    return above + jnp.diag(jnp.sqrt(squares))


def diagonal_squares(key: PRNGKeyArray, count: int, size: int, pairs: int) -> Float[Array, "P D"]:
    """The squared diagonals of R of so many contexts: χ² with N, N - 1, … degrees of freedom."""
    freedom = np.maximum(pairs - np.arange(float(size)), 1.0)  # none below 1 is used
    return chi_squares(key, np.broadcast_to(freedom, (count, size)))


def chi_squares(key: PRNGKeyArray, freedom: np.ndarray) -> Float[Array, "*shape"]:
    """χ² numbers with the given degrees of freedom.

    They are drawn in numbers that are powers of two, since the sampler takes seconds to compile.
    """
    flat = np.ravel(freedom).astype(float)
    room = 1 << max(0, len(flat) - 1).bit_length()
    padded = jnp.asarray(np.pad(flat, (0, room - len(flat)), constant_values=1.0))
    return _chi_squares(key, padded)[: len(flat)].reshape(np.shape(freedom))


@eqx.filter_jit
def _chi_squares(key: PRNGKeyArray, freedom: Float[Array, " n"]) -> Float[Array, " n"]:
    return 2 * jax.random.gamma(key, freedom / 2)


def task_root(task: Task) -> Float[Array, "D D"]:
    """E diag(λ)^(1/2): inputs are white numbers times its transpose."""
    return task.basis * jnp.sqrt(task.spectrum)[None, :]


def context_statistics(
    task: Task, count: int, key: PRNGKeyArray
) -> tuple[Float[Array, "P O D"], Float[Array, "P D D"], Float[Array, "P D O"]]:
    """W, XᵀX and XᵀY of so many contexts; one program serves all contexts of at least D pairs."""
    size, pairs = task.size, task.lengths[0]
    require_memory(24 * count * size**2, f"{count} contexts of {size} inputs", "ask for fewer")
    keys = jax.random.split(key, 3)
    vectors = _task_vectors(task.tasks, count, keys[0])
    squares = diagonal_squares(keys[1], count, size, pairs)
    contexts = jax.random.split(keys[2], count)
    short = min(size, pairs)
    found = _contexts(task_root(task), task.label_noise, short, vectors, contexts, squares)
    return vectors, *found


def _task_vectors(law: AbstractTaskVectors, count: int, key: PRNGKeyArray) -> Float[Array, "P O D"]:
    if isinstance(law, Pool):  # no program of its own for every size of a pool
        return law.members[jax.random.randint(key, (count,), 0, len(law.members))]
    return _sampled(law, jax.random.split(key, count))


@eqx.filter_jit
def _sampled(law: AbstractTaskVectors, keys: Array) -> Float[Array, "P O D"]:
    return jax.vmap(law.sample)(keys)


@eqx.filter_jit
def _contexts(
    root: Float[Array, "D D"], noise: Float[Array, ""], short: int,
    vectors: Float[Array, "P O D"], keys: Array, squares: Float[Array, "P D"],
) -> tuple[Float[Array, "P D D"], Float[Array, "P D O"]]:  # fmt: skip
    def one(task: Array, key: PRNGKeyArray, squares: Array) -> tuple[Array, Array]:
        size, keys = len(root), jax.random.split(key)
        if short < size:
            white = jax.random.normal(keys[0], (short, size))
        else:  # for N = D too, where triangular rows have the same law
            white = triangular_rows(keys[0], squares)
        inputs = white @ root.T
        labels = inputs @ task.T + noise * jax.random.normal(keys[1], (short, len(task)))
        return inputs.T @ inputs, inputs.T @ labels

    return jax.vmap(one)(vectors, keys, squares)
