"""Losses whose training step sees a random batch: minibatches of a set, or fresh data."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.losses.base import AbstractLoss, misfit
from iclflow.losses.features import Features
from iclflow.losses.sequences import Sequences, beyond_average
from iclflow.losses.statistics import Statistics
from iclflow.models import AbstractModel
from iclflow.tasks.averaged import TaskAverage
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.checks import require_kind, require_size
from iclflow.tasks.prompts import PromptSet


class Minibatch(AbstractLoss):
    """Each step descends the loss of some sequences, drawn without replacement.

    - `whole`: the loss of all, which is what is reported.
    - `size`: sequences per step.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> icl.Minibatch(icl.Features.sample(task, 10, jax.random.key(0)), size=4).size
    4
    """

    stochastic = True

    whole: Features | Sequences | Statistics
    size: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not isinstance(self.whole, Features | Sequences):
            raise ValueError(
                f"batches are drawn from Features or Sequences, which keep the prompts, got "
                f"{type(self.whole).__name__}"
            )
        if not require_size("the batch", self.size) <= self.whole.count:
            raise ValueError(
                f"the batch must have between 1 and {self.whole.count} sequences, got {self.size}"
            )

    @property
    def reported(self) -> AbstractLoss:
        return self.whole

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        return self.whole(model)

    def admits(self, model: AbstractModel) -> str | None:
        return self.whole.admits(model)

    def dims(self) -> tuple[int, int] | None:
        return self.whole.dims()

    def draw(self, key: PRNGKeyArray) -> AbstractLoss:
        # The largest of random numbers: twenty times faster than permuting all sequences.
        numbers = jax.random.uniform(key, (self.whole.count,), jnp.float32)
        return self.whole.take(jax.lax.top_k(numbers, self.size)[1])


class Fresh(AbstractLoss):
    """Each step descends the loss of new sequences.

    - `task`: what they are drawn from.
    - `evaluation`: the loss that is reported.
    - `size`: sequences per step.
    - `averaged`: whether each step takes the mean over tasks exactly (see `Sequences.sample`).

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> icl.Fresh(task, evaluation=icl.Population(task), size=512).stochastic
    True
    """

    stochastic = True

    task: AbstractTask
    evaluation: AbstractLoss
    size: int = eqx.field(static=True)
    averaged: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        require_kind("task", self.task, AbstractTask, "a task")
        require_kind("evaluation", self.evaluation, AbstractLoss, "a loss, as Population(task)")
        require_size("the batch", self.size)
        require_kind("averaged", self.averaged, bool, "True or False")
        if self.averaged:
            TaskAverage.of(self.task)

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        return self.evaluation(model)

    def admits(self, model: AbstractModel) -> str | None:
        reason = self.evaluation.admits(model) or misfit(model, *self.dims())
        if reason is not None or not self.averaged:
            return reason
        return beyond_average(model, *self.dims())

    def dims(self) -> tuple[int, int]:
        return self.task.size, self.task.outputs

    def draw(self, key: PRNGKeyArray) -> AbstractLoss:
        average = TaskAverage.of(self.task) if self.averaged else None
        return Sequences.of(PromptSet(self.task, key, self.size), average=average)
