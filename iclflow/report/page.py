"""The page: everything inline, so that one file can be sent."""

import base64
import json
import os
import platform
import struct
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

import iclflow
from iclflow.experiments.entry import Figure
from iclflow.explorer import curves
from iclflow.report import words
from iclflow.report.figures import choose
from iclflow.report.outcome import Outcome
from iclflow.report.papers import DERIVED, PAPERS, Paper
from iclflow.report.sources import Code, code_of
from iclflow.results.files import write_text
from iclflow.results.netcdf import load

if TYPE_CHECKING:
    from iclflow.report.build import Report

# Attributes of a Dataset that are provenance, not settings.
_PROVENANCE = {
    "content_key", "compute_seconds", "iclflow_version", "jax_version", "device", "python",
    "Conventions", "clock", "settings", "quick", "figure",
}  # fmt: skip


def write(report: "Report", figures: Sequence[Figure]) -> Path:
    """Render the report into its index.html."""
    return write_text(report.index, render(report, figures))


def render(report: "Report", figures: Sequence[Figure]) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("iclflow.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {function.__name__: function for function in words.FILTERS}
    rows, outcomes, today = report.rows, report.outcomes, datetime.now()
    texts = " ".join(f"{row['equation']} {row['reason']} {row['note']}" for row in rows)
    sources = {figure.source: outcomes[figure.name] for figure in figures}
    about, shown = papers(figures), [_figure(figure, report) for figure in figures]
    codes = {figure["name"]: figure["code"] for figure in shown if figure["code"] is not None}
    return environment.get_template("report.html.j2").render(
        title=about[0].title if len(about) == 1 else "Training Dynamics of In-Context Learning",
        papers=about,
        figures=shown,
        codes=codes,
        modules={code.name: _merged(codes, code.name) for code in codes.values()},
        plot_style=curves.style(),
        plot_script=curves.script() if any(figure["live"] for figure in shown) else "",
        rows=rows,
        misses=[row for row in rows if not row["holds"]],
        counts=[
            (about, [row["holds"] for row in rows if row["beyond"] == beyond])
            for about, beyond in (
                ("claims of the papers that hold", False),
                ("results beyond them that hold", True),
            )
        ],
        derived={label: text for label, text in DERIVED.items() if label in texts},
        labels={figure.name: figure.label for figure in figures},
        failed=report.failed,
        quick=report.quick,
        seconds=report.seconds,
        computing=sum(found.computing for found in sources.values()),
        reused=sum(found.status == "reused" for found in outcomes.values()),
        comparisons=comparisons(figures, outcomes) if not report.quick else [],
        machine=machine(),
        versions=_versions(outcomes.values()),
        date=f"{today.day} {today:%B %Y}",
        command=command(figures, report.quick),
    )


def papers(figures: Sequence[Figure]) -> list[Paper]:
    """The papers that the figures are of."""
    return [paper for paper in PAPERS if any(figure in paper.figures for figure in figures)]


def command(figures: Sequence[Figure], quick: bool) -> str:
    """What makes these figures on the command line."""
    names = [figure.name for figure in figures]
    what = "all" if names == [f.name for f in choose(["all"])] else " ".join(names)
    return f"iclflow reproduce {what}{' --quick' if quick else ''}"


def _figure(figure: Figure, report: "Report") -> dict[str, Any]:
    """What the page says of one figure."""
    found = report.outcomes[figure.name]
    picture = report.out / "figures" / f"{figure.name}.png"
    image = None if found.status == "failed" else picture.read_bytes()
    rows = [row for row in report.rows if row["figure"] == figure.name]
    return {
        "name": figure.name,
        "label": figure.label,
        "title": figure.title,
        "caption": figure.caption,
        "alt": figure.alt,
        "found": found,
        "image": "" if image is None else base64.b64encode(image).decode(),
        "size": (1, 1) if image is None else png_size(image),
        "settings": settings(found.attributes),
        "command": command([figure], report.quick),
        "data": figure.source.file(report.quick),
        "rows": rows,
        "live": "" if image is None else _live(figure, report),
        "code": code_of(figure, [row["id"] for row in rows]) if rows else None,
    }


def _live(figure: Figure, report: "Report") -> str:
    """The runs behind a figure, for the script that draws them; empty where there are none."""
    if not figure.live:
        return ""
    data = load(report.out / figure.source.file(report.quick))
    panels = [panel for live in figure.live for panel in curves.panels(data, **vars(live))]
    return curves.element(figure.name, panels)


def _merged(codes: Mapping[str, Code], module: str) -> list[tuple[int, str, bool]]:
    """The lines of a module: number, text, and whether anything links to it."""
    same = [code for code in codes.values() if code.name == module]
    anchors = set().union(*(code.anchors for code in same))
    return [(n, line, n in anchors) for n, line in enumerate(same[0].lines, 1)]


def comparisons(figures: Sequence[Figure], outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """Our time and the published code's, for the figures where both are known."""
    source = {figure.name: figure.source for figure in figures}
    found = []
    for entry in (entry for paper in PAPERS for entry in paper.published):
        made = [name for name in entry.figures if name in source]
        if made != list(entry.figures) or any(outcomes[n].status == "failed" for n in made):
            continue
        ours = sum({source[name]: outcomes[name].computing for name in made}.values())
        ours += sum(outcomes[name].drawing for name in made)
        ratio = entry.seconds / ours if entry.alike else None
        about = {"label": entry.label, "note": entry.note}
        found.append({**about, "published": entry.seconds, "ours": ours, "ratio": ratio})
    return found


def settings(attributes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The settings among a Dataset's attributes, as words."""
    stated = str(attributes.get("settings", "null"))
    try:
        found = json.loads(stated)
    except ValueError:
        found = stated
    if not isinstance(found, Mapping):
        found = {"as stated": found}
    shown = {k: v for k, v in {**found, **attributes}.items() if k not in _PROVENANCE}
    shown = {k: v for k, v in shown.items() if v is not None}
    return [(str(k).replace("_", " "), _words(v)) for k, v in shown.items()]


def _words(value: Any) -> str:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return "; ".join(f"{k} {_words(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_words(v) for v in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def png_size(image: bytes) -> tuple[int, int]:
    """Width and height of a PNG in pixels."""
    width, height = struct.unpack(">II", image[16:24])
    return width, height


def machine() -> str:
    """The machine in words."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    return f"{cores} core{'s' if cores != 1 else ''} of {name}"


def _versions(outcomes: Any) -> str:
    jax = next((found.attributes.get("jax_version") for found in outcomes if found.attributes), "")
    made = f"iclflow {iclflow.__version__}, Python {platform.python_version()}"
    return f"{made}, JAX {jax}" if jax else made
