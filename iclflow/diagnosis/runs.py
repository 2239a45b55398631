"""Our own runs: stages of the loss, the in-context algorithm of each, geometry of the weights."""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from iclflow.diagnostics import (
    Clock,
    Stages,
    assign_heads,
    effective_rank,
    find_stages,
    head_alignment,
    head_contributions,
    head_parallelism,
    singular_values,
)
from iclflow.identify import best_match, identify
from iclflow.models import MLP, AbstractLinearModel, AbstractModel, ConvNet, Separate, Softmax
from iclflow.record import recorded_models
from iclflow.settings import Settings
from iclflow.task import Task
from iclflow.theory import Modes, plateau_losses

RECORD = "record them, for example iclflow simulate --record loss,weights --out run.nc"
LEARNED = 0.1  # share of a mode that a head must make to be the head of that mode


def run_settings(runs: xr.Dataset) -> Settings:
    """The settings that a file of runs carries."""
    try:
        found = json.loads(runs.attrs["settings"])
        kind = found.pop("kind")
    except (KeyError, TypeError, ValueError, AttributeError):
        kind, found = None, {}
    if kind != "Settings":
        raise ValueError(
            "this file does not say which task it was trained on; only runs written by "
            "iclflow simulate --out do"
        )
    known = {field.name for field in dataclasses.fields(Settings)}
    given: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in found.items() if k in known
    }
    return Settings(**given)


def select_run(runs: xr.Dataset, seed: int | None = None) -> xr.Dataset:
    """One run of a file, cut where it stopped."""
    if "loss" not in runs:
        raise ValueError(f"this file has no loss; {RECORD}")
    others = [str(d) for d in runs["loss"].dims if d not in ("time", "seed")]
    if others:
        raise ValueError(
            f"this file varies {', '.join(others)}; select one value and save it first"
        )
    if "seed" in runs.dims:
        seeds = runs["seed"].values.tolist()
        if seed is None and len(seeds) > 1:
            raise ValueError(
                f"this file has {len(seeds)} seeds, {seeds[0]} to {seeds[-1]}; "
                "choose one with --seed"
            )
        if seed is not None and seed not in seeds:
            raise ValueError(f"there is no seed {seed} in this file; it has {seeds}")
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
) -> xr.Dataset:
    """Stages, algorithms and geometry of one run that recorded its weights.

    Over `time`: `loss`, `distance` to each candidate, `algorithm`, `margin`, `effective_rank`, and
    `alignment` [time, component] of the head that learns each eigenvector (separate key and
    query) or `parallelism` of the heads (merged). Over `stage`: `start`, `end`, `level`,
    `confidence`, `stage_algorithm`, `stage_margin` (from the mean distances on the plateau). Over
    `drop`: `drop_time`. `on` is a shifted task to compare predictions on.
    """
    run = select_run(runs, seed)
    settings = run_settings(runs)
    offset = int(run["seed"]) - settings.seed if "seed" in run.coords else 0
    task = settings.task(offset if settings.vary == "all" else 0)
    models = recorded_models(run, settings.model)
    timed = "time" in run.coords and bool(np.all(np.isfinite(run["time"].values)))
    times = run["time" if timed else "step"].values.astype(float)
    stages = find_stages(times, run["loss"].values, clock=clock)
    found = identify(models, task, on=on, sequences=sequences)
    found = found.assign(loss=("time", run["loss"].values), **_geometry(models, task))
    named = {"long_name": r"training time $t/\tau$" if timed else "training steps"}
    found = found.assign_coords(time=("time", times, named))
    found = found.assign(_stage_variables(found, stages, times))
    found["level_theory"] = ("plateau", _levels(task, settings))
    found.attrs["model"] = settings.model
    return found


def stage_rows(found: xr.Dataset) -> list[dict[str, Any]]:
    """One row for each stage: start, end, level, algorithm, margin, confidence."""
    names = {"algorithm": "stage_algorithm", "margin": "stage_margin"}
    fields = ("start", "end", "level", "algorithm", "margin", "confidence")
    return [
        {field: found[names.get(field, field)].values[i].item() for field in fields}
        for i in range(found.sizes.get("stage", 0))
    ]


def spells(found: xr.Dataset) -> list[dict[str, Any]]:
    """Stretches of time with one best match, also those too brief to be a plateau."""
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


def _stage_variables(found: xr.Dataset, stages: Stages, times: np.ndarray) -> dict[str, Any]:
    names, matches, margins = found["candidate"].values, [], []
    for plateau in stages.plateaus:
        inside = (times >= plateau.start) & (times <= plateau.end)
        if not inside.any():
            inside[np.argmin(np.abs(times - (plateau.start + plateau.end) / 2))] = True
        mean = found["distance"].values[inside].mean(axis=0)
        best, margin = best_match(mean[None])
        matches.append(str(names[best[0]]))
        margins.append(float(margin[0]))
    rows = {
        field: [getattr(p, field) for p in stages.plateaus]
        for field in ("start", "end", "level", "confidence")
    }
    return {
        **{name: ("stage", np.array(values, float)) for name, values in rows.items()},
        "stage_algorithm": ("stage", np.array(matches, str)),
        "stage_margin": ("stage", np.array(margins, float)),
        "drop_time": ("drop", np.array([drop.time for drop in stages.drops], float)),
    }


def _geometry(models: AbstractModel, task: Task) -> dict[str, Any]:
    part = models.attention if isinstance(models, Softmax) else models
    if isinstance(part, MLP | ConvNet):
        part = jax.vmap(lambda m: m.as_attention())(part)
    assert isinstance(part, AbstractLinearModel)
    ranks = jax.jit(jax.vmap(lambda m: effective_rank(singular_values(m.reduced_weights()[0, 0]))))
    label = {"long_name": "effective rank of the effective weights", "units": "1"}
    found: dict[str, Any] = {"effective_rank": ("time", np.asarray(ranks(part)), label)}
    if isinstance(part, Separate):
        found["alignment"] = (("time", "component"), _alignment(part, task))
    else:
        merged = jax.vmap(lambda m: m.key_query())(part)  # pyright: ignore
        found["parallelism"] = ("time", np.asarray(jax.vmap(head_parallelism)(merged)))
    return found


def _alignment(models: Separate, task: Task) -> Float[np.ndarray, "T D"]:
    """Share of each eigenvector in the keys of the head that ends up with it; NaN if none does."""
    basis = task.basis

    def contributions(model: Separate) -> Float[Array, "H D"]:
        return head_contributions(model.values[:, 0, 0], model.keys, model.queries, basis)

    last = np.abs(np.asarray(contributions(jax.tree.map(lambda a: a[-1], models))))
    if models.keys.shape[2] > 1:  # a head of rank R may learn several: the strongest for each
        heads = np.argmax(last, axis=0)
        heads[last.max(axis=0) <= 0] = -1
    else:
        heads = assign_heads(last)
    weights = Modes.of(task.in_context()).weight(range(Modes.of(task.in_context()).rank))
    needed = LEARNED * np.abs(np.asarray(jnp.diagonal(basis.T @ weights @ basis)))
    columns = np.arange(task.size)
    heads = np.where(last[heads, columns] > needed, heads, -1)
    table = np.asarray(jax.jit(jax.vmap(lambda m: head_alignment(m.keys, basis)))(models))
    return np.where(heads[None] >= 0, table[:, heads, columns], np.nan)


def _levels(task: Task, settings: Settings) -> Float[np.ndarray, " n"]:
    """L(M_m), where the theory covers the run."""
    if settings.fixed_fraction > 0 or settings.model.startswith("softmax"):
        return np.zeros(0)
    levels = np.asarray(plateau_losses(task))
    return levels[[0, -1]] if settings.model in ("merged", "mlp") else levels
