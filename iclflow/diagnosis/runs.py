"""Our own runs: stages of the loss, the in-context algorithm of each, geometry of the weights."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from iclflow.diagnosis.identify import best_match, identify
from iclflow.losses import AbstractLoss, Moments, ReducedFeatures
from iclflow.measures import (
    Clock,
    Stages,
    assign_heads,
    effective_rank,
    find_stages,
    head_alignment,
    head_contributions,
    head_parallelism,
    singular_values,
    stages_dataset,
)
from iclflow.models import AbstractInitialiser, AbstractModel, Separate
from iclflow.runs.record import STEPS, TIME, in_order, is_timed, recorded_models
from iclflow.runs.trajectory import Trajectory, as_dataset
from iclflow.study.origin import Origin, Source
from iclflow.study.study import Settings
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.checks import require_kind
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.task import Task
from iclflow.theory import Modes
from iclflow.theory.fixed_points.modes import covered_levels, visited_levels
from iclflow.theory.predict import select

LEARNED = 0.1  # share of a mode that a head must make to be the head of that mode


def geometry(models: AbstractModel, task: Any) -> dict[str, Any]:
    """Variables over time: effective rank; alignment (separate) or parallelism (merged)."""
    part = jax.vmap(lambda m: m.as_attention())(models)
    if part is None:
        return {}
    label = {"long_name": "effective rank of the effective weights", "units": "1"}
    found: dict[str, Any] = {"effective_rank": ("time", np.asarray(_ranks(part)), label)}
    if isinstance(part, Separate) and isinstance(task, Task):
        found["alignment"] = (("time", "component"), _alignment(part, task))
    elif not isinstance(part, Separate):
        found["parallelism"] = ("time", np.asarray(_parallelism(part)))
    return found


def _alignment(models: Separate, task: Task) -> Float[np.ndarray, "T D"]:
    """Share of each eigenvector in the keys of the head that ends up with it; NaN if none does.

    The eigenvectors are in the order of their eigenvalues, largest first.
    """
    basis = task.largest_first().basis

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
    table = np.asarray(_head_alignments(models, basis))
    return np.where(heads[None] >= 0, table[:, heads, columns], np.nan)


@jax.jit
def _ranks(models: Any) -> Float[Array, " T"]:
    return jax.vmap(lambda m: effective_rank(singular_values(m.reduced_weights()[0, 0])))(models)


@jax.jit
def _parallelism(models: Any) -> Float[Array, " T"]:
    return jax.vmap(lambda m: head_parallelism(m.key_query()))(models)


@jax.jit
def _head_alignments(models: Separate, basis: Float[Array, "D D"]) -> Float[Array, "T H D"]:
    return jax.vmap(lambda m: head_alignment(m.keys, basis))(models)


def pad_seeds(singles: Sequence[xr.Dataset], seeds: Sequence[int]) -> xr.Dataset:
    """Datasets of single runs along a new dimension `seed`, each dimension as long as the longest.

    Numbers are padded with NaN, names with ""; counts [seed] say how many are real. A dimension
    with labels (time, candidate) keeps the longest list of them.
    """
    sizes = {
        str(dim): max(single.sizes.get(dim, 0) for single in singles)
        for dim in dict.fromkeys(d for single in singles for d in single.dims)
    }
    found: dict[str, Any] = {}
    for name in dict.fromkeys(str(n) for single in singles for n in single.data_vars):
        arrays = [single[name] for single in singles if name in single]
        dims = tuple(str(d) for d in arrays[0].dims)
        if name == "level_theory" or dims == ("candidate",):
            found[name] = arrays[0]
            continue
        words = arrays[0].dtype.kind in "UO"
        shape = (len(singles), *(sizes[d] for d in dims))
        whole = np.full(shape, "", object) if words else np.full(shape, np.nan)
        for i, single in enumerate(singles):
            if name in single:
                values = single[name].values
                whole[(i, *(slice(n) for n in values.shape))] = values
        counts = not dims and arrays[0].dtype.kind == "i"
        values = whole.astype(str if words else int) if words or counts else whole
        found[name] = (("seed", *dims), values, arrays[0].attrs)
    longest = max(singles, key=lambda single: single.sizes["time"])
    coords = {str(name): longest[name] for name in longest.coords if name in longest.dims}
    data = xr.Dataset(found, attrs=singles[0].attrs)
    return data.assign_coords(coords).assign_coords(seed=list(seeds))


RECORD = 'record them: record=["loss", "weights"], or iclflow simulate --record loss,weights'
TESTS = ("in_context_loss", "in_weight_loss")  # what a run with a fixed task records of itself


def run_settings(runs: xr.Dataset) -> Settings:
    """The settings that a file of runs carries.

    - `runs`: of `iclflow simulate --out`; other runs carry no such settings.

    >>> import iclflow as icl
    >>> from iclflow.study.study import Settings, Study
    >>> runs = Study.of(Settings(spectrum=(0.6, 0.3), heads=2, steps=9, save="linear:2")).run()
    >>> icl.diagnosis.run_settings(runs).heads
    2
    """
    return Settings.of_run(runs.attrs)


def select_run(runs: xr.Dataset, seed: int | None = None) -> xr.Dataset:
    """One run of a file, cut where it stopped.

    - `runs`: one run or several.
    - `seed`: which; it has to be said where there are several.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), until=9, seeds=3)
    >>> icl.diagnosis.select_run(runs, seed=1).loss.dims
    ('time',)
    """
    if "loss" not in runs:
        raise ValueError(f"this file has no loss; {RECORD}")
    others = [str(d) for d in runs["loss"].dims if d not in ("time", "seed")]
    if others:
        raise ValueError(
            f"these runs vary {', '.join(others)}; select one value, for example "
            f"runs.isel({others[0]}=0), and save that for the shell"
        )
    runs = in_order(runs)
    if "seed" in runs.dims:
        seeds = runs["seed"].values.tolist()
        if not seeds or len(set(seeds)) < len(seeds):
            raise ValueError(f"this file has {'a seed twice' if seeds else 'no runs'}")
        if seed is None and len(seeds) > 1:
            raise ValueError(
                f"this file has {len(seeds)} seeds, {seeds[0]} to {seeds[-1]}; "
                f"choose one with --seed (in Python, seed={seeds[0]})"
            )
        if seed is not None and seed not in seeds:
            raise ValueError(
                f"there is no seed {seed} in this file; it has {seeds[0]} to {seeds[-1]}"
            )
        runs = runs.sel(seed=seeds[0] if seed is None else seed)
    run = runs.isel(time=np.isfinite(runs["loss"].values))
    if is_timed(run):  # under a rate of 0 the clock stands still, and so do the weights
        run = run.isel(time=np.diff(run["time"].values, prepend=-np.inf) > 0)
    if run.sizes["time"] < 2:
        raise ValueError("this run has fewer than two recorded points")
    return run


def _require_fit(models: AbstractModel, task: Any, on: Any) -> None:
    """Refuse a task, and a shifted one, whose prompts these models cannot read."""
    for name, one in (("source", task), ("on", on)):
        if name == "on" and one is not None:
            require_kind("on", one, Task, "a task, such as task.replace(context=100)")
        dims = models.dims()
        if isinstance(one, Task) and dims is not None and dims != (one.size, one.outputs):
            raise ValueError(
                f"{name} has D = {one.size} inputs and O = {one.outputs} outputs, the run has "
                f"D = {dims[0]} and O = {dims[1]}; give the task that it was trained on"
            )


def diagnose_run(
    runs: xr.Dataset,
    *,
    seed: int | None = None,
    on: Task | None = None,
    clock: Clock = Clock.LOG,
    sequences: int = 2000,
    source: Source | None = None,
    init: AbstractInitialiser | None = None,
) -> xr.Dataset:
    """Stages, algorithms and geometry of one run that recorded its weights.

    Over `time`: `loss`, `distance` to each candidate, `algorithm`, `margin`, `effective_rank`, and
    `alignment` [time, component] of the head that learns each eigenvector (separate key and
    query) or `parallelism` of the heads (merged). Over `stage`: `start`, `end`, `level`,
    `confidence`, `stage_algorithm`, `stage_margin` (from the mean distances on the plateau), and
    the means `stage_in_context_loss` and `stage_in_weight_loss` of a run that recorded them. Over
    `drop_number`: `drop_time` and more (see `stages_dataset`). Runs of descent have these times in
    training steps too: `step`, `start_step`, `end_step`, `drop_step`. `on` is a shifted task to
    compare predictions on.

    - `source`, `init`: what the run was trained on and started from, where its attributes cannot
      say it (see `Origin`): a task or model of your own, a loss of sampled prompts. Where the
      source is not linear regression there are no candidates, and the stages stand alone.
    - `runs`: as `sweep` returns them, with recorded weights.
    - `seed`: which run, where there are several.
    - `clock`: the time in which a plateau is long.
    - `sequences`: prompts drawn for distances that have no closed form.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> how = {"until": 2000, "seeds": 1, "record": ["loss", "weights"]}
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), **how)
    >>> found = icl.diagnosis.diagnose_run(runs, source=task, init=init)
    >>> found.sizes["drop_number"]
    2
    """
    origin, run = Origin.of(runs, source, init), select_run(runs, seed)
    models, task = recorded_models(run, origin.init), origin.task_of(run)
    linear = isinstance(task, Task)
    _require_fit(models, task, on)
    found = identify(models, task, on=on, sequences=sequences) if linear else xr.Dataset()
    return _described(found, run, models, task, clock)


def diagnose(
    runs: xr.Dataset | Trajectory,
    *,
    seed: int | None = None,
    source: Source | None = None,
    init: AbstractInitialiser | None = None,
    on: Task | None = None,
    clock: Clock = Clock.LOG,
    sequences: int = 2000,
) -> xr.Dataset:
    """What a run learned, and when: its stages, the algorithm of each, and its geometry.

    - `runs`: a Dataset of `sweep`, of a file of runs, or the `Trajectory` of one `simulate`. It
      must have recorded its weights. Of several seeds all are diagnosed, along `seed`.
    - `seed`: only this one.
    - `source`: what it was trained on, a task or a loss. Runs of a `Task` say it themselves.
    - `init`: what drew the first weights. The initialisers of the library are known by the runs.
    - `on`: a shifted task to compare predictions on.
    - `clock`: in which clock plateaus are long.
    - `sequences`: prompts that are sampled for algorithms that moments do not determine.

    The variables are those of `diagnosis.diagnose_run`.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=15)
    >>> init = icl.Merged.initialiser(task, heads=2, scale=0.1)
    >>> how = {"until": 300, "record": ["loss", "weights"]}
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), **how)
    >>> str(icl.diagnose(runs).algorithm.values[0])
    'zero'
    """
    found = as_dataset(runs)
    options: dict[str, Any] = {"source": source, "init": init, "on": on, "clock": clock}
    options["sequences"] = sequences
    if seed is None and found.sizes.get("seed", 1) > 1:
        return diagnose_runs(found, **options)
    return diagnose_run(found, seed=seed, **options)


def diagnose_runs(
    runs: xr.Dataset,
    *,
    on: Task | None = None,
    clock: Clock = Clock.LOG,
    sequences: int = 2000,
    source: Source | None = None,
    init: AbstractInitialiser | None = None,
) -> xr.Dataset:
    """See `diagnose_run`: the same of every seed, padded with NaN (and "") to (seed, stage)."""
    origin = Origin.of(runs, source, init)
    options: dict[str, Any] = {"on": on, "clock": clock, "sequences": sequences}
    options |= {"source": source, "init": init}
    if "seed" not in runs.dims:
        return pad_seeds([diagnose_run(runs, **options)], [0])
    seeds = runs["seed"].values.tolist()
    task = origin.source
    own = origin.settings is not None and origin.settings.vary == "all"
    if own or not isinstance(task, Task):  # every seed has its own candidates, or none
        return pad_seeds([diagnose_run(runs, seed=s, **options) for s in seeds], seeds)
    cut = [select_run(runs, seed) for seed in seeds]
    models = [recorded_models(run, origin.init) for run in cut]
    _require_fit(models[0], task, on)
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


def clock_of(run: xr.Dataset) -> tuple[str, np.ndarray, dict[str, str]]:
    """The coordinate `time`: t/τ, or steps where the optimiser keeps no time."""
    timed = is_timed(run)
    named = {"long_name": TIME if timed else STEPS}
    return "time", run["time" if timed else "step"].values.astype(float), named


def _described(
    found: xr.Dataset, run: xr.Dataset, models: AbstractModel, task: Any, clock: Clock
) -> xr.Dataset:
    """Distances to the candidates with the stages of the loss and the geometry added."""
    found = found.assign(loss=("time", run["loss"].values), **geometry(models, task))
    found = found.assign_coords(time=clock_of(run))
    times = found["time"].values
    tests = {name: run[name].values for name in TESTS if name in run}
    stages = find_stages(times, run["loss"].values, clock=clock)
    found = found.assign(_stage_variables(found, stages, times, tests))
    found = found.assign(_in_steps(run, found))
    found["level_theory"] = ("plateau", levels_of(task, models))
    found.attrs["model"] = type(models).__name__
    return found


def _in_steps(run: xr.Dataset, found: xr.Dataset) -> dict[str, Any]:
    """The times of stages and drops as training steps; nothing where a run has one clock only."""
    times, steps = run["time"].values.astype(float), run["step"].values.astype(float)
    if not is_timed(run) or np.array_equal(times, steps):
        return {}
    names = {"start": "start_step", "end": "end_step", "drop_time": "drop_step"}
    marks = {
        step: (found[name].dims, np.round(np.interp(found[name].values, times, steps)))
        for name, step in names.items()
    }
    return marks | {"step": ("time", steps, {"long_name": STEPS, "units": "1"})}


def stage_rows(found: xr.Dataset) -> list[dict[str, Any]]:
    """One row for each stage of one run: start, end, level, algorithm, margin, confidence.

    A run of descent also has the `start_step` and `end_step` of each stage. A run with a fixed task
    has the mean `in_context_loss` and `in_weight_loss`.

    - `found`: what `diagnose_run` returns.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> how = {"until": 2000, "seeds": 1, "record": ["loss", "weights"]}
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), **how)
    >>> found = icl.diagnosis.diagnose_run(runs, source=task, init=init)
    >>> [row["algorithm"] for row in icl.diagnosis.stage_rows(found)]
    ['zero', 'PCR-1', 'least squares (= PCR-D)']
    """
    names = {"algorithm": "stage_algorithm", "margin": "stage_margin"}
    names |= {name: f"stage_{name}" for name in TESTS}
    fields = ["start", "end", "start_step", "end_step", "level", "algorithm", "margin"]
    fields += ["confidence", *TESTS]
    fields = [field for field in fields if names.get(field, field) in found]
    return [
        {field: found[names.get(field, field)].values[i].item() for field in fields}
        for i in range(int(found["stage_count"]))
    ]


def spells(found: xr.Dataset) -> list[dict[str, Any]]:
    """Stretches of time with one best match, also those too brief to be a plateau.

    - `found`: what `diagnose_run` returns.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> how = {"until": 2000, "seeds": 1, "record": ["loss", "weights"]}
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), **how)
    >>> found = icl.diagnosis.diagnose_run(runs, source=task, init=init)
    >>> icl.diagnosis.spells(found)[0]["algorithm"]
    'zero'
    """
    found = found.isel(time=np.isfinite(found["loss"].values))
    algorithms, times = found["algorithm"].values, found["time"].values
    change = np.flatnonzero(algorithms[1:] != algorithms[:-1]) + 1
    starts, ends = [0, *change.tolist()], [*change.tolist(), len(times)]
    clocks = {"start": times, "end": times}
    if "step" in found:
        clocks |= {"start_step": found["step"].values, "end_step": found["step"].values}
    return [
        {
            "algorithm": str(algorithms[a]),
            **{
                name: float(clock[a if name.startswith("start") else min(b, len(times) - 1)])
                for name, clock in clocks.items()
            },
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


def levels_of(source: Any, models: AbstractModel) -> Float[np.ndarray, " n"]:
    """The losses of the plateaus that models (stacked along time) visit, where theory has them.

    - `source`: a task, a loss or prompts; None if it is not known.
    """
    model = jax.tree.map(lambda a: a[0], models)
    if isinstance(source, AbstractTask):
        return covered_levels(source, model)
    if isinstance(source, Prompts):
        source = Moments.of(source, features=ReducedFeatures())
    known = isinstance(source, AbstractLoss) and select(source, model) is not None
    return visited_levels(source, model) if known else np.zeros(0)
