"""Reproduce the figures of a paper, with a scorecard of its claims, as one page.

Writes index.html, scorecard.json, figures (PDF, PNG) and data (NetCDF) into a folder. Data that
are finished there are reused. A figure that fails does not stop the others (exit code 1); a
claim that does not hold is a result.
"""

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from iclflow.cli import compile_sparingly
from iclflow.cli.options import print_json, typed
from iclflow.report.figures import FIGURES
from iclflow.results.messages import no_other_bar

_ALL = " ".join(name for name, figure in FIGURES.items() if not figure.group)
_NONLINEAR = " ".join(name for name, figure in FIGURES.items() if figure.group == "nonlinear")
_FIELD = " ".join(name for name, figure in FIGURES.items() if figure.group == "field")

EXAMPLES = f"""figures:
  all        {_ALL}
  nonlinear  {_NONLINEAR}
             (transformers trained for real: minutes on a GPU, hours on a CPU; they resume)
  field      {_FIELD}
             (tables that other groups published, recomputed cell by cell)
  diversity  diversity-fig1
             (transformers on pools of tasks: minutes on a CPU; diversity-published has the
             published size, for a GPU)

examples:
  iclflow reproduce                      # everything, at paper scale, into report/index.html
  iclflow reproduce fig3 fig7 --out /tmp/staircase
  iclflow reproduce all --quick          # smaller everywhere, into report-quick
  iclflow reproduce nonlinear --quick    # small transformers, two minutes: a check, no verdict
  iclflow reproduce field --quick        # the cheaper cells of the published tables
  iclflow reproduce field --tables mine --json   # any folder of files in that format
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The figures, and where they go."""
    parser.add_argument(
        "figures",
        nargs="*",
        metavar="FIGURE",
        help="names, all (default), nonlinear, field, or diversity",
    )
    parser.add_argument(
        "--out",
        type=folder,
        metavar="DIR",
        help="folder of the report (report, or report-quick with --quick)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer sequences, seeds and steps: a check in minutes"
    )
    parser.add_argument(
        "--jobs",
        type=typed(int, least=1, most=1024),
        default=2,
        help="experiments at the same time (default 2)",
    )
    parser.add_argument(
        "--force", action="store_true", help="leave out the other figures of the report in --out"
    )
    parser.add_argument(
        "--tables",
        type=folder,
        metavar="DIR",
        help="compare the tables of this folder instead of those that come with the package; "
        "their names and columns are those of the packaged files",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="one JSON object on stdout; of field, {table: {cells, chi2_per_cell, largest_z, "
        "control_fails}}",
    )


def folder(text: str) -> Path:
    """A type for argparse: the name of a folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("give the name of a folder, for example report")
    return Path(text)


@contextmanager
def alone_in(out: Path) -> Iterator[None]:
    """Hold the folder for this process; `ValueError` where another `reproduce` holds it.

    The lock is the operating system's and sits on the folder itself, so it ends with the process,
    even a killed one, and leaves no file.
    """
    try:
        import fcntl
    except ImportError:  # not a Unix
        yield
        return
    out.mkdir(parents=True, exist_ok=True)
    handle = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another reproduce is writing into {out}; wait for it, or choose another --out"
            ) from None
        yield
    finally:
        os.close(handle)


def run(args: argparse.Namespace) -> int:
    """Build the report and say what became of it."""
    from iclflow.report.figures import choose

    figures = choose(args.figures)
    if args.tables is not None:
        figures = with_tables(figures, args.tables)
    out = args.out or Path("report-quick" if args.quick else "report")
    with alone_in(out):
        return run_alone(args, figures, out)


def with_tables(figures: list[Any], tables: Path) -> list[Any]:
    """The figures, with the tables of a folder; those without a table in it are left out.

    Every table is read here, so that one that cannot be compared ends the command at once.
    """
    from iclflow.experiments.field.data import GROUPS, digest, read_folder

    others = [figure.name for figure in figures if figure.group != "field"]
    if others:
        raise ValueError(
            f"--tables is for field, got {', '.join(others[:3])} too; name field alone"
        )
    there, key = read_folder(tables), digest(tables)
    found = []
    for figure in figures:
        group = GROUPS[figure.name.removeprefix("field-")]
        if any(comparison.file in there for comparison in group):
            settings = (("tables", str(tables.resolve())),)
            source = dataclasses.replace(figure.source, settings=settings, key=key)
            found.append(dataclasses.replace(figure, source=source))
    if not found:
        raise ValueError(f"{tables} has no table of {', '.join(f.name for f in figures)}")
    return found


def field_data(report: Any, figures: list[Any]) -> Iterator[Any]:
    """The data of the comparisons with published tables that are in a report."""
    from iclflow.results.netcdf import load

    for figure in figures:
        if figure.group == "field" and report.outcomes[figure.name].status != "failed":
            yield load(report.out / figure.source.file(report.quick))


def comparisons(report: Any, figures: list[Any]) -> dict[str, Any]:
    """The comparisons with published tables in numbers; empty without any."""
    found: dict[str, Any] = {}
    for data in field_data(report, figures):
        from iclflow.experiments.field.claims import summary as of_tables

        found |= of_tables(data)
    return found


def show_comparisons(report: Any, figures: list[Any]) -> None:
    """A row per published table on stdout; `control` is χ²/n with one deliberate mistake."""
    from rich.console import Console
    from rich.table import Table

    from iclflow.experiments.field.comparisons.cells import scores
    from iclflow.experiments.field.data import found_in

    table = Table(
        "table", "cells", "χ²/n", "largest |z|", "control χ²/n", "checks", "ours", "theirs"
    )
    for data in field_data(report, figures):
        for name, found, seconds in found_in(data):
            chi2, largest = scores(found.cells.z())
            wrong = scores(found.cells.z("control"))[0]
            held = sum(abs(c.measured - c.expected) <= c.tolerance for c in found.checks)
            known = chi2 == chi2
            table.add_row(
                name,
                f"{len(found.cells.label)} of {found.total}",
                f"{chi2:.2f}" if known else "",
                f"{largest:.1f}" if known else "",
                f"{wrong:.3g}" if known else "",
                f"{held} of {len(found.checks)}" if found.checks else "",
                f"{seconds:.1f} s",
                f"{found.authors:,.0f} s" if found.authors == found.authors else "",
            )
    console = Console()
    # a table that is cut says less than one that a narrow terminal wraps
    Console(width=max(console.width, 108)).print(table)


def run_alone(args: argparse.Namespace, figures: list[Any], out: Path) -> int:
    """Build the report in a folder that no other process writes to."""
    if not args.force:
        figures = with_earlier(figures, out, args.quick)
    if not any(figure.source.resumes for figure in figures):  # these train for hours
        compile_sparingly(0 if args.quick else 1)
    from iclflow.report.build import build  # after the names are known to be right: it is slow

    jobs = min(args.jobs, os.cpu_count() or 1)
    try:
        with watching([figure.name for figure in figures], quiet=args.json) as watch:
            report = build(figures, out, quick=args.quick, jobs=jobs, watch=watch)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"finished data are kept in {out}, the same command reuses them"
        ) from None
    compared = comparisons(report, figures)
    if args.json:
        field_alone = compared and all(figure.group == "field" for figure in figures)
        print_json(compared if field_alone else summary(report))
    else:
        show(summary(report))
        if compared:
            show_comparisons(report, figures)
    return 1 if report.failed else 0


def with_earlier(figures: list[Any], out: Path, quick: bool) -> list[Any]:
    """The figures, and those of the report that is there already; its page has them all.

    `ValueError` where those are at another scale, or would have to be computed anew.
    """
    from iclflow.report import figures as table
    from iclflow.report.build import claimed

    ours = {name for name in claimed(out) if (out / name).is_file()}
    if "index.html" not in ours:
        return figures
    there = [f for f in table.FIGURES.values() if f"figures/{f.name}.png" in ours]
    other = [f for f in there if f.source.file(not quick) in ours]
    if other:
        scale = "at paper scale" if quick else "in the quick form"
        raise ValueError(
            f"{out} has a report {scale}, which this one would replace; choose another --out, or "
            f"give --force"
        )
    asked = {figure.name: figure for figure in figures}
    missing = [f for f in there if f.name not in asked]
    if not missing:
        return figures
    from iclflow.report.making import data_key
    from iclflow.results.netcdf import load

    keys = {f.source: data_key(f.source, quick) for f in missing}
    for figure in missing:
        path = out / figure.source.file(quick)
        if not path.is_file() or load(path).attrs.get("content_key") != keys[figure.source]:
            raise ValueError(
                f"{out} has a report with {figure.name} too, whose data are of other code: name "
                f"it as well, choose another --out, or give --force to leave it out"
            )
    return [asked.get(f.name, f) for f in table.FIGURES.values() if f.name in asked or f in missing]


def summary(report: Any) -> dict[str, Any]:
    """The report in numbers, ready for JSON."""
    holds = [row["holds"] for row in report.rows]
    return {
        "index": str(report.index),
        "scorecard": str(report.out / "scorecard.json"),
        "quick": report.quick,
        "seconds": round(report.seconds, 3),
        "claims": len(holds),
        "claims_that_hold": sum(holds),
        "figures": [
            {
                "name": name,
                "status": found.status,
                "computing_seconds": round(found.computing, 3),
                "drawing_seconds": round(found.drawing, 3),
                "claims": len(found.claims),
                "claims_that_hold": sum(claim.holds for claim in found.claims),
                "error": found.error or None,
            }
            for name, found in report.outcomes.items()
        ],
        "does_not_hold": [r["id"] for r in report.rows if r["decided"] and not r["holds"]],
        "undecided": [row["id"] for row in report.rows if not row["decided"]],
    }


WATCHED = 20.0  # seconds of work from which the rest is announced


class Remaining:
    """How far an experiment is, in words, and how long the rest will take at the same pace.

    The pace counts from the first report on: what is compiled before it is not repeated, and what
    an earlier process has done was not done now.
    """

    def __init__(self) -> None:
        self.first: tuple[float, float] | None = None  # fraction done and time of the first report

    def words(self, done: float, now: float) -> str:
        """The state of the experiment.

        - `done`: the fraction that is done.
        - `now`: the time in seconds, on any clock that runs evenly.
        """
        if done <= 0:
            return "computing"
        if self.first is None:
            self.first = done, now
        begun, since = self.first
        text = f"computing, {done:.1%}"
        if done <= begun or now - since < WATCHED:
            return text
        from iclflow.report.page import duration

        return f"{text}, about {duration((1 - done) * (now - since) / (done - begun))} left"


@contextmanager
def watching(names: list[str], *, quiet: bool) -> Iterator[Callable[..., None]]:
    """A bar for every figure on stderr, or a line when it is finished if that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    terminal = sys.stderr.isatty() and not quiet
    bar = Progress(
        TextColumn("{task.description:<10}"),
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    with no_other_bar(), bar if terminal else nullcontext():
        tasks = {name: bar.add_task(name, total=1.0, start=False, state="") for name in names}
        rest = {name: Remaining() for name in names}

        def watch(name: str, done: float, found: Any) -> None:
            if not bar.tasks[tasks[name]].started:
                bar.start_task(tasks[name])
            state = found.status if found else rest[name].words(done, time.monotonic())
            bar.update(tasks[name], completed=done, state=state)
            if found is not None:
                bar.stop_task(tasks[name])
                if not terminal and not quiet:
                    took = f"{found.computing:.1f} s computing, {found.drawing:.1f} s drawing"
                    print(f"{name}: {found.status} ({found.error or took})", file=sys.stderr)

        yield watch


def show(found: dict[str, Any]) -> None:
    """The summary as a table on stdout."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("figure", "data", "computing", "drawing", "claims that hold")
    for row in found["figures"]:
        table.add_row(
            row["name"],
            row["status"],
            f"{row['computing_seconds']:.1f} s",
            f"{row['drawing_seconds']:.1f} s",
            f"{row['claims_that_hold']} of {row['claims']}" if row["claims"] else "",
        )
    console.print(table)
    for row in found["figures"]:
        if row["error"]:
            console.print(f"{row['name']} failed: {row['error']}", markup=False)
    reused = sum(row["status"] == "reused" for row in found["figures"])
    if reused:
        console.print(f"{reused} of {len(found['figures'])} figures reuse finished data")
    if found["does_not_hold"]:
        console.print(f"does not hold: {', '.join(found['does_not_hold'])}", markup=False)
    if found["undecided"]:
        few = f"undecided, for want of seeds: {', '.join(found['undecided'])}"
        console.print(few, markup=False)
    console.print(f"{found['claims_that_hold']} of {found['claims']} claims hold")
    if found["quick"]:
        console.print("the quick form checks that all of it runs; it is no verdict")
    wrote = f"wrote {found['index']} in {found['seconds']:.1f} s"
    console.print(wrote, markup=False, soft_wrap=True)
