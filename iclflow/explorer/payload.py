"""Recorded runs as bytes inside the page: what it shows of them, in the eigenvectors of Λ."""

import base64
import dataclasses
import json
import zlib
from pathlib import Path

import jax
import numpy as np
import xarray as xr

from iclflow.explorer.address import require_page
from iclflow.models import AbstractModel, Blocks, Merged, Separate, empty_model
from iclflow.runs.labels import in_order, is_timed
from iclflow.runs.record import recorded_models
from iclflow.study.settings import Settings, load_runs
from iclflow.tasks.task import Task

MARKS = 240  # saves evenly in log time; more where the loss moves
MOVED = 1 / 250  # of the largest loss
MOST = 4000  # saves that the page takes
RUNS = 100


def packed(runs: xr.Dataset | Path | str) -> str:
    """Recorded runs as the text of an element of the page."""
    title = "a run" if isinstance(runs, xr.Dataset) else Path(runs).name
    found = runs if isinstance(runs, xr.Dataset) else load_runs(runs)
    return base64.b64encode(zlib.compress(payload(found, title), 9)).decode()


def payload(runs: xr.Dataset, title: str) -> bytes:
    """One line about the runs, then times and losses as doubles, weights as floats."""
    settings = require_recorded(runs)
    task = settings.task().largest_first()  # as the page shows it
    init = settings.initialiser(task)
    runs = in_order(runs).isel(seed=slice(RUNS))
    runs = runs.isel(time=shown(runs["time"].values, runs["loss"].values))
    each = [runs.isel(seed=i) for i in range(runs.sizes["seed"])]
    mixed = settings.fixed_fraction > 0
    weights = np.stack([_weights(recorded_models(run, init), task, mixed) for run in each])
    layer = empty_model(init).as_attention()
    drawn = task.in_context().second_moment()[0, :, 0]
    variances = np.diagonal(task.basis.T @ drawn @ task.basis)
    about = {
        "title": title,
        "settings": {
            **{name: getattr(settings, name) for name in _PLAIN},
            "spectrum": task.spectrum.tolist(),
            "task_covariance": [1.0] * task.size if task.outputs > 1 else variances.tolist(),
            "sequences": settings.sequences or 0,
            "seeds": runs.sizes["seed"],
            "seed": int(runs["seed"].values[0]),
        },
        "rate": float(runs["time"].values[-1] / (2 * runs["step"].values[-1])),
        "steps": int(runs["step"].values[-1]),
        "saves": runs.sizes["time"],
        "partial": layer is not None and layer.blocks is Blocks.FULL and not mixed,
    }
    head = json.dumps(about).encode()
    head += b" " * (-(len(head) + 4) % 8)  # the doubles start at a multiple of eight
    doubles = np.concatenate([runs["time"].values, runs["loss"].values.ravel()]).astype("<f8")
    numbers = doubles.tobytes() + weights.astype("<f4").tobytes()
    return len(head).to_bytes(4, "little") + head + numbers


_PLAIN = (
    "model", "context", "noise", "fixed_fraction", "heads", "rank", "scale", "rotate", "eigen_seed",
    "data_seed",
)  # fmt: skip


def require_recorded(runs: xr.Dataset) -> Settings:
    """The settings of runs that the page can show, or `ValueError`."""
    settings = Settings.of_run(runs.attrs)
    if "step" not in runs.coords or "time" not in runs.coords:
        raise ValueError("the page shows gradient descent, with steps and t/τ; record such a run")
    if not is_timed(runs):
        raise ValueError("the page shows gradient descent; Adam and momentum keep no t/τ")
    if not np.isfinite(runs["loss"].values).all():
        raise ValueError("some of these runs stopped early; the page shows whole runs")
    # What only training depends on is free.
    free = {"rate": None, "steps": None, "seeds": 1, "sequences": None}
    free |= {"match": False, "average": False}
    more = {"loss": "auto", "blocks": "auto", "data_seed": 1, "batch": None, "fresh": False}
    if settings.fixed_fraction > 0:
        more["blocks"] = settings.blocks  # its page has every block
    # The weights are recorded, so the axes of the task may be shown in another order.
    ordered = tuple(settings.task().largest_first().spectrum.tolist())
    size = {"spectrum": ordered, "dim": None, "trace": None}
    require_page(dataclasses.replace(settings, **free, **more, **size))
    return settings


def _weights(models: AbstractModel, task: Task, full: bool) -> np.ndarray:
    """The weights of one run at its saves, [saves, weights], laid out as the page has them.

    With `full` the blocks that are zero at first lie behind the others.
    """
    layer = models.as_attention()
    size, wide = task.size, 4 * -(-task.size // 4)  # the page pads D to a multiple of four
    basis = np.zeros((size, wide))
    basis[:, :size] = np.asarray(task.basis)
    if isinstance(layer, Merged):
        turned = np.einsum("ia,thij,jb->thab", basis, np.asarray(layer.merged), basis)
        if task.outputs > 1:
            values = np.einsum("ia,thij,jb->thab", basis, np.asarray(layer.values), basis)
            parts = [np.diagonal(a[:, 0], axis1=1, axis2=2) for a in (values, turned)]
            return np.concatenate(parts, axis=1)
        parts = [layer.values, turned]
    elif isinstance(layer, Separate):
        parts = [layer.values, *(np.asarray(a) @ basis for a in (layer.keys, layer.queries))]
    else:
        raise ValueError(f"the page shows attention, got {type(models).__name__}")
    if full:
        labels = np.asarray(layer.key_labels)
        inputs = np.asarray(layer.value_inputs) @ basis
        parts += [inputs, labels @ basis if isinstance(layer, Merged) else labels]
    saves = jax.tree.leaves(layer)[0].shape[0]
    return np.concatenate([np.asarray(part).reshape(saves, -1) for part in parts], axis=1)


def shown(times: np.ndarray, losses: np.ndarray) -> list[int]:
    """The saves that a page needs: evenly in the logarithm of time, and wherever a loss moves."""
    first = times[times > 0][0]
    wanted = set(np.searchsorted(times, np.geomspace(first, times[-1], MARKS)).tolist())
    kept, tolerance = [0], np.max(np.abs(losses)) * MOVED
    for i in range(1, len(times)):
        if i in wanted or np.max(np.abs(losses[:, i] - losses[:, kept[-1]])) > tolerance:
            kept.append(i)
    if len(kept) <= MOST:
        return kept
    return [kept[i] for i in np.linspace(0, len(kept) - 1, MOST).astype(int)]
