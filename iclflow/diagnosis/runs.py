"""Our own runs: stages of the loss, the in-context algorithm of each, geometry of the weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float

from iclflow.diagnosis.geometry import geometry
from iclflow.diagnosis.identify import best_match, identify
from iclflow.diagnosis.padding import pad_seeds
from iclflow.measures import Clock, Stages, find_stages, stages_dataset
from iclflow.models import AbstractInitialiser, AbstractModel
from iclflow.runs.labels import STEPS, TIME, in_order, is_timed
from iclflow.runs.record import recorded_models
from iclflow.study.settings import Settings
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.task import Task
from iclflow.theory.predict import covered_levels

RECORD = "record them, for example iclflow simulate --record loss,weights --out run.nc"
TESTS = ("in_context_loss", "in_weight_loss")  # what a run with a fixed task records of itself


def run_settings(runs: xr.Dataset) -> Settings:
    """The settings that a file of runs carries."""
    return Settings.of_run(runs.attrs)


def select_run(runs: xr.Dataset, seed: int | None = None) -> xr.Dataset:
    """One run of a file, cut where it stopped."""
    if "loss" not in runs:
        raise ValueError(f"this file has no loss; {RECORD}")
    others = [str(d) for d in runs["loss"].dims if d not in ("time", "seed")]
    if others:
        raise ValueError(
            f"this file varies {', '.join(others)}; select one value and save it first"
        )
    runs = in_order(runs)
    if "seed" in runs.dims:
        seeds = runs["seed"].values.tolist()
        if seed is None and len(seeds) > 1:
            raise ValueError(
                f"this file has {len(seeds)} seeds, {seeds[0]} to {seeds[-1]}; "
                "choose one with --seed"
            )
        if seed is not None and seed not in seeds:
            raise ValueError(
                f"there is no seed {seed} in this file; it has {seeds[0]} to {seeds[-1]}"
            )
        runs = runs.sel(seed=seeds[0] if seed is None else seed)
    run = runs.isel(time=np.isfinite(runs["loss"].values))
    if run.sizes["time"] < 2:
        raise ValueError("this run has fewer than two recorded points")
    return run


def diagnose_run(
    runs: xr.Dataset,
    *,
    seed: int | None = None,
    on: Task | None = None,
    clock: Clock = Clock.LOG,
    sequences: int = 2000,
    task: AbstractTask | None = None,
    init: AbstractInitialiser | None = None,
) -> xr.Dataset:
    """Stages, algorithms and geometry of one run that recorded its weights.

    Over `time`: `loss`, `distance` to each candidate, `algorithm`, `margin`, `effective_rank`, and
    `alignment` [time, component] of the head that learns each eigenvector (separate key and
    query) or `parallelism` of the heads (merged). Over `stage`: `start`, `end`, `level`,
    `confidence`, `stage_algorithm`, `stage_margin` (from the mean distances on the plateau), and
    the means `stage_in_context_loss` and `stage_in_weight_loss` of a run that recorded them. Over
    `drop_number`: `drop_time` and more (see `stages_dataset`). `on` is a shifted task to compare
    predictions on.

    - `task`, `init`: what the run was trained on and started from, for runs of `sweep` (a file of
      the command line says it itself). On a task that is not linear regression there are no
      candidates, and the stages stand alone.
    """
    run = select_run(runs, seed)
    if task is None or init is None:
        settings = run_settings(runs)
        task = task_of(run, settings)
        init = settings.initialiser(task)
    models = recorded_models(run, init)
    linear = isinstance(task, Task)
    found = identify(models, task, on=on, sequences=sequences) if linear else xr.Dataset()
    return _described(found, run, models, task, clock)


def diagnose_runs(
    runs: xr.Dataset,
    *,
    on: Task | None = None,
    clock: Clock = Clock.LOG,
    sequences: int = 2000,
) -> xr.Dataset:
    """`diagnose_run` of every seed of a file, padded with NaN (and "") to (seed, stage)."""
    settings = run_settings(runs)
    if "seed" not in runs.dims:
        return pad_seeds([diagnose_run(runs, on=on, clock=clock, sequences=sequences)], [0])
    seeds = runs["seed"].values.tolist()
    if settings.vary == "all":  # every seed has a task of its own, and so its own candidates
        singles = [
            diagnose_run(runs, seed=s, on=on, clock=clock, sequences=sequences) for s in seeds
        ]
        return pad_seeds(singles, seeds)
    cut = [select_run(runs, seed) for seed in seeds]
    task = settings.task()
    models = [recorded_models(run, settings.initialiser(task)) for run in cut]
    together = jax.tree.map(lambda *a: jnp.concatenate(a), *models)
    found = identify(together, task, on=on, sequences=sequences)
    ends = np.cumsum([run.sizes["time"] for run in cut])
    parts = [
        found.isel(time=slice(int(end) - run.sizes["time"], int(end)))
        for run, end in zip(cut, ends, strict=True)
    ]
    singles = [
        _described(part, run, model, task, clock)
        for part, run, model in zip(parts, cut, models, strict=True)
    ]
    return pad_seeds(singles, seeds)


def task_of(run: xr.Dataset, settings: Settings) -> Task:
    """The task of one run; where all varies with the seed, so does the task."""
    offset = int(run["seed"]) - settings.seed if "seed" in run.coords else 0
    return settings.task(offset if settings.vary == "all" else 0)


def clock_of(run: xr.Dataset) -> tuple[str, np.ndarray, dict[str, str]]:
    """The coordinate `time`: t/τ, or steps where the optimiser keeps no time."""
    timed = is_timed(run)
    named = {"long_name": TIME if timed else STEPS}
    return "time", run["time" if timed else "step"].values.astype(float), named


def _described(
    found: xr.Dataset, run: xr.Dataset, models: AbstractModel, task: AbstractTask, clock: Clock
) -> xr.Dataset:
    """Distances to the candidates with the stages of the loss and the geometry added."""
    found = found.assign(loss=("time", run["loss"].values), **geometry(models, task))
    found = found.assign_coords(time=clock_of(run))
    times = found["time"].values
    tests = {name: run[name].values for name in TESTS if name in run}
    stages = find_stages(times, run["loss"].values, clock=clock)
    found = found.assign(_stage_variables(found, stages, times, tests))
    found["level_theory"] = ("plateau", levels_of(task, models))
    found.attrs["model"] = type(models).__name__
    return found


def stage_rows(found: xr.Dataset) -> list[dict[str, Any]]:
    """One row for each stage of one run: start, end, level, algorithm, margin, confidence.

    A run with a fixed task also has its mean `in_context_loss` and `in_weight_loss`.
    """
    names = {"algorithm": "stage_algorithm", "margin": "stage_margin"}
    names |= {name: f"stage_{name}" for name in TESTS}
    fields = ["start", "end", "level", "algorithm", "margin", "confidence", *TESTS]
    fields = [field for field in fields if names.get(field, field) in found]
    return [
        {field: found[names.get(field, field)].values[i].item() for field in fields}
        for i in range(int(found["stage_count"]))
    ]


def spells(found: xr.Dataset) -> list[dict[str, Any]]:
    """Stretches of time with one best match, also those too brief to be a plateau."""
    found = found.isel(time=np.isfinite(found["loss"].values))
    algorithms, times = found["algorithm"].values, found["time"].values
    change = np.flatnonzero(algorithms[1:] != algorithms[:-1]) + 1
    starts, ends = [0, *change.tolist()], [*change.tolist(), len(times)]
    return [
        {
            "algorithm": str(algorithms[a]),
            "start": float(times[a]),
            "end": float(times[min(b, len(times) - 1)]),
            "best_margin": float(found["margin"].values[a:b].max()),
        }
        for a, b in zip(starts, ends, strict=True)
    ]


def _stage_variables(
    found: xr.Dataset, stages: Stages, times: np.ndarray, tests: dict[str, np.ndarray]
) -> dict[str, Any]:
    names = found["candidate"].values if "candidate" in found else np.array([])
    matches: list[str] = []
    margins: list[float] = []
    means: dict[str, list[float]] = {f"stage_{name}": [] for name in tests}
    for plateau in stages.plateaus:
        inside = (times >= plateau.start) & (times <= plateau.end)
        if not inside.any():
            inside[np.argmin(np.abs(times - (plateau.start + plateau.end) / 2))] = True
        if names.size:
            mean = found["distance"].transpose("time", "candidate").values[inside].mean(axis=0)
            best, margin = best_match(mean[None], names.tolist())
            matches.append(str(names[best[0]]))
            margins.append(float(margin[0]))
        for name, values in tests.items():
            means[f"stage_{name}"].append(float(values[inside].mean()))
    table = stages_dataset([stages]).isel(seed=0).drop_vars("seed")
    return {
        **{str(name): variable for name, variable in table.items()},
        **{name: ("stage", np.array(values, float)) for name, values in means.items()},
        **({"stage_algorithm": ("stage", np.array(matches, str))} if names.size else {}),
        **({"stage_margin": ("stage", np.array(margins, float))} if names.size else {}),
    }


def levels_of(task: AbstractTask, models: AbstractModel) -> Float[np.ndarray, " n"]:
    """L(M_m) of the plateaus that models (stacked along time) visit, where theory covers them."""
    return covered_levels(task, jax.tree.map(lambda a: a[0], models))
