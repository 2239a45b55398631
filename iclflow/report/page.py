"""The page: everything inline, so that one file can be sent."""

import ast
import base64
import dataclasses
import importlib.util
import math
import os
import platform
import re
import struct
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup, escape

import iclflow
from iclflow.experiments.base import Figure, Function
from iclflow.explorer import curves
from iclflow.report.figures import DERIVED, PAPERS, Paper, choose, cover_file
from iclflow.report.workers import Outcome
from iclflow.results.files import parse_json, write_text
from iclflow.results.netcdf import load


def duration(seconds: float) -> str:
    """A time in the unit a reader would use."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    if seconds < 86400:
        return f"{seconds / 3600:.2g} hours"
    return (
        f"{seconds / 86400:.2g} days" if seconds < 99.5 * 86400 else f"{seconds / 86400:.0f} days"
    )


def factor(ratio: float) -> str:
    """How many times faster, to two digits."""
    if ratio < 1:
        return f"{ratio:.2g}"
    return f"{float(f'{ratio:.2g}'):,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def prose(text: str) -> Markup:
    """Text with its plain-text mathematics raised and lowered: x_q, L(M_m), P^(-1/2).

    Labels of our own equations, E2, lead to what these say.
    """
    found = re.sub(r"(?<!\w)(\w)_([A-Za-z0-9]+)", r"\1<sub>\2</sub>", str(escape(text)))
    found = re.sub(r"(?<![\w.])E\d(?![\w.])", r'<a href="#\g<0>">\g<0></a>', found)
    found = re.sub(r"\^\(([^()]*)\)", r"<sup>\1</sup>", found)
    found = re.sub(r"(?<![\w.])\d+(\.\d+)?e[+-]?\d+", lambda m: number(float(m[0])), found)
    return Markup(re.sub(r"(?<=[\^(>≈ ])-(?=\d)", "\N{MINUS SIGN}", found))


def sentence(text: str) -> str:
    """Text as a sentence of its own."""
    text = capital(text.strip())
    return text if text.endswith((".", "!", "?")) else f"{text}."


def capital(text: str) -> str:
    """Text with a large first letter, unless that is a symbol: w² stays w²."""
    word = re.match(r"(a|[a-z]{2,})(?=[\s,:;-])", text)
    return text[:1].upper() + text[1:] if word else text


def beside(value: Any, expected: Any) -> str:
    """A measured number, with the digits it takes to tell it from the expected one."""
    numbers = all(isinstance(v, int | float) for v in (value, expected))
    if not numbers or value == expected or expected == 0:
        return number(value)
    needed = 2 - math.floor(math.log10(abs(value / expected - 1)))
    return number(value, min(max(4, needed), 12))


def number(value: Any, digits: int = 4) -> str:
    """A number to four digits with a real exponent; words as they are."""
    if value is None:
        return "not a number"
    if isinstance(value, str):
        return value
    text = f"{value:.{digits}g}"
    mantissa, e, exponent = text.partition("e")
    if not e:
        return text.replace("-", "\N{MINUS SIGN}")
    raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    head = "" if mantissa == "1" else f"{mantissa} × ".replace("-", "\N{MINUS SIGN}")
    return f"{head}10{raised}"


FILTERS = (beside, capital, duration, number, factor, prose, sentence)


@dataclasses.dataclass(frozen=True)
class Code:
    """A module in lines, and where in it each claim is settled and controlled.

    `places` has for each claim the line of its claim and of its control, counted from one.
    """

    name: str
    lines: tuple[str, ...]
    places: dict[str, tuple[int, int]]

    @property
    def anchors(self) -> set[int]:
        """The lines that something links to."""
        return {line for pair in self.places.values() for line in pair}


def code_of(figure: Figure, ids: list[str]) -> Code | None:
    """The module that settles the claims of a figure; None where its file is not there."""
    claims, controls = figure.source.claims, figure.source.controls
    found = importlib.util.find_spec(claims.module)
    if found is None or found.origin is None or claims.module != controls.module:
        return None
    text = Path(found.origin).read_text(encoding="utf-8")
    where = [_lines(text, function) for function in (claims, controls)]
    lines = tuple(text.splitlines())
    places = {id: (_mention(lines, where[0], id), _mention(lines, where[1], id)) for id in ids}
    return Code(claims.module, lines, places)


def _lines(text: str, function: Function) -> range:
    """The lines of a function of a module, counted from one."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == function.name:
            return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(1, 2)


def _mention(lines: tuple[str, ...], within: range, id: str) -> int:
    """Where the claim is named: in the function, else in what it calls, else its first line."""
    quoted = f'"{id}"'
    for place in (within, range(1, len(lines) + 1)):
        for number in place:
            if quoted in lines[number - 1]:
                return number
    return within.start


if TYPE_CHECKING:
    from iclflow.report.build import Report

INCH = 144  # pixels of the page: letters of 7 points are 14 pixels high
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
    environment.filters |= {function.__name__: function for function in FILTERS}
    rows, outcomes, today = report.rows, report.outcomes, datetime.now()
    texts = " ".join(f"{row['equation']} {row['reason']} {row['note']}" for row in rows)
    sources = {figure.source: outcomes[figure.name] for figure in figures}
    about, shown = papers(figures), [_figure(figure, report) for figure in figures]
    codes = {figure["name"]: figure["code"] for figure in shown if figure["code"] is not None}
    return environment.get_template("report.html.j2").render(
        cover=_cover(figures, report),
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
        "caption": found.caption,
        "alt": figure.alt,
        "found": found,
        "image": "" if image is None else base64.b64encode(image).decode(),
        "size": (1, 1) if image is None else shown_size(image),
        "settings": settings(found.attributes),
        "command": command([figure], report.quick),
        "data": figure.source.file(report.quick),
        "rows": rows,
        "live": "" if image is None else _live(figure, report),
        "code": code_of(figure, [row["id"] for row in rows]) if rows else None,
    }


def _cover(figures: Sequence[Figure], report: "Report") -> dict[str, Any] | None:
    """The picture that the page begins with: the first cover that was drawn."""
    for figure in figures:
        file = cover_file(report.out, figure.name)
        found = report.outcomes[figure.name]
        if figure.cover is None or found.status == "failed" or not file.exists():
            continue
        image = file.read_bytes()
        return {
            "name": figure.name,
            "label": figure.label,
            "caption": found.cover,
            "alt": figure.title,
            "image": base64.b64encode(image).decode(),
            "size": shown_size(image),
        }
    return None


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
        found = parse_json(stated, "the settings of the data")
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


def shown_size(image: bytes) -> tuple[int, int]:
    """Width and height of a picture on the page: its inches, however many dots they have."""
    place = image.find(b"pHYs")  # dots per metre
    dots = struct.unpack(">I", image[place + 4 : place + 8])[0] if place > 0 else 2 * INCH / 0.0254
    width, height = (round(INCH * pixels / (0.0254 * dots)) for pixels in png_size(image))
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
