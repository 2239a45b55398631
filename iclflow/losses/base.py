"""What a loss is: how far a model is off, known at some level of exactness."""

import abc
import itertools
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from iclflow.models import AbstractModel
from iclflow.results.display import Displayed
from iclflow.tasks.averaged import AveragedPrompts, TaskAverage
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.checks import require_kind
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.prompts import AbstractPromptSet, PromptSet, PromptSource


class AbstractLoss(Displayed):
    """A number to descend, as a pytree of arrays that is built once from a task.

    For prompts L = E|y_q - ŷ_q|² (9), with no factor ½; for tokens the cross-entropy.

    >>> import iclflow as icl
    >>> isinstance(icl.Population(icl.Task([0.6, 0.3], context=31)), icl.AbstractLoss)
    True
    """

    # Whether each step descends a batch of its own (see `draw`) and not the loss itself.
    stochastic: ClassVar[bool] = False
    # Whether the loss changes smoothly with the step (see `at`).
    drifts: ClassVar[bool] = False

    @property
    def pieces(self) -> "tuple[tuple[float, AbstractLoss], ...]":
        """The losses that are trained one after another, each with the mark at which it begins."""
        return ((0.0, self),)

    def at(self, mark: ArrayLike) -> "AbstractLoss":
        """The loss that is trained at a mark, the step of descent or the time t/τ of a flow.

        A loss that does not change answers with itself.
        """
        del mark
        return self

    @property
    def reported(self) -> "AbstractLoss":
        """The loss of all prompts, where a step descends that of a few; else the loss itself."""
        return self

    @abc.abstractmethod
    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        """The loss of one model."""

    @abc.abstractmethod
    def admits(self, model: AbstractModel) -> str | None:
        """None if the loss can evaluate the model, else the reason why not."""

    def draw(self, key: PRNGKeyArray) -> "AbstractLoss":
        """The loss that one training step descends; a stochastic loss draws its batch here."""
        del key
        return self

    def dims(self) -> tuple[int, int] | None:
        """(D, O), the inputs and outputs of the prompts it is the loss of, where it knows them."""
        return None

    def scratch(self) -> int:
        """Bytes of intermediate results that one run needs for a step."""
        return 0

    def require(self, model: AbstractModel) -> Self:
        """Raise `ValueError` with the reason unless the model is admitted."""
        reason = self.admits(model)
        if reason is not None:
            raise ValueError(f"{type(self).__name__} cannot take {type(model).__name__}: {reason}")
        return self


def require_loss(loss: Any) -> None:
    """Raise `ValueError` with what to give unless this is a loss."""
    require_kind("loss", loss, AbstractLoss, "a loss, such as icl.Population(task)")


def misfit(model: AbstractModel, size: int | None, outputs: int) -> str | None:
    """Why a model does not fit prompts of D = `size` inputs and O = `outputs`; None if it does.

    A model that does not know its own sizes fits, and so does any D where `size` is None.
    """
    dims = model.dims()
    if dims is None or (size in (None, dims[0]) and outputs == dims[1]):
        return None
    known = "" if size is None else f"D = {size} inputs and "
    return (
        f"the model has D = {dims[0]} inputs and O = {dims[1]} outputs, the prompts have "
        f"{known}O = {outputs} outputs; make both from one task"
    )


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
        for name, value in (("matched", matched), ("averaged", averaged)):
            require_kind(name, value, bool, "True or False")
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


def changes(loss: AbstractLoss) -> bool:
    """Whether a loss is another one later in training, by jumps or smoothly.

    >>> import iclflow as icl
    >>> from iclflow.losses.base import changes
    >>> task = icl.Task([0.5, 0.3], context=15)
    >>> changes(icl.Population(task)), changes(icl.Curriculum({0: task, 400: task}))
    (False, True)
    """
    return loss.drifts or len(loss.pieces) > 1


def piece_at(loss: AbstractLoss, mark: float) -> tuple[int, AbstractLoss, float]:
    """The piece of a loss that is trained at a known mark: its number, itself, and its end.

    The end is infinite for the last piece.
    """
    starts = [start for start, _ in loss.pieces]
    place = int(np.searchsorted(starts, mark, side="right")) - 1
    end = starts[place + 1] if place + 1 < len(starts) else np.inf
    return place, loss.pieces[place][1], end


def jumps(losses: Sequence[AbstractLoss]) -> tuple[float, ...]:
    """The marks at which one of the losses jumps, increasing."""
    found = itertools.chain.from_iterable(loss.pieces[1:] for loss in losses)
    return tuple(sorted({start for start, _ in found}))


_warned = False


def warn_single_precision(loss: AbstractLoss) -> None:
    """Warn once where a plateau would show rounding noise."""
    global _warned
    single = any(
        leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(loss) if eqx.is_inexact_array(leaf)
    )
    if single and not _warned and not jax.config.read("jax_enable_x64"):
        _warned = True
        warnings.warn(
            "the loss is in single precision, which shows noise near 1e-4 on a plateau; add "
            'jax.config.update("jax_enable_x64", True) at the top of the program',
            stacklevel=3,
        )
