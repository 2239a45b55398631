"""Quantities that know loss and model, along a run, after the fact from its saved weights."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr

from iclflow.diagnosis.runs import select_run
from iclflow.losses import AbstractPromptLoss
from iclflow.models import AbstractInitialiser, AbstractLinearModel
from iclflow.runs.record import (
    QUANTITIES,
    FixedPointDistance,
    PlateauDistance,
    attributes,
    measure_after,
    recorded_models,
)
from iclflow.runs.trajectory import Trajectory, as_dataset
from iclflow.study.origin import Origin, Source
from iclflow.study.study import Study
from iclflow.tasks.task import Task
from iclflow.theory import nearest_fixed_point
from iclflow.theory.drops.quadratic import not_quadratic

PRODUCTS = 40  # of the Hessian at each saved time, where a run itself spends fewer


def measure_along(
    runs: xr.Dataset | Trajectory,
    *,
    seed: int | None = None,
    source: Source | None = None,
    init: AbstractInitialiser | None = None,
) -> xr.Dataset:
    """What a run can record of itself, at every time it saved its weights.

    Over `time`: `conserved_drift` = max |C(t) - C(0)|, `gradient_norm`, `sharpness` and
    `top_eigenvalues` [time, eigenvalue] of the Hessian by Lanczos, `rate_times_sharpness`
    (descent), and, for one output and a task without w*, `fixed_point_distance`
    (E(ŷ - ŷ_S)²)^(1/2) and `fixed_point_modes`, how many modes the nearest fixed point has. Of a
    loss of prompts it is the distance to the nearest of their plateaus, which have no modes.

    - `runs`: a Dataset of `sweep` or of a file of runs, or the `Trajectory` of one `simulate`.
    - `seed`: which run, where there are several.
    - `source`, `init`: the loss or task that it was trained on, and what drew its first weights,
      where the runs cannot say it themselves (see `Origin`).

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> how = {"saveat": [0, 2000], "seeds": 1, "record": ["loss", "weights"]}
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), **how)
    >>> found = icl.measure_along(runs, source=task, init=init)
    >>> bool(found.gradient_norm[-1] < found.gradient_norm[0])
    True
    """
    whole = as_dataset(runs)
    run, origin = select_run(whole, seed), Origin.of(whole, source, init)
    settings = origin.settings
    if settings is not None and settings.vary != "weights":
        raise ValueError(f"the loss of each seed differs (vary is {settings.vary}); use weights")
    loss, dynamics = origin.loss(), origin.dynamics
    if settings is not None:
        study = Study.of(settings)
        loss, dynamics = (study.loss if source is None else loss), study.dynamics
    models = recorded_models(run, origin.init)
    rates = None if dynamics is None else dynamics.rate_at(run["step"].values)
    names = ("conserved_drift", "sharpness", "top_eigenvalues")
    names += () if rates is None else ("rate_times_sharpness",)
    distance = None
    task = origin.source if isinstance(origin.source, Task) else None
    if isinstance(models, AbstractLinearModel):
        if task is not None and not task.tasks.mixed() and task.outputs == 1:
            distance = FixedPointDistance.of(task)
        elif task is None and isinstance(loss, AbstractPromptLoss) and not not_quadratic(loss):
            distance = PlateauDistance.of(loss)

    @eqx.filter_jit
    def measure(models: Any, loss: Any, distance: Any) -> dict[str, Any]:
        found = measure_after(names, models, loss, rates, times=None, products=PRODUCTS)
        gradient = QUANTITIES["gradient_norm"].function
        assert gradient is not None
        found["gradient_norm"] = jax.lax.map(lambda model: gradient(model, loss), models)
        if distance is not None:
            found["fixed_point_distance"] = jax.lax.map(distance, models)
        return found

    measured = {k: np.asarray(v) for k, v in measure(models, loss, distance).items()}
    found: dict[str, Any] = {
        name: (("time", *QUANTITIES[name].dims), values, attributes(name))
        for name, values in measured.items()
    }
    if isinstance(distance, FixedPointDistance):
        assert isinstance(models, AbstractLinearModel)
        near = [
            nearest_fixed_point(_reduced(models, i), distance.modes)
            for i in range(run.sizes["time"])
        ]
        modes = np.array([len(n.point.index_set) for n in near])
        about = {"long_name": "modes of the nearest fixed point", "units": "1"}
        found["fixed_point_modes"] = ("time", modes, about)
    return xr.Dataset(found).assign_coords({n: run[n] for n in ("time", "step") if n in run.coords})


def _reduced(models: AbstractLinearModel, index: int) -> AbstractLinearModel:
    """One of stacked models, without its trained zero blocks."""
    return jax.tree.map(lambda a: a[index], models).reduce()
