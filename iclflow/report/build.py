"""From figure names to a folder with data, figures, scorecard and one page."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from iclflow.experiments.entry import Figure, Source
from iclflow.report.folder import prepare
from iclflow.report.outcome import Outcome
from iclflow.report.workers import Watch, spread

if TYPE_CHECKING:
    from iclflow.report import scorecard


@dataclasses.dataclass(frozen=True)
class Report:
    """A finished report."""

    out: Path
    quick: bool
    seconds: float  # this run, by the clock on the wall
    outcomes: dict[str, Outcome]
    rows: list["scorecard.Row"]

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
    from iclflow.report import page, scorecard  # the workers are faster under way without these

    rows = scorecard.rows({name: found.claims for name, found in outcomes.items()})
    scorecard.write(rows, out / "scorecard.json")
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
