"""The loss on the prompts themselves: the definition that every other level must agree with."""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from iclflow.losses.base import AbstractLoss
from iclflow.losses.memory import require_memory
from iclflow.models import AbstractModel
from iclflow.results.progress import Progress
from iclflow.tasks.prompt import Prompt
from iclflow.tasks.prompts import PromptSet
from iclflow.tasks.task import Task


class Sequences(AbstractLoss):
    """Mean squared error of the model run on every prompt; takes any model.

    Only the query's row of the attention map is computed: N times less work than the whole map.
    """

    prompts: Prompt  # stacked along a leading axis
    lengths: tuple[int, ...] = eqx.field(static=True)

    @classmethod
    def sample(
        cls,
        task: Task,
        sequences: int,
        key: PRNGKeyArray,
        *,
        matched: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Draw and keep `sequences` prompts."""
        token = task.size + task.outputs
        require_memory(
            4 * 8 * sequences * (task.context + 1) * token,
            f"{sequences} sequences of {task.context + 1} tokens",
            "use Moments (linear models), or fewer sequences",
        )
        prompts = PromptSet.sample(task, sequences, key, matched=matched).prompts()
        if progress is not None:
            progress(sequences, sequences)
        return cls(prompts, task.lengths)

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        if self.lengths == (self.prompts.inputs.shape[1] - 1,):
            return jnp.mean(jax.vmap(lambda prompt: _error(model, prompt))(self.prompts))

        @jax.checkpoint  # keeps memory at one prefix length, forward and backward
        def of_length(length: Int[Array, ""]) -> Float[Array, ""]:
            errors = jax.vmap(lambda prompt: _error(model, prompt.prefix(length)))(self.prompts)
            return jnp.mean(errors)

        return jnp.mean(jax.lax.map(of_length, jnp.asarray(self.lengths)))

    def admits(self, model: AbstractModel) -> str | None:
        del model
        return None

    @property
    def count(self) -> int:
        """The number of sequences P."""
        return self.prompts.inputs.shape[0]

    def take(self, index: Array) -> Self:
        """The same loss on some of the sequences."""
        return type(self)(jax.tree.map(lambda a: a[index], self.prompts), self.lengths)


def _error(model: AbstractModel, prompt: Prompt) -> Float[Array, ""]:
    return jnp.sum((prompt.target - model(prompt)) ** 2)
