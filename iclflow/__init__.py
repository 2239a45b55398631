"""iclflow: how a transformer acquires in-context learning during training.

State a task, a model and an initialisation; choose how exactly the loss is known and how training
time advances; `simulate` one run or `sweep` over many; lay the theory over it.

>>> import iclflow as icl
>>> task = icl.Task(spectrum=[0.4, 0.3, 0.2, 0.1], context=31)
>>> init = icl.Merged.initialiser(task, heads=4, scale=0.1)
>>> runs = icl.sweep(task, init, icl.Descent(rate=0.2), until=400, saveat=[0, 400], seeds=2)
>>> dict(runs.loss.sizes)
{'seed': 2, 'time': 2}
"""

import ast as _ast
import importlib as _importlib
from pathlib import Path as _Path

from iclflow.pool import widen as _widen

__version__ = "0.2.0"
_widen()

# `__init__.pyi` is the one list of public names. Type checkers read it, and so do we: each name is
# loaded when it is first used, so that `import iclflow` is quick.
_HOMES = {
    alias.name: node.module
    for node in _ast.parse(_Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, _ast.ImportFrom)
    for alias in node.names
}
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if home == __name__:
        return _importlib.import_module(f"{home}.{name}")
    value = getattr(__import__(home, fromlist=[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Show the public names and nothing else; what this file imports for itself stays hidden."""
    return sorted({"__version__", *__all__})
