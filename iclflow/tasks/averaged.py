"""The mean over tasks, taken exactly: a prompt then says only where its inputs are.

For a model whose prediction is linear in the labels, ŷ = Σ c_n y_n, the squared error is quadratic
in the task matrix W and in the noise, so that its mean needs their second moments only (S12). The
same mean is a sum over a few made-up tasks, which is how levels that never see c take it.

The equation numbers (S1), (S2), … are those of the page on softmax attention.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from iclflow.linalg import is_concrete, symmetric_power
from iclflow.tasks.base import AbstractTask, Prompt
from iclflow.tasks.prompts import AbstractPromptSet
from iclflow.tasks.task import ContextLabels, Task


class TaskAverage(eqx.Module):
    """What the mean over tasks and noise needs to know of them.

    - `second`: E[W ⊗ W].
    - `mean`: E[W].
    - `label_variance`, `target_variance`: of the noise on context labels and on the target.
    - `label_noise`, `target_noise`: whether there is such noise, as far as that is known.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31, label_noise=0.5)
    >>> float(icl.TaskAverage.of(task).label_variance)
    0.25
    """

    second: Float[Array, "O D O D"]
    mean: Float[Array, "O D"]
    label_variance: Float[Array, ""]
    target_variance: Float[Array, ""]
    label_noise: bool = eqx.field(static=True)
    target_noise: bool = eqx.field(static=True)

    @classmethod
    def of(cls, task: AbstractTask) -> "TaskAverage":
        """The moments of a task's law.

        - `task`: a linear regression, `Task`, with any law of task vectors and of inputs.
        """
        if not isinstance(task, Task):
            raise ValueError(
                f"the mean over tasks is taken exactly for the linear regression of a Task, got "
                f"{type(task).__name__}; leave averaged out"
            )
        if task.context_labels is ContextLabels.NOISE:
            raise ValueError(
                "the mean over tasks is for labels that the task makes, and these are noise; leave "
                "averaged out"
            )
        mean = jnp.broadcast_to(task.tasks.mean, (task.outputs, task.size))
        return cls(
            task.second_moment(),
            mean,
            task.label_noise**2,
            task.target_noise**2,
            _may_be_noise(task.label_noise),
            _may_be_noise(task.target_noise),
        )

    @property
    def dims(self) -> tuple[int, int]:
        """(D, O)."""
        return self.mean.shape[1], self.mean.shape[0]

    def error(
        self,
        reads: Float[Array, "O n O"],
        constant: Float[Array, " O"],
        inputs: Float[Array, "n D"],
        query: Float[Array, " D"],
    ) -> Float[Array, ""]:
        """E|y_q - ŷ|² over tasks and noise, for given inputs (S12).

        With one output and no constant it is (x_q - Xᵀc)ᵀ S (x_q - Xᵀc) + σ²|c|², and the variance
        of the noise on the target.

        - `reads`: c[o, n, p], how much of label p of token n is in prediction o.
        - `constant`: the part of the prediction that the labels are not in.
        - `inputs`, `query`: x of the tokens that c belongs to, and x_q.
        """
        outputs = len(constant)
        missed = jnp.eye(outputs, dtype=query.dtype)[:, :, None] * query[None, None, :]
        missed = missed - jnp.einsum("onp,nd->opd", reads, inputs)
        half = missed.reshape(outputs, -1) @ self.second.reshape(2 * (missed[0].size,))
        offset = constant - 2 * jnp.einsum("opd,pd->o", missed, self.mean)
        found = jnp.sum(half * missed.reshape(outputs, -1)) + jnp.sum(constant * offset)
        if self.label_noise:
            found = found + self.label_variance * jnp.sum(reads**2)
        return found + outputs * self.target_variance

    def part(self, prompt: Prompt, index: Int[Array, ""]) -> Prompt:
        """One of the prompts with the same inputs whose summed errors are the mean over tasks.

        A root of E[W ⊗ W] gives one for each of its columns; noise on the labels gives one for
        every label of the context, and noise on the target one for every output.
        """
        size, outputs = self.dims
        pairs, columns = prompt.context, size * outputs
        root = symmetric_power(self.second.reshape(columns, columns), 0.5)
        column = jnp.where(index < columns, root[jnp.minimum(index, columns - 1)], 0.0)
        clean = prompt.inputs @ column.reshape(outputs, size).T
        labels, targets, start = clean, clean, columns
        if self.label_noise:
            single = jax.nn.one_hot(index - start, pairs * outputs).reshape(pairs, outputs)
            noise = jnp.sqrt(self.label_variance) * single
            labels, start = labels.at[:pairs].add(noise), start + pairs * outputs
        if self.target_noise:
            noise = jnp.sqrt(self.target_variance) * jax.nn.one_hot(index - start, outputs)
            targets = targets + noise[None, :]
        return Prompt(prompt.inputs, labels, targets, None, prompt.normaliser)

    def count(self, context: int) -> int:
        """How many parts a prompt of so many pairs has."""
        size, outputs = self.dims
        return outputs * (size + context * self.label_noise + self.target_noise)


class AveragedPrompts(AbstractPromptSet):
    """The parts of every prompt of a set, scaled so that the mean over all is that over tasks.

    It is an ordinary set of prompts, for any loss whose model and features are linear in the
    labels.

    - `inputs`: the set that has the inputs; its labels are not looked at.
    - `average`: what is averaged over.
    """

    inputs: AbstractPromptSet
    average: TaskAverage

    def __init__(self, inputs: AbstractPromptSet, average: TaskAverage) -> None:
        """State the set."""
        self.inputs, self.average = inputs, average

    @property
    def count(self) -> int:
        return self.inputs.count * self.average.count(self.inputs.context)

    @property
    def size(self) -> int:
        return self.inputs.size

    @property
    def outputs(self) -> int:
        return self.inputs.outputs

    @property
    def context(self) -> int:
        return self.inputs.context

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.inputs.lengths

    def prompt(self, index: Int[Array, ""]) -> Prompt:
        each = self.average.count(self.context)
        part = self.average.part(self.inputs.prompt(index // each), index % each)
        scaled = (each**0.5 * part.labels, each**0.5 * part.targets)
        return Prompt(part.inputs, *scaled, None, part.normaliser)


def _may_be_noise(deviation: Array) -> bool:
    """Whether a standard deviation is not known to be zero."""
    return not (is_concrete(deviation) and float(deviation) == 0.0)
