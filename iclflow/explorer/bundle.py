"""The page as one file that opens anywhere: plain modules glued, no JavaScript tool needed.

Each module becomes a function that returns what it exports, dependencies first, comments left out.
The worker's modules go in as text, from which the page starts it: a page opened as a file may load
no module or worker from another.
"""

import json
import re
from functools import cache
from pathlib import Path

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
