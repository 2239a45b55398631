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
from iclflow.explorer.stated import of_model, stated
from iclflow.losses import Moments, ReducedFeatures
from iclflow.models import (
    AbstractInitialiser,
    AbstractModel,
    Blocks,
    Merged,
    Separate,
    empty_model,
)
from iclflow.runs.record import in_order, is_timed, recorded_models
from iclflow.runs.trajectory import Trajectory, as_dataset
from iclflow.study.origin import Origin, Source
from iclflow.study.study import Settings, Study, compare, load_runs
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.task import Task
from iclflow.theory.drops.quadratic import Quadratic, not_quadratic
from iclflow.theory.fixed_points.modes import visited_levels

RECORD = 'record them: record=["loss", "weights"], or iclflow simulate --record loss,weights'
RUNS = 100
TINY = 1e-12  # of the sum of the eigenvalues: a direction in which the inputs do not vary


def packed(
    runs: xr.Dataset | Trajectory | Path | str,
    source: Source | None = None,
    init: AbstractInitialiser | None = None,
) -> str:
    """Recorded runs as the text of an element of the page; the arguments are those of `explore`."""
    of_file = isinstance(runs, str | Path)
    found = load_runs(runs) if of_file else as_dataset(runs)
    title = Path(runs).name if of_file else ""
    return base64.b64encode(zlib.compress(payload(found, title, source, init), 9)).decode()


def payload(
    runs: xr.Dataset,
    title: str = "",
    source: Source | None = None,
    init: AbstractInitialiser | None = None,
) -> bytes:
    """One line about the runs, then times and losses as doubles, weights as floats.

    - `title`: what they are called; if empty, after the file of their prompts, or simply a run.
    - `source`, `init`: where the runs cannot say it (see `Origin`).
    """
    _require_clock(runs)
    runs = in_order(runs if "seed" in runs.dims else runs.expand_dims(seed=[0]))
    origin = Origin.of(runs, source, init)
    settings, own = _settings(origin), None
    init = origin.init
    assert init is not None, "of_model has looked"
    if isinstance(origin.source, Prompts):
        own = GivenPrompts.of(origin)
    task = _task(origin) if own is None else own.task  # as the page shows it
    runs = runs.isel(seed=slice(RUNS))
    runs = runs.isel(time=shown(runs["time"].values, runs["loss"].values))
    each = [runs.isel(seed=i) for i in range(runs.sizes["seed"])]
    mixed = settings.fixed_fraction > 0
    weights = np.stack([_weights(recorded_models(run, init), task, mixed) for run in each])
    layer = empty_model(init).as_attention()
    plain = {name: getattr(settings, name) for name in _PLAIN}
    drawn = task.in_context().second_moment()[0, :, 0]
    variances = np.diagonal(task.basis.T @ drawn @ task.basis)
    about = {
        "title": title or ("a run" if own is None else own.title),
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


def _require_clock(runs: xr.Dataset) -> None:
    """Refuse runs without a loss, a time and steps at one rate, from their first to their last."""
    if "loss" not in runs:
        raise ValueError(f"this file has no loss; {RECORD}")
    others = [str(d) for d in runs["loss"].dims if d not in ("time", "seed")]
    if others:
        raise ValueError(
            f"these runs vary {', '.join(others)}; select one value, for example "
            f"runs.isel({others[0]}=0)"
        )
    if "step" not in runs.coords or "time" not in runs.coords:
        raise ValueError("the page shows gradient descent, with steps and t/τ; record such a run")
    if not is_timed(runs):
        raise ValueError("the page shows gradient descent; Adam and momentum keep no t/τ")
    if not np.isfinite(runs["loss"].values).all():
        raise ValueError("some of these runs stopped early; the page shows whole runs")
    times, steps = runs["time"].values, runs["step"].values
    if np.abs(times - times[-1] / steps[-1] * steps).max() > 1e-9 * times[-1]:
        raise ValueError(
            "the page shows training at one rate, and these runs have a schedule; icl.plots.loss "
            "draws them"
        )


def _task(origin: Origin) -> Task:
    """The task of some runs, in the order of the page."""
    if origin.settings is not None:
        return origin.settings.task().largest_first()
    if not isinstance(origin.source, Task):
        raise ValueError(
            "these runs do not say which task they were trained on; give it in Python: "
            "icl.explore(runs, source=task), or the Prompts of a sample"
        )
    return origin.source.largest_first()


def _settings(origin: Origin) -> Settings:
    """The settings of runs that the page can show, or `ValueError`."""
    if isinstance(origin.source, Prompts):
        settings = origin.settings or Settings(**of_model(origin.init))
        return require_given(settings, origin.source)
    task = _task(origin)
    settings = origin.settings or stated(task, origin.init)
    # The weights are recorded, so the axes of the task may have had another order.
    axes = {"spectrum": tuple(task.spectrum.tolist()), "dim": None, "trace": None}
    # A page with a fixed task has every block.
    blocks = settings.blocks if settings.fixed_fraction > 0 else "auto"
    require_page(dataclasses.replace(settings, **FREE, blocks=blocks, **axes))
    return settings


def require_given(settings: Settings, prompts: Prompts) -> Settings:
    """The settings of runs on given prompts, refused unless the page can show them."""
    where = f"{prompts.where}: " if prompts.where else ""
    if prompts.outputs > 1:
        raise ValueError(f"{where}the page has one output, got {prompts.outputs}")
    if prompts.size > COMPONENTS:
        raise ValueError(
            f"{where}the page has up to {COMPONENTS} components, got {prompts.size}; {INSTEAD}"
        )
    none = {"prompts": None, "prompts_digest": None, "lengths": None, "normaliser": "pairs"}
    axes = {"spectrum": (0.1,) * prompts.size, "dim": None, "trace": None}
    require_page(dataclasses.replace(settings, **FREE, blocks="auto", **none, **axes))
    return settings


@dataclasses.dataclass(frozen=True)
class GivenPrompts:
    """Prompts as the page shows them: their components, and what their own theory says.

    - `origin`: of the runs.
    - `task`: eigenvalues of the mean of x xᵀ over all inputs, largest first, with the sum 1, and
      their eigenvectors. Nothing else of it is used.
    """

    origin: Origin
    task: Task

    @classmethod
    def of(cls, origin: Origin) -> "GivenPrompts":
        """Read the prompts once, for their components."""
        prompts = origin.source
        assert isinstance(prompts, Prompts)
        second = np.zeros((prompts.size, prompts.size))
        for batch in prompts:
            rows = np.asarray(batch.inputs, float).reshape(-1, prompts.size)
            second += rows.T @ rows
        values, vectors = np.linalg.eigh(second / np.trace(second))
        vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(axis=0), range(len(vectors))])
        task = Task(np.maximum(values[::-1], TINY).tolist(), prompts.context)
        turned = eqx.tree_at(lambda t: t.basis, task, jnp.asarray(vectors[:, ::-1]))
        return cls(origin, turned)

    @property
    def title(self) -> str:
        """The file of the prompts, where they are in one."""
        return Path(self.origin.source.where.partition(",")[0]).name or "your prompts"

    def about(self, runs: xr.Dataset) -> dict[str, Any]:
        """What the page cannot compute itself: levels, least squares, and the predicted runs."""
        if self.origin.settings is not None:
            study = Study.of(self.origin.settings)
            loss, levels, theory = study.loss, study.levels(), study.prediction(runs)
        else:
            init, seeds = self.origin.init, runs["seed"].values.tolist()
            assert init is not None
            loss = Moments.of(self.origin.source, features=ReducedFeatures())
            model = empty_model(init)
            levels = np.zeros(0) if not_quadratic(loss) else visited_levels(loss, model)
            theory = compare([loss] * len(seeds), [init(jax.random.key(s)) for s in seeds], runs)
        found: dict[str, Any] = {"count": self.origin.source.count, "levels": levels.tolist()}
        if not_quadratic(loss) is None:
            basis = np.asarray(self.task.basis)
            best = basis.T @ Quadratic.of(loss).least_squares @ basis
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
