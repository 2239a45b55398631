"""One door to the time courses: what training from given initial weights will do.

`predict` picks the best engine that admits the pair; each engine says what it assumes. They are
host functions (events decide what comes next), so they stand outside jit. Times are t/τ.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float, Int

from iclflow.losses import Population
from iclflow.models import AbstractAttention, AbstractLinearModel, AbstractModel, Merged, Separate
from iclflow.results.display import html_table
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.task import Task
from iclflow.theory.drops.base import Curve, Times
from iclflow.theory.drops.events import aligned_drops
from iclflow.theory.drops.frame import separate_weights
from iclflow.theory.drops.limit import VanishingLimit, vanishing_limit
from iclflow.theory.drops.one_drop import WhiteCourse, merged_course, merged_half_time
from iclflow.theory.drops.staircase import Staircase, has_courses, staircase
from iclflow.theory.fixed_points.levels import plateau_losses
from iclflow.theory.fixed_points.modes import Modes

Source = Task | Population | Modes


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
    """

    times: Float[np.ndarray, " n"]
    heads: Int[np.ndarray, " n"] | None
    levels: Float[np.ndarray, " m"]
    condition: Float[np.ndarray, " n"] | None
    engine: "AbstractEngine"
    curve: Callable[[Times], Curve]
    details: Staircase | VanishingLimit | WhiteCourse | None

    def __repr__(self) -> str:
        times, levels = (", ".join(f"{x:.6g}" for x in a) for a in (self.times, self.levels))
        name = type(self.engine).__name__
        return f"Prediction(times t/τ = [{times}], levels = [{levels}], engine={name})"

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
        """What the prediction rests on, in words."""
        return self.engine.assumes

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


class AbstractEngine(abc.ABC):
    """A way to predict the gradient flow of one start without integrating all of it."""

    assumes: ClassVar[str]
    attention: ClassVar[type[AbstractAttention]]

    def admits(self, source: Source, model: AbstractModel) -> str | None:
        """None if the pair can be predicted this way, else the reason why not."""
        outputs = _outputs(source)
        found = model.as_attention()
        if not isinstance(model, AbstractLinearModel) or not isinstance(found, Merged | Separate):
            return f"the theory covers linear attention with one layer, got {type(model).__name__}"
        if max(outputs, found.values.shape[1]) != 1:
            return f"the theory covers one output, got {max(outputs, found.values.shape[1])}"
        if not isinstance(found, self.attention):
            return f"it predicts {self.attention.__name__}, got {type(found).__name__}"
        return self.beyond(source, found.reduce())

    def beyond(self, source: Source, model: Any) -> str | None:
        """What more the engine asks of a pair; None if nothing."""
        del source, model
        return None

    @abc.abstractmethod
    def __call__(self, source: Source, model: AbstractModel, *, probes: int = 0) -> Prediction:
        """The prediction; `probes` perturbed starts measure its condition, where it has one."""


class Stairs(AbstractEngine):
    """Separate key and query: the staircase from the initial weights (see `staircase`)."""

    assumes = "small initial weights: heads that have not escaped do not feel each other"
    attention = Separate

    def __call__(self, source: Source, model: AbstractModel, *, probes: int = 0) -> Prediction:
        start, modes = _attention(self, source, model), Modes.of(source)
        found = staircase(modes, start, probes=probes)
        condition = found.condition if probes else None
        levels = visited_levels(modes, start)
        return Prediction(found.times, found.heads, levels, condition, self, found.at, found)


class Jumps(AbstractEngine):
    """Separate key and query: the limit of vanishing initial weights (see `vanishing_limit`)."""

    assumes = "vanishing initial weights: drops take no time, and dormant heads only grow"
    attention = Separate

    def __call__(self, source: Source, model: AbstractModel, *, probes: int = 0) -> Prediction:
        found = vanishing_limit(source, _attention(self, source, model))
        return Prediction(found.times, found.heads, found.levels, None, self, found.at, found)


class OneDrop(AbstractEngine):
    """Merged key and query: one matrix instead of H heads (see `merged_course`)."""

    assumes = "small initial weights: all heads are parallel when the drop comes"
    attention = Merged

    def __call__(self, source: Source, model: AbstractModel, *, probes: int = 0) -> Prediction:
        start, modes = _attention(self, source, model), Modes.of(source)
        times = np.asarray([merged_half_time(modes, start)])

        def curve(times: Times) -> Curve:
            return merged_course(modes, start, times)

        return Prediction(times, None, visited_levels(modes, start), None, self, curve, None)


class Logistic(AbstractEngine):
    """Merged key and query, white inputs: the closed form (15)(45)-(48) (see `WhiteCourse`)."""

    assumes = "small initial weights and white inputs, B G Λ ∝ G"
    attention = Merged

    def beyond(self, source: Source, model: Any) -> str | None:
        try:
            WhiteCourse(Modes.of(source), model)
        except ValueError as error:
            return str(error)
        return None

    def __call__(self, source: Source, model: AbstractModel, *, probes: int = 0) -> Prediction:
        start, modes = _attention(self, source, model), Modes.of(source)
        found = WhiteCourse(modes, start)

        def curve(times: Times) -> Curve:
            saves = np.atleast_1d(np.asarray(times, float))
            weights = jax.vmap(found.model)(jax.numpy.asarray(saves))
            values = np.asarray(weights.values[:, :, 0, 0])
            matrices = np.einsum("th,thdc->tdc", values, np.asarray(weights.merged))
            return Curve(saves, np.asarray(found.loss(saves)), values, matrices)

        times = np.asarray([float(found.mid_drop_time())])
        return Prediction(times, None, visited_levels(modes, start), None, self, curve, found)


ENGINES = (Stairs(), Logistic(), OneDrop(), Jumps())  # the best first


def predict(
    source: Source, model: AbstractModel, *, engine: AbstractEngine | None = None, probes: int = 3
) -> Prediction:
    """When each drop comes, who makes it, and the loss in between, from the initial weights.

    - `source`: the task, its population or its modes; one output.
    - `model`: the initial weights, linear attention or a network equivalent to it. Trained zero
      blocks are left out: in the population they stay zero.
    - `engine`: one of `ENGINES`; the best that admits the pair if omitted.
    - `probes`: how many perturbed starts measure the condition; 0 for none.
    """
    if engine is not None:
        return engine(source, model, probes=probes)
    reasons = []
    for one in ENGINES:
        reason = one.admits(source, model)
        if reason is None:
            return one(source, model, probes=probes)
        reasons.append(reason)
    raise ValueError(f"{reasons[0]}; give Merged, Separate, MLP or ConvNet")


def drop_times(source: Source, models: Sequence[AbstractModel]) -> Float[np.ndarray, "S n"]:
    """The times of all drops of many starts of one shape; infinite where a drop never comes.

    Separate key and query go by their scalar courses, all starts together, where the task has
    them: faster and less accurate than `predict` (see `DropsBy`). Quantiles over 200 starts are off
    by 1.5% at w = 1e-2 and 8% at 0.07 (benchmarks/staircase.py). Everything else as `predict`.
    """
    modes, stairs = Modes.of(source), Stairs()
    if models and stairs.admits(modes, models[0]) is None and has_courses(modes):
        weights = [separate_weights(_attention(stairs, modes, one)) for one in models]
        rank, runs = weights[0][1].shape[1], aligned_drops(modes, weights)
        # In a head of rank R drops come so close that they are never alone.
        found = [run.lone_times if rank == 1 else run.drop_times for run in runs]
    else:
        found = [predict(modes, one, probes=0).times for one in models]
    times = np.full((len(found), max(map(len, found), default=0)), np.inf)
    for row, one in zip(times, found, strict=True):
        row[: len(one)] = one
    return times


def visited_levels(source: Source, model: AbstractModel) -> Float[np.ndarray, " m"]:
    """L(M_m) of the plateaus that a model visits; empty where the theory has none for it."""
    levels = np.asarray(plateau_losses(source))
    return levels[list(model.visits(len(levels) - 1))]


def covered_levels(task: AbstractTask, model: AbstractModel) -> Float[np.ndarray, " m"]:
    """The same where theory covers the task: random tasks only, one output; else empty."""
    if not isinstance(task, Task) or task.tasks.mixed() or task.outputs > 1:
        return np.zeros(0)
    return visited_levels(task, model)


def _outputs(source: Source) -> int:
    if isinstance(source, Task):
        return source.outputs
    return 1 if isinstance(source, Modes) else source.cross.shape[0]


def _attention(engine: AbstractEngine, source: Source, model: AbstractModel) -> Any:
    """The attention of a model without trained zero blocks; `ValueError` unless admitted."""
    reason = engine.admits(source, model)
    if reason is not None:
        raise ValueError(f"{type(engine).__name__} cannot predict this run: {reason}")
    found = model.as_attention()
    assert found is not None
    return found.reduce()
