"""Monte-Carlo losses, for predictors whose population loss has no closed form."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from iclflow.models import AbstractModel
from iclflow.tasks.prompt import Prompt, map_prefixes
from iclflow.tasks.task import Task

CHUNK = 4096  # prompts at a time: bounded memory


class Estimate(eqx.Module):
    """A Monte-Carlo mean and its standard error."""

    mean: Float[Array, ""]
    error: Float[Array, ""]


def monte_carlo_loss(
    predictor: AbstractModel, task: Task, sequences: int, key: PRNGKeyArray
) -> Estimate:
    """E(y_q - ŷ_q)² on `sequences` fresh prompts, averaged over the task's context lengths."""
    return monte_carlo_mean(_squared_error, predictor, task, sequences, key)


def _squared_error(predictor: AbstractModel, task: Task, prompt: Prompt) -> Float[Array, ""]:
    del task
    return jnp.sum((prompt.target - predictor(prompt)) ** 2)


def monte_carlo_mean(
    function: Callable[[AbstractModel, Task, Prompt], Float[Array, ""]],
    predictor: AbstractModel,
    task: Task,
    sequences: int,
    key: PRNGKeyArray,
) -> Estimate:
    """The mean of `function(predictor, task, prompt)` over prompts and context lengths."""
    if sequences < 2:
        raise ValueError(f"a standard error needs at least 2 sequences, got {sequences}")
    values = []
    for start in range(0, sequences, CHUNK):
        index = jnp.arange(start, start + min(CHUNK, sequences))
        values.append(_chunk(function, predictor, task, key, index))
    samples = jnp.concatenate(values)[:sequences]
    return Estimate(jnp.mean(samples), jnp.std(samples, ddof=1) / jnp.sqrt(sequences))


@eqx.filter_jit
def _chunk(
    function: Callable[[AbstractModel, Task, Prompt], Float[Array, ""]],
    predictor: AbstractModel,
    task: Task,
    key: PRNGKeyArray,
    index: Int[Array, " C"],
) -> Float[Array, " C"]:
    def one(i: Int[Array, ""]) -> Float[Array, ""]:
        prompt = task.sample(jax.random.fold_in(key, i))
        return jnp.mean(map_prefixes(lambda p: function(predictor, task, p), prompt, task.lengths))

    return jax.vmap(one)(index)
