"""One experiment of a report: its data, reused where finished, its claims and its figures."""

import json
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xarray as xr
from PIL import Image

from iclflow.experiments.base import Figure, Source
from iclflow.report.figures import cover_file
from iclflow.report.workers import Outcome
from iclflow.results.files import replacing
from iclflow.results.messages import Progress
from iclflow.results.netcdf import load, replace
from iclflow.results.pictures import save_figure
from iclflow.results.provenance import code_key, content_key

DRAFT_DPI = 150.0  # of pictures in the quick form: as many pixels as the page is wide


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
    code = code_key(source.module)
    key = {"experiment": source.name, "quick": quick, "code": code}
    return content_key({**key, "of": source.key} if source.key else key)


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
    data: xr.Dataset = source.compute(
        quick=quick, progress=progress, **keep, **dict(source.settings)
    )
    extra = {"content_key": key, "compute_seconds": time.perf_counter() - began}
    data = data.assign_attrs({k: _storable(v) for k, v in {**data.attrs, **extra}.items()})
    # Read back, so that a first run and one that reuses its data draw the same.
    return load(replace(data, path)), False


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
    caption = cover = ""
    try:
        if settle:
            claims = tuple(figure.source.claims(data))
        caption, cover = figure.captions(data)
        drawn = figure.draw(data)
        dpi = DRAFT_DPI if quick else None
        picture = save_figure(drawn, out / "figures" / f"{figure.name}.png", dpi=dpi)
        if quick:
            _draft(picture)
        else:
            drawn.set_layout_engine(None)  # laid out once, the same in both
            save_figure(drawn, picture.with_suffix(".pdf"))
        if figure.cover is not None:
            save_figure(figure.cover(data), cover_file(out, figure.name), dpi=dpi)
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
        caption=caption,
        cover=cover,
    )


def _draft(picture: Path) -> None:
    """The picture as a PDF page: a drawing in vectors takes longer than most quick computations."""
    with replacing(picture.with_suffix(".pdf")) as partial, Image.open(picture) as image:
        image.convert("RGB").save(partial, "PDF", resolution=DRAFT_DPI)


def _storable(value: Any) -> Any:
    """An attribute as NetCDF takes it."""
    return json.dumps(value) if value is None or isinstance(value, bool | dict) else value


def reason(error: Exception) -> str:
    """What went wrong and where, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"
