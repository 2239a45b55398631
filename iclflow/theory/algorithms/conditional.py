"""The loss of a predictor given the context: the query and the target's noise averaged exactly.

The posterior means and ridge are linear in the query, ŷ = Ŵ x_q, and their Ŵ reads only two
statistics of the context, G = XᵀX and C = XᵀY. Given the context and the task W,

    E[|y_q - ŷ|²] = tr((Ŵ - W) Λ (Ŵ - W)ᵀ) + O σ²,

so that a mean over contexts has no noise from queries. That noise is most of the noise of single
squared errors, whose standard deviation is √2 times their mean.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.models import AbstractModel
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.checks import require_size
from iclflow.tasks.compressed import context_statistics, require_compressible, task_root
from iclflow.theory.algorithms.bayes import NormalBayes, PoolBayes
from iclflow.theory.algorithms.regression import Ridge

AT_ONCE = 10_000_000  # numbers of the fits of all tasks to all contexts of a block
Readers = PoolBayes | NormalBayes | Ridge


def conditional_losses(
    predictor: AbstractModel | Sequence[AbstractModel],
    task: AbstractTask,
    sequences: int,
    key: PRNGKeyArray,
) -> Float[Array, "*predictors P"]:
    """The loss of a predictor given the context, one per context; their mean is its loss.

    A prompt costs D² numbers whatever N is, and a pool of K tasks costs K D² operations: K = 5000
    tasks in 100 dimensions take some milliseconds per context.

    - `predictor`: `PoolBayes`, `NormalBayes` or `Ridge`, with noise above 0. Its pool or prior need
      not be that of the task: dMMSE of one pool may be asked about new tasks. Several predictors
      are asked about the same contexts, and the losses have a leading axis.
    - `task`: what the prompts are drawn from, with Gaussian inputs and one context length.
    - `sequences`: how many contexts.
    - `key`: what they are drawn with.

    >>> import jax, iclflow as icl
    >>> new = icl.Task([0.6, 0.3], context=1000, label_noise=0.5, target_noise=0.5)
    >>> pool = new.replace(tasks=icl.Pool([[1.0, 0.0], [0.0, 1.0]]))
    >>> bayes = icl.theory.bayes_predictor(pool)
    >>> on_pool, on_new = (
    ...     icl.theory.conditional_losses(bayes, t, 100, jax.random.key(0)) for t in (pool, new)
    ... )
    >>> round(float(on_pool.mean()), 4), bool(on_new.mean() > 0.5)
    (0.25, True)
    """
    plain, count = require_compressible(task), require_size("sequences", sequences)
    asked = (predictor,) if isinstance(predictor, AbstractModel) else tuple(predictor)
    known = [_require(one) for one in asked]
    if not known:
        raise ValueError("the loss given the context is that of a predictor, got none")
    tasks = max(len(p.tasks) if isinstance(p, PoolBayes) else 1 for p in known)
    block = int(np.clip(AT_ONCE // (tasks * plain.size), 1, count))
    vectors, grams, crosses = context_statistics(plain, count, key)
    root, floor = task_root(plain), plain.outputs * plain.target_noise**2
    parts = [slice(start, start + block) for start in range(0, count, block)]
    found = [
        _losses(known, root, floor, vectors[some], grams[some], crosses[some]) for some in parts
    ]
    losses = jnp.concatenate(found, axis=1)
    return losses[0] if isinstance(predictor, AbstractModel) else losses


def _require(predictor: AbstractModel) -> Readers:
    """The predictor, or `ValueError` where it does not read G and C alone."""
    if not isinstance(predictor, Readers):
        raise ValueError(
            f"the loss given the context is known for PoolBayes, NormalBayes and Ridge, got "
            f"{type(predictor).__name__}; use monte_carlo_loss"
        )
    noise = predictor.ridge if isinstance(predictor, Ridge) else predictor.noise
    if not float(noise) > 0:
        raise ValueError(
            "the loss given the context needs a predictor that assumes noise, got 0; use "
            "monte_carlo_loss"
        )
    return predictor


@eqx.filter_jit
def _losses(
    predictors: list[Readers], root: Float[Array, "D D"], floor: Float[Array, ""],
    vectors: Float[Array, "P O D"], grams: Float[Array, "P D D"], crosses: Float[Array, "P D O"],
) -> Float[Array, "predictors P"]:  # fmt: skip
    def one(task: Array, gram: Array, cross: Array) -> Float[Array, " predictors"]:
        errors = [context_weights(p, gram, cross) - task for p in predictors]
        return jnp.stack([jnp.sum((e @ root) ** 2) for e in errors]) + floor

    return jax.vmap(one, out_axes=1)(vectors, grams, crosses)


def context_weights(
    predictor: Readers, gram: Float[Array, "D D"], cross: Float[Array, "D O"]
) -> Float[Array, "O D"]:
    """Ŵ of a context with XᵀX = `gram` and XᵀY = `cross`."""
    if isinstance(predictor, Ridge):
        return _solved(gram, cross, predictor.ridge).T
    if isinstance(predictor, NormalBayes):
        root, mean = predictor.root, predictor.mean
        left = root @ (cross - gram @ mean.T)
        return mean + _solved(root @ gram @ root.T, left, predictor.noise**2).T @ root
    tasks = predictor.tasks
    fits = jnp.einsum("mod,dc->moc", tasks, gram) - 2 * cross.T[None]
    misfit = jnp.sum(fits * tasks, axis=(1, 2))  # |Y - X Wᵀ|² without |Y|², which all share
    log = jnp.log(predictor.prior) - (misfit - jnp.min(misfit)) / (2 * predictor.noise**2)
    return jnp.tensordot(jax.nn.softmax(log), tasks, 1)


def _solved(gram: Array, right: Array, ridge: Array) -> Array:
    regular = gram + ridge * jnp.eye(len(gram), dtype=gram.dtype)
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(regular, lower=True), right)
