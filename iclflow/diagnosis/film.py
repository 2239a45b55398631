"""One recorded run, ready to be filmed: its weights in the eigenbasis, loss and levels."""

from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Float

from iclflow.diagnosis.runs import clock_of, levels_of, run_settings, select_run, task_of
from iclflow.models import AbstractAttention, Separate
from iclflow.runs.record import recorded_models


def film_scene(runs: xr.Dataset, seed: int | None = None) -> xr.Dataset:
    """What `plots.weights.weights_film` draws, of one run that recorded its weights.

    A network is shown as the attention that it is. The eigenvectors are those of the settings the
    run carries; a run without them is shown in the eigenvectors of its final effective weights.
    Attribute `basis` says which.
    """
    run = select_run(runs, seed)
    try:
        settings = run_settings(runs)
        task = task_of(run, settings)
    except ValueError:
        settings = task = None
    init = None if settings is None or task is None else settings.initialiser(task)
    models = recorded_models(run, init)
    layer = jax.vmap(lambda m: m.as_attention())(models)
    if layer is None or layer.values.shape[2] > 1:
        raise ValueError("only the weights of attention with one output can be animated")
    effective = np.asarray(jax.vmap(lambda m: m.reduced_weights()[0, 0])(layer))
    final = task is None
    basis = _final_basis(effective[-1]) if final else np.asarray(task.largest_first().basis)
    found: dict[str, Any] = {
        "loss": ("time", run["loss"].values),
        "values": (("time", "head"), np.asarray(layer.values)[..., 0, 0]),
        "effective": (("time", "row", "column"), basis.T @ effective @ basis),
    }
    if settings is not None and task is not None:
        found["levels"] = ("level", levels_of(task, models))
    shown = "final weights" if task is None else "inputs"
    return xr.Dataset(
        found | _parts(layer, basis),
        coords={"time": clock_of(run)},
        attrs={"basis": f"eigenvectors of the {shown}"},
    )


def _parts(layer: AbstractAttention, basis: np.ndarray) -> dict[str, Any]:
    """Keys and queries of every head and pair, or the merged matrices of every head."""
    if isinstance(layer, Separate):
        count, heads, rank, size = layer.keys.shape
        pairs = [(h + 1, r + 1) for h in range(heads) for r in range(rank)]
        rows = {
            name: np.asarray(weights).reshape(count, heads * rank, size) @ basis
            for name, weights in (("keys", layer.keys), ("queries", layer.queries))
        }
        found = {name: (("time", "part", "component"), values) for name, values in rows.items()}
        return found | {"part": [str(h) if rank == 1 else f"{h}.{r}" for h, r in pairs]}
    matrices = np.asarray(jax.vmap(lambda m: m.key_query())(layer))[:, :, : basis.shape[0]]
    rotated = basis.T @ matrices @ basis
    labels = [str(h + 1) for h in range(rotated.shape[1])]
    return {"merged": (("time", "part", "row", "column"), rotated), "part": labels}


def _final_basis(effective: Float[np.ndarray, "D D"]) -> Float[np.ndarray, "D D"]:
    """Eigenvectors of the final effective weights, largest first."""
    eigenvalues, vectors = np.linalg.eigh((effective + effective.T) / 2)
    return vectors[:, np.argsort(-np.abs(eigenvalues))]
