"""`train`: models trained together in short pieces, on disk as they go, resumable after a kill.

Every piece is the same compiled loop, so where a run was cut into pieces, or stopped and taken up
again, does not change a bit of its result (on the CPU; a GPU may add in another order).
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from iclflow.dynamics import Descent
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.results.provenance import code_key, content_key
from iclflow.results.tensors import load_metadata, load_tree, save_tree, write_tensors
from iclflow.runs.batch import Together
from iclflow.runs.labels import outcome

PIECES = 256  # of a run: what a kill can lose, and how long Ctrl-C can take
SAVE_EVERY = 5.0  # seconds between two states on disk, so that saving never costs much
SNAPSHOTS = 32  # weights kept on disk over a run, at marks spread evenly
STATE = "state.safetensors"

Measure = Callable[[Any, Any], Any]  # (model, loss) -> array, or a tree of them
Names = Callable[[Any], Mapping[str, Any]]  # model -> tensors by name


@dataclasses.dataclass(frozen=True)
class Training:
    """What a training run recorded, and how it ended."""

    steps: np.ndarray  # [time]
    record: dict[str, Any]  # name -> [seed, time, ...]; NaN after a run has failed
    models: Any  # the last weights, stacked
    result: np.ndarray  # [seed], as in `iclflow.runs.labels.OUTCOMES`
    stopped: np.ndarray  # [seed], the last step that was computed
    folder: Path | None


def train(
    loss: AbstractLoss,
    models: AbstractModel,
    dynamics: Descent,
    *,
    marks: Sequence[int] | np.ndarray,
    record: Mapping[str, Measure],
    key: PRNGKeyArray,
    folder: Path | str | None = None,
    names: Names | None = None,
    progress: Callable[[float, float], None] | None = None,
    settings: Any = None,
) -> Training:
    """Train stacked models (leading axis: the seed) on one loss, up to the last mark.

    - `marks`: steps to record at, increasing; a run ends at the last one.
    - `record`: name -> function (model, loss) -> array or tree of arrays, of one model.
    - `key`: seed s draws its batches from `fold_in(key, s)`, whatever is trained beside it.
    - `folder`: everything needed to go on, in `state.safetensors`; if there, it goes on. A folder
      with another run (other settings, start or code) is refused.
    - `names`: model -> tensors by name; with it and a folder, the weights at up to `SNAPSHOTS`
      marks, as `seed-0/step-00000512.safetensors`, which `iclflow diagnose` reads.
    - `progress(done, total)` in steps, between pieces.

    On disk: three times the weights (Adam) and the record in `state.safetensors`, twice that while
    it is written, and `SNAPSHOTS` times the weights. Ctrl-C saves the state and is raised again.
    """
    marks = _checked(marks, dynamics)
    loss.require(jax.tree.map(lambda a: a[0] if eqx.is_array(a) else a, models))
    count = jax.tree.leaves(eqx.filter(models, eqx.is_array))[0].shape[0]
    together = Together(loss, dynamics)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(count))
    run = _Run(together.start(models, keys), {}, 0)
    run.record = _empty(loss, run.state.model, dict(record), len(marks))
    disk = None
    if folder is not None:
        about = {"loss": loss, "models": models, "dynamics": dynamics, "marks": marks, "key": key}
        about |= {"record": sorted(record), "settings": settings, "science": science()}
        disk = _Disk(Path(folder), content_key(about), names, _spread(marks))
        disk.resume(run)
    longest = max(1, -(-int(marks[-1]) // PIECES))
    try:
        while run.done < len(marks):
            mark, here = int(marks[run.done]), int(run.state.step)
            if here < mark:
                stop = np.array([min(mark, here + longest)])
                run.state = together.advance(run.state, stop, {}).state
            if int(run.state.step) == mark:
                run.measure(loss, dict(record))
                if disk is not None:
                    disk.snapshot(mark, run.state.model)
                run.done += 1
            if disk is not None:
                disk.save(run, now=run.done == len(marks))
            if progress is not None:
                progress(float(run.state.step), float(marks[-1]))
    except KeyboardInterrupt:
        if disk is not None:
            disk.save(run, now=True)
        raise
    ended = run.state.run
    result, stopped = outcome(ended.result), np.asarray(ended.stopped)
    where = None if disk is None else disk.folder
    return Training(marks, run.record, ended.model, result, stopped, where)


def own_folder(folder: Path | str | None, settings: Any) -> Path | None:
    """A folder inside `folder` for these settings and this code: older runs are not in the way."""
    if folder is None:
        return None
    return Path(folder) / content_key({"settings": settings, "science": science()})


def science() -> str:
    """A hash of the code that trains, and of what it trains."""
    return code_key(__name__, "iclflow.transformers")


@dataclasses.dataclass
class _Run:
    """What changes during training."""

    state: Any
    record: dict[str, Any]
    done: int  # marks recorded

    def measure(self, loss: Any, record: dict[str, Measure]) -> None:
        alive = outcome(self.state.run.result) == 0

        def put(room: np.ndarray, values: Any) -> None:
            room[:, self.done] = np.asarray(values)
            room[~alive, self.done] = np.nan

        jax.tree.map(put, self.record, _measure(loss, self.state.model, record))

    def tree(self) -> dict[str, Any]:
        return {"state": self.state, "record": self.record, "done": np.asarray(self.done)}


class _Disk:
    """The folder of a run."""

    def __init__(self, folder: Path, key: str, names: Names | None, kept: set[int]) -> None:
        self.folder, self.key, self.names, self.kept = folder, key, names, kept
        self.file = folder / STATE
        self.saved = time.monotonic()

    def resume(self, run: _Run) -> None:
        """Take up the state in the folder, if there is one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.file.exists():
            return
        if load_metadata(self.file).get("content_key") != self.key:
            raise ValueError(
                f"{self.folder} holds another run (other settings, start or code); choose another "
                f"folder or move it away"
            )
        found = load_tree(self.file, run.tree())
        run.state, run.record, run.done = found["state"], found["record"], int(found["done"])

    def save(self, run: _Run, now: bool) -> None:
        """The state, unless it was saved a moment ago."""
        if now or time.monotonic() - self.saved >= SAVE_EVERY:
            save_tree(self.file, run.tree(), {"content_key": self.key})
            self.saved = time.monotonic()

    def snapshot(self, step: int, models: Any) -> None:
        """The weights of every seed under the names that other programs know."""
        if self.names is None or step not in self.kept:
            return
        whole = jax.tree.map(lambda a: np.asarray(a) if eqx.is_array(a) else a, models)
        count = jax.tree.leaves(eqx.filter(whole, eqx.is_array))[0].shape[0]
        for seed in range(count):
            one = jax.tree.map(lambda a, s=seed: a[s] if eqx.is_array(a) else a, whole)
            place = self.folder / f"seed-{seed}"
            place.mkdir(exist_ok=True)
            about = {"content_key": self.key}
            write_tensors(place / f"step-{step:08d}.safetensors", self.names(one), about)


@eqx.filter_jit
def _measure(loss: Any, models: Any, record: dict[str, Measure]) -> dict[str, Any]:
    def one(loss: Any, model: Any) -> dict[str, Any]:
        return {name: f(model, loss) for name, f in record.items()}

    return eqx.filter_vmap(one, in_axes=(None, eqx.if_array(0)))(loss, models)


def _empty(loss: Any, models: Any, record: dict[str, Measure], count: int) -> dict[str, Any]:
    """Room for the record, full of NaN."""

    def room(like: jax.ShapeDtypeStruct) -> np.ndarray:
        kind = np.result_type(like.dtype, np.float32)  # whole numbers too can be NaN then
        return np.full((like.shape[0], count, *like.shape[1:]), np.nan, kind)

    return jax.tree.map(room, eqx.filter_eval_shape(_measure, loss, models, record))


def _spread(marks: np.ndarray) -> set[int]:
    """At most `SNAPSHOTS` of the marks, the first and the last among them."""
    index = np.linspace(0, len(marks) - 1, min(SNAPSHOTS, len(marks)))
    return {int(mark) for mark in marks[np.round(index).astype(int)]}


def _checked(marks: Any, dynamics: Descent) -> np.ndarray:
    steps = np.asarray(marks)
    if steps.ndim != 1 or steps.size == 0 or not np.issubdtype(steps.dtype, np.integer):
        raise ValueError(f"marks must be a list of whole steps, got {steps.dtype}{steps.shape}")
    if steps[0] < 0 or np.any(np.diff(steps) <= 0):
        raise ValueError("marks must be increasing and not negative; use np.unique")
    if steps[-1] > dynamics.steps:
        raise ValueError(f"the last mark is {steps[-1]}, but the run has {dynamics.steps} steps")
    return steps.astype(int)
