"""What a dynamics is: a way for training time to advance, which gives a stretch of training."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray, PyTree

from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.results.display import Displayed
from iclflow.tasks.checks import require_kind


class RESULTS(eqx.Enumeration):
    """How a run ended. Numerical failure is a result, not an exception.

    >>> import iclflow as icl
    >>> bool(icl.RESULTS.finished == icl.RESULTS.diverged)
    False
    """

    finished = "reached the end"
    diverged = "the loss grew past any bound: the rate is too large"
    not_a_number = "the loss or the weights were not numbers from the start"
    step_limit = "the solver used up its steps before the end"


class Labelled(eqx.Module):
    """Recorded numbers with the names of their last axes, and the labels along each of them.

    It is a pytree with one array: loops, `vmap` and files put further axes before those of `dims`.
    """

    values: Any  # [..., *dims]
    dims: tuple[tuple[str, tuple[Any, ...]], ...] = eqx.field(static=True)  # name, labels


Known = Array | np.ndarray  # differentiation leaves what does not depend on weights as NumPy


class Stretch(eqx.Module):
    """A stretch of training: what was recorded at its marks, and where it ended.

    It is what a dynamics gives, and what `simulate` makes a `Trajectory` of.
    """

    time: Float[Known, " T"]  # t/τ; steps unless `timed`
    step: Float[Known, " T"] | Int[Known, " T"]  # updates made; for a flow, equal to `time`
    record: dict[str, Any]  # name -> [T, ...], or a dict of such
    result: RESULTS
    stopped: Float[Known, ""] | Int[Known, ""]  # the last step (flow: time) that was computed
    state: Any = None  # resumes the run; see `simulate(..., state=)`
    timed: bool = eqx.field(static=True, default=True)  # whether `time` is t/τ


Recorder = Callable[[AbstractModel, AbstractLoss], PyTree[Array]]


class AbstractDynamics(Displayed):
    """How to train. For how long is not its affair: `until` says when a run ends.

    Time is counted in *marks*: whole steps for descent, t/τ for a flow.

    >>> import iclflow as icl
    >>> [isinstance(how, icl.AbstractDynamics) for how in (icl.Descent(0.1), icl.Flow())]
    [True, True]
    >>> icl.Descent(0.1).whole, icl.Flow().whole
    (True, False)
    """

    # Fields of the state that all runs of a batch share, so that the loop over steps needs no
    # per-run condition.
    shared: ClassVar[tuple[str, ...]] = ()
    # Whether the marks are whole steps, and not times t/τ.
    whole: ClassVar[bool] = False

    @abc.abstractmethod
    def init(self, loss: AbstractLoss, model: AbstractModel, key: PRNGKeyArray) -> Any:
        """The state of a run that has made no step yet; it has `model` and `mark`."""

    @abc.abstractmethod
    def advance(
        self, loss: AbstractLoss, state: Any, marks: Array, record: dict[str, Recorder]
    ) -> Stretch:
        """Run from `state` to the last mark, recording at every mark; pure, one run."""

    @property
    def keeps_time(self) -> bool:
        """Whether training follows the clock of gradient flow, t/τ."""
        return True

    @abc.abstractmethod
    def time(self, marks: ArrayLike) -> Any:
        """The time at the marks: t/τ, or the number of steps where no such clock is kept."""

    def steps(self, time: ArrayLike) -> Any:
        """The first marks at which the clock shows `time` or more: the inverse of `time`.

        The marks of a flow are the times themselves.
        """
        return np.asarray(time, float)

    def rate_at(self, step: ArrayLike) -> Any:
        """The learning rate at a step (or steps); None for a dynamics without one."""
        del step

    @property
    def constant_rate(self) -> float | None:
        """The learning rate where it is the same at every step, else None."""
        return None

    @abc.abstractmethod
    def spread(self, until: float, count: int) -> np.ndarray:
        """`count` marks from 0 to `until`, evenly in the logarithm of time."""

    @abc.abstractmethod
    def as_marks(self, marks: Any) -> Any:
        """Marks as an array of the right type, or `ValueError` where they cannot be marks."""

    def admits(self, loss: AbstractLoss, model: AbstractModel) -> str | None:
        """None if the pair can be trained this way, else the reason why not."""
        return loss.admits(model)

    def renew(self, loss: AbstractLoss, state: Any) -> Any:
        """The state of a run that goes on with another `loss` from here."""
        del loss
        return state


def marks_until(
    dynamics: AbstractDynamics, until: Any, saveat: Any, count: int, jumps: Sequence[float] = ()
) -> Any:
    """The marks of a run: `saveat` (or about `count` of them), the jumps and the end, increasing.

    - `jumps`: where the loss jumps; those before the end are among the marks.
    """
    marks = _marks(dynamics, until, saveat, count)
    if not len(jumps):
        return marks
    if isinstance(marks, Tracer):
        raise ValueError("a curriculum needs save points that are known numbers, not traced ones")
    try:
        changes = dynamics.as_marks(np.asarray(jumps))
    except ValueError as error:
        raise ValueError(
            f"the loss jumps at {', '.join(f'{j:g}' for j in jumps)}: {error}"
        ) from None
    return np.union1d(marks, changes[changes <= marks[-1]])


def _marks(dynamics: AbstractDynamics, until: Any, saveat: Any, count: int) -> Any:
    if until is None and saveat is None:
        raise ValueError("say when the run ends: until=, in steps (Descent) or t/τ (Flow)")
    end = None if until is None else dynamics.as_marks(np.atleast_1d(until))
    if end is not None and (len(end) != 1 or not end[0] >= 0):
        raise ValueError(f"until must be one number of at least 0, got {until}")
    if saveat is None:
        assert end is not None
        return dynamics.spread(end[0].item(), count)
    if np.ndim(saveat) != 1 or np.size(saveat) == 0:
        raise ValueError(f"saveat must be a non-empty list, got shape {np.shape(saveat)}")
    marks = dynamics.as_marks(saveat)
    if isinstance(marks, Tracer):
        return marks
    if np.any(np.diff(marks) < 0) or marks[0] < 0:
        raise ValueError("saveat must be increasing and not negative; sort it")
    if end is None or marks[-1] == end[0]:
        return marks
    if marks[-1] > end[0]:
        raise ValueError(f"saveat asks for {marks[-1]:g}, but the run ends at {end[0]:g}")
    return np.concatenate([marks, end])


def require_dynamics(dynamics: Any) -> None:
    """Refuse what cannot train."""
    require_kind("dynamics", dynamics, AbstractDynamics, "a dynamics, such as icl.Descent(0.1)")


def log_steps(last: int, count: int = 200) -> np.ndarray:
    """About `count` whole steps from 0 to `last`, evenly spaced in the logarithm."""
    if last < 1:
        return np.zeros(1, dtype=int)
    grid = np.geomspace(1, last, max(2, count - 1))
    return np.unique(np.concatenate([[0], np.round(grid).astype(int), [last]]))


def linear_steps(last: int, count: int = 200) -> np.ndarray:
    """About `count` whole steps from 0 to `last`, evenly spaced."""
    return np.unique(np.round(np.linspace(0, last, max(2, count))).astype(int))
