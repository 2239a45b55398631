"""From figure names to a folder with data, figures, scorecard and one page."""

import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iclflow.experiments.base import Claim, Figure, Source
from iclflow.report.workers import Outcome, Watch, spread
from iclflow.results.files import read_json, write_text

MANIFEST = "manifest.json"
_MAKER = "iclflow reproduce"


def prepare(out: Path, files: Sequence[str]) -> None:
    """Make the folder and claim `files` (paths inside it), or raise `FileExistsError`.

    What an earlier report wrote is listed in the manifest and may be replaced; any other file of
    the same name is somebody's and stops us before work begins. Other files are left alone.
    """
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; --out needs a folder")
    ours = claimed(out)
    for name in (*files, MANIFEST):
        path = out / name
        if path.exists() and (name not in ours or not path.is_file()):
            raise FileExistsError(
                f"{path} was not written by an earlier report; move it away or choose another --out"
            )
    out.mkdir(parents=True, exist_ok=True)
    for name in files:
        (out / name).parent.mkdir(exist_ok=True)
    # Written before any of the files, so that a run that is killed leaves none unclaimed.
    manifest = {"made_by": _MAKER, "files": sorted(ours.union(files))}
    write_text(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def claimed(out: Path) -> set[str]:
    """The files that earlier reports wrote."""
    try:
        found = read_json(out / MANIFEST)
        if found["made_by"] != _MAKER:
            return set()
        return {MANIFEST, *(str(name) for name in found["files"])}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


Row = dict[str, Any]


def scorecard(claims: Mapping[str, Sequence[Claim]]) -> list[Row]:
    """Figure name -> claims, as rows in the figures' order.

    Keys: `id`, `claim`, `equation`, `expected`, `measured`, `tolerance`, `holds`, `reason`,
    `note`, `population`, `beyond`, `interval`, `decided`, `figure`. A number that is not finite
    becomes None (JSON null).
    """
    return [
        {**{k: _plain(v) for k, v in dataclasses.asdict(claim).items()}, "figure": figure}
        for figure, found in claims.items()
        for claim in found
    ]


def write_scorecard(found: Sequence[Row], path: Path) -> Path:
    """The rows as a JSON list."""
    return write_text(path, json.dumps(list(found), indent=1, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):  # a NumPy number
        value = value.item()
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclasses.dataclass(frozen=True)
class Report:
    """A finished report."""

    out: Path
    quick: bool
    seconds: float  # this run, by the clock on the wall
    outcomes: dict[str, Outcome]
    rows: list[Row]

    @property
    def index(self) -> Path:
        """The page."""
        return self.out / "index.html"

    @property
    def failed(self) -> list[str]:
        """Names of figures that could not be made."""
        return [name for name, found in self.outcomes.items() if found.status == "failed"]


def build(
    figures: Sequence[Figure],
    out: Path | str,
    *,
    quick: bool = False,
    jobs: int = 1,
    watch: Watch | None = None,
) -> Report:
    """Make figures into `out`: data reused where finished, one failure not stopping the rest.

    `jobs` above 1 spreads the experiments over that many processes, which switch double
    precision on; in this process it is the caller's choice, as everywhere in the library.
    """
    began, out = time.perf_counter(), Path(out)
    prepare(out, planned_files(figures, quick))
    sources: dict[Source, list[Figure]] = {}
    for figure in figures:
        sources.setdefault(figure.source, []).append(figure)
    made = spread(list(sources.values()), out, quick, jobs, watch or _silent)
    outcomes = {figure.name: made[figure.name] for figure in figures}
    from iclflow.report import page  # the workers are faster under way without these

    rows = scorecard({name: found.claims for name, found in outcomes.items()})
    write_scorecard(rows, out / "scorecard.json")
    report = Report(out, quick, time.perf_counter() - began, outcomes, rows)
    page.write(report, figures)
    return report


def planned_files(figures: Sequence[Figure], quick: bool) -> list[str]:
    """Every file a report of these figures has, relative to its folder."""
    data = dict.fromkeys(figure.source.file(quick) for figure in figures)
    drawn = [f"figures/{figure.name}.{kind}" for figure in figures for kind in ("pdf", "png")]
    return ["index.html", "scorecard.json", *data, *drawn]


def _silent(name: str, done: float, found: Outcome | None) -> None:
    pass
