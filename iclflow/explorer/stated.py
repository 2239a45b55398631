"""An experiment that was stated in objects, in those words of `iclflow simulate` the page knows."""

from typing import Any

import numpy as np

from iclflow.models import (
    LayersInitialiser,
    LinearTransformerInitialiser,
    MergedInitialiser,
    SeparateInitialiser,
    SoftmaxInitialiser,
)
from iclflow.study.study import Settings
from iclflow.tasks.laws import Gaussian, Normal
from iclflow.tasks.task import ContextLabels, Task

ROUNDING = 1e-9  # of the largest variance: task variances between two eigenvectors of the inputs


def stated(task: Task, init: Any) -> Settings:
    """The settings of a task and an initialiser; `ValueError` where the page has no such thing.

    - `task`: in the order of the page, largest eigenvalue first. Its eigenvectors are not said:
      the page has coordinates along them.
    """
    return Settings(**of_model(init), **_of_task(task))


def _of_task(task: Task) -> dict[str, Any]:
    law, spectrum = task.tasks, tuple(task.spectrum.tolist())
    if not isinstance(law, Normal) or law.dims[0] > 1 or not law.symmetric():
        raise ValueError(
            f"the page shows sweeps over Gaussian tasks of mean zero with one output, got "
            f"{type(law).__name__} with {law.dims[0]} outputs; icl.plots.loss draws any sweep"
        )
    if not isinstance(task.inputs, Gaussian) or task.context_labels is not ContextLabels.TASK:
        raise ValueError(
            f"the page has Gaussian inputs and the labels of the task, got "
            f"{type(task.inputs).__name__} and {task.context_labels.value}"
        )
    basis = np.asarray(task.basis)
    covariance = basis.T @ np.asarray(law.covariance) @ basis
    variances = np.diagonal(covariance)
    if np.abs(covariance - np.diag(variances)).max() > ROUNDING * np.abs(variances).max():
        raise ValueError(
            "the page has a task variance for each component of the inputs, and this task "
            "covariance has other eigenvectors; icl.plots.loss draws any sweep"
        )
    return {
        "spectrum": spectrum,
        "context": task.context,
        "noise": float(task.label_noise),
        "target_noise": float(task.target_noise),
        "lengths": None if task.lengths == (task.context,) else task.lengths,
        "normaliser": task.normaliser.value,
        "task_covariance": None if np.all(variances == 1) else tuple(variances.tolist()),
    }


def of_model(init: Any) -> dict[str, Any]:
    """The name of a model with its sizes and its scale."""
    if isinstance(init, SoftmaxInitialiser) and init.query_key:
        found = of_model(init.inner)
        return {**found, "model": f"softmax-{found['model']}"}
    if isinstance(init, LayersInitialiser):
        found = of_model(init.inner)
        more = {"layers": init.layers, "tied": init.tied}
        return {**found, **more, "model": f"layers-{found['model']}"}
    if isinstance(init, SeparateInitialiser):
        found = {"model": "separate", "heads": init.heads, "rank": init.rank}
    elif isinstance(init, MergedInitialiser):
        found = {"model": "merged", "heads": init.heads}
    elif isinstance(init, LinearTransformerInitialiser):
        found = {"model": "linear-transformer", "heads": 1}
    else:
        found = "a model that these runs do not name" if init is None else type(init).__name__
        raise ValueError(
            f"the page shows attention of the library, got {found}; give init= where the runs "
            f"cannot say it"
        )
    return {**found, "scale": float(init.scale)}
