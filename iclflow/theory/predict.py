"""One door to the time courses: what training from given initial weights will do.

`predict` picks the best engine that admits the pair; each engine says what it assumes. They are
host functions (events decide what comes next), so they stand outside jit. Times are t/τ.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Int
from scipy.optimize import brentq

from iclflow.losses import Population
from iclflow.models import (
    AbstractAttention,
    AbstractLinearModel,
    AbstractModel,
    Blocks,
    Merged,
    Separate,
)
from iclflow.models.base import require_model
from iclflow.results.display import html_table
from iclflow.tasks.task import Task
from iclflow.theory.drops.base import Curve, Times
from iclflow.theory.drops.limit import VanishingLimit, vanishing_limit
from iclflow.theory.drops.one_drop import WhiteCourse, merged_course, merged_half_time
from iclflow.theory.drops.quadratic import Quadratic, Source, not_quadratic
from iclflow.theory.drops.stack import not_stacked
from iclflow.theory.drops.staircase import Staircase, staircase
from iclflow.theory.fixed_points.modes import Modes, two_levels, visited_levels

LARGE = 2500  # weights above which the flow of all heads, with the square of them, costs minutes
LEFT_OUT = "the zero blocks that training moves are left out: they grow to order P^(-1/2)"


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The predicted run of one start: n drops, and its curves at any time.

    - `times`: when the loss is halfway down each drop.
    - `heads`: which head makes each drop; None where all do it together.
    - `levels`: the losses of the plateaus that the model visits, from the start to the end.
    - `condition`: relative change of each time per relative change of the weights; None if it
      was not measured.
    - `engine`: what computed it, and `assumes` on what that rests.
    - `curve`: times -> `Curve` with `loss`, and `values` and `effective` where known.
    - `details`: the engine's own result.
    - `notes`: what is less than sure about this prediction, one sentence each.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> start = icl.Separate.initialiser(task, heads=3, scale=0.01)(jax.random.key(0))
    >>> found = icl.predict(task, start, probes=0)
    >>> found.to_dataset([0.0, 10.0]).loss.sizes["time"], len(found.times)
    (2, 2)
    """

    times: Float[np.ndarray, " n"]
    heads: Int[np.ndarray, " n"] | None
    levels: Float[np.ndarray, " m"]
    condition: Float[np.ndarray, " n"] | None
    engine: "AbstractEngine"
    curve: Callable[[Times], Curve]
    details: Staircase | VanishingLimit | WhiteCourse | None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        times, levels = (", ".join(f"{x:.6g}" for x in a) for a in (self.times, self.levels))
        name = type(self.engine).__name__
        notes = "".join(f", note: {note}" for note in self.notes)
        return f"Prediction(times t/τ = [{times}], levels = [{levels}], engine={name}{notes})"

    def _repr_html_(self) -> str:
        heads = ["all"] * len(self.times) if self.heads is None else self.heads
        rows = [
            (i + 1, f"{time:.6g}", head, *(f"{x:.6g}" for x in self.levels[i : i + 2]))
            for i, (time, head) in enumerate(zip(self.times, heads, strict=True))
        ]
        header = ("drop", "t/τ", "head", "loss before", "loss after")
        return html_table(f"Prediction, assuming {self.assumes}", header, rows)

    @property
    def assumes(self) -> str:
        """What the prediction rests on, in words, and what is less than sure about it."""
        return "; ".join((self.engine.assumes, *self.notes))

    @property
    def time(self) -> Float[np.ndarray, " T"]:
        """About 400 times that show every drop."""
        if isinstance(self.details, Staircase):
            return self.details.marks()
        finite = self.times[np.isfinite(self.times)]
        return np.linspace(0, 2 * float(finite[-1]) if finite.size else 1.0, 400)

    @property
    def loss(self) -> Float[np.ndarray, " T"]:
        """The loss at `time`."""
        return self.curve(self.time).loss

    def to_dataset(self, time: Times | None = None) -> xr.Dataset:
        """The predicted curves with their labels, as `sweep` labels measured ones.

        - `time`: t/τ of the points; those of `Prediction.time` if omitted.

        `loss` is over `time`; `values` (time, head) and `effective_weights` (time, row, column)
        are there where the engine knows them. `drop_times` are along `event`, and with them the
        heads that make the drops; `levels` are along `plateau`.
        """
        found = self.curve(self.time if time is None else time)
        data: dict[str, Any] = {
            "loss": ("time", found.loss, {"long_name": "loss", "units": "1"}),
            "drop_times": ("event", self.times, {"long_name": "middle of the drop", "units": "τ"}),
            "levels": ("plateau", self.levels, {"long_name": "loss of the plateau", "units": "1"}),
        }
        if found.values is not None:
            data["values"] = (("time", "head"), found.values, {"long_name": "value weights"})
        if found.effective is not None:
            names = ("time", "row", "column")
            data["effective_weights"] = (names, found.effective, {"long_name": "M = Σ v k qᵀ"})
        if self.heads is not None:
            data["drop_head"] = ("event", self.heads, {"long_name": "head that makes the drop"})
        if self.condition is not None:
            data["condition"] = ("event", self.condition, {"long_name": "condition of the time"})
        clock = ("time", found.time, {"long_name": "t/τ", "units": "τ"})
        attributes = {"engine": type(self.engine).__name__, "assumes": self.assumes}
        return xr.Dataset(data, coords={"time": clock}, attrs=attributes)


class AbstractEngine(abc.ABC):
    """A way to predict the gradient flow of one start without integrating all of it.

    >>> import iclflow as icl
    >>> [type(engine).__name__ for engine in icl.theory.ENGINES]
    ['Stairs', 'LayerStairs', 'Logistic', 'OneDrop', 'Jumps', 'Relaxation']
    """

    assumes: ClassVar[str]
    attention: ClassVar[type[AbstractAttention]]
    quick: ClassVar[bool] = True  # whether a start takes about a second at most

    def admits(self, source: Source | Quadratic, model: AbstractModel) -> str | None:
        """None if the pair can be predicted this way, else the reason why not."""
        found = model.as_attention()
        if isinstance(model, AbstractLinearModel) and found is None:
            return (
                f"{type(model).__name__} is linear, and its effective weights are no product that "
                f"the theory knows; if they are Σ v U or Σ v k qᵀ, return the Merged or the "
                f"Separate that has them from as_attention()"
            )
        if not isinstance(model, AbstractLinearModel) or not isinstance(found, Merged | Separate):
            return (
                f"the theory covers linear attention with one layer, got {type(model).__name__}; "
                f"give Merged, Separate, MLP, ConvNet or Layers"
            )
        reason = not_quadratic(source)
        if reason is not None:
            return reason
        if found.values.shape[1] != 1:
            return f"the theory covers one output, got {found.values.shape[1]}"
        if not isinstance(found, self.attention):
            return f"it predicts {self.attention.__name__}, got {type(found).__name__}"
        return self.beyond(source, found.reduce())

    def beyond(self, source: Source | Quadratic, model: Any) -> str | None:
        """What more the engine asks of a pair; None if nothing."""
        del source, model
        return None

    @abc.abstractmethod
    def __call__(
        self, source: Source | Quadratic, model: AbstractModel, *, probes: int = 0
    ) -> Prediction:
        """The prediction; `probes` perturbed starts measure its condition, where it has one."""


class Stairs(AbstractEngine):
    """Separate key and query: the staircase from the initial weights (see `staircase`)."""

    assumes = "small initial weights: heads that have not escaped do not feel each other"
    attention = Separate

    def __call__(
        self, source: Source | Quadratic, model: AbstractModel, *, probes: int = 0
    ) -> Prediction:
        start, loss = _attention(self, source, model), Quadratic.of(source)
        found = staircase(loss, start, probes=probes)
        condition = found.condition if probes else None
        levels = found.levels if loss.factors is None else visited_levels(source, start)
        notes = (*_left_out(loss, model), *_doubts(found))
        return Prediction(found.times, found.heads, levels, condition, self, found.at, found, notes)


class LayerStairs(AbstractEngine):
    """Several layers of separate key and query, tied or not: the staircase over all their heads.

    The population of two layers has a closed form; of more layers, or on prompts, the source is a
    loss that admits them, as `Statistics` or `Draws`.
    """

    assumes = "small initial weights: heads that have not escaped do not feel each other"
    attention = Separate
    quick = False

    def admits(self, source: Source | Quadratic, model: AbstractModel) -> str | None:
        return not_stacked(source, model)

    def __call__(
        self, source: Source | Quadratic, model: AbstractModel, *, probes: int = 0
    ) -> Prediction:
        reason = self.admits(source, model)
        if reason is not None:
            raise ValueError(f"{type(self).__name__} cannot predict this run: {reason}")
        assert not isinstance(source, Quadratic)
        found = staircase(source, model, probes=probes)
        condition = found.condition if probes else None
        return Prediction(
            found.times, found.heads, found.levels, condition, self, found.at, found, _doubts(found)
        )


class Jumps(AbstractEngine):
    """Separate key and query: the limit of vanishing initial weights (see `vanishing_limit`)."""

    assumes = "vanishing initial weights: drops take no time, and dormant heads only grow"
    attention = Separate

    def beyond(self, source: Source | Quadratic, model: Any) -> str | None:
        if isinstance(source, Task | Population | Modes):
            return None
        return f"the limit covers populations, got {type(source).__name__}; give the Task"

    def __call__(
        self, source: Source | Quadratic, model: AbstractModel, *, probes: int = 0
    ) -> Prediction:
        start = _attention(self, source, model)
        assert isinstance(source, Task | Population | Modes)
        found = vanishing_limit(source, start)
        return Prediction(found.times, found.heads, found.levels, None, self, found.at, found)


class OneDrop(AbstractEngine):
    """Merged key and query: one matrix instead of H heads (see `merged_course`)."""

    assumes = "small initial weights: all heads are parallel when the drop comes"
    attention = Merged

    def __call__(
        self, source: Source | Quadratic, model: AbstractModel, *, probes: int = 0
    ) -> Prediction:
        start, loss = _attention(self, source, model), Quadratic.of(source)
        times = np.asarray([merged_half_time(loss, start)])

        def curve(times: Times) -> Curve:
            return merged_course(loss, start, times)

        levels, notes = two_levels(loss), _left_out(loss, model)
        return Prediction(times, None, levels, None, self, curve, None, notes)


class Logistic(AbstractEngine):
    """Merged key and query, white inputs: the closed form (15)(45)-(48) (see `WhiteCourse`)."""

    assumes = "small initial weights and white inputs, 𝓗[G] ∝ G"
    attention = Merged

    def beyond(self, source: Source | Quadratic, model: Any) -> str | None:
        try:
            WhiteCourse(source, model)
        except ValueError as error:
            return str(error)
        return None

    def __call__(
        self, source: Source | Quadratic, model: AbstractModel, *, probes: int = 0
    ) -> Prediction:
        start, loss = _attention(self, source, model), Quadratic.of(source)
        found = WhiteCourse(loss, start)

        def curve(times: Times) -> Curve:
            saves = np.atleast_1d(np.asarray(times, float))
            weights = jax.vmap(found.model)(jax.numpy.asarray(saves))
            values = np.asarray(weights.values[:, :, 0, 0])
            matrices = np.einsum("th,thdc->tdc", values, np.asarray(weights.merged))
            return Curve(saves, np.asarray(found.loss(saves)), values, matrices)

        times = np.asarray([float(found.mid_drop_time())])
        levels, notes = two_levels(loss), _left_out(loss, model)
        return Prediction(times, None, levels, None, self, curve, found, notes)


class Relaxation(AbstractEngine):
    """A linear model whose effective weights are linear in its weights, M = M₀ + A θ: exact.

    Then L is quadratic in θ, and the flow dθ/dt = Aᵀ(G - 𝓗[M]) is a linear one: every mode relaxes
    by itself. There are no plateaus; the one time is when half of the loss that can fall has
    fallen.
    """

    assumes = "nothing of the initial weights: the effective ones are linear in them, all is exact"
    attention = AbstractAttention

    def admits(self, source: Source | Quadratic, model: AbstractModel) -> str | None:
        if not isinstance(model, AbstractLinearModel):
            return f"the theory covers linear models, got {type(model).__name__}"
        reason = not_quadratic(source)
        if reason is not None:
            return reason
        if model.reduced_weights().shape[0] != 1:
            return f"the theory covers one output, got {model.reduced_weights().shape[0]}"
        if model.blocks is Blocks.FULL:
            return "it covers frozen zero blocks; freeze them"
        return None if _affine(model) else "the effective weights are not linear in the weights"

    def __call__(
        self, source: Source | Quadratic, model: AbstractModel, *, probes: int = 0
    ) -> Prediction:
        reason = self.admits(source, model)
        if reason is not None:
            raise ValueError(f"Relaxation cannot predict this run: {reason}")
        assert isinstance(model, AbstractLinearModel)
        loss = Quadratic.of(source)
        start, matrices = _effective_map(model)
        slope = np.asarray(jax.jacobian(matrices)(start)).reshape(loss.size**2, -1)  # A
        first = np.asarray(matrices(start))
        curved = loss.curved(slope.T.reshape(-1, loss.size, loss.size))
        stiffness = slope.T @ curved.reshape(len(curved), -1).T  # Aᵀ 𝓗 A
        rates, modes = np.linalg.eigh((stiffness + stiffness.T) / 2)
        push = modes.T @ slope.T @ loss.residual(first).ravel()

        def curve(times: Times) -> Curve:
            saves = np.atleast_1d(np.asarray(times, float))
            flat = rates <= 1e-14 * max(1.0, rates.max())
            safe = np.where(flat, 1.0, rates)
            # (1 - e^{-rt}) / r, and t where nothing holds a mode back.
            reached = np.where(flat, saves[:, None], -np.expm1(-np.outer(saves, safe)) / safe)
            change = (reached * push) @ modes.T @ slope.T
            weights = first + change.reshape(-1, loss.size, loss.size)
            return Curve(saves, loss.loss(weights), None, weights)

        end = 60.0 / max(rates[rates > 1e-14 * max(1.0, rates.max())].min(initial=np.inf), 1e-12)
        levels = curve([0.0, end]).loss
        middle = float(levels.mean())
        half = brentq(lambda t: float(curve(t).loss[0]) - middle, 0.0, end)
        times = np.asarray([half])
        return Prediction(times, None, levels, None, self, curve, None, _left_out(loss, model))


def _effective_map(model: AbstractLinearModel) -> tuple[Any, Callable[[Any], Any]]:
    """The weights of a model in a row, and θ -> M."""
    arrays, static = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(arrays)
    return flat, lambda theta: eqx.combine(unravel(theta), static).reduced_weights()[0, 0]


def _affine(model: AbstractLinearModel) -> bool:
    """Whether M is linear in the weights, tried on two sets of weights in no special relation."""
    flat, matrices = _effective_map(model)
    places = np.arange(1.0, flat.size + 1)
    a, b = (jax.numpy.asarray(w, flat.dtype) for w in (np.cos(places**2), np.sin(3 * places**1.5)))
    zero, one, other, both = (np.asarray(matrices(w)) for w in (0 * a, a, b, 2 * a - 3 * b))
    left = both - zero - 2 * (one - zero) + 3 * (other - zero)
    return bool(np.abs(left).max() <= 1e-6 * max(np.abs(both).max(), 1e-300))


ENGINES = (Stairs(), LayerStairs(), Logistic(), OneDrop(), Jumps(), Relaxation())  # the best first


def select(source: Source | Quadratic, model: AbstractModel) -> AbstractEngine | None:
    """The engine that `predict` would take; None where no theory covers the pair.

    Above 2,500 weights separate key and query go by the limit of vanishing weights: the flow of all
    heads needs the square of their number.

    - `source`: a task, or the loss of a sample.
    - `model`: the initial weights.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> start = icl.Merged.initialiser(task, heads=2, scale=0.01)(jax.random.key(0))
    >>> type(icl.theory.select(task, start)).__name__
    'OneDrop'
    """
    large = sum(leaf.size for leaf in jax.tree.leaves(model)) > LARGE
    order = (*ENGINES[1:], ENGINES[0]) if large else ENGINES
    return next((one for one in order if one.admits(source, model) is None), None)


def predict(
    source: Source | Quadratic,
    model: AbstractModel,
    *,
    engine: AbstractEngine | None = None,
    probes: int = 3,
) -> Prediction:
    """When each drop comes, who makes it, and the loss in between, from the initial weights.

    - `source`: what is trained on, with one output. A loss of prompts (`Moments`, `Features`,
      `Sequences`; sampled, from a pool, or your own) gives the theory of those very prompts. A
      `Task` or its `Population` gives that of infinitely many.
    - `model`: the initial weights, linear attention, a network equivalent to it, or several
      `Layers` of separate key and query. Trained zero blocks are left out: in the population they
      stay zero, on P prompts they grow to P^(-1/2).
    - `engine`: one of `ENGINES`; that of `select` if omitted.
    - `probes`: how many perturbed starts measure the condition; 0 for none.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> loss = icl.Moments.sample(task, 1000, jax.random.key(1))
    >>> start = icl.Separate.initialiser(task, heads=3, scale=0.01)(jax.random.key(0))
    >>> tuple(len(icl.predict(source, start).times) for source in (loss, task))
    (2, 2)
    """
    require_model(model)
    if engine is not None and not isinstance(engine, AbstractEngine):
        names = ", ".join(type(one).__name__ for one in ENGINES)
        raise ValueError(
            f"engine must be one of iclflow.theory.ENGINES ({names}), got {engine!r}; leave it out "
            f"for the best one"
        )
    chosen = select(source, model) if engine is None else engine
    if chosen is None:
        engine = ENGINES[model.depth > 1]
        reason = engine.admits(source, model)
        raise ValueError(reason)
    return chosen(source, model, probes=probes)


def drop_times(source: Source, models: Sequence[AbstractModel]) -> Float[np.ndarray, "S n"]:
    """The times of all drops of several starts of one shape; infinite where a drop never comes.

    - `source`, `models`: each start is predicted as by `predict`. For very many starts
      `theory.drops.limit.many_escapes` has the limit of vanishing weights, all together.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> init = icl.Separate.initialiser(task, heads=3, scale=0.01)
    >>> icl.theory.drop_times(task, [init(jax.random.key(s)) for s in range(2)]).shape
    (2, 2)
    """
    known = isinstance(source, Task | Population | Modes)
    loss = source if known or not models else Quadratic.of(source)
    found = [predict(loss, one, probes=0).times for one in models]
    times = np.full((len(found), max(map(len, found), default=0)), np.inf)
    for row, one in zip(times, found, strict=True):
        row[: len(one)] = one
    return times


def _left_out(loss: Quadratic, model: AbstractModel) -> tuple[str, ...]:
    """What of the model a prediction on prompts leaves out."""
    full = isinstance(model, AbstractLinearModel) and model.blocks is Blocks.FULL
    return (LEFT_OUT,) if full and loss.factors is None else ()


def _doubts(found: Staircase) -> tuple[str, ...]:
    """What is less than sure about a staircase, in words."""
    numbers = [str(i + 1) for i in np.flatnonzero(found.together)]
    doubts = []
    if numbers:
        doubts.append(f"at drop {', '.join(numbers)} two heads escape together, chance decides")
    if not found.complete:
        doubts.append(f"it ends early, after {len(found.times)} drops: {found.ended}")
    return tuple(doubts)


def _attention(engine: AbstractEngine, source: Source | Quadratic, model: AbstractModel) -> Any:
    """The attention of a model without trained zero blocks; `ValueError` unless admitted."""
    reason = engine.admits(source, model)
    if reason is not None:
        raise ValueError(f"{type(engine).__name__} cannot predict this run: {reason}")
    found = model.as_attention()
    assert found is not None
    return found.reduce()
