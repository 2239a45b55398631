"""The gallery: `examples/*.py` as pages, with the output and picture of a run that is kept here.

`python docs/gallery.py [NAME ...]` (`make gallery`) runs the examples and keeps what they print and
draw in `docs/gallery`; the pages are made of that and of the files when the site is built. A test
runs the examples and holds the kept numbers to account.
"""

import ast
import dataclasses
import functools
import hashlib
import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "gallery"
ORDER = (
    "staircase", "merged_and_separate", "early_stopping", "label_noise", "task_covariance",
    "task_diversity", "rich_to_lazy", "softmax_and_linear", "your_own_prompts",
    "prompts_from_a_map", "real_digits", "your_own_model", "own_models", "curriculum",
    "rate_schedule", "what_a_run_learned", "a_sweep", "a_map", "escape_exponent", "curvature",
    "which_drop_is_in_context", "diagnose_a_checkpoint", "monitor_in_torch",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Example:
    """One file of the gallery: a docstring whose first line is the question, then cells."""

    name: str

    @property
    def path(self) -> Path:
        """The file."""
        return ROOT / "examples" / f"{self.name}.py"

    @functools.cached_property
    def tree(self) -> ast.Module:
        """The file, parsed."""
        return ast.parse(self.path.read_text(encoding="utf-8"))

    @property
    def question(self) -> str:
        """The first line of the docstring."""
        return (ast.get_docstring(self.tree) or "").splitlines()[0]

    @property
    def about(self) -> str:
        """The docstring below its first line."""
        return (ast.get_docstring(self.tree) or "").partition("\n")[2].strip()

    @property
    def key(self) -> str:
        """A hash of what is executed; comments and layout do not count."""
        return hashlib.sha256(ast.dump(self.tree).encode()).hexdigest()[:16]

    def cells(self) -> list[tuple[str, str]]:
        """("prose", text) and ("code", text) in order, without the docstring."""
        text = self.path.read_text(encoding="utf-8")
        parts = re.split(r"^# %%(.*)\n", text, flags=re.M)[1:]
        found = []
        for head, body in zip(parts[::2], parts[1::2], strict=True):
            if head.strip() == "[markdown]":
                found.append(("prose", re.sub(r"^# ?", "", body, flags=re.M).strip()))
            else:
                found.append(("code", body.strip()))
        return found

    def kept(self) -> dict[str, str]:
        """The `key` and `output` of the run that is kept."""
        return json.loads((KEPT / f"{self.name}.json").read_text(encoding="utf-8"))

    def uses(self) -> set[str]:
        """The classes and functions of the package that the file names, by where they are."""
        names = {"icl": importlib.import_module("iclflow")}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("iclflow"):
                module = importlib.import_module(node.module or "")
                names |= {one.asname or one.name: getattr(module, one.name) for one in node.names}
        found = (_resolve(node, names) for node in ast.walk(self.tree))
        return {f"{one.__module__}.{one.__qualname__}" for one in found if _is_public(one)}

    def page(self) -> str:
        """The page of the example."""
        *_, answer, seconds = self.kept()["output"].splitlines()
        lines = [f"# {self.question} {{#gallery-{self.name}}}", self.about]
        lines += [f"![{self.question}]({self.name}.png)", f"**{answer}.**"]
        for kind, text in self.cells():
            lines.append(text if kind == "prose" else f"```python\n{text}\n```")
        lines += [f"```text\n{self.kept()['output'].strip()}\n```"]
        lines += [
            f"`python examples/{self.name}.py` makes it; here: {seconds}. [All examples](index.md)"
        ]
        return "\n\n".join(lines) + "\n"

    def run(self) -> None:
        """Run the file as a reader would, and keep what it prints and draws."""
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(self.path)]
            done = subprocess.run(
                command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True
            )
            KEPT.mkdir(exist_ok=True)
            shutil.copy(Path(folder) / f"{self.name}.png", KEPT)
        kept = {"key": self.key, "output": done.stdout}
        text = json.dumps(kept, indent=1, ensure_ascii=False)
        (KEPT / f"{self.name}.json").write_text(f"{text}\n", encoding="utf-8")
        print(f"{self.name}: {done.stdout.splitlines()[-2]}", flush=True)


def _resolve(node: ast.AST, names: dict[str, Any]) -> Any:
    """What `icl.a.b` or an imported name stands for; None for anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_resolve(node.value, names), node.attr, None)
    return None


def _is_public(one: Any) -> bool:
    ours = (getattr(one, "__module__", None) or "").startswith("iclflow")
    return ours and (inspect.isclass(one) or inspect.isfunction(one))


EXAMPLES = tuple(Example(name) for name in ORDER)


@functools.cache
def users() -> dict[str, list[Example]]:
    """Dotted name of a class or function -> the examples that use it."""
    found: dict[str, list[Example]] = {}
    for example in EXAMPLES:
        for name in sorted(example.uses()):
            found.setdefault(name, []).append(example)
    return found


def index() -> str:
    """The page of all examples, with their pictures."""
    cards = [
        f'<a href="{one.name}.html"><img src="{one.name}.png" alt="" loading="lazy">'
        f"<br>{one.question}</a>"
        for one in EXAMPLES
    ]
    grid = "display:grid;gap:1.5rem;grid-template-columns:repeat(auto-fill,minmax(14rem,1fr))"
    return (
        "# Gallery\n\nOne question, one picture with the theory in it, one number. Each example is "
        "a file of cells in `examples/`, run by the tests; its page shows what a run printed "
        "(`make gallery`). The pages of the API say which examples use a name.\n\n"
        f'<div style="{grid}">\n' + "\n".join(cards) + "\n</div>\n"
    )


def on_config(config: Any) -> Any:
    """mkdocs: list the examples below the gallery."""
    pages = [f"gallery/{one.name}.md" for one in EXAMPLES]
    below = [entry for door in config.nav for inside in door.values() for entry in inside]
    for entry in below:
        if isinstance(entry, dict) and "Gallery" in entry:
            entry["Gallery"] = ["gallery/index.md", *pages]
    return config


def on_files(files: Any, config: Any) -> Any:
    """mkdocs: add the pages."""
    from mkdocs.structure.files import File

    pages = {"index": index(), **{one.name: one.page() for one in EXAMPLES}}
    for name, text in pages.items():
        files.append(File.generated(config, f"gallery/{name}.md", content=text))
    return files


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """mkdocs: let other pages and docstrings refer to an example as `[...][gallery-NAME]`."""
    folder, _, name = page.file.src_uri.removesuffix(".md").rpartition("/")
    if folder == "gallery" and name in ORDER:
        config.plugins["autorefs"].register_anchor(page, f"gallery-{name}", primary=True)
    return html


if __name__ == "__main__":
    for given in sys.argv[1:] or ORDER:
        Example(given).run()
