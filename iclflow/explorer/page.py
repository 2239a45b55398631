"""The page as one file that opens anywhere, with runs or settings inside; `explore` opens it.

Plain modules are glued, and no JavaScript tool is needed.

Each module becomes a function that returns what it exports, dependencies first, comments left out.
The worker's modules go in as text, from which the page starts it: a page opened as a file may load
no module or worker from another.
"""

import json
import re
import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iclflow.results.files import write_text

WEB = Path(__file__).parent / "web"
SELF_TEST = ("paper", "merged", "linear transformer", "in weight")  # runs inside the page
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'wasm-unsafe-eval'; "
    "worker-src blob:; img-src data:; base-uri 'none'; form-action 'none'"
)
_IMPORT = re.compile(r'^import \{\s*([^}]*?),?\s*\} from "(\.[^"]+)";\n', re.MULTILINE)
_COMMENT = re.compile(r"/\*\*.*?\*/ ?\n?|^\s*//[^\n]*\n", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const|class) (\w+))", re.MULTILINE)


def text(name: str) -> str:
    """A file of the page."""
    return (WEB / name).read_text(encoding="utf-8")


def glue(entry: str) -> str:
    """One script from a module of the page and all it imports."""
    done: dict[Path, str] = {}

    def add(module: Path) -> None:
        if module in done:
            return
        source = module.read_text(encoding="utf-8")
        for found in _IMPORT.finditer(source):
            add((module.parent / found[2]).resolve())

        def taken(found: re.Match[str]) -> str:
            names = found[1].replace(" as ", ": ")
            return f"const {{ {names} }} = {_name((module.parent / found[2]).resolve())};\n"

        body = _EXPORT.sub(r"\1", _IMPORT.sub(taken, _COMMENT.sub("", source)))
        if re.search(r"^(import|export) ", body, re.MULTILINE):
            raise ValueError(f"{module.name} has an import or export that cannot be glued")
        made = ", ".join(found[2] for found in _EXPORT.finditer(source))
        done[module] = f"const {_name(module)} = (() => {{\n{body}return {{ {made} }};\n}})();\n"

    add((WEB / entry).resolve())
    return "".join(done.values()).replace("</script", "<\\/script")


def _name(module: Path) -> str:
    return "$" + re.sub(r"\W", "_", str(module.relative_to(WEB.resolve())))


@cache
def bundle() -> str:
    """The page with style, scripts, worker and the numbers of its test inside."""
    page, plot, style = map(text, ("index.html", "plot.css", "style.css"))
    found = json.loads(text("reference.json"))
    tested = json.dumps({"runs": {name: found["runs"][name] for name in SELF_TEST}})
    scripts = (
        f'<script type="text/plain" id="worker">\n{glue("page/worker.js")}</script>\n'
        f'<script type="application/json" id="reference">{tested}</script>\n'
        f'<script type="module">\n{glue("page/app.js")}</script>'
    )
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    for old, new in {
        '<meta charset="utf-8">': f'<meta charset="utf-8">\n{policy}',
        '<link rel="stylesheet" href="plot.css">\n': "",
        '<link rel="stylesheet" href="style.css">': f"<style>\n{plot}{style}</style>",
        '<script type="module" src="page/app.js"></script>': scripts,
    }.items():
        if page.count(old) != 1:
            raise ValueError(f"index.html must hold {old!r} once")
        page = page.replace(old, new)
    return page


if TYPE_CHECKING:
    import xarray as xr

    from iclflow.models import AbstractInitialiser
    from iclflow.runs.trajectory import Trajectory
    from iclflow.study.origin import Source

HEAD = "</head>"


def explore(
    *runs: "xr.Dataset | Trajectory | Path | str",
    settings: Mapping[str, Any] | None = None,
    source: "Source | None" = None,
    init: "AbstractInitialiser | None" = None,
    out: Path | str | None = None,
    browser: bool = True,
) -> Path:
    """Write the explorer page and open it; nothing is left running.

    - `runs`: recorded runs to show: Datasets of `sweep`, files of `iclflow simulate --out` or of
      `icl.save`, the `Trajectory` of one `simulate`. They must have recorded their weights. Without
      any the page trains its own.
    - `settings`: options of `iclflow simulate` by name, which the page opens with. With `prompts`
      among them, a file of your own prompts, the runs are trained here and recorded in the page,
      beside the theory of these very prompts.
    - `source`, `init`: what the runs were trained on and started from, where they cannot say it:
      the `Task` behind a sample, or the `Prompts` themselves, which are then shown with the theory
      of these very prompts.
    - `out`: the file; a temporary one if omitted.
    - `browser`: whether to open it.

    >>> import tempfile, iclflow as icl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = icl.explore(settings={"heads": 4}, out=f"{folder}/page.html", browser=False)
    ...     page.name
    'page.html'
    """
    path = Path(tempfile.mkdtemp(prefix="iclflow-")) / "explorer.html" if out is None else Path(out)
    write_text(path, page(runs, settings, source, init))
    if browser:
        webbrowser.open(path.resolve().as_uri())
    return path


def page(
    runs: "Sequence[xr.Dataset | Trajectory | Path | str]" = (),
    settings: Mapping[str, Any] | None = None,
    source: "Source | None" = None,
    init: "AbstractInitialiser | None" = None,
) -> str:
    """The page as text, with recorded runs or the settings that it opens with.

    The arguments are those of `explore`.
    """
    if runs and settings:
        raise ValueError("recorded runs have their own settings; give runs or settings, not both")
    if settings and settings.get("prompts") is not None:
        return page([trained_on_prompts(settings)])
    inside = ""
    if runs:
        from iclflow.explorer.payload import packed

        inside = "".join(
            f'<script type="text/plain" class="recorded">{packed(run, source, init)}</script>\n'
            for run in runs
        )
    elif settings:
        from iclflow.explorer.address import address

        inside = f'<script type="text/plain" id="opens">{address(settings)}</script>\n'
    return bundle().replace(HEAD, inside + HEAD, 1)


def trained_on_prompts(settings: Mapping[str, Any]) -> "xr.Dataset":
    """Runs on given prompts, trained as `iclflow simulate` does, with their weights."""
    import dataclasses

    from iclflow.explorer.payload import require_given
    from iclflow.results.messages import progress_bar
    from iclflow.study.fields import from_names
    from iclflow.study.study import Settings, Study
    from iclflow.tasks.own_prompts import Prompts

    given = Settings.read(given=dict(from_names(settings, "the settings")))
    wanted = dataclasses.replace(given, record=("loss", "weights"))
    source = wanted.source()
    assert isinstance(source, Prompts)
    require_given(wanted, source)
    with progress_bar("training", None) as report:
        return Study.of(wanted).run(progress=report)
