"""Theory laid over a simulation: predicted from the same initial weights, with its error."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import xarray as xr

from iclflow.losses import Population
from iclflow.models import AbstractModel, ConvNet, Merged, Separate
from iclflow.tasks.task import Task
from iclflow.theory.drops.one_drop import merged_course
from iclflow.theory.drops.staircase import staircase
from iclflow.theory.fixed_points.levels import plateau_losses


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Predicted loss curves beside the measured ones, and the drop times of both."""

    curves: xr.Dataset  # loss [seed, time]
    predicted: np.ndarray  # [seed, drop], t/τ; NaN where there is none
    measured: np.ndarray  # [seed, drop], NaN where the run ended before

    @property
    def error(self) -> float:
        """Median relative error of the drop times that were both predicted and seen; or NaN."""
        both = np.isfinite(self.predicted) & np.isfinite(self.measured)
        if not both.any():
            return float("nan")
        return float(np.median(np.abs(self.predicted[both] / self.measured[both] - 1)))


def predict(
    tasks: Sequence[Task], models: Sequence[AbstractModel], runs: xr.Dataset
) -> Prediction | None:
    """The theory of each run from its initial weights; None where no theory covers the model.

    Drop times are when the loss crosses the middle between two levels L(M_m) (24); merged
    attention has one drop, from the first level to the last.
    """
    if not all(isinstance(model, Merged | Separate | ConvNet) for model in models):
        return None
    times = runs["time"].values
    merged = isinstance(models[0], Merged)
    curves, predicted, measured = [], [], []
    for i, (task, given) in enumerate(zip(tasks, models, strict=True)):
        # The zero blocks start at zero, and stay there in the population.
        model = given.reduce() if isinstance(given, Merged | Separate) else given
        levels = np.asarray(plateau_losses(task))
        if merged:
            assert isinstance(model, Merged)
            curve = np.asarray(merged_course(Population(task), model, times).loss)
            levels = levels[[0, -1]]
            expected = crossings(times, curve, levels)
        else:
            stairs = staircase(task, model, probes=0)
            curve = stairs.run.loss(times)
            expected = np.full(len(levels) - 1, np.nan)
            expected[: len(stairs.times)] = stairs.times
        curves.append(curve)
        predicted.append(expected)
        measured.append(crossings(times, runs["loss"].values[i], levels))
    data = xr.Dataset(
        {"loss": (("seed", "time"), np.stack(curves))},
        coords={"seed": runs["seed"].values, "time": times},
    )
    return Prediction(data, np.stack(predicted), np.stack(measured))


def crossings(times: np.ndarray, loss: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """When a loss first falls below the middle between consecutive levels; NaN if it does not."""
    found = np.full(len(levels) - 1, np.nan)
    for m, middle in enumerate((levels[:-1] + levels[1:]) / 2):
        below = np.flatnonzero(loss < middle)
        if below.size and below[0] > 0:
            j = below[0]
            share = (loss[j - 1] - middle) / (loss[j - 1] - loss[j])
            found[m] = times[j - 1] + share * (times[j] - times[j - 1])
    return found
