"""Prompts for the features [β; mean y²] ⊗ x_q at the cost of one token, whatever N is.

Of a context of N pairs these features need a = Σ yₙ (xₙ, yₙ)/z only, which is N + D normal numbers
with memory and D + 1 without, instead of N·D. With u = Λ^(1/2) w in white coordinates, v = |u|² +
σ² and independent pairs, exactly:

    Σ y² = v χ²_N,   Σ y z = u Σ y²/v + (Σ y²)^(1/2) r,   r ~ N(0, I - u uᵀ/v),

the law of z given y. With memory K = U diag(k) Uᵀ the sums do not change when the pairs are rotated
by U along the context; there they are independent, with variances k.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.losses.features import CHUNK, Features, LabelFeatures
from iclflow.losses.population import lengths_and_divisors
from iclflow.tasks.checks import require_memory, require_size
from iclflow.tasks.compressed import chi_squares
from iclflow.tasks.laws import Gaussian, Pool
from iclflow.tasks.memory import Memory
from iclflow.tasks.task import ContextLabels, Task

AT_ONCE = 8 * CHUNK  # prompts
Drawn = tuple[Float[Array, "P K"], Float[Array, "P D"], Float[Array, " P"]]
Noise = tuple[Float[Array, ""], Float[Array, ""]]


def label_rows(
    task: Task | Memory, sequences: int, key: PRNGKeyArray, *, equal_shares: bool = False
) -> Features:
    """The features [β; mean y²] ⊗ x_q of fresh prompts, drawn without drawing the prompts.

    The law is exactly that of `Features.sample(task, …, features=icl.LabelFeatures())`.

    - `task`: a `Task` with Gaussian inputs, one output and one context length, with `Memory` or
      without.
    - `sequences`: how many prompts.
    - `equal_shares`: prompt p has task p modulo M of a `Pool` of M, so that all are used equally
      often; drawn at random if False.
    - `key`: draws the prompts.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=100_000)
    >>> icl.label_rows(task, 1000, jax.random.key(0)).statistic.shape
    (1000, 1, 3)
    """
    plain = task.task if isinstance(task, Memory) else task
    count = require_size("sequences", sequences)
    _check(plain)
    require_memory(
        8 * count * (4 * plain.size + 3), f"the label rows of {count} prompts", "ask for fewer"
    )
    keys = jax.random.split(key, 3)
    vectors = _vectors(plain, count, keys[0], equal_shares)
    divisor = float(lengths_and_divisors(plain)[1][0])
    root = plain.basis * jnp.sqrt(plain.spectrum)[None, :]
    noise = (plain.label_noise, plain.target_noise)
    if isinstance(task, Memory):
        rotated = _rotated(task)

        def draw(part: PRNGKeyArray, some: slice) -> Drawn:
            return _with_memory(part, vectors[some], root, noise, *rotated)

    else:
        chi = chi_squares(keys[2], np.full(count, float(plain.context)))

        def draw(part: PRNGKeyArray, some: slice) -> Drawn:
            return _independent(part, vectors[some], root, noise, chi[some])

    parts = [
        draw(jax.random.fold_in(keys[1], number), slice(start, start + AT_ONCE))
        for number, start in enumerate(range(0, count, AT_ONCE))
    ]
    row, query, target = (
        jnp.concatenate(arrays) if len(parts) > 1 else arrays[0]
        for arrays in zip(*parts, strict=True)
    )
    return Features(
        (row / divisor)[:, None], query[:, None], target[:, None, None], LabelFeatures()
    )


def _check(task: Task) -> None:
    """Raise `ValueError` unless the law of the label row is the one above."""
    if not isinstance(task.inputs, Gaussian):
        raise ValueError(
            f"label rows are drawn for Gaussian inputs, got {type(task.inputs).__name__}; use "
            f"Features.sample(task, sequences, key, features=icl.LabelFeatures())"
        )
    if task.outputs != 1 or len(task.lengths) != 1 or task.context_labels is ContextLabels.NOISE:
        raise ValueError(
            "label rows are drawn for one output, one context length and labels made by the task; "
            "use Features.sample(task, sequences, key, features=icl.LabelFeatures())"
        )


def _vectors(task: Task, count: int, key: PRNGKeyArray, equal_shares: bool) -> Float[Array, "P D"]:
    law = task.tasks
    if isinstance(law, Pool):
        many = len(law.members)
        index = np.arange(count) % many
        chosen = index if equal_shares else jax.random.randint(key, (count,), 0, many)
        return law.members[chosen, 0]
    if equal_shares:
        raise ValueError(
            f"equal shares are those of the tasks of a pool, got {type(law).__name__}; give the "
            f"Task tasks=icl.Pool(members)"
        )
    return _drawn(law, key, count)


@eqx.filter_jit
def _drawn(law: eqx.Module, key: PRNGKeyArray, count: int) -> Float[Array, "P D"]:
    return jax.vmap(law.sample)(jax.random.split(key, count))[:, 0]  # pyright: ignore


def _along(
    vectors: Float[Array, "P D"], root: Float[Array, "D D"], noise: Float[Array, ""]
) -> tuple[Array, Array, Array]:
    """Û, |u|² and σ² of every prompt, in white coordinates."""
    white = vectors @ root
    power = jnp.sum(white**2, axis=1)
    unit = white / jnp.sqrt(jnp.where(power > 0, power, 1.0))[:, None]
    return unit, power, noise**2


@eqx.filter_jit
def _independent(
    key: PRNGKeyArray, vectors: Array, root: Array, noise: Noise, chi: Float[Array, " P"]
) -> Drawn:
    """Pairs without memory; `chi` are χ² with N degrees of freedom."""
    count, size = vectors.shape
    unit, power, variance = _along(vectors, root, noise[0])
    total = power + variance
    normals = jax.random.normal(key, (count, 2 * size + 1))
    z, query, extra = normals[:, :size], normals[:, size : 2 * size], normals[:, -1]
    squares = total * chi
    inside = jnp.sum(z * unit, axis=1)
    safe = jnp.where(total > 0, total, 1.0)
    # Along û the spread of z given y is σ²/v instead of 1.
    along = squares * jnp.sqrt(power) / safe
    along = along + jnp.sqrt(squares) * inside * (jnp.sqrt(variance / safe) - 1)
    sums = jnp.sqrt(squares)[:, None] * z + along[:, None] * unit
    return _laid_out(sums, squares, query, extra, vectors, root, noise)


@eqx.filter_jit
def _with_memory(
    key: PRNGKeyArray, vectors: Array, root: Array, noise: Noise,
    spread: Float[Array, " N"], pull: Float[Array, " N"], rest: Float[Array, ""],
) -> Drawn:  # fmt: skip
    """The same for pairs of variances k: `spread` is k^(1/2), the query is Σ pull z + rest z'."""
    keys = jax.random.split(key, 2)
    count, size = vectors.shape
    unit, power, variance = _along(vectors, root, noise[0])
    total = power[:, None] * spread[None] ** 2 + variance
    labels = jnp.sqrt(total) * jax.random.normal(keys[0], (count, len(spread)))
    safe = jnp.where(total > 0, total, 1.0)
    mean = jnp.sqrt(power)[:, None] * spread[None] * labels / safe  # of z along û, given y
    left = jnp.sqrt(variance / safe)  # its standard deviation
    weight = spread[None] * labels  # of z in the sum
    normals = jax.random.normal(keys[1], (count, 3 * size + 3))
    first, second, own = (normals[:, i * size : (i + 1) * size] for i in range(3))
    across = _pair(weight, pull[None] + jnp.zeros_like(weight), first.T, second.T)
    inside = _pair(weight * left, pull[None] * left, normals[:, -3], normals[:, -2])
    ahead = (
        inside[0] + jnp.sum(weight * mean, axis=1),
        inside[1] + jnp.sum(pull[None] * mean, axis=1),
    )
    sums, query = (
        (a.T + (b - jnp.sum(a.T * unit, axis=1))[:, None] * unit)
        for a, b in zip(across, ahead, strict=True)
    )
    squares = jnp.sum(labels**2, axis=1)
    return _laid_out(sums, squares, query + rest * own, normals[:, -1], vectors, root, noise)


def _pair(p: Array, q: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """Σ p z and Σ q z over independent z ~ N(0, 1), from two normal numbers each."""
    pp, pq, qq = jnp.sum(p * p, 1), jnp.sum(p * q, 1), jnp.sum(q * q, 1)
    slope = pq / jnp.where(pp > 0, pp, 1.0)
    left = jnp.sqrt(jnp.maximum(qq - slope * pq, 0.0))
    shape = (1,) * (first.ndim - 1) + pp.shape
    root, slope, left = (a.reshape(shape) for a in (jnp.sqrt(pp), slope, left))
    return root * first, slope * root * first + left * second


def _laid_out(
    sums: Array, squares: Array, query: Array, extra: Array, vectors: Array, root: Array,
    noise: Noise,
) -> Drawn:  # fmt: skip
    inputs = query @ root.T
    target = jnp.sum(inputs * vectors, axis=1) + noise[1] * extra
    return jnp.concatenate([sums @ root.T, squares[:, None]], axis=1), inputs, target


def _rotated(task: Memory) -> tuple[Array, Array, Array]:
    """Spread of the rotated pairs, and how the query depends on their standardised inputs."""
    covariance = np.asarray(task.covariance)
    values, vectors = np.linalg.eigh(covariance[:-1, :-1])
    spread = np.sqrt(values.clip(min=0.0))
    cutoff = 1e-7 * max(spread.max(), 1e-300)
    pull = (vectors.T @ covariance[:-1, -1]) / np.where(spread > cutoff, spread, 1.0)
    pull = np.where(spread > cutoff, pull, 0.0)
    rest = np.sqrt(max(covariance[-1, -1] - np.sum(pull**2), 0.0))
    return jnp.asarray(spread), jnp.asarray(pull), jnp.asarray(rest)
