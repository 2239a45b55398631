"""Losses of a set of prompts: given ones, or drawn from any task."""

import abc
from typing import Any, Self

from jaxtyping import PRNGKeyArray

from iclflow.losses.base import AbstractLoss
from iclflow.tasks.averaged import AveragedPrompts, TaskAverage
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.checks import require_kind
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.prompts import AbstractPromptSet, PromptSet, PromptSource


class AbstractPromptLoss(AbstractLoss):
    """The mean squared error over a finite set of prompts.

    >>> import iclflow as icl
    >>> issubclass(icl.Moments, icl.AbstractPromptLoss)
    True
    """

    @classmethod
    @abc.abstractmethod
    def of(cls, prompts: PromptSource, **options: Any) -> Self:
        """The loss of given prompts.

        - `prompts`: your own (`Prompts`), stacked in one `Prompt`, a prompt set, or any iterable of
          stacked batches.
        """

    @classmethod
    def sample(
        cls,
        task: AbstractTask,
        sequences: int,
        key: PRNGKeyArray,
        *,
        matched: bool = False,
        averaged: bool = False,
        **options: Any,
    ) -> Self:
        """Draw `sequences` prompts: with one key the same at every level.

        - `matched`: whiten the task vectors and centre the inputs over the set.
        - `averaged`: take the mean over tasks and noise exactly, so that only the inputs are
          sampled and about five times fewer prompts do for softmax attention. It needs a model
          whose prediction is linear in the labels: frozen zero blocks.
        - `options`: those of `of`; `progress(done, total)` counts prompts.
        """
        task = require_kind("task", task, AbstractTask, "a task")
        prompts = PromptSet.sample(task, sequences, key)
        if averaged:
            average = TaskAverage.of(task)
            cls.require_memory(prompts, **options)
            return cls.of_average(prompts.centred() if matched else prompts, average, **options)
        cls.require_memory(prompts, **options)  # before anything is drawn
        return cls.of(prompts.matched() if matched else prompts, **options)

    @classmethod
    def of_average(cls, prompts: AbstractPromptSet, average: TaskAverage, **options: Any) -> Self:
        """The loss of the inputs of a set of prompts, with the mean over tasks taken exactly.

        - `prompts`: a set whose inputs are used, and whose labels are not.
        - `average`: the tasks, `TaskAverage.of(task)`.
        - `options`: those of `of`.

        >>> import jax, iclflow as icl
        >>> task = icl.Task([0.6, 0.3], context=31)
        >>> prompts = icl.PromptSet.sample(task, 10, jax.random.key(0))
        >>> icl.Sequences.of_average(prompts, icl.TaskAverage.of(task))
        Sequences(P=10, context=31, D=2, averaged=tasks)
        """
        parts = AveragedPrompts(prompts, average)
        cls.require_memory(parts, **options)
        return cls.of(parts, **options)

    @classmethod
    @abc.abstractmethod
    def require_memory(cls, prompts: AbstractPromptSet | Prompts, **options: Any) -> None:
        """Raise `ValueError` with what would be needed if the loss of a set does not fit."""
