"""Losses of a set of prompts: given ones, or drawn from any task."""

import abc
from typing import Any, Self

from jaxtyping import PRNGKeyArray

from iclflow.losses.base import AbstractLoss
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
        **options: Any,
    ) -> Self:
        """Draw `sequences` prompts: with one key the same at every level.

        - `matched`: whiten the task vectors and centre the inputs over the set.
        - `options`: those of `of`; `progress(done, total)` counts prompts.
        """
        task = require_kind("task", task, AbstractTask, "a task")
        prompts = PromptSet.sample(task, sequences, key)
        cls.require_memory(prompts, **options)  # before anything is drawn
        return cls.of(prompts.matched() if matched else prompts, **options)

    @classmethod
    @abc.abstractmethod
    def require_memory(cls, prompts: AbstractPromptSet | Prompts, **options: Any) -> None:
        """Raise `ValueError` with what would be needed if the loss of a set does not fit."""
