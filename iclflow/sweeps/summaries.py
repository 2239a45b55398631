"""Numbers of a run, from its curve and its start: when it drops, how long it waits, how it ends."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from iclflow.diagnosis.identify import identify
from iclflow.measures import first_crossings
from iclflow.measures.stages import find_stages
from iclflow.models import draw_model
from iclflow.runs.sweep import Vary
from iclflow.study.study import Study, drop_times
from iclflow.sweeps.cells import Workshop
from iclflow.sweeps.regimes import REGIMES, orbit, regimes

OF_WEIGHTS = {"algorithm", "lyapunov", "regime"}  # summaries that need the last weights
EARLY, LATE = 0.1, 0.9  # of a drop: where the plateau before it ends, the one after it begins


@dataclasses.dataclass(frozen=True)
class Finished:
    """The runs of one point that a batch has finished."""

    study: Study
    workshop: Workshop
    seeds: np.ndarray
    time: np.ndarray  # [run, T]: t/τ; steps where the rule keeps no time
    loss: np.ndarray  # [run, T]
    weights: Any  # name -> [run, ...], the last; None unless asked for

    @property
    def levels(self) -> np.ndarray:
        """The plateau losses that these runs visit."""
        return self.workshop.levels(self.study)


def final_loss(runs: Finished) -> np.ndarray:
    """The last loss that was finite."""
    finite = np.isfinite(runs.loss)
    last = runs.loss.shape[1] - 1 - np.argmax(finite[:, ::-1], axis=1)
    return np.where(finite.any(axis=1), runs.loss[np.arange(len(last)), last], np.nan)


def measured_times(runs: Finished) -> np.ndarray:
    """When the loss is halfway from each level L(M_m) to the next."""
    return _down(runs, 0.5)


def plateau_lengths(runs: Finished) -> np.ndarray:
    """From 90% of the drop before (the start) to 10% of the drop after."""
    begin = _down(runs, LATE)[:, :-1] if len(runs.levels) > 1 else np.zeros((len(runs.loss), 0))
    end = _down(runs, EARLY)
    first = np.zeros((len(end), min(1, end.shape[1])))
    return end - np.concatenate([first, begin], axis=1)


def _down(runs: Finished, share: float) -> np.ndarray:
    levels = runs.levels
    return first_crossings(runs.time, runs.loss, levels[:-1] + share * np.diff(levels))


def detected_times(runs: Finished) -> np.ndarray:
    """The drops that the stage detector finds, which knows no theory."""
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
    """When the theory has the drops, from the same initial weights; NaN where none covers it."""
    study, settings = runs.study, runs.study.settings
    found = np.full((len(runs.seeds), max(0, len(runs.levels) - 1)), np.nan)
    if settings.scale == 0 or not len(runs.levels):
        return found
    vary = Vary(settings.vary)
    for row, seed in zip(found, runs.seeds.tolist(), strict=True):
        offset = seed - settings.seed
        task = runs.workshop.task(settings, offset) if vary is Vary.ALL else study.task
        number = settings.seed if vary is Vary.DATA else seed
        times = drop_times(task, draw_model(study.init, jax.random.key(number)))
        row[: len(times)] = times[: len(row)]
    return found


def algorithm(runs: Finished) -> np.ndarray:
    """The in-context algorithm that the last weights are nearest to (`diagnosis.identify`)."""
    study = runs.study
    if study.task.outputs != 1 or study.settings.vary == "all":
        return np.full(len(runs.seeds), "", object)
    like = draw_model(study.init, jax.random.key(0))
    found = identify(_models(like, runs.weights), study.task)
    return found["algorithm"].values.astype(object)


def lyapunov(runs: Finished) -> np.ndarray:
    """The largest Lyapunov exponent a step of descent, from the last weights on."""
    return _orbit(runs)[1]


def regime(runs: Finished) -> np.ndarray:
    """How descent at this rate ends: one of `REGIMES`."""
    losses, exponent = _orbit(runs)
    return regimes(runs.loss, losses, exponent)


def _orbit(runs: Finished) -> tuple[np.ndarray, np.ndarray]:
    study = runs.study
    like = draw_model(study.init, jax.random.key(0))
    return orbit(study.loss, study.dynamics, _models(like, runs.weights))


def _models(like: Any, weights: Any) -> Any:
    """The last models, stacked."""
    arrays = {
        name: jnp.asarray(weights[name]).reshape(-1, *array.shape)
        for name, array in like.weights().items()
    }
    return jax.vmap(like.with_weights)(arrays)


def prediction_error(runs: Finished) -> np.ndarray:
    """(Predicted - measured)/measured time of each drop."""
    return predicted_times(runs) / measured_times(runs) - 1


CLOCK = "t/τ (training steps of Adam and momentum, which keep no time)"
# Name -> function, dimensions after those of the sweep, long name, units.
Kind = tuple[Callable[[Finished], np.ndarray], tuple[str, ...], str, str]
KINDS: dict[str, Kind] = {
    "final_loss": (final_loss, (), "last loss $L$", "1"),
    "drop_times": (measured_times, ("drop_number",), "drop times, halfway down", CLOCK),
    "plateau_lengths": (
        plateau_lengths,
        ("drop_number",),
        "length of the plateau before a drop",
        CLOCK,
    ),
    "detected_times": (detected_times, ("detected",), "drops found by the stage detector", CLOCK),
    "predicted_times": (predicted_times, ("drop_number",), "drop times by theory", CLOCK),
    "prediction_error": (prediction_error, ("drop_number",), "relative error of the theory", "1"),
    "algorithm": (algorithm, (), "in-context algorithm at the end", "1"),
    "lyapunov": (lyapunov, (), "largest Lyapunov exponent a step, at the end", "1"),
    "regime": (regime, (), "how descent ends: " + ", ".join(REGIMES), "1"),
}


def summarise(names: tuple[str, ...], runs: Finished) -> dict[str, np.ndarray]:
    """The summaries by name, [run, ...]."""
    found: dict[str, np.ndarray] = {}
    for name in names:
        if name == "prediction_error" and {"predicted_times", "drop_times"} <= found.keys():
            found[name] = found["predicted_times"] / found["drop_times"] - 1
        else:
            found[name] = KINDS[name][0](runs)
    return found
