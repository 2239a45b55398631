"""Monte-Carlo losses, for predictors whose population loss has no closed form."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from iclflow.models import AbstractModel
from iclflow.tasks.base import AbstractTask, Prompt
from iclflow.tasks.prompts import PromptSet

CHUNK = 4096  # prompts at a time: bounded memory
Quantity = Callable[[AbstractModel, AbstractTask, Prompt], Float[Array, ""]]


class Estimate(eqx.Module):
    """A Monte-Carlo mean and its standard error.

    - `mean`, `error`: the mean, and its standard error.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> found = icl.theory.Estimate(mean=jnp.asarray(0.9), error=jnp.asarray(0.01))
    >>> float(found.mean), float(found.error)
    (0.9, 0.01)
    """

    mean: Float[Array, ""]
    error: Float[Array, ""]


def monte_carlo_loss(
    predictor: AbstractModel, task: AbstractTask, sequences: int, key: PRNGKeyArray
) -> Estimate:
    """E(y_q - ŷ_q)² on `sequences` fresh prompts, averaged over the task's context lengths.

    - `predictor`: a model or a predictor of `icl.theory`.
    - `task`: what the prompts are drawn from.
    - `key`: draws them.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> zero = icl.theory.zero_predictor(task)
    >>> found = icl.theory.monte_carlo_loss(zero, task, 1000, jax.random.key(0))
    >>> bool(abs(found.mean - 0.9) < 5 * found.error)
    True
    """
    return monte_carlo_mean(_squared_error, predictor, task, sequences, key)


def _squared_error(
    predictor: AbstractModel, task: AbstractTask, prompt: Prompt
) -> Float[Array, ""]:
    del task
    return jnp.sum((prompt.target - predictor(prompt)) ** 2)


def monte_carlo_mean(
    function: Quantity,
    predictor: AbstractModel,
    task: AbstractTask,
    sequences: int,
    key: PRNGKeyArray,
) -> Estimate:
    """The mean of `function(predictor, task, prompt)` over prompts and context lengths."""
    if sequences < 2:
        raise ValueError(f"a standard error needs at least 2 sequences, got {sequences}")
    prompts = PromptSet(task, key, sequences, exact=False)  # independent, for the standard error
    chunks = prompts.chunks(min(CHUNK, sequences))
    values = [_chunk(function, predictor, prompts, index) for index, _, _ in chunks]
    samples = jnp.concatenate(values)[:sequences]
    return Estimate(jnp.mean(samples), jnp.std(samples, ddof=1) / sequences**0.5)


@eqx.filter_jit
def _chunk(
    function: Quantity, predictor: AbstractModel, prompts: PromptSet, index: Int[Array, " C"]
) -> Float[Array, " C"]:
    values = prompts.prefixes(lambda p: function(predictor, prompts.task, p), index)
    return jnp.mean(values, axis=1)
