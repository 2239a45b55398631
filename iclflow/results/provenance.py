"""Where results come from: settings as plain values, keys of settings and of code, a stamp."""

import ast
import dataclasses
import enum
import functools
import hashlib
import importlib.util
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import iclflow

PACKAGE = Path(__file__).parents[1]


def describe(thing: Any) -> Any:
    """Settings of an object as plain JSON values; large arrays by shape and hash."""
    if isinstance(thing, jax.Array | np.ndarray | np.generic):
        if isinstance(thing, jax.Array) and jnp.issubdtype(thing.dtype, jax.dtypes.prng_key):
            return {"key": np.asarray(jax.random.key_data(thing)).tolist()}
        array = np.asarray(thing)
        if array.size <= 64:
            return array.tolist()
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
        return {"shape": list(array.shape), "sha256": digest}
    if isinstance(thing, enum.Enum):
        return thing.value
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        fields = {f.name: describe(getattr(thing, f.name)) for f in dataclasses.fields(thing)}
        return {"kind": type(thing).__name__, **fields}
    if isinstance(thing, functools.partial):
        return {"partial": [describe(thing.func), describe(thing.args), describe(thing.keywords)]}
    if isinstance(thing, Mapping):
        return {str(k): describe(v) for k, v in thing.items()}
    if isinstance(thing, Sequence) and not isinstance(thing, str):
        return [describe(v) for v in thing]
    if isinstance(thing, str | int | float | bool | type(None)):
        return thing
    return getattr(thing, "__qualname__", type(thing).__name__)


def content_key(settings: Any) -> str:
    """A name for what a run computes: equal settings and version, equal key."""
    text = json.dumps([describe(settings), iclflow.__version__], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stamp(settings: Any) -> dict[str, str]:
    """Provenance attributes: what was asked, by which versions, on what device."""
    return {
        "settings": json.dumps(describe(settings), sort_keys=True),
        "content_key": content_key(settings),
        "iclflow_version": iclflow.__version__,
        "jax_version": jax.__version__,
        "device": f"{jax.devices()[0].device_kind} ({jax.default_backend()})",
        "python": platform.python_version(),
        "Conventions": "CF-1.11",
        "clock": "time is t/tau = 2 * rate * step; the loss has no factor 1/2",
    }


def code_key(*modules: str) -> str:
    """A hash of the code of modules and of all they import of this package, and these in turn.

    What their results may depend on, no more: comments, docstrings and layout do not count.
    """
    waiting, seen = [_file(name) for name in modules], dict[Path, str]()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen[path], names = _read(path.read_bytes())
            waiting += [file for name in names for file in _files(name)]
    named = {p.relative_to(PACKAGE).as_posix() if PACKAGE in p.parents else p.name: p for p in seen}
    text = json.dumps({name: seen[path] for name, path in named.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def imported(tree: ast.AST) -> list[str]:
    """The absolute names in the import statements of a file, those inside functions included.

    `from a import b` counts as `a.b`: b may be a module. So does `a.b` after `import a`, where a
    is this package.
    """
    package, names, faces = PACKAGE.name, [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name != package]
            faces |= {alias.asname or package for alias in node.names if alias.name == package}
        elif isinstance(node, ast.ImportFrom):
            if node.level > 0:
                raise ValueError("relative imports cannot be followed; write them in full")
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names += [f"{package}.{node.attr}"] if node.value.id in faces else []
    return names


@functools.cache
def _read(source: bytes) -> tuple[str, tuple[str, ...]]:
    """A hash of the code in a file, and what it imports of this package."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    names = tuple(name for name in imported(tree) if name.split(".")[0] == PACKAGE.name)
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), names


def _file(module: str) -> Path:
    if module.split(".")[0] == PACKAGE.name:
        *_, last = _files(module)
        return last
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"there is no module {module}")
    return Path(found.origin)


def _files(name: str) -> Iterator[Path]:
    """The files that importing a name of this package runs: `iclflow.a.b` runs `iclflow.a` too.

    The package's own face imports when it is asked: it counts for a name that it alone has. The
    version is in `content_key`.
    """
    place, found = PACKAGE, False
    for part in name.split(".")[1:]:
        place /= part
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                found = True
                yield file
    if not found and name != f"{PACKAGE.name}.__version__":
        yield PACKAGE / "__init__.pyi"
