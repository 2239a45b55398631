"""Contexts of varying length: the loss averaged over n = 1 … 31 pairs (second version, E3).

The average of the loss is the average of its moments, so all of the theory holds with averaged B
and G. Attention is divided by the number of tokens, query included, as the published code does
when the length varies.
"""

import functools
from typing import Any

import jax
import numpy as np
import xarray as xr

from iclflow.dynamics import Descent
from iclflow.experiments.four_inputs import CONTEXT, ROTATION_KEY, SPECTRUM, seed_count
from iclflow.experiments.runs import (
    Variable,
    at,
    clock,
    labelled,
    spread,
    trained,
)
from iclflow.losses import Moments, Population
from iclflow.measures import first_crossing
from iclflow.models import Blocks, Merged, Separate, draw_models
from iclflow.results.progress import Progress
from iclflow.tasks.prompt import Normaliser
from iclflow.tasks.task import Task
from iclflow.theory.drops.one_drop import merged_course
from iclflow.theory.fixed_points.levels import plateau_losses
from iclflow.theory.predict import predict, visited_levels

LENGTHS = tuple(range(1, CONTEXT + 1))
SEQUENCES, QUICK_SEQUENCES = 5_000, 1_000  # each at 31 lengths: 155,000 prompts
MERGED_HEADS, MERGED_SCALE, MERGED_RATE, MERGED_STEPS = 8, 1e-3, 0.03, 15_000
SEPARATE_HEADS, SEPARATE_SCALE, SEPARATE_RATE = 5, 0.07, 0.197
MARGIN = 1.25  # times the last drop that the staircase predicts for any seed


@functools.cache
def varying_task(normaliser: Normaliser = Normaliser.TOKENS) -> Task:
    """The task of Fig. 3 with every context length from 1 to 31."""
    rotation = jax.random.key(ROTATION_KEY)
    return Task(SPECTRUM, CONTEXT, rotation=rotation, lengths=LENGTHS, normaliser=normaliser)


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Losses of merged and separate attention, theory of the averaged moments, loss by length."""
    report = progress or (lambda done, total: None)
    report(0, 3)
    task = varying_task()
    population = Population(task)
    seeds, sequences = seed_count(quick), QUICK_SEQUENCES if quick else SEQUENCES
    loss = Moments.sample(task, sequences, jax.random.key(1), matched=True)
    report(1, 3)

    init = Merged.initialiser(task, heads=MERGED_HEADS, scale=MERGED_SCALE, blocks=Blocks.FULL)
    models = draw_models(init, range(seeds))
    marks = spread(MERGED_STEPS)
    options: dict[str, Any] = {"seeds": seeds, "record": ["loss", "weights"]}
    merged = trained(loss, init, Descent(MERGED_RATE), saveat=marks, **options)
    merged_time = 2 * MERGED_RATE * marks
    start = at(models, 0).reduce()
    course = merged_course(loss, start, merged_time, tolerance=1e-8)
    report(2, 3)

    init = Separate.initialiser(
        task, heads=SEPARATE_HEADS, scale=SEPARATE_SCALE, blocks=Blocks.FULL
    )
    models = draw_models(init, range(seeds))
    stairs = [predict(loss, at(models, s), probes=0) for s in range(seeds)]
    last = MARGIN * max(float(s.times[-1]) for s in stairs) / (2 * SEPARATE_RATE)
    marks = spread(int(np.ceil(last / 1000)) * 1000)
    separate = trained(loss, init, Descent(SEPARATE_RATE), saveat=marks, **options)
    coordinates = clock(marks, SEPARATE_RATE)
    time = coordinates["time"][1]
    levels = np.asarray(plateau_losses(population))

    variables: dict[str, Variable] = {
        "levels": (("level",), levels, "L(M_m) of the averaged moments (24), E3"),
        "merged_levels": (("merged_level",), visited_levels(population, start), "L(M_m), merged"),
        "merged_time": (("merged_mark",), merged_time, "t/τ"),
        "merged_loss": (("seed", "merged_mark"), merged["loss"], "loss, merged"),
        "merged_theory": (("merged_mark",), course.loss, "reduced flow of the sample, seed 0"),
        "loss": (("seed", "time"), separate["loss"], "loss, separate"),
        "staircase_loss": (("seed", "time"), [s.curve(time).loss for s in stairs], "of the sample"),
        "plateau_loss": (
            ("seed", "level"),
            [_on_plateaus(time, row, levels) for row in separate["loss"]],
            "loss inside each plateau",
        ),
        **_by_length(merged, population),
        **_conventions(),
    }
    report(3, 3)
    coordinates |= {"seed": np.arange(seeds), "length": list(LENGTHS)}
    settings = {
        "figure": "varying context length",
        "sequences": sequences,
        "quick": quick,
        "scale": SEPARATE_SCALE,
        "normaliser": Normaliser.TOKENS.value,
    }
    return labelled(variables, coordinates, settings)


def _on_plateaus(time: np.ndarray, loss: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The loss in the middle, on a logarithmic clock, of each plateau."""
    edges = [first_crossing(time, loss, m) for m in (levels[:-1] + levels[1:]) / 2]
    middles = [
        np.sqrt(a * b) for a, b in zip([edges[0] / 2, *edges], [*edges, time[-1]], strict=True)
    ]
    return np.interp(middles, time, loss)


def _by_length(merged: dict[str, np.ndarray], population: Population) -> dict[str, Variable]:
    """The trained model's population loss at each length, beside the best for the average."""
    values, first = merged["values"][0, -1], merged["merged"][0, -1]
    trained = np.einsum("h,hdc->dc", values, first)
    cross, second = np.asarray(population.cross[0]), np.asarray(population.second)
    covariance = np.asarray(population.covariance)
    inverse, square = np.linalg.inv(covariance), covariance @ covariance
    best = np.linalg.solve(second, cross) @ inverse
    found = []
    for n in LENGTHS:
        # E3 for one length and z = n + 1 tokens: G = (n/z) Λ², B = (n(n+1) Λ² + n tr(Λ) Λ)/z².
        z, total = n + 1, np.trace(covariance)
        g = n / z * square
        b = (n * (n + 1) * square + n * total * covariance) / z**2
        own = np.linalg.solve(b, g) @ inverse
        found.append(
            [total + np.sum(m * (b @ m @ covariance - 2 * g)) for m in (trained, best, own)]
        )
    columns = np.asarray(found).T
    return {
        "length_trained": (("length",), columns[0], "trained at all lengths"),
        "length_best": (("length",), columns[1], "closed form, one M for all lengths"),
        "length_own": (("length",), columns[2], "closed form, M for that length alone"),
    }


def _conventions() -> dict[str, Variable]:
    """Divided by pairs, the averaged loss is that of one length, the harmonic mean (E3)."""
    averaged = np.asarray(plateau_losses(varying_task(Normaliser.PAIRS)))
    n = np.asarray(LENGTHS, float)

    def fixed(inverse: float) -> np.ndarray:
        """Levels (24) with 1/N replaced by a given number."""
        spectrum = np.asarray(SPECTRUM)
        total = spectrum.sum()
        steps = spectrum / (1 + (1 + total / spectrum) * inverse)
        return total - np.concatenate([[0.0], np.cumsum(steps)])

    return {
        "pairs_levels": (("level",), averaged, "L(M_m), divided by pairs"),
        "harmonic_levels": (("level",), fixed(float(np.mean(1 / n))), "(24) with the mean of 1/n"),
        "mean_levels": (("level",), fixed(1 / float(n.mean())), "(24) with the mean of n"),
    }
