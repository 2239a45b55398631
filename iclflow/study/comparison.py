"""Theory laid over a simulation: predicted from the same initial weights, with its error."""

import dataclasses
from collections.abc import Iterable

import numpy as np
import xarray as xr

from iclflow.measures import first_crossings
from iclflow.models import AbstractModel
from iclflow.theory.drops.quadratic import Source
from iclflow.theory.predict import select


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
    sources: Iterable[Source], models: Iterable[AbstractModel], runs: xr.Dataset
) -> Comparison | None:
    """The theory of each run from its initial weights; None where no theory covers the model.

    Drop times are when the loss crosses the middle between two levels that the model visits.

    - `sources`: what each run was trained on, the task of a population or the loss of a sample.
    - `models`: the initial weights of each run.
    - `runs`: the measured losses.
    """
    times, curves, predicted, measured = runs["time"].values, [], [], []
    for i, (source, model) in enumerate(zip(sources, models, strict=True)):
        engine = select(source, model)
        if engine is None:
            return None
        found = engine(source, model)
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
    return Comparison(data, _padded(predicted), _padded(measured))


def _padded(rows: list[np.ndarray]) -> np.ndarray:
    """Rows of different lengths as one array: two samples need not have as many drops."""
    whole = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for row, values in zip(whole, rows, strict=True):
        row[: len(values)] = values
    return whole
