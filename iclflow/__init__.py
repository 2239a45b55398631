"""iclflow: how a transformer acquires in-context learning during training.

State a task, a model and an initialisation; choose how exactly the loss is known and how training
time advances; `simulate` one run or `sweep` over many; lay the theory over it.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from iclflow import diagnostics, plots, theory, transformers
    from iclflow.dynamics import Adam, Descent, Flow, Momentum, sharpness, stable_rate
    from iclflow.losses import (
        Features,
        Fresh,
        FullFeatures,
        Minibatch,
        Moments,
        Population,
        ReducedFeatures,
        Sequences,
        population_moments,
    )
    from iclflow.losses.select import select
    from iclflow.models import MLP, Blocks, ConvNet, Merged, Separate, Softmax
    from iclflow.results import netcdf as store
    from iclflow.results.trajectory import RESULTS, Trajectory
    from iclflow.runs import record
    from iclflow.runs.simulate import simulate
    from iclflow.runs.sweep import Vary, sweep
    from iclflow.tasks.base import AbstractTask
    from iclflow.tasks.commuting import Commuting
    from iclflow.tasks.inputs import Gaussian, Rademacher, Sphere, StudentT
    from iclflow.tasks.prompt import Normaliser, Prompt
    from iclflow.tasks.spectra import named_spectrum
    from iclflow.tasks.task import ContextLabels, Task
    from iclflow.tasks.task_vectors import Mixture, Normal, Pool

# Public name -> module that has it; loaded at first use, so that `import iclflow` is quick.
_HOMES = {
    "iclflow.tasks.base": ("AbstractTask",),
    "iclflow.tasks.commuting": ("Commuting",),
    "iclflow.tasks.inputs": ("Gaussian", "Rademacher", "Sphere", "StudentT"),
    "iclflow.tasks.task_vectors": ("Mixture", "Normal", "Pool"),
    "iclflow.dynamics": ("Adam", "Descent", "Flow", "Momentum", "sharpness", "stable_rate"),
    "iclflow.losses": (
        "Features",
        "Fresh",
        "FullFeatures",
        "Minibatch",
        "Moments",
        "Population",
        "ReducedFeatures",
        "Sequences",
        "population_moments",
    ),
    "iclflow.models": ("MLP", "Blocks", "ConvNet", "Merged", "Separate", "Softmax"),
    "iclflow.tasks.prompt": ("Normaliser", "Prompt"),
    "iclflow.losses.select": ("select",),
    "iclflow.runs.simulate": ("simulate",),
    "iclflow.tasks.spectra": ("named_spectrum",),
    "iclflow.runs.sweep": ("Vary", "sweep"),
    "iclflow.tasks.task": ("ContextLabels", "Task"),
    "iclflow.results.trajectory": ("RESULTS", "Trajectory"),
}
_MODULES = {
    "diagnostics": "diagnostics",
    "plots": "plots",
    "record": "runs.record",
    "store": "results.netcdf",
    "theory": "theory",
    "transformers": "transformers",
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "MLP",
    "RESULTS",
    "AbstractTask",
    "Adam",
    "Blocks",
    "Commuting",
    "ContextLabels",
    "ConvNet",
    "Descent",
    "Features",
    "Flow",
    "Fresh",
    "FullFeatures",
    "Gaussian",
    "Merged",
    "Minibatch",
    "Mixture",
    "Moments",
    "Momentum",
    "Normal",
    "Normaliser",
    "Pool",
    "Population",
    "Prompt",
    "Rademacher",
    "ReducedFeatures",
    "Separate",
    "Sequences",
    "Softmax",
    "Sphere",
    "StudentT",
    "Task",
    "Trajectory",
    "Vary",
    "diagnostics",
    "named_spectrum",
    "plots",
    "population_moments",
    "record",
    "select",
    "sharpness",
    "simulate",
    "stable_rate",
    "store",
    "sweep",
    "theory",
    "transformers",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"iclflow.{_MODULES[name]}")
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
        # A function may share its module's name; the function is what the package offers.
        globals()[name] = value
        return value
    raise AttributeError(f"module 'iclflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
