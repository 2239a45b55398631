"""Numbers of a whole run, from its curve and its start: when it drops, how long it waits.

A summary is asked for by its name, beside what is recorded at the save points:
`sweep(…, record=["loss", "drop_times"])`; a `Summary` of your own goes in by a name of its own,
`record={"least": Summary(lambda runs: runs.loss.min(axis=1))}`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from iclflow.losses import AbstractPromptLoss
from iclflow.measures import first_crossings
from iclflow.measures.stages import find_stages
from iclflow.models import AbstractModel, draw_model, empty_model
from iclflow.results.choices import require_choice
from iclflow.runs.record import QUANTITIES, Record, by_name

EARLY, LATE = 0.1, 0.9  # of a drop: where the plateau before it ends, the one after it begins
CLOCK = "t/τ (training steps of Adam and momentum, which keep no time)"


@dataclasses.dataclass(frozen=True)
class Finished:
    """The runs of one point of a sweep that have come to their end.

    - `point`: what they share: `point.init`, `point.dynamics`, `point.loss(seed)`.
    - `seeds`: the seed of each run.
    - `time`: t/τ at the save points, [run, T]; steps where the rule keeps no such time.
    - `loss`: [run, T].
    - `record`: all that was recorded, name -> [run, T, ...].
    - `weights`: name -> [run, ...] of the last weights, where the summary asks for them.
    """

    point: Any
    seeds: np.ndarray
    time: np.ndarray
    loss: np.ndarray
    record: Mapping[str, Any]
    weights: Mapping[str, np.ndarray] | None = None

    @property
    def levels(self) -> np.ndarray:
        """The plateau losses that these runs visit; empty where theory knows none."""
        return self.point.levels

    def models(self) -> AbstractModel:
        """The last models, stacked; only for summaries with `weights=True`."""
        assert self.weights is not None
        like = empty_model(self.point.init)
        arrays = {
            name: jnp.asarray(self.weights[name]).reshape(-1, *array.shape)
            for name, array in like.weights().items()
        }
        return jax.vmap(like.with_weights)(arrays)


@dataclasses.dataclass(frozen=True)
class Summary:
    """A number (or several) of every run, computed when it has ended.

    - `function`: from the `Finished` runs of a point to an array [run, ...].
    - `dims`: the names of the dimensions after the run; numbered if omitted.
    - `long_name`, `units`: the label of the variable.
    - `weights`: whether it needs the last weights, `runs.models()`.
    - `seconds`, `steps`: what it costs per run, in seconds and in training steps, for dry runs.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=15)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> least = icl.Summary(lambda runs: runs.loss.min(axis=1), long_name="smallest loss")
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), until=9, seeds=3, record={"least": least})
    >>> runs.least.dims
    ('seed',)
    """

    function: Callable[[Finished], np.ndarray]
    dims: tuple[str, ...] = ()
    long_name: str = ""
    units: str = "1"
    weights: bool = False
    seconds: float = 0.0
    steps: float = 0.0


def final_loss(runs: Finished) -> np.ndarray:
    """The last loss that was finite."""
    finite = np.isfinite(runs.loss)
    last = runs.loss.shape[1] - 1 - np.argmax(finite[:, ::-1], axis=1)
    return np.where(finite.any(axis=1), runs.loss[np.arange(len(last)), last], np.nan)


def measured_times(runs: Finished) -> np.ndarray:
    """When the loss is halfway from each level L(M_m) to the next."""
    return _down(runs, 0.5)


def plateau_lengths(runs: Finished) -> np.ndarray:
    """How long each plateau lasts, on the clock of the runs.

    A plateau begins when the drop before it is 90% done (the first begins at the start) and ends
    when the next drop is 10% done.
    """
    begin = _down(runs, LATE)[:, :-1] if len(runs.levels) > 1 else np.zeros((len(runs.loss), 0))
    end = _down(runs, EARLY)
    first = np.zeros((len(end), min(1, end.shape[1])))
    return end - np.concatenate([first, begin], axis=1)


def _down(runs: Finished, share: float) -> np.ndarray:
    levels = runs.levels
    return first_crossings(runs.time, runs.loss, levels[:-1] + share * np.diff(levels))


def detected_times(runs: Finished) -> np.ndarray:
    """The times of the drops that the stage detector finds in each loss curve.

    The detector knows no theory, so its drops can be compared with those that theory predicts.
    """
    found = []
    for time, loss in zip(runs.time, runs.loss, strict=True):
        if not np.isfinite(time).any():
            found.append([])
            continue
        found.append([drop.time for drop in find_stages(time, loss, resamples=0).drops])
    whole = np.full((len(found), max(map(len, found), default=0)), np.nan)
    for row, times in zip(whole, found, strict=True):
        row[: len(times)] = times
    return whole


def predicted_times(runs: Finished) -> np.ndarray:
    """When theory has the drops from the same initial weights.

    The entries are NaN where no theory covers the model, or where it would take longer than a
    second per run.
    """
    found = np.full((len(runs.seeds), max(0, len(runs.levels) - 1)), np.nan)
    if not found.shape[1]:
        return found
    place = np.asarray([0])
    for row, seed in zip(found, runs.seeds, strict=True):
        [entry] = runs.point.entries((), np.asarray([seed]), place)
        model = draw_model(entry.init, jax.random.key(int(entry.weights[0])))
        # Of the prompts that were trained on, where these are finitely many.
        whole = entry.loss.reported
        sampled = isinstance(whole, AbstractPromptLoss)
        times = theory_times(whole if sampled else runs.point.source(int(seed)), model)
        row[: len(times)] = times[: len(row)]
    return found


def theory_times(source: Any, model: AbstractModel) -> np.ndarray:
    """When the drops of one start come by theory; empty where none covers it in a second.

    - `source`: what is trained on, a task for its population or the loss of a sample.
    - `model`: the initial weights; from zeros nothing is ever learned.
    """
    from iclflow.theory.predict import select

    engine = select(source, model)
    if engine is None or not engine.quick:
        return np.zeros(0)
    if not any(np.any(leaf) for leaf in jax.tree.leaves(model)):
        return np.zeros(0)
    times = engine(source, model).times
    return times[np.isfinite(times)]


def prediction_error(runs: Finished) -> np.ndarray:
    """(Predicted - measured)/measured time of each drop."""
    return predicted_times(runs) / measured_times(runs) - 1


DROPS = ("drop_number",)
SUMMARIES: dict[str, Summary] = {
    "final_loss": Summary(final_loss, (), "last loss $L$"),
    "drop_times": Summary(measured_times, DROPS, "drop times, halfway down", CLOCK),
    "plateau_lengths": Summary(
        plateau_lengths, DROPS, "length of the plateau before a drop", CLOCK
    ),
    "detected_times": Summary(
        detected_times, ("detected",), "drops found by the stage detector", CLOCK, seconds=4e-3
    ),
    "predicted_times": Summary(predicted_times, DROPS, "drop times by theory", CLOCK, seconds=2e-2),
    "prediction_error": Summary(
        prediction_error, DROPS, "relative error of the theory", seconds=2e-2
    ),
}


def summaries_of(record: Record) -> tuple[Record, dict[str, Summary]]:
    """Separate what is recorded at the save points from the summaries asked for beside it.

    - `record`: as in `sweep`: names, functions, and summaries.
    """
    items = by_name(record)
    for item in items.values():
        if isinstance(item, str):
            require_choice("quantity to record", item, [*QUANTITIES, *SUMMARIES])
    found = {
        name: SUMMARIES[item] if isinstance(item, str) else item
        for name, item in items.items()
        if isinstance(item, Summary) or (isinstance(item, str) and item in SUMMARIES)
    }
    if not found:
        return record, {}
    rest = {name: item for name, item in items.items() if name not in found}
    return {"loss": "loss", **rest}, found


def summarise(wanted: Mapping[str, Summary], runs: Finished) -> dict[str, np.ndarray]:
    """Compute summaries of the runs of one point, by name, each [run, ...].

    - `wanted`: the summaries by name.
    - `runs`: the runs that have ended.
    """
    found: dict[str, np.ndarray] = {}
    for name, summary in wanted.items():
        if name == "prediction_error" and {"predicted_times", "drop_times"} <= found.keys():
            found[name] = found["predicted_times"] / found["drop_times"] - 1
        else:
            found[name] = np.asarray(summary.function(runs))
        if found[name].shape[:1] != (len(runs.seeds),):
            raise ValueError(
                f"the summary {name} has the shape {found[name].shape}, and needs one row for each "
                f"of {len(runs.seeds)} runs"
            )
    return found
