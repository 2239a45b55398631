"""Every public name can be used by a stranger: its arguments are explained, and an example runs.

The examples themselves are run by `test_snippets.py`.
"""

import ast
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2] / "iclflow"
PARTS = ("self", "cls", "args", "kwargs")  # not what a user gives


def listed(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of what a file passes on, `from module import name as name`."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, a.name) for a in node.names if a.asname == a.name)


def public(path: Path) -> dict[str, Any]:
    """The functions and classes that a file passes on, by their names in the package."""
    found = {}
    for module, name in listed(path):
        thing = getattr(importlib.import_module(module), name, None)
        if callable(thing):
            found[f"{module}.{name}".removeprefix("iclflow.")] = thing
    return found


TOP = public(PACKAGE / "__init__.pyi")
ROOMS = {
    name: thing for path in PACKAGE.glob("*/__init__.py") for name, thing in public(path).items()
}
FUNCTIONS = {name: thing for name, thing in ROOMS.items() if not inspect.isclass(thing)}


def documented(thing: Any) -> str:
    """What is said of a function, or of a class and its own methods."""
    said = [inspect.getdoc(thing) or ""]
    if inspect.isclass(thing):
        methods = (m for n, m in vars(thing).items() if not n.startswith("_") or n == "__init__")
        said += [inspect.getdoc(m) or "" for m in methods if not isinstance(m, str)]
    return "\n".join(said)


def elsewhere(thing: Any) -> bool:
    """Whether another name explains this one, as `Merged.initialiser` does what it returns."""
    return (inspect.getdoc(thing) or "").startswith("See `")


def unexplained(thing: Any) -> list[str]:
    """Arguments that no docstring, no comment beside a field and no `option` explains."""
    if elsewhere(thing) or (inspect.isclass(thing) and issubclass(thing, enum.Enum | Exception)):
        return []
    said = " ".join(re.findall(r"`([^`\n]*)`", documented(thing)))
    if inspect.isclass(thing):
        source = inspect.getsource(thing)
        said += " " + " ".join(
            re.findall(r"^    (\w+): .*(?:  # | = option\()", source, flags=re.M)
        )
    given = (name for name in inspect.signature(thing).parameters if name not in PARTS)
    return [name for name in given if not re.search(rf"\b{re.escape(name)}\b", said)]


def test_every_public_name_has_an_example():
    without = [
        name
        for name, thing in (TOP | FUNCTIONS).items()
        if ">>>" not in documented(thing) and not elsewhere(thing)
    ]
    assert without == []


def test_every_argument_is_explained():
    lacking = {name: unexplained(thing) for name, thing in (TOP | ROOMS).items()}
    assert {name: found for name, found in lacking.items() if found} == {}


def test_docstrings_are_a_seventh_of_the_package():
    lines = said = 0
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        lines += source.count("\n")
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, kinds) and ast.get_docstring(node) is not None:
                text = node.body[0]
                assert text.end_lineno is not None
                said += text.end_lineno - text.lineno + 1
    assert said >= 0.15 * lines


@pytest.mark.parametrize(
    ("said", "missing"),
    [("", ["size"]), ("Needs `size`.", []), ("Needs size.", ["size"]), ("See `other`.", [])],
)
def test_an_argument_without_a_word_is_found(said, missing):
    def function(size):
        return size

    function.__doc__ = said
    assert unexplained(function) == missing
