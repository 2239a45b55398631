"""What a loss is: the error of a model, known at some level of exactness."""

import abc
from typing import Any, ClassVar, Self

from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from iclflow.models import AbstractModel
from iclflow.results.display import Displayed
from iclflow.tasks.checks import require_kind


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
