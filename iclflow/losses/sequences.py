"""The loss on the prompts themselves: the definition that every other level must agree with."""

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from iclflow.losses.averaging import beyond_average
from iclflow.losses.base import AbstractPromptLoss, misfit
from iclflow.losses.memory import require_memory
from iclflow.models import AbstractModel
from iclflow.results.progress import Progress
from iclflow.tasks.averaged import TaskAverage
from iclflow.tasks.base import Prompt
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.prompts import AbstractPromptSet, PromptSource, as_sets


class Sequences(AbstractPromptLoss):
    """Mean squared error of the model run on every prompt; takes any model.

    Only the query's row of the attention map is computed: N times less work than the whole map.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> loss = icl.Sequences.sample(task, 10, jax.random.key(0))
    >>> loss.prompts.inputs.shape
    (10, 32, 2)
    """

    prompts: Prompt  # stacked along a leading axis
    lengths: tuple[int, ...] = eqx.field(static=True)
    average: TaskAverage | None = None

    @classmethod
    def of(
        cls,
        prompts: PromptSource,
        *,
        lengths: tuple[int, ...] | None = None,
        average: TaskAverage | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """The loss of given prompts, which are kept.

        - `prompts`: `Prompts`, a stacked `Prompt`, a prompt set, or an iterable of stacked batches.
        - `lengths`: pairs in the prefixes to average over; the set's own, or whole prompts.
        - `average`: the tasks whose mean is taken exactly (S12); the prompts then count with their
          inputs only. For models that are linear in the labels.
        - `progress(done, total)` is called when they are there.
        """
        if isinstance(prompts, Prompts):
            cls.require_memory(prompts)
        sets = list(as_sets(prompts, lengths))
        parts = [part.prompts() for part in sets]
        whole = parts[0] if len(parts) == 1 else jax.tree.map(lambda *a: jnp.concatenate(a), *parts)
        if progress is not None:
            progress(whole.inputs.shape[0], whole.inputs.shape[0])
        return cls(whole, sets[0].lengths, average)

    @classmethod
    def of_average(cls, prompts: AbstractPromptSet, average: TaskAverage, **options: Any) -> Self:
        return cls.of(prompts, average=average, **options)

    @classmethod
    def require_memory(cls, prompts: AbstractPromptSet | Prompts, **options: Any) -> None:
        tokens = prompts.context + 1
        require_memory(
            4 * 8 * prompts.count * tokens * (prompts.size + prompts.outputs),
            f"{prompts.count} sequences of {tokens} tokens",
            "use Moments (linear models), or fewer sequences",
        )

    def shown(self) -> dict[str, Any]:
        lengths = self.lengths[0] if len(self.lengths) == 1 else self.lengths
        shape = self.prompts.inputs.shape
        found = {"P": f"{shape[0]:,}", "context": lengths, "D": shape[-1]}
        return found if self.average is None else found | {"averaged": "tasks"}

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        self.require(model)
        if self.lengths == (self.prompts.inputs.shape[1] - 1,):
            return jnp.mean(jax.vmap(lambda prompt: self._error(model, prompt))(self.prompts))

        if model.reads_causally and self.average is None:
            chosen = jnp.asarray(self.lengths)

            def errors(prompt: Prompt) -> Float[Array, "n O"]:
                return prompt.targets[chosen] - model.along(prompt)[chosen]

            return jnp.mean(jnp.sum(jax.vmap(errors)(self.prompts) ** 2, axis=-1))

        @jax.checkpoint  # keeps memory at one prefix length, forward and backward
        def of_length(length: Int[Array, ""]) -> Float[Array, ""]:
            error = lambda prompt: self._error(model, prompt.prefix(length))  # noqa: E731
            return jnp.mean(jax.vmap(error)(self.prompts))

        return jnp.mean(jax.lax.map(of_length, jnp.asarray(self.lengths)))

    def _error(self, model: AbstractModel, prompt: Prompt) -> Float[Array, ""]:
        if self.average is None:
            return jnp.sum((prompt.target - model(prompt)) ** 2)
        constant, reads = model.label_weights(prompt)
        return self.average.error(reads, constant, prompt.inputs, prompt.query)

    def admits(self, model: AbstractModel) -> str | None:
        reason = misfit(model, *self.dims())
        if reason is not None or self.average is None:
            return reason
        return beyond_average(model, *self.dims())

    def dims(self) -> tuple[int, int]:
        return self.prompts.inputs.shape[-1], self.prompts.labels.shape[-1]

    def scratch(self) -> int:
        return 8 * sum(leaf.nbytes for leaf in jax.tree.leaves(self.prompts))

    @property
    def count(self) -> int:
        """The number of sequences P."""
        return self.prompts.inputs.shape[0]

    def take(self, index: Array) -> Self:
        """The same loss on some of the sequences."""
        return type(self)(
            jax.tree.map(lambda a: a[index], self.prompts), self.lengths, self.average
        )
