"""One experiment of a report: its data, reused where finished, its claims and its figures."""

import hashlib
import importlib.util
import json
import os
import secrets
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xarray as xr
from PIL import Image

from iclflow.experiments.base import Progress
from iclflow.experiments.entry import Figure, Source
from iclflow.plots.style import save_figure
from iclflow.report.outcome import Outcome
from iclflow.results.netcdf import load, save
from iclflow.runs.labels import content_key, science

DRAFT_DPI = 120.0  # of pictures in the quick form


def make(
    figures: Sequence[Figure], out: Path, quick: bool, progress: Progress | None = None
) -> list[Outcome]:
    """The figures of one experiment: data, claims, PDF and PNG. A failure is an outcome."""
    source = figures[0].source
    try:
        data, reused = _data(source, out, quick, progress)
    except Exception as error:
        return [Outcome(figure.name, "failed", error=reason(error)) for figure in figures]
    status = "reused" if reused else "computed"
    first, *others = figures
    return [
        _draw(first, data, status, out, quick, settle=True),
        *(_draw(figure, data, status, out, quick) for figure in others),
    ]


def data_key(source: Source, quick: bool) -> str:
    """The content key of an experiment's data: which, at what scale, by which code."""
    found = importlib.util.find_spec(source.module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"there is no experiment {source.module}")
    code = hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()
    return content_key(
        {"experiment": source.name, "quick": quick, "code": code, "science": science()}
    )


def _data(
    source: Source, out: Path, quick: bool, progress: Progress | None
) -> tuple[xr.Dataset, bool]:
    """The data of an experiment, and whether they were finished on disk."""
    path, key = out / source.file(quick), data_key(source, quick)
    if path.exists():
        try:
            found = load(path)
            if found.attrs.get("content_key") == key:
                return found, True
        except ValueError:
            pass  # unreadable: made again
    began = time.perf_counter()
    keep = {"folder": out / source.checkpoints(quick)} if source.resumes else {}
    with _whole():
        data: xr.Dataset = source.compute(quick=quick, progress=progress, **keep)
    extra = {"content_key": key, "compute_seconds": time.perf_counter() - began}
    data = data.assign_attrs({k: _storable(v) for k, v in {**data.attrs, **extra}.items()})
    partial = path.with_name(f".{path.stem}.{secrets.token_hex(4)}.nc")
    try:
        os.replace(save(data, partial), path)
    finally:
        partial.unlink(missing_ok=True)
    # Read back, so that a first run and one that reuses its data draw the same.
    return load(path), False


def _draw(
    figure: Figure,
    data: xr.Dataset,
    status: str,
    out: Path,
    quick: bool,
    *,
    settle: bool = False,
) -> Outcome:
    """The drawing of one figure, and the claims that its data settle."""
    began, claims, error = time.perf_counter(), (), ""
    try:
        if settle:
            claims = tuple(figure.source.claims(data))
        drawn = figure.draw(data)
        dpi = DRAFT_DPI if quick else None
        picture = save_figure(drawn, out / "figures" / f"{figure.name}.png", dpi=dpi)
        if quick:
            _draft(picture)
        else:
            drawn.set_layout_engine("none")  # laid out once, the same in both
            save_figure(drawn, picture.with_suffix(".pdf"))
    except Exception as failure:
        status, error = "failed", reason(failure)
    return Outcome(
        figure.name,
        status,
        computing=float(data.attrs["compute_seconds"]),
        drawing=time.perf_counter() - began,
        claims=claims,
        attributes=dict(data.attrs),
        error=error,
    )


def _draft(picture: Path) -> None:
    """The picture as a PDF page: a drawing in vectors takes longer than most quick computations."""
    partial = picture.with_name(f".{picture.stem}.{secrets.token_hex(4)}.pdf")
    try:
        with Image.open(picture) as image:
            image.convert("RGB").save(partial, "PDF", resolution=DRAFT_DPI)
        os.replace(partial, picture.with_suffix(".pdf"))
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _whole() -> Iterator[None]:
    """Raise `KeyboardInterrupt` after Ctrl-C even if a sweep caught it and returned a part."""
    seen = []

    def mark(number: int, frame: Any) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, mark)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if seen:
        raise KeyboardInterrupt


def _storable(value: Any) -> Any:
    """An attribute as NetCDF takes it."""
    return json.dumps(value) if value is None or isinstance(value, bool | dict) else value


def reason(error: Exception) -> str:
    """What went wrong and where, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"
