"""The index of equations: what the papers number, and the code and tests whose docstrings cite it.

A citation is a number in brackets, (24), (13a), (45)-(48), or a label: (M), (S), (C1), E2,
Section 4.1. It belongs to the first paper; in a module whose docstring names the second paper, or
its authors Mainali & Teixeira, to that one. A docstring that names a paper says so for what follows
in it.
"""

import ast
import dataclasses
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
APPLIED = ("cli", "experiments", "explorer", "plots", "report")  # rooms that use the formulas
SECOND = r"[Ss]econd paper|2nd paper|Mainali & Teixeira"
CITATION = re.compile(
    rf"(?P<second>{SECOND})|(?P<first>first paper|Zhang et al\.)"
    r"|(?<![\w\]])\((?P<number>\d{1,3})(?P<part>[a-h]?)\)(?:[-–]\((?P<last>\d{1,3})[a-h]?\))?"
    r"|(?<![\w\]])\((?P<label>M|S|C\d)\)"
    r"|(?<![\w.])(?P<own>E\d)(?!\w)"
    r"|(?P<section>Section 4\.1)"
)


@dataclasses.dataclass(frozen=True)
class Equation:
    """What the table says of one equation."""

    says: str
    holds: str = ""
    step: str = ""
    icml: str = ""
    parts: str = ""


@dataclasses.dataclass(frozen=True)
class Citation:
    """One equation named in one docstring; `name` is empty for a module's."""

    paper: str
    key: str
    part: str
    module: str
    name: str


def read(path: Path = ROOT / "docs" / "equations.toml") -> dict[str, dict]:
    """Paper -> title, cites, and parts: heading -> number -> Equation."""
    return {
        paper: {
            name: {key: Equation(**said) for key, said in value.items()}
            if isinstance(value, dict)
            else value
            for name, value in about.items()
        }
        for paper, about in tomllib.loads(path.read_text(encoding="utf-8")).items()
    }


def equations(paper: dict) -> dict[str, Equation]:
    """Number -> Equation, all parts of a paper together."""
    return {k: v for part in paper.values() if isinstance(part, dict) for k, v in part.items()}


def cited(text: str, paper: str) -> Iterator[tuple[str, str, str]]:
    """(paper, number, part) for every citation in a docstring of a module that is `paper`'s."""
    for match in CITATION.finditer(text):
        if match["first"] or match["second"]:
            paper = "first" if match["first"] else "second"
        elif match["own"]:
            yield "own", match["own"], ""
        elif match["number"]:
            last = int(match["last"] or match["number"])
            for number in range(int(match["number"]), last + 1):
                yield paper, str(number), match["part"] if number == int(match["number"]) else ""
        else:
            yield "first", match["label"] or match["section"], ""


def citations(folder: Path, root: Path = ROOT) -> list[Citation]:
    """Every citation in the docstrings of a folder, in the order of its files."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        paper = "second" if re.search(SECOND, ast.get_docstring(tree) or "") else "first"
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for name, text in docstrings(tree):
            for where, key, part in dict.fromkeys(cited(text, paper)):
                found.append(Citation(where, key, part, module.removesuffix(".__init__"), name))
    return found


def docstrings(node: ast.AST, name: str = "") -> Iterator[tuple[str, str]]:
    """(qualified name, docstring) of a module and all that is defined in it."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        yield name, ast.get_docstring(node) or ""
    for child in ast.iter_child_nodes(node):
        inner = getattr(child, "name", "") if isinstance(child, ast.stmt) else ""
        yield from docstrings(child, ".".join(filter(None, (name, inner))))


def implementing(found: list[Citation]) -> list[Citation]:
    """Those in the rooms where formulas live; a module only where nothing inside it cites."""
    inside = [c for c in found if c.module.split(".")[1] not in APPLIED]
    named = {(c.paper, c.key, c.module) for c in inside if c.name}
    return [c for c in inside if c.name or (c.paper, c.key, c.module) not in named]


def testing(found: list[Citation]) -> list[Citation]:
    """Those of test functions."""
    return [c for c in found if c.name.startswith("test_")]


def index(data: dict[str, dict], code: list[Citation], tests: list[Citation]) -> str:
    """The page's tables in Markdown, a section for each paper and a table for each part of it."""
    lines = []
    for paper, about in data.items():
        lines += [f"## {about['title']} {{ #{paper} }}", "", f"{about['cites']}.", ""]
        both = paper == "first"
        head = ["v1", "ICML"] if both else ["number" if paper == "second" else "label"]
        for heading, part in about.items():
            if not isinstance(part, dict):
                continue
            lines += [f"### {heading}", ""]
            lines += ["| " + " | ".join([*head, "what it says", "where it holds", "code", "tests"])]
            lines += ["|" + "---|" * (len(head) + 4)]
            for key, said in part.items():
                numbers = [shown(key), icml(said)] if both else [shown(key)]
                used = [linked(c) for c in code if (c.paper, c.key) == (paper, key)]
                checked = [tested(c) for c in tests if (c.paper, c.key) == (paper, key)]
                where = said.holds or f"*not computed: {said.step}*"
                # A bracket of a formula must not become a link of Markdown.
                cells = [*numbers, said.says.replace("[", "&#91;"), where]
                cells = [cell.replace("|", "\\|") for cell in cells]  # |k| is no column
                cells += ["<br>".join(dict.fromkeys(used)), "; ".join(dict.fromkeys(checked))]
                lines.append("| " + " | ".join(cells) + " |")
            lines.append("")
    return "\n".join(lines)


def shown(key: str) -> str:
    """A number as the papers print it; our labels and sections stand without brackets."""
    return key if key.startswith(("E", "Section")) else f"({key})"


def icml(said: Equation) -> str:
    """The number in the ICML text, or where it is there without one."""
    return {"": "appendix", "text": "in the text"}.get(said.icml) or shown(said.icml)


def linked(citation: Citation) -> str:
    """A link to the API page, where there is one."""
    path = ".".join(filter(None, (citation.module, citation.name)))
    text = citation.name or citation.module.partition(".")[2]
    text = re.sub(r"(?<=[._])(?=[A-Za-z])", "<wbr>", text)  # where a narrow column may break it
    return f'<autoref identifier="{path}" optional><code>{text}</code></autoref>'


def tested(citation: Citation) -> str:
    """File and name of a test; its words can break, as underscores would not."""
    file = citation.module.rpartition(".")[2]
    return f"`{file}` {citation.name.removeprefix('test_').replace('_', ' ')}"


def write(markdown: str) -> str:
    """The page with its tables in the place of the comment that stands for them."""
    code, tests = citations(ROOT / "iclflow"), citations(ROOT / "tests")
    return markdown.replace("<!-- index -->", index(read(), implementing(code), testing(tests)))
