"""Which in-context algorithm a model runs: its distance to each candidate, over training.

The distance of two predictors is (E(ŷ - ŷ')²/E[y²])^(1/2) on prompts of a task. Between a linear
model and a candidate that is linear in the features S ⊗ x_q or in x_q alone it is exact, from
population moments; everything else is compared on one set of sampled prompts.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from iclflow.distributions import Gaussian, NormalTasks, TaskPool
from iclflow.linalg import gaussian_moment, packed_pairs
from iclflow.losses import FullFeatures, Population, ReducedFeatures, population_moments
from iclflow.losses.population import LengthMoments
from iclflow.models import (
    MLP,
    AbstractLinearModel,
    AbstractModel,
    Blocks,
    ConvNet,
    Merged,
    Separate,
    Softmax,
)
from iclflow.prompt import Prompt, map_prefixes
from iclflow.task import ContextLabels, Task
from iclflow.theory import (
    AbstractPredictor,
    GradientDescent,
    InWeight,
    LinearPredictor,
    Modes,
    OrdinaryLeastSquares,
    Ridge,
    bayes_predictor,
    gradient_step,
    principal_component_regression,
    zero_predictor,
)
from iclflow.theory.algorithms import mean_task

LEAST_SQUARES = "least squares (= PCR-D)"
RIDGE = "ridge"
DESCENT_STEPS = (2, 4, 8)
RIDGES = np.geomspace(1e-2, 1e1, 13)  # in units of N tr(Λ)/D
SAME = 1e-6  # relative distance below which two candidates are one
FULL_LIMIT = 4096  # features whose moments are worth the memory


def shifted(
    task: Task,
    *,
    context: int | None = None,
    spectrum: Sequence[float] | Float[np.ndarray, " D"] | None = None,
    scale: float = 1.0,
) -> Task:
    """The task with another context length, other eigenvalues, or x multiplied by `scale`."""
    changes: dict[str, Any] = {} if context is None else {"context": context}
    if context is not None and task.lengths != (task.context,):
        changes["lengths"] = (context,)
    eigenvalues = np.asarray(task.spectrum if spectrum is None else spectrum, float)
    if eigenvalues.shape != task.spectrum.shape:
        raise ValueError(
            f"the shifted spectrum needs {task.size} eigenvalues (one for each eigenvector), "
            f"got {eigenvalues.size}"
        )
    return task.replace(spectrum=eigenvalues * scale**2, **changes)


def candidates(task: Task, *, sequences: int = 2000, seed: int = 0) -> dict[str, AbstractPredictor]:
    """The in-context algorithms of a task by name; those that coincide are one candidate.

    PCR and least squares are those of the in-context part of a mixture with w*. Steps of gradient
    descent have the rate that gives the least loss. `ridge` is fitted by `identify`.
    """
    inside = task.in_context() if float(task.fixed_fraction) > 0 else task
    modes = Modes.of(inside)
    found: dict[str, AbstractPredictor] = {"zero": zero_predictor(inside)}
    for m in range(1, modes.rank + 1):
        name = LEAST_SQUARES if m == modes.rank else f"PCR-{m}"
        found[name] = principal_component_regression(modes, m)
    if float(task.fixed_fraction) > 0:
        found["in-weight w*"] = InWeight.of(task)
    mean = _mean(task)
    if mean is not None and float(jnp.abs(mean).max()) > 0:
        found["in-weight E[w]"] = InWeight(mean)
    found["ordinary least squares"] = OrdinaryLeastSquares()
    if isinstance(task.tasks, NormalTasks | TaskPool):
        name = "dMMSE (= Bayes)" if isinstance(task.tasks, TaskPool) else "Bayes"
        found[name] = bayes_predictor(task)
    found["gradient descent, 1 step"] = gradient_step(inside)
    prompts = _prompts(inside, sequences, seed)
    for steps in DESCENT_STEPS:
        found[f"gradient descent, {steps} steps"] = _best_descent(inside, steps, prompts)
    return _merge(found, task, prompts)


def identify(
    models: AbstractModel,
    task: Task,
    *,
    on: Task | None = None,
    among: Mapping[str, AbstractModel] | None = None,
    sequences: int = 2000,
    seed: int = 0,
) -> xr.Dataset:
    """Distances of models to each candidate, the best match and its margin.

    - `models`: one model whose weights have a leading axis of saved times.
    - `task`: what the model is trained on; the candidates are the algorithms for it.
    - `on`: the task whose prompts the comparison uses (see `shifted`); `task` if omitted.
    - `among`: the candidates, by name; `candidates(task)` and ridge if omitted.

    Variables: `distance` [time, candidate]; `algorithm`, `margin` = 1 - best/second (1 for a
    perfect match, 0 for a tie) and `ridge` (the ρ that fits best) [time]; `exact` [candidate].
    """
    if task.outputs != 1:
        raise ValueError(f"algorithms are identified for one output, this task has {task.outputs}")
    test = task if on is None else on
    given = candidates(task, sequences=sequences, seed=seed) if among is None else dict(among)
    prompts = _prompts(test, sequences, seed)
    power = float(Population(test).power) - float(test.target_noise) ** 2
    unit = max(power, np.finfo(float).tiny)
    modes = Modes.of(task.in_context() if float(task.fixed_fraction) > 0 else task)
    space = _features(models, test)
    own = _predictions(models, test, prompts)
    squared, exact = {}, {}
    for name, predictor in given.items():
        rotated = _fitted_components(name, predictor, models, modes) if among is None else None
        target = predictor if rotated is None else rotated
        moved = rotated is not None
        exact[name] = space is not None and isinstance(predictor, LinearPredictor | InWeight)
        if exact[name]:
            assert space is not None
            squared[name] = space.squared_distances(models, target, moved)
        else:
            theirs = _predictions(target, test, prompts) if moved else _predict(predictor, prompts)
            squared[name] = np.mean((own - np.atleast_2d(theirs)) ** 2, axis=1)
    ridge = np.full(own.shape[0], np.nan)
    if among is None:
        squared[RIDGE], ridge = _best_ridge(own, task, prompts)
        exact[RIDGE] = False
    names = list(squared)
    distance = np.sqrt(np.stack([squared[name] for name in names], axis=1) / unit)
    best, margin = best_match(distance)
    label = {"long_name": r"distance $(E(\hat y-\hat y')^2/E[y^2])^{1/2}$", "units": "1"}
    return xr.Dataset(
        {
            "distance": (("time", "candidate"), distance, label),
            "algorithm": ("time", np.array([names[i] for i in best], str)),
            "margin": ("time", margin, {"long_name": "margin over the second best", "units": "1"}),
            "ridge": ("time", ridge, {"long_name": r"ridge $\rho$ that fits best", "units": "1"}),
            "exact": ("candidate", np.array([exact[name] for name in names])),
        },
        coords={"candidate": names},
    )


def best_match(distance: Float[np.ndarray, "T C"]) -> tuple[np.ndarray, np.ndarray]:
    """The nearest candidate of each row, and 1 - (its distance)/(that of the second)."""
    best = np.argmin(distance, axis=1)
    if distance.shape[1] == 1:
        return best, np.ones(len(best))
    ordered = np.sort(distance, axis=1)
    second = np.where(ordered[:, 1] > 0, ordered[:, 1], 1.0)
    return best, np.where(ordered[:, 1] > 0, 1 - ordered[:, 0] / second, 0.0)


def recorded_models(run: xr.Dataset, kind: str = "") -> AbstractModel:
    """The models of one run that recorded `weights`, stacked along time.

    `kind` is the name of the model in the settings; it is needed for softmax attention only.
    """
    arrays = {str(name): jnp.asarray(v.values) for name, v in run.items() if "time" in v.dims}
    if "merged" not in arrays and "keys" not in arrays and "kernels" not in arrays:
        if "first" not in arrays:
            raise ValueError(
                "the run did not record its weights; record them, for example "
                "iclflow simulate --record loss,weights --out run.nc"
            )
        return MLP(arrays["first"], _square(arrays["second"]))
    if "kernels" in arrays:
        return ConvNet(arrays["kernels"], arrays["second"], _square(arrays["third"]))
    cls = Merged if "merged" in arrays else Separate
    names = [field.name for field in dataclasses.fields(cls)]
    fields = {name: arrays[name] for name in names if name in arrays}
    model = eqx.filter_eval_shape(lambda: None)
    del model
    built = _unchecked(cls, {**fields, "values": _square(fields["values"])})
    return _unchecked(Softmax, {"attention": built}) if kind.startswith("softmax") else built
