"""Theory laid over a simulation: predicted from the same initial weights, with its error."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import xarray as xr

from iclflow.diagnostics import first_crossings
from iclflow.models import AbstractModel
from iclflow.tasks.task import Task
from iclflow.theory.predict import ENGINES


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Predicted loss curves beside the measured ones, and the drop times of both."""

    curves: xr.Dataset  # loss [seed, time]
    predicted: np.ndarray  # [seed, drop], t/τ; NaN where there is none
    measured: np.ndarray  # [seed, drop], NaN where the run ended before

    @property
    def errors(self) -> np.ndarray:
        """Relative errors of the drop times that were both predicted and seen."""
        both = np.isfinite(self.predicted) & np.isfinite(self.measured)
        return np.abs(self.predicted[both] / self.measured[both] - 1)

    @property
    def error(self) -> float:
        """The median of the errors; NaN without any."""
        return float(np.median(self.errors)) if self.errors.size else float("nan")

    @property
    def worst(self) -> float:
        """The largest of the errors; NaN without any."""
        return float(self.errors.max()) if self.errors.size else float("nan")


def compare(
    tasks: Sequence[Task], models: Sequence[AbstractModel], runs: xr.Dataset
) -> Comparison | None:
    """The theory of each run from its initial weights; None where no theory covers the model.

    Drop times are when the loss crosses the middle between two levels L(M_m) (24) that the model
    visits.
    """
    times, curves, predicted, measured = runs["time"].values, [], [], []
    for i, (task, model) in enumerate(zip(tasks, models, strict=True)):
        engine = next((one for one in ENGINES if one.admits(task, model) is None), None)
        if engine is None:
            return None
        found = engine(task, model)
        expected = np.full(len(found.levels) - 1, np.nan)
        expected[: len(found.times)] = found.times
        curves.append(found.curve(times).loss)
        predicted.append(expected)
        middles = (found.levels[:-1] + found.levels[1:]) / 2
        loss = runs["loss"].isel(seed=i).values
        measured.append(first_crossings(times, loss, middles))
    data = xr.Dataset(
        {"loss": (("seed", "time"), np.stack(curves))},
        coords={"seed": runs["seed"].values, "time": times},
    )
    return Comparison(data, np.stack(predicted), np.stack(measured))
