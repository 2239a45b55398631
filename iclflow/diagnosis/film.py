"""One recorded run, ready to be filmed: its weights in the eigenbasis, loss and levels."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from iclflow.diagnosis.runs import clock_of, levels_of, select_run
from iclflow.measures import consecutive_distances, right_basis, unexplained
from iclflow.measures.subspace import log_intervals
from iclflow.models import AbstractAttention, AbstractInitialiser, Separate
from iclflow.results import pictures
from iclflow.results.messages import Progress
from iclflow.runs.record import recorded_models
from iclflow.runs.trajectory import Trajectory, as_dataset
from iclflow.study.origin import Origin, Source
from iclflow.tasks.checks import require_memory
from iclflow.tasks.task import Task

GIF_FPS, MP4_FPS = 15, 30
GIF_DPI, MP4_DPI = 100, 160


class Film(NamedTuple):
    """A film that was written: where, its pictures, and which recorded points they show."""

    path: Path
    fps: int
    frames: np.ndarray
    basis: str


def animate(
    runs: xr.Dataset | Trajectory,
    out: Path | str,
    *,
    seed: int | None = None,
    seconds: float = 10.0,
    fps: int | None = None,
    source: Source | None = None,
    init: AbstractInitialiser | None = None,
    progress: Progress | None = None,
) -> Film:
    """Write a film of the weights over training.

    - `runs`: a Dataset of `sweep` or of a file of runs, or the `Trajectory` of one `simulate`. It
      must have recorded its weights, `record=["loss", "weights"]`.
    - `out`: the file, `.gif`, or `.mp4` where there is ffmpeg. What is there is replaced.
    - `seed`: which run, where there are several.
    - `seconds`, `fps`: its length, and pictures per second (15 of a GIF, 30 of a film).
    - `source`, `init`: what it was trained on and started from, where the runs cannot say it.
    - `progress(done, total)` counts pictures.

    >>> import pathlib, tempfile, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> how = {"until": 2000, "seeds": 1, "record": ["loss", "weights"]}
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), **how)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     out = pathlib.Path(folder, "run.gif")
    ...     film = icl.animate(runs, out, seconds=0.2, source=task, init=init)
    ...     out.exists()
    True
    """
    from iclflow.plots.weights import weights_film

    out, found = pictures.require_film(out), as_dataset(runs)
    scene = film_scene(found, seed, source=source, init=init)
    gif = out.suffix.lower() == ".gif"
    rate = fps or (GIF_FPS if gif else MP4_FPS)
    frames = pictures.frame_indices(scene["time"].values, max(2, round(seconds * rate)))
    figure, update = weights_film(scene, dpi=GIF_DPI if gif else MP4_DPI)
    if gif:
        pixels = int(figure.bbox.width * figure.bbox.height)
        require_memory(8 * pixels * len(frames), f"{len(frames)} pictures", "write an .mp4")
    pictures.write_movie(figure, update, frames, out, fps=rate, progress=progress)
    return Film(out, rate, frames, scene.attrs["basis"])


def film_scene(
    runs: xr.Dataset,
    seed: int | None = None,
    *,
    source: Source | None = None,
    init: AbstractInitialiser | None = None,
) -> xr.Dataset:
    """What `plots.weights.weights_film` draws, of one run that recorded its weights.

    A network is shown as the attention that it is. The eigenvectors are those of the task the
    run says or `source` is; without a task it is shown in the eigenvectors of its final effective
    weights. Attribute `basis` says which.
    """
    run, origin = select_run(runs, seed), Origin.of(runs, source, init)
    known = origin.task_of(run)
    task = known if isinstance(known, Task) else None
    models = recorded_models(run, origin.init)
    layer = jax.vmap(lambda m: m.as_attention())(models)
    if layer is None or layer.values.shape[2] > 1:
        raise ValueError("only the weights of attention with one output can be animated")
    effective = np.asarray(jax.vmap(lambda m: m.reduced_weights()[0, 0])(layer))
    clock = clock_of(run)
    final = task is None
    basis = _final_basis(effective[-1]) if final else np.asarray(task.largest_first().basis)
    found: dict[str, Any] = {
        "loss": ("time", run["loss"].values),
        "values": (("time", "head"), np.asarray(layer.values)[..., 0, 0]),
        "effective": (("time", "row", "column"), basis.T @ effective @ basis),
    }
    if known is not None:
        found["levels"] = ("level", levels_of(known, models))
    shown = "final weights" if task is None else "inputs"
    return xr.Dataset(
        found | _parts(layer, basis) | _turning(layer, np.asarray(clock[1], float)),
        coords={"time": clock},
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


def _turning(layer: AbstractAttention, clock: np.ndarray) -> dict[str, Any]:
    """How the subspaces turn that the heads read the query by, mean over heads.

    Of the products of keys and queries: the subspace distance (16) to the last weights, and the
    subspace speed, which needs no last weights. A head has as many directions as it has pairs, or
    else half of the dimensions; with all of them there would be nothing to turn.
    """
    matrices = jax.vmap(lambda m: m.key_query())(layer)
    size = matrices.shape[-1]
    pairs = layer.keys.shape[2] if isinstance(layer, Separate) else size
    count = max(1, min(pairs, size // 2))
    distance, speed = np.asarray(_turns(matrices, count, jnp.asarray(log_intervals(clock))))
    return {
        "subspace_distance": ("time", distance),
        "subspace_speed": ("time", speed),
    }


@partial(jax.jit, static_argnums=1)
def _turns(
    matrices: Float[Array, "T H n D"], count: int, intervals: Float[Array, " T-1"]
) -> Float[Array, "2 T"]:
    """Distance to the end and speed at every time; the first one has no speed."""
    bases = jax.vmap(jax.vmap(lambda matrix: right_basis(matrix, count)))(matrices)
    to_end = jax.vmap(jax.vmap(unexplained), in_axes=(None, 0))(matrices[-1], bases)
    moved = jax.vmap(consecutive_distances, in_axes=1)(bases).mean(axis=0)
    speed = jnp.concatenate([jnp.full(1, jnp.nan), moved / intervals])
    return jnp.stack([to_end.mean(axis=1), speed])


def _final_basis(effective: Float[np.ndarray, "D D"]) -> Float[np.ndarray, "D D"]:
    """Eigenvectors of the final effective weights, largest first."""
    eigenvalues, vectors = np.linalg.eigh((effective + effective.T) / 2)
    return vectors[:, np.argsort(-np.abs(eigenvalues))]
