"""The loss on the prompts themselves: the definition that every other level must agree with.

The mean over tasks can be taken exactly for a model whose predictions are linear in the labels;
`beyond_average` tries whether they are.
"""

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from iclflow.losses.base import AbstractPromptLoss, misfit
from iclflow.losses.features import EXACT
from iclflow.models import AbstractModel
from iclflow.models.base import once_a_kind
from iclflow.results.messages import Progress
from iclflow.tasks.averaged import TaskAverage
from iclflow.tasks.base import Prompt
from iclflow.tasks.checks import require_memory
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


PAIRS = 4  # of the prompt on which linearity is tried


def beyond_average(model: AbstractModel, size: int, outputs: int) -> str | None:
    """None if the mean over tasks can be taken exactly for a model, else the reason why not.

    - `size`, `outputs`: D and O of the prompts.
    """
    linear = _is_linear_in_labels(model, size, outputs)
    if linear:
        return None
    found = "is not linear" if linear is not None else "could not be seen to be linear"
    return (
        f"the mean over tasks is exact where a prediction is linear in the labels, and this one "
        f"{found} (tried on random prompts); freeze the zero blocks, or leave averaged out"
    )


@once_a_kind
def _is_linear_in_labels(model: Any, size: int, outputs: int) -> bool | None:
    """Whether predictions of models of a kind are linear in the labels, plus a constant."""
    rng = np.random.default_rng(0)

    def drawn(leaf: Any) -> Any:
        if not (hasattr(leaf, "shape") and jnp.issubdtype(leaf.dtype, jnp.inexact)):
            return leaf
        return jnp.asarray(rng.normal(size=leaf.shape) / 2, leaf.dtype)

    try:
        with jax.ensure_compile_time_eval():
            whole = jax.tree.map(drawn, model)
            inputs = jnp.asarray(rng.normal(size=(PAIRS + 1, size)))
            first, second = jnp.asarray(rng.normal(size=(2, PAIRS + 1, outputs)))
            labels = jnp.stack([jnp.zeros_like(first), first, second, first + 2 * second])
            predict = lambda y: whole(Prompt(inputs, y, y))  # noqa: E731
            found = np.asarray(jax.vmap(predict)(labels), float)
    except Exception:  # a model of the user's may raise anything on prompts that it is not made for
        return None
    off = np.abs(found[3] - found[1] - 2 * found[2] + 2 * found[0]).max()
    scale = np.abs(found).max()
    exact = EXACT if jnp.result_type(float) == jnp.float64 else 1e-2
    return bool(np.isfinite(scale) and off <= exact * scale)
