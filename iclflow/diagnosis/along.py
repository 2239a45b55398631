"""Quantities that know loss and model, along a run, after the fact from its saved weights."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from iclflow.diagnosis.runs import run_settings, select_run
from iclflow.dynamics import Descent
from iclflow.models import AbstractLinearModel
from iclflow.record import QUANTITIES, recorded_models
from iclflow.study import Study
from iclflow.theory import conservation_drift, nearest_fixed_point

SHARPNESS = "rate times the largest Hessian eigenvalue (stable below 2)"


def measure_along(runs: xr.Dataset, *, seed: int | None = None) -> xr.Dataset:
    """Conserved drift, gradient norm, curvature and the nearest fixed point over a run.

    Over `time`: `conserved_drift` = max |C(t) - C(0)|, `gradient_norm`, `top_eigenvalues`
    [time, eigenvalue] of the Hessian by Lanczos, `rate_times_sharpness` (descent), and, for one
    output and a task without w*, `fixed_point_distance` (E(ŷ - ŷ_S)²)^(1/2) and
    `fixed_point_modes`, how many modes the nearest fixed point has.
    """
    run, settings = select_run(runs, seed), run_settings(runs)
    if settings.vary != "weights":
        raise ValueError(f"the loss of each seed differs (vary is {settings.vary}); use weights")
    study = Study.of(settings)
    models = recorded_models(run, settings.model)
    found: dict[str, tuple] = {}
    for name in ("gradient_norm", "top_eigenvalues", "conserved"):
        quantity = QUANTITIES[name]

        @eqx.filter_jit
        def measure(models, loss, function=quantity.function):
            return jax.lax.map(lambda model: function(model, loss), models)

        values = np.asarray(measure(models, study.loss))
        found[name] = (("time", *quantity.dims), values, {"long_name": quantity.long_name})
    drift = conservation_drift({"all": jnp.asarray(found.pop("conserved")[1])})["all"]
    found["conserved_drift"] = ("time", np.asarray(drift), {"long_name": "drift of conserved"})
    if isinstance(study.dynamics, Descent):
        top = found["top_eigenvalues"][1][:, 0] * float(study.dynamics.rate)
        found["rate_times_sharpness"] = ("time", top, {"long_name": SHARPNESS})
    if settings.fixed_fraction == 0 and isinstance(models, AbstractLinearModel):
        count = run.sizes["time"]
        near = [
            nearest_fixed_point(jax.tree.map(lambda a, i=i: a[i], models), study.task)
            for i in range(count)
        ]
        distances = np.array([float(n.distance) for n in near])
        modes = np.array([len(n.point.index_set) for n in near])
        found["fixed_point_distance"] = ("time", distances, {"long_name": "to the nearest"})
        found["fixed_point_modes"] = ("time", modes, {"long_name": "modes of the nearest"})
    return xr.Dataset(found).assign_coords({n: run[n] for n in ("time", "step") if n in run.coords})
