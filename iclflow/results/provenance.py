"""Where results come from: settings in plain values, keys of settings and code, old names."""

import ast
import dataclasses
import enum
import functools
import hashlib
import importlib.util
import inspect
import json
import platform
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

import iclflow
from iclflow.results.files import keep, recall

PACKAGE = Path(__file__).parents[1]

# How a tree of syntax is printed changes with the version of Python, and so does its hash.
_CODE = f"code-{platform.python_version()}.json"
_FILES = 2_000  # entries that are kept: several versions of all files


def describe(thing: Any, seen: set[int] | None = None) -> Any:
    """Settings of an object as plain JSON values; large arrays and functions by a hash.

    Two functions are the same if their code is, and all that it refers to; `seen` are those that
    were met already.
    """
    seen = set() if seen is None else seen
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
        fields = {f.name: describe(getattr(thing, f.name), seen) for f in dataclasses.fields(thing)}
        return {"kind": type(thing).__name__, **_own_code(type(thing), seen), **fields}
    if isinstance(thing, Mapping):
        return {str(k): describe(v, seen) for k, v in thing.items()}
    if isinstance(thing, Sequence) and not isinstance(thing, str):
        return [describe(v, seen) for v in thing]
    if isinstance(thing, str | int | float | bool | type(None)):
        return thing
    if isinstance(thing, functools.partial):
        return {"partial": describe([thing.func, thing.args, thing.keywords], seen)}
    name = getattr(thing, "__qualname__", type(thing).__name__)
    code = code_of(thing, seen) if callable(thing) else None
    return name if code is None else {"function": name, "code": code}


def code_of(function: Any, seen: set[int]) -> str | None:
    """A hash of what a Python function does: its code, and what that refers to.

    Values of its closure and defaults count, and so do functions and plain values of its own
    package (or program) that it names; docstrings and places do not. None for what is not written
    in Python, or was seen.
    """
    owner, function = getattr(function, "__self__", None), inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return None
    seen.add(id(function))
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    names = sorted(_names(function.__code__) & set(function.__globals__))
    referred = [*cells, *(function.__globals__[name] for name in names)]
    found = [_code(function.__code__, function.__doc__), names, owner, function.__defaults__]
    found += [function.__kwdefaults__, [_referred(value, function) for value in referred]]
    return _digest(describe(found, seen))


def _referred(value: Any, by: types.FunctionType) -> Any:
    """A value that a function refers to; modules, classes and other packages by their name."""
    if inspect.ismodule(value):
        return value.__name__
    root = (getattr(value, "__module__", None) or "").split(".")[0]
    foreign = callable(value) and root != by.__module__.split(".")[0]
    if isinstance(value, type) or (foreign and not dataclasses.is_dataclass(value)):
        return getattr(value, "__qualname__", type(value).__name__)
    return value


def _code(code: types.CodeType, documentation: str | None = None) -> list[Any]:
    """What is executed, without where it was written."""
    constants = []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            constants.append(_code(constant))
        elif isinstance(constant, frozenset):  # in no order
            constants.append(sorted(map(repr, constant)))
        elif documentation is None or constant != documentation:
            constants.append(repr(constant))
    return [code.co_code.hex(), list(code.co_names), constants]


def _names(code: types.CodeType) -> set[str]:
    """The names that a function and those inside it look up."""
    inside = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return set(code.co_names).union(*map(_names, inside))


def _own_code(kind: type, seen: set[int]) -> dict[str, Any]:
    """The methods of a class of the user's; the code of this package is known by `code_key`."""
    root = kind.__module__.split(".")[0]
    if root == PACKAGE.name:
        return {}
    bases = [base for base in kind.__mro__ if base.__module__.split(".")[0] == root]
    written = [(name, value) for base in bases for name, value in vars(base).items()]
    return {"code": [[name, code_of(f, seen)] for name, f in written if inspect.isfunction(f)]}


def _digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def content_key(settings: Any) -> str:
    """A name for what a run computes: equal settings and version, equal key."""
    return _digest([describe(settings), iclflow.__version__])


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
        "clock": "time is t/tau = 2 * rate * step (of a schedule: 2 * the sum of its rates); "
        "the loss has no factor 1/2",
    }


def code_key(*modules: str) -> str:
    """A hash of the code of modules and of all they import of this package, and these in turn.

    What their results may depend on, no more: comments, docstrings and layout do not count.
    """
    known = _known()
    before = len(known)
    waiting, seen = [_file(name) for name in modules], dict[Path, str]()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            source = path.read_bytes()
            key = hashlib.sha256(source).hexdigest()
            if key not in known:
                known[key] = _read(source)
            seen[path], names = known[key]
            waiting += [file for name in names for file in _files(name)]
    if len(known) > before:
        keep(_CODE, dict(list(known.items())[-_FILES:]))
    named = {p.relative_to(PACKAGE).as_posix() if PACKAGE in p.parents else p.name: p for p in seen}
    return _digest({name: seen[path] for name, path in named.items()})


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
def _known() -> dict[str, tuple[str, tuple[str, ...]]]:
    """What `_read` said of files in earlier calls, by the hash of their bytes.

    Parsing the package takes half a second, which is more than most runs take to train.
    """
    return {
        key: (entry[0], tuple(entry[1]))
        for key, entry in recall(_CODE).items()
        if isinstance(entry, list)
        and [type(part) for part in entry] == [str, list]
        and all(isinstance(name, str) for name in entry[1])
    }


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


def with_present_names(dataset: xr.Dataset) -> xr.Dataset:
    """A Dataset of an earlier version under the names of this one.

    The dimension over the drops of a run was called `drop` until 0.2. xarray has an argument of
    that name: `isel(drop=0)` did not select the first drop, it selected nothing.
    """
    old = "drop" in dataset.dims and "drop_number" not in dataset.dims
    return dataset.rename(drop="drop_number") if old else dataset
