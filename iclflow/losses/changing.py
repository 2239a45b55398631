"""Losses that change during training: in jumps, smoothly, and sums of several with shares.

A loss answers `at(mark)`: the loss that is trained at a step of descent, or at a time t/τ of a
flow. All other losses answer with themselves. Here are the two that do not.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from iclflow.losses.base import AbstractLoss, changes, piece_at
from iclflow.losses.population import Population
from iclflow.models import AbstractModel
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.checks import require_real


class Curriculum(AbstractLoss):
    """One loss after another: training goes on from the same weights, and the loss jumps.

    - `pieces`: the step of descent (of a flow: the time t/τ) at which each loss begins, and the
      loss. The first begins at 0. A task stands for its population.

    At a jump the step is made with the new loss, and what is recorded there is measured on the new
    loss. Every jump is among the save points of a run. The bound past which a run counts as
    diverged is renewed there, and a flow begins its steps anew.

    Called on a model, it gives the value of its first loss.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.5, 0.3], context=15)
    >>> loss = icl.Curriculum({0: task, 400: task.replace(label_noise=1.0)})
    >>> model = icl.Separate.initialiser(task, heads=3, scale=0.3)(jax.random.key(0))
    >>> run = icl.simulate(loss, model, icl.Descent(0.3), saveat=[0, 399, 800])
    >>> run.step.tolist(), bool(run.loss[2] > run.loss[1])
    ([0, 399, 400, 800], True)
    """

    starts: tuple[float, ...] = eqx.field(static=True)
    losses: tuple[AbstractLoss, ...]

    def __init__(self, pieces: Any) -> None:
        """State the losses by the step or time at which each begins."""
        if not isinstance(pieces, Mapping) or not pieces:
            raise ValueError(
                "a curriculum is a mapping of steps to losses, for example "
                "{0: first, 3_000: second}"
            )
        for start in pieces:
            number = isinstance(start, int | float | np.number) and not isinstance(start, bool)
            if not number or not 0 <= start < np.inf:
                raise ValueError(f"a loss begins at a step or time of at least 0, got {start!r}")
        starts = sorted(pieces)
        if starts[0] != 0:
            raise ValueError(f"the first loss of a curriculum begins at 0, got {starts[0]:g}")
        self.starts = tuple(map(float, starts))
        self.losses = tuple(_as_loss(pieces[start], "a curriculum") for start in starts)
        if any(len(loss.pieces) > 1 for loss in self.losses):
            raise ValueError("a curriculum inside a curriculum; write all pieces into one mapping")

    @property
    def pieces(self) -> tuple[tuple[float, AbstractLoss], ...]:
        return tuple(zip(self.starts, self.losses, strict=True))

    @property
    def stochastic(self) -> bool:  # pyright: ignore
        """Whether one of the losses is."""
        return any(loss.stochastic for loss in self.losses)

    @property
    def drifts(self) -> bool:  # pyright: ignore
        """Whether one of the losses does."""
        return any(loss.drifts for loss in self.losses)

    def at(self, mark: ArrayLike) -> AbstractLoss:
        if not isinstance(mark, Tracer):
            return piece_at(self, float(np.asarray(mark)))[1].at(mark)
        place = sum((mark >= start for start in self.starts[1:]), jnp.zeros((), int))
        return _Chosen(tuple(loss.at(mark) for loss in self.losses), place)

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        return self.losses[0](model)

    def admits(self, model: AbstractModel) -> str | None:
        for start, loss in self.pieces:
            reason = loss.admits(model)
            if reason is not None:
                return f"{reason} (the loss from {start:g} on, {type(loss).__name__})"
        return None

    def scratch(self) -> int:
        return max(loss.scratch() for loss in self.losses)


class _Chosen(AbstractLoss):
    """The one of several losses that a traced number says."""

    losses: tuple[AbstractLoss, ...]
    place: Any

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        arrays, static = eqx.partition(model, eqx.is_array)
        # Each loss in the same type, so that they can be branches of one program.
        kind = jnp.result_type(float, *(jax.tree.leaves(arrays)))
        branches = [
            lambda a, loss=loss: jnp.asarray(loss(eqx.combine(a, static)), kind)
            for loss in self.losses
        ]
        return jax.lax.switch(self.place, branches, arrays)

    def admits(self, model: AbstractModel) -> str | None:
        return next(filter(None, (loss.admits(model) for loss in self.losses)), None)


class Drift(AbstractLoss):
    """A loss whose numbers are a function of time: noise, covariance, shares of a mixture.

    - `function`: the step of descent (of a flow: the time t/τ) -> loss. The step is a traced
      number, so that the function is compiled once for all steps: its decisions are written with
      `jnp.where`. A task stands for its population, which is then computed anew at every step.

    Each step descends the loss of that step, and what is recorded is measured on it. The structure
    of the loss stays: lengths and sizes are part of the structure. Weights of the lengths may
    drift, as the shares of a `Blend` do.

    Called on a model, it gives the value at the start.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.5, 0.3], context=15)
    >>> loss = icl.Drift(lambda step: task.replace(label_noise=step / 400))
    >>> model = icl.Separate.initialiser(task, heads=3, scale=0.3)(jax.random.key(0))
    >>> run = icl.simulate(loss, model, icl.Descent(0.3), saveat=[0, 400])
    >>> bool(abs(loss.at(400)(run.model) - run.loss[-1]) < 1e-12)
    True
    """

    drifts = True

    function: Callable[[Any], Any]

    def __init__(self, function: Any) -> None:
        """A function of the step, tried once at a traced step."""
        needed = "a drift is a function of the step that returns a loss or a task"
        if not callable(function) or isinstance(function, AbstractLoss):
            raise ValueError(f"{needed}, got {type(function).__name__}")
        self.function = function
        try:
            eqx.filter_eval_shape(self.at, jax.ShapeDtypeStruct((), int))
        except jax.errors.TracerBoolConversionError:
            raise ValueError(
                f"{needed}; this one decides with `if`, which is compiled once for all steps: use "
                f"jnp.where(step < 1000, 0.0, 0.5), or a Curriculum for jumps"
            ) from None
        except Exception as error:  # a function of the user's may raise anything
            reason = " ".join(str(error).split())[:160]
            raise ValueError(f"{needed}; {type(error).__name__}: {reason}") from None

    @property
    def stochastic(self) -> bool:  # pyright: ignore
        """Whether the loss at the start is."""
        return self.at(0).stochastic

    def at(self, mark: ArrayLike) -> AbstractLoss:
        found = _as_loss(self.function(jnp.asarray(mark)), "a drift")
        if changes(found):
            raise ValueError(
                f"a {type(found).__name__} inside a drift; the function itself says what changes"
            )
        return found

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        return self.at(0)(model)

    def admits(self, model: AbstractModel) -> str | None:
        return self.at(0).admits(model)

    def scratch(self) -> int:
        return self.at(0).scratch()


class Blend(AbstractLoss):
    """L = Σ sᵢ Lᵢ: several losses at once, each with its share.

    - `losses`: what is blended. A task stands for its population.
    - `shares`: sᵢ, at least 0. They need not add up to one.

    The shares of a `Drift` may change from step to step, for example the weights of context
    lengths. The theory covers a blend of losses that it covers one by one.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.5, 0.3], context=15)
    >>> model = icl.Merged.initialiser(task, heads=2, scale=0.3)(jax.random.key(0))
    >>> short, long = task.replace(context=5), task.replace(context=50)
    >>> both = icl.Blend([short, long], [0.75, 0.25])(model)
    >>> apart = 0.75 * icl.Population(short)(model) + 0.25 * icl.Population(long)(model)
    >>> bool(abs(both - apart) < 1e-12)
    True
    """

    losses: tuple[AbstractLoss, ...]
    shares: Float[Array, " n"]

    def __init__(self, losses: Sequence[Any], shares: Any) -> None:
        """State the losses and their shares."""
        if not np.iterable(losses):
            raise ValueError(f"a blend is made of a list of losses, got {type(losses).__name__}")
        self.losses = tuple(_as_loss(loss, "a blend") for loss in losses)
        self.shares = require_real("shares", shares)
        if self.shares.shape != (len(self.losses),) or not self.losses:
            raise ValueError(
                f"a blend needs one share per loss, got {len(self.losses)} losses and shares of "
                f"shape {self.shares.shape}"
            )
        traced = isinstance(self.shares, Tracer)
        if not traced and not np.all(np.isfinite(self.shares) & (np.asarray(self.shares) >= 0)):
            raise ValueError(f"shares must be numbers of at least 0, got {self.shares}")
        if any(changes(loss) for loss in self.losses):
            raise ValueError("a blend is of losses that do not change; give Drift a Blend instead")

    @property
    def stochastic(self) -> bool:  # pyright: ignore
        """Whether one of the losses is."""
        return any(loss.stochastic for loss in self.losses)

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        values = [self.shares[i] * loss(model) for i, loss in enumerate(self.losses)]
        return sum(values[1:], values[0])

    def admits(self, model: AbstractModel) -> str | None:
        return next(filter(None, (loss.admits(model) for loss in self.losses)), None)

    def draw(self, key: PRNGKeyArray) -> AbstractLoss:
        if not self.stochastic:
            return self
        keys = jax.random.split(key, len(self.losses))
        drawn = tuple(loss.draw(k) for loss, k in zip(self.losses, keys, strict=True))
        return eqx.tree_at(lambda blend: blend.losses, self, drawn)

    def scratch(self) -> int:
        return sum(loss.scratch() for loss in self.losses)


def _as_loss(found: Any, whose: str) -> AbstractLoss:
    if isinstance(found, AbstractTask):
        return Population(found)
    if isinstance(found, AbstractLoss):
        return found
    raise ValueError(f"{whose} is made of losses or tasks, got {type(found).__name__}")
