"""Figures and films on disk, whole or not at all.

Films are not written by Matplotlib's movie writers, which draw the whole figure anew for every
frame: 150 frames of `iclflow animate` take 3.3 s of a core here and 29 s there as MP4 (85 kB both),
and 2.0 s and 161 kB against 36 s and 460 kB as GIF.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from iclflow.plots.style import STYLE, style
from iclflow.plots.weights import Update
from iclflow.results.files import MARK, replacing, require_path
from iclflow.results.messages import Progress

FILMS = (".mp4", ".gif")


def save_figure(figure: Figure, path: Path | str, *, dpi: float | None = None) -> Path:
    """Write a figure in the style of the plots; the ending says the format."""
    path = Path(path)
    if path.suffix.lstrip(".").lower() not in figure.canvas.get_supported_filetypes():
        raise ValueError(f"cannot draw {path.name!r}: the ending must be one of png, pdf, svg")
    fields = {".png": "Software", ".pdf": "Creator", ".svg": "Creator"}
    field = fields.get(path.suffix.lower())
    about = None if field is None else {field: MARK}
    with replacing(path) as partial, style():
        figure.savefig(partial, dpi=dpi or STYLE["savefig.dpi"], metadata=about)
    return path


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


def require_film(path: Path | str) -> Path:
    """The path, if a film can be written there; else `ValueError` before any picture is drawn."""
    path = require_path("out", path)
    if path.suffix.lower() not in FILMS:
        raise ValueError(f"cannot film to {path.name!r}: the ending must be {' or '.join(FILMS)}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist; create it first")
    if path.suffix.lower() == ".mp4" and ffmpeg() is None:
        raise ValueError(
            "MP4 needs ffmpeg, which is not here; install the extra iclflow[video], or write a .gif"
        )
    return path


def write_movie(
    figure: Figure,
    update: Update,
    indices: np.ndarray,
    path: Path,
    *,
    fps: int,
    progress: Progress | None = None,
) -> Path:
    """Write the frames of a figure to an MP4 or a GIF, whole or not at all."""
    path = require_film(path)
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
    assert program is not None, "require_film has looked for it"
    first = next(frames)
    height, width = first.shape[:2]
    command = [program, "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width}x{height}", "-r", str(fps), "-i", "-", "-an", "-c:v", "libx264"]
    command += [
        "-pix_fmt",
        "yuv420p",
        "-crf",
        "18",
        "-movflags",
        "+faststart",
        "-metadata",
        f"comment={MARK}",
        str(path),
    ]
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
        why = " ".join(complaint.split()) or "no reason given"
        raise OSError(f"ffmpeg could not write {path.suffix} ({why})")


def _gif(frames: Iterator[np.ndarray], path: Path, fps: int) -> None:
    from PIL import Image

    pictures = [Image.fromarray(frame) for frame in frames]
    # The last frame has the colours of all weights at their largest.
    palette = pictures[-1].quantize(128)
    drawn = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures]
    pause = round(1000 / fps)
    drawn[0].save(
        path, save_all=True, append_images=drawn[1:], duration=pause, loop=0, comment=MARK.encode()
    )
