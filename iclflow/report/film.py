"""A recorded run as a film: its weights in the eigenbasis, frame after frame into a file."""

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from iclflow.results.files import replacing
from iclflow.runs.labels import OUTCOMES
from iclflow.study.settings import Settings
from iclflow.tasks.task import Task

Progress = Callable[[float, float], None]
Update = Callable[[int], list[Artist]]  # frame number -> the artists that moved


def scene(runs: xr.Dataset, seed: int | None = None) -> xr.Dataset:
    """One run, ready to be drawn: weights in the eigenbasis of the inputs, loss and levels.

    The eigenvectors are those of the settings the run carries; a run without them is shown in the
    eigenvectors of its final effective weights. Attribute `basis` says which.
    """
    runs = _as_attention(runs)
    run = _one(runs, seed)
    values = run["values"].values
    if values.ndim != 2:
        raise ValueError("this run has several outputs; only runs with one can be animated")
    attention = {name: run[name].values for name in ("keys", "queries", "merged") if name in run}
    if "keys" in attention:
        per_head = np.einsum("thrk,thrq->thkq", attention["keys"], attention["queries"])
    else:
        per_head = attention["merged"]
    effective = np.einsum("th,thkq->tkq", values, per_head)
    task = _task(runs, int(run["seed"]) if "seed" in run.coords else 0)
    basis = np.asarray(task.basis) if task is not None else _final_basis(effective[-1])
    found: dict[str, Any] = {
        "loss": ("time", run["loss"].values),
        "values": (("time", "head"), values),
        "effective": (("time", "row", "column"), basis.T @ effective @ basis),
    }
    if "keys" in attention:
        count, heads, rank, size = attention["keys"].shape
        for name in ("keys", "queries"):
            rows = attention[name].reshape(count, heads * rank, size) @ basis
            found[name] = (("time", "part", "component"), rows)
        names = [(h + 1, r + 1) for h in range(heads) for r in range(rank)]
        labels = [str(h) if rank == 1 else f"{h}.{r}" for h, r in names]
    else:
        found["merged"] = (("time", "part", "row", "column"), basis.T @ per_head @ basis)
        labels = [str(h + 1) for h in range(values.shape[1])]
    if task is not None:
        found["levels"] = ("level", _levels(task, "keys" in attention, runs))
    timed = bool(np.all(np.isfinite(run["time"].values)))
    clock = run["time"] if timed else run["step"]
    named = {"long_name": r"training time $t/\tau$" if timed else "training steps"}
    shown = "inputs" if task is not None else "final weights"
    return xr.Dataset(found, attrs={"basis": f"eigenvectors of the {shown}"}).assign_coords(
        time=("time", clock.values, named), part=("part", labels)
    )


def _as_attention(runs: xr.Dataset) -> xr.Dataset:
    """Weights of an equivalent linear network under the names of the attention that it is."""
    if "kernels" in runs and "third" in runs:  # ConvNet
        names = {"kernels": "keys", "second": "queries", "third": "values"}
        return runs.rename_vars(names)
    if "first" in runs and "second" in runs:  # MLP: row (c, d) of z is entry (d, c) of U
        first = runs["first"]
        size = round(first.sizes["feature"] ** 0.5)
        index = np.arange(size**2).reshape(size, size).T
        parts = [first.isel(feature=xr.DataArray(row, dims="column")) for row in index]
        return runs.assign(
            merged=xr.concat(parts, "row").transpose(..., "row", "column")
        ).rename_vars({"second": "values"})
    return runs


def _one(runs: xr.Dataset, seed: int | None) -> xr.Dataset:
    """The chosen run, cut where it stopped."""
    if "keys" not in runs and "merged" not in runs:
        raise ValueError(
            "this file has no weights of attention over training; record them, for example "
            "iclflow simulate --record loss,weights --save linear:300 --out run.nc"
        )
    missing = [name for name in ("loss", "values", "time") if name not in runs.variables]
    if missing:
        raise ValueError(f"this file has no {missing[0]}; record loss and weights")
    axes = [str(d) for d in runs["loss"].dims if d not in ("time", "seed")]
    if axes:
        raise ValueError(f"this file varies {', '.join(axes)}; select one value and save it first")
    if "seed" in runs.dims:
        seeds = runs["seed"].values.tolist()
        if seed is None and len(seeds) > 1:
            raise ValueError(f"this file has the seeds {_list(seeds)}; choose one with --seed")
        if seed is not None and seed not in seeds:
            raise ValueError(f"there is no seed {seed} in this file; it has {_list(seeds)}")
        runs = runs.sel(seed=seeds[0] if seed is None else seed)
    run = runs.isel(time=np.isfinite(runs["loss"].values))
    if run.sizes["time"] < 2:
        code = int(runs["result"]) if "result" in runs else 0
        raise ValueError(f"this run has fewer than two recorded points ({OUTCOMES[code]})")
    return run


def _list(seeds: list[int]) -> str:
    return ", ".join(str(s) for s in seeds[:12]) + (", …" if len(seeds) > 12 else "")


def _task(runs: xr.Dataset, seed: int) -> Task | None:
    """The task of the settings inside a file, if it has settings."""
    try:
        found = json.loads(runs.attrs["settings"])
        if found.pop("kind") != "Settings":
            return None
        known = {field.name for field in dataclasses.fields(Settings)}
        given: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in found.items() if k in known
        }
        settings = Settings(**given)
        return settings.task(seed - settings.seed if settings.vary == "all" else 0)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _final_basis(effective: np.ndarray) -> np.ndarray:
    """Eigenvectors of the final effective weights, largest first."""
    eigenvalues, vectors = np.linalg.eigh((effective + effective.T) / 2)
    return vectors[:, np.argsort(-np.abs(eigenvalues))]


def _levels(task: Task, separate: bool, runs: xr.Dataset) -> np.ndarray:
    """The plateau losses; none where the theory does not cover the run."""
    from iclflow.theory.fixed_points.levels import plateau_losses

    settings = json.loads(runs.attrs["settings"])
    if settings["fixed_fraction"] > 0 or settings["model"].startswith("softmax"):
        return np.zeros(0)
    levels = np.asarray(plateau_losses(task))
    return levels if separate else levels[[0, -1]]


def frame_indices(clock: np.ndarray, frames: int) -> np.ndarray:
    """For each frame, evenly spaced in time, the last point recorded until then."""
    moments = np.linspace(clock[0], clock[-1], frames)
    return np.clip(np.searchsorted(clock, moments, side="right") - 1, 0, len(clock) - 1)


def ffmpeg() -> str | None:
    """The ffmpeg of the system, or that of imageio-ffmpeg."""
    found = shutil.which("ffmpeg")
    if found is None:
        try:
            import imageio_ffmpeg  # pyright: ignore[reportMissingImports]

            found = imageio_ffmpeg.get_ffmpeg_exe()
        except (ImportError, RuntimeError):
            return None
    return found


def shoot(
    figure: Figure,
    update: Update,
    indices: np.ndarray,
    path: Path,
    *,
    fps: int,
    progress: Progress | None = None,
) -> Path:
    """Write the frames to an MP4 or a GIF, whole or not at all."""
    frames = _frames(figure, update, indices, progress)
    with replacing(path) as partial:
        if path.suffix.lower() == ".gif":
            _gif(frames, partial, fps)
        else:
            _mp4(frames, partial, fps)
    return path


def _frames(
    figure: Figure,
    update: Update,
    indices: np.ndarray,
    progress: Progress | None,
) -> Iterator[np.ndarray]:
    """Images of the figure; what does not move is drawn once."""
    canvas = FigureCanvasAgg(figure)
    for artist in update(int(indices[0])):
        artist.set_animated(True)
    canvas.draw()
    still = canvas.copy_from_bbox(figure.bbox)
    for done, index in enumerate(indices):
        canvas.restore_region(still)
        for artist in update(int(index)):
            assert artist.axes is not None
            artist.axes.draw_artist(artist)
        yield np.asarray(canvas.buffer_rgba())[..., :3].copy()
        if progress is not None:
            progress(done + 1, len(indices))


def _mp4(frames: Iterator[np.ndarray], path: Path, fps: int) -> None:
    program = ffmpeg()
    if program is None:
        raise ValueError(
            "MP4 needs ffmpeg, which is not here; install the extra iclflow[video], or write a .gif"
        )
    first = next(frames)
    height, width = first.shape[:2]
    command = [program, "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", str(fps), "-i", "-", "-an", "-c:v", "libx264"]
    command += ["-pix_fmt", "yuv420p", "-crf", "18", "-movflags", "+faststart", str(path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe) as encoder:
        assert encoder.stdin is not None
        assert encoder.stderr is not None
        try:
            encoder.stdin.write(first.tobytes())
            for frame in frames:
                encoder.stdin.write(frame.tobytes())
            encoder.stdin.close()
        except BrokenPipeError:
            pass  # it says why below
        complaint = encoder.stderr.read().decode(errors="replace")
    if encoder.returncode != 0:
        last = " ".join((complaint.strip().splitlines() or ["no reason given"])[-1].split())
        raise OSError(f"ffmpeg could not write {path.suffix} ({last})")


def _gif(frames: Iterator[np.ndarray], path: Path, fps: int) -> None:
    from PIL import Image

    pictures = [Image.fromarray(frame) for frame in frames]
    # The last frame has the colours of all weights at their largest.
    palette = pictures[-1].quantize(128)
    drawn = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    drawn[0].save(path, save_all=True, append_images=drawn[1:], duration=round(1000 / fps), loop=0)
