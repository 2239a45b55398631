"""Recorded runs as bytes inside the page: what it shows of them, in the eigenvectors of Λ."""

import base64
import dataclasses
import json
import zlib
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from iclflow.explorer.address import COMPONENTS, INSTEAD, require_page
from iclflow.explorer.curves import shown
from iclflow.models import AbstractModel, Blocks, Merged, Separate, empty_model
from iclflow.runs.record import in_order, is_timed, recorded_models
from iclflow.study.settings import Settings, load_runs
from iclflow.study.study import Study
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.task import Task
from iclflow.theory.drops.quadratic import Quadratic, not_quadratic

RUNS = 100
TINY = 1e-12  # of the sum of the eigenvalues: a direction in which the inputs do not vary


def packed(runs: xr.Dataset | Path | str) -> str:
    """Recorded runs as the text of an element of the page."""
    title = _name(runs) if isinstance(runs, xr.Dataset) else Path(runs).name
    found = runs if isinstance(runs, xr.Dataset) else load_runs(runs)
    return base64.b64encode(zlib.compress(payload(found, title), 9)).decode()


def _name(runs: xr.Dataset) -> str:
    """What runs in memory are called: the file of their prompts, or simply a run."""
    prompts = Settings.of_run(runs.attrs).prompts
    return "a run" if prompts is None else Path(prompts.partition(",")[0]).name


def payload(runs: xr.Dataset, title: str) -> bytes:
    """One line about the runs, then times and losses as doubles, weights as floats."""
    settings = require_recorded(runs)
    own = None if settings.prompts is None else GivenPrompts.of(settings)
    task = settings.task().largest_first() if own is None else own.task  # as the page shows it
    init = settings.initialiser(task)
    runs = in_order(runs).isel(seed=slice(RUNS))
    runs = runs.isel(time=shown(runs["time"].values, runs["loss"].values))
    each = [runs.isel(seed=i) for i in range(runs.sizes["seed"])]
    mixed = settings.fixed_fraction > 0
    weights = np.stack([_weights(recorded_models(run, init), task, mixed) for run in each])
    layer = empty_model(init).as_attention()
    plain = {name: getattr(settings, name) for name in _PLAIN}
    drawn = task.in_context().second_moment()[0, :, 0]
    variances = np.diagonal(task.basis.T @ drawn @ task.basis)
    about = {
        "title": title,
        "settings": {
            **(plain | ({} if own is None else {"context": task.context, "noise": 0.0})),
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
    if own is not None:
        about["given"] = own.about(runs)
    head = json.dumps(about).encode()
    head += b" " * (-(len(head) + 4) % 8)  # the doubles start at a multiple of eight
    doubles = np.concatenate([runs["time"].values, runs["loss"].values.ravel()]).astype("<f8")
    numbers = doubles.tobytes() + weights.astype("<f4").tobytes()
    return len(head).to_bytes(4, "little") + head + numbers


FREE: dict[str, Any] = {  # what only training depends on
    "rate": None, "steps": None, "seeds": 1, "sequences": None, "match": False, "average": False,
    "loss": "auto", "data_seed": 1, "batch": None, "fresh": False,
}  # fmt: skip
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
    if settings.prompts is not None:
        return require_prompts(settings)
    free, more = dict(FREE), {"blocks": "auto"}
    if settings.fixed_fraction > 0:
        more["blocks"] = settings.blocks  # its page has every block
    # The weights are recorded, so the axes of the task may be shown in another order.
    ordered = tuple(settings.task().largest_first().spectrum.tolist())
    size = {"spectrum": ordered, "dim": None, "trace": None}
    require_page(dataclasses.replace(settings, **free, **more, **size))
    return settings


def require_prompts(settings: Settings) -> Settings:
    """The settings of runs on given prompts, refused unless the page can show them."""
    found = settings.source()
    if not isinstance(found, Prompts):
        raise ValueError("these settings name no prompts")
    if found.outputs > 1:
        raise ValueError(f"{settings.prompts}: the page has one output, got {found.outputs}")
    if found.size > COMPONENTS:
        raise ValueError(
            f"{settings.prompts}: the page has up to {COMPONENTS} components, got {found.size}; "
            f"{INSTEAD}"
        )
    none = {"prompts": None, "prompts_digest": None, "lengths": None, "normaliser": "pairs"}
    shown = {"spectrum": (0.1,) * found.size, "dim": None, "trace": None, "rank": settings.rank}
    require_page(dataclasses.replace(settings, **FREE, blocks="auto", **none, **shown))
    return settings


@dataclasses.dataclass(frozen=True)
class GivenPrompts:
    """Prompts as the page shows them: their components, and what their own theory says.

    - `settings`: those of the runs.
    - `task`: eigenvalues of the mean of x xᵀ over all inputs, largest first, with the sum 1, and
      their eigenvectors. Nothing else of it is used.
    """

    settings: Settings
    task: Task

    @classmethod
    def of(cls, settings: Settings) -> "GivenPrompts":
        """Read the prompts once, for their components."""
        prompts = settings.source()
        assert isinstance(prompts, Prompts)
        second = np.zeros((prompts.size, prompts.size))
        for batch in prompts:
            rows = np.asarray(batch.inputs, float).reshape(-1, prompts.size)
            second += rows.T @ rows
        values, vectors = np.linalg.eigh(second / np.trace(second))
        vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(axis=0), range(len(vectors))])
        task = Task(np.maximum(values[::-1], TINY).tolist(), prompts.context)
        turned = eqx.tree_at(lambda t: t.basis, task, jnp.asarray(vectors[:, ::-1]))
        return cls(settings, turned)

    def about(self, runs: xr.Dataset) -> dict[str, Any]:
        """What the page cannot compute itself: levels, least squares, and the predicted runs."""
        study = Study.of(self.settings)
        theory = study.prediction(runs)
        assert isinstance(study.source, Prompts)
        found: dict[str, Any] = {"count": study.source.count, "levels": study.levels().tolist()}
        if not_quadratic(study.loss) is None:
            basis = np.asarray(self.task.basis)
            best = basis.T @ Quadratic.of(study.loss).least_squares @ basis
            found["best"] = best.ravel().tolist()
        if theory is not None:
            finite = [row[np.isfinite(row)].tolist() for row in theory.predicted]
            found |= {"drops": finite, "theory": theory.curves["loss"].values.tolist()}
        return found


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
