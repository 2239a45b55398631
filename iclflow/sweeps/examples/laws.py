"""The laws of the drop times over very many starts, against theory and against (73)."""

from typing import Any

import numpy as np
import xarray as xr

from iclflow.models import draw_models
from iclflow.study.study import Study
from iclflow.sweeps.design import Design
from iclflow.sweeps.examples.base import Example, ExampleAnswer
from iclflow.theory.drops.limit import many_escapes

STARTS = 10_000  # of which the theory is computed
POINTS = 400  # of a curve that is drawn


def answer(example: Example, store: xr.Dataset, design: Design) -> ExampleAnswer:
    """Kolmogorov distances of the simulated law to the theory's and to (73)'s, drop by drop.

    Runs end; a law is compared up to where they do.
    """
    del example
    study = Study.of(design.settings(()))
    seeds = store["seed"].values[:STARTS].tolist()
    theory = many_escapes(study.task, draw_models(study.init, seeds))
    measured = store["drop_times"].values
    end = float(study.dynamics.time(store["stopped"].values.max()))
    drops = min(measured.shape[-1], theory.times.shape[1])
    grid = np.linspace(0, end, POINTS)
    laws = np.stack([
        [_law(times[:, m], grid) for m in range(drops)]
        for times in (measured, theory.times, theory.paper)
    ])  # fmt: skip
    distances = np.asarray([
        [distance(measured[:, m], other[:, m], end) for m in range(drops)]
        for other in (theory.times, theory.paper)
    ])  # fmt: skip
    data = xr.Dataset(
        {
            "law": (("source", "drop_number", "time"), laws),
            "distance": (("of", "drop_number"), distances),
        },
        {"time": grid, "source": ["simulated", "theory", "(73)"], "of": ["theory", "(73)"]},
    )
    lines = [
        f"t_{m + 1}: Kolmogorov distance to the theory {distances[0, m]:.4f}, to (73) "
        f"{distances[1, m]:.4f}; {np.isfinite(measured[:, m]).mean():.1%} of the runs had it"
        for m in range(drops)
    ]
    numbers = {"starts": len(measured), "starts_of_theory": len(seeds)}
    numbers |= {"distance": distances[0].tolist(), "distance_of_73": distances[1].tolist()}
    return ExampleAnswer(numbers, lines, data)


def distance(one: np.ndarray, other: np.ndarray, end: float) -> float:
    """sup |F - G| up to `end`; what is not finite comes later."""
    points = np.concatenate([one, other])
    points = np.sort(points[np.isfinite(points) & (points <= end)])
    return float(np.max(np.abs(_law(one, points) - _law(other, points)), initial=0.0))


def _law(times: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The share of starts whose drop has come."""
    found = np.sort(np.where(np.isfinite(times), times, np.inf))
    return np.searchsorted(found, at, side="right") / len(times)


def figure(example: Example, answer: ExampleAnswer) -> Any:
    """Distribution functions: simulated, theory dashed, (73) dotted."""
    from iclflow.plots.sweeps import laws_figure

    title = f"{example.question} over {answer.numbers['starts']:,} starts"
    return laws_figure(answer.data, title=title)
