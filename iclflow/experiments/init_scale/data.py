"""The scale w of the initial weights, from 1e-6 to lazy training (second version of the paper).

Merged: simulated at every scale, its one plateau lasts ln(1/w)/‖Λ²‖ and more. Separate: a
plateau lasts ~ 1/w, so that 1e-6 would take 1e10 steps; the staircase predicted from the initial
weights lies over the simulations up to w = 0.1, and below 1e-2 stands alone. Large weights hardly
move: the loss decays exponentially, as a linear model with the kernel of the start.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array

from iclflow.dynamics import Descent
from iclflow.experiments.four_inputs import four_input_task, seed_count
from iclflow.experiments.runs import MARKS, Variable, at, finished, named, train
from iclflow.losses import Population
from iclflow.measures import first_crossing, first_crossings
from iclflow.models import Merged, Separate, draw_models
from iclflow.results.progress import Progress
from iclflow.theory.drops.one_drop import merged_half_time, paper_merged_duration
from iclflow.theory.drops.staircase import staircase
from iclflow.theory.fixed_points.levels import plateau_losses
from iclflow.theory.predict import visited_levels

MERGED_HEADS, SEPARATE_HEADS = 8, 5
MERGED_SCALES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
MERGED_RATE, MERGED_STEPS = 0.02, 10_000
SMALL_SCALES, SMALL_RATE, SMALL_STEPS = (0.01, 0.03, 0.1), 0.4, 120_000
THEORY_SCALES = (1e-6, 1e-5, 1e-4, 1e-3, *SMALL_SCALES)  # separate: the staircase
QUICK_THEORY_SCALES = (1e-6, 1e-3, *SMALL_SCALES)
LARGE_SCALES, LARGE_RATE, LARGE_STEPS = (0.3, 1.0, 3.0), 0.02, 120_000
SHOWN_SEED = 2
LAZY = -1  # the last merged scale


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Loss over training for every scale, one seed; times of the drops, all seeds.

    In the population; the quick form has fewer seeds and fewer scales of the staircase.
    """
    report = progress or (lambda done, total: None)
    report(0, 3)
    seeds = seed_count(quick)
    variables = _merged(seeds)
    report(1, 3)
    theory_scales = QUICK_THEORY_SCALES if quick else THEORY_SCALES
    variables |= _separate(seeds, theory_scales)
    report(3, 3)
    coordinates = {
        "merged_scale": list(MERGED_SCALES),
        "separate_scale": [*SMALL_SCALES, *LARGE_SCALES],
        "theory_scale": list(theory_scales),
        "seed": np.arange(seeds),
    }
    settings = {
        "figure": "initialisation scale",
        "quick": quick,
        "data": "population",
        "shown_seed": SHOWN_SEED,
    }
    return finished(xr.Dataset(named(variables), coordinates), settings)


def _marks(last: int) -> np.ndarray:
    return np.unique(np.round(np.geomspace(1, last, MARKS)).astype(int)) - 1


def _stacked(one: Any, scales: tuple[float, ...]) -> Any:
    """The models of all seeds at all scales: a seed's weights differ by a factor only."""

    def scaled(a: Array) -> Array:
        whole = np.multiply.outer(scales, np.asarray(a))
        return jnp.asarray(whole.reshape(-1, *a.shape[1:]))

    return jax.tree.map(scaled, one)


def _merged(seeds: int) -> dict[str, Variable]:
    task = four_input_task()
    population = Population(task)
    init = Merged.initialiser(task, heads=MERGED_HEADS, scale=1.0)
    models = _stacked(draw_models(init, range(seeds)), MERGED_SCALES)
    marks = _marks(MERGED_STEPS)
    axes = {"scale": MERGED_SCALES}
    descent = Descent(MERGED_RATE)
    loss = train(population, init, descent, saveat=marks, seeds=seeds, axes=axes)["loss"]
    time = loss["time"].values
    levels = visited_levels(task, at(models, 0))
    half = [[first_crossing(time, row, levels.mean()) for row in rows] for rows in loss.values]
    predicted = np.full(len(MERGED_SCALES), np.nan)
    for i, scale in enumerate(MERGED_SCALES):
        if scale < 1:  # the reduced flow is the limit of small weights
            model = at(models, i * seeds + SHOWN_SEED)
            predicted[i] = merged_half_time(population, model, tolerance=1e-8)
    lazy = at(models, (len(MERGED_SCALES) + LAZY) * seeds + SHOWN_SEED)
    return {
        "merged_time": (("merged_mark",), time, "t/τ"),
        "merged_loss": (("merged_scale", "merged_mark"), loss.sel(seed=SHOWN_SEED), "loss, merged"),
        "merged_half_time": (("merged_scale", "seed"), half, "t/τ halfway down"),
        "merged_half_theory": (("merged_scale",), predicted, "reduced flow, E2, the shown seed"),
        "merged_half_paper": (
            ("merged_scale",),
            np.asarray(paper_merged_duration(population, np.asarray(MERGED_SCALES))),
            "ln(1/w)/‖Λ²‖ (51)",
        ),
        "merged_levels": (("merged_level",), levels, "L(0) and the least loss"),
        "lazy_loss": (("merged_mark",), _lazy_loss(population, lazy, time), "constant kernel"),
        "random_features_loss": (
            ("merged_mark",),
            _lazy_loss(population, lazy, time, merged_trained=False),
            "constant kernel of the value weights alone",
        ),
        "rate_of_growth": ((), float(jnp.linalg.norm(population.cross)), "‖Λ²‖"),
        "solution_norm": ((), _solution_norm(population), "‖M*‖"),
    }


def _kernel_parts(population: Population) -> tuple[np.ndarray, np.ndarray]:
    """vec G and K = B ⊗ Λ, rows of M stacked: L = E[y²] - 2 g·m + m·K m."""
    cross = np.asarray(population.cross[0]).reshape(-1)
    return cross, np.kron(np.asarray(population.second), np.asarray(population.covariance))


def _solution_norm(population: Population) -> float:
    cross, kernel = _kernel_parts(population)
    return float(np.linalg.norm(np.linalg.solve(kernel, cross)))


def _lazy_loss(
    population: Population, model: Merged, time: np.ndarray, merged_trained: bool = True
) -> np.ndarray:
    """τ dm/dt = Θ (g - K m) with the start's Θ = |v|² I + Σᵢ vec Uᵢ vec Uᵢᵀ, solved exactly.

    Without `merged_trained` only the value weights move, as in regression on random features, and
    Θ does not have its first term.
    """
    cross, kernel = _kernel_parts(population)
    values, first = np.asarray(model.values)[:, 0, 0], np.asarray(model.merged)
    first = first.reshape(len(values), -1)
    theta = merged_trained * (values @ values) * np.eye(len(cross)) + first.T @ first
    root = np.linalg.cholesky(kernel)  # K = R Rᵀ; Rᵀ m relaxes with the symmetric Rᵀ Θ R
    rates, vectors = np.linalg.eigh(root.T @ theta @ root)
    solution = np.linalg.solve(kernel, cross)
    off = vectors.T @ root.T @ (values @ first - solution)
    least = float(population.power) - cross @ solution
    return least + np.sum((off * np.exp(-np.outer(time, rates))) ** 2, axis=1)


def _separate(seeds: int, theory_scales: tuple[float, ...]) -> dict[str, Variable]:
    task = four_input_task()
    population = Population(task)
    init = Separate.initialiser(task, heads=SEPARATE_HEADS, scale=1.0)
    unit = draw_models(init, range(seeds))
    levels = np.asarray(plateau_losses(task))
    middle = (levels[:-1] + levels[1:]) / 2
    curves, clocks, drops = [], [], []
    for scales, rate, steps in (
        (SMALL_SCALES, SMALL_RATE, SMALL_STEPS),
        (LARGE_SCALES, LARGE_RATE, LARGE_STEPS),
    ):
        marks = _marks(steps)
        axes = {"scale": scales}
        descent = Descent(rate)
        loss = train(population, init, descent, saveat=marks, seeds=seeds, axes=axes)["loss"]
        time = loss["time"].values
        drops.append([[first_crossings(time, row, middle) for row in rows] for rows in loss.values])
        curves.append(loss.sel(seed=SHOWN_SEED))
        clocks.append(np.tile(time, (len(scales), 1)))
    starts = [_stacked(unit, (scale,)) for scale in theory_scales]
    stairs = [
        [staircase(population, at(models, s), probes=0) for s in range(seeds)] for models in starts
    ]
    shown = [rows[SHOWN_SEED] for rows in stairs]
    theory_time = np.stack([np.geomspace(1e-3, 1.5, 2 * MARKS) * s.times[-1] for s in shown])
    theory_loss = [s.at(t).loss for s, t in zip(shown, theory_time, strict=True)]
    return {
        "separate_time": (("separate_scale", "separate_mark"), np.concatenate(clocks), "t/τ"),
        "separate_loss": (("separate_scale", "separate_mark"), np.concatenate(curves), "loss"),
        "separate_drops": (
            ("separate_scale", "seed", "component"),
            np.concatenate(drops),
            "t/τ halfway between levels",
        ),
        "theory_time": (("theory_scale", "theory_mark"), theory_time, "t/τ"),
        "theory_loss": (("theory_scale", "theory_mark"), theory_loss, "staircase"),
        "theory_drops": (
            ("theory_scale", "seed", "component"),
            [[s.times for s in rows] for rows in stairs],
            "t/τ of the drops of the staircase",
        ),
        "levels": (("level",), levels, "L(M_m) (24)"),
    }
