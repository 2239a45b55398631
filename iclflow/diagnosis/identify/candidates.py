"""The in-context algorithms of a task, by name."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from iclflow.diagnosis.identify.prompts import Prompts
from iclflow.diagnosis.identify.space import known_mean
from iclflow.losses.population import LengthMoments
from iclflow.tasks.distributions import NormalTasks, TaskPool
from iclflow.tasks.task import Task
from iclflow.theory import (
    AbstractPredictor,
    GradientSteps,
    InWeight,
    Modes,
    OrdinaryLeastSquares,
    Ridge,
    bayes_predictor,
    gradient_step,
    principal_component_regression,
    zero_predictor,
)

LEAST_SQUARES = "least squares (= PCR-D)"
DESCENT_STEPS = (2, 4, 8)
RIDGES = np.geomspace(1e-3, 1e1, 17)  # in units of N tr(Λ)/D
SAME = 1e-6  # relative distance below which two candidates are one


def candidates(task: Task, *, sequences: int = 2000, seed: int = 0) -> dict[str, AbstractPredictor]:
    """The in-context algorithms of a task by name; those that coincide are one candidate.

    PCR and least squares are those of the in-context part of a mixture with w*, where PCR-m is
    left out if it would split equal eigenvalues: one component along w* mimics w* itself. Ridge
    has the ρ, and steps of gradient descent the rate, with the least loss: no candidate is fitted
    to the model, since ridge with a free ρ passes from least squares to zero, near everything.
    """
    inside = task.in_context() if float(task.fixed_fraction) > 0 else task
    modes = Modes.of(inside)
    found: dict[str, AbstractPredictor] = {"zero": zero_predictor(inside)}
    whole = [group[-1] + 1 for group in modes.groups()]
    for m in range(1, modes.rank + 1):
        if float(task.fixed_fraction) > 0 and m not in whole:
            continue
        name = LEAST_SQUARES if m == modes.rank else f"PCR-{m}"
        found[name] = principal_component_regression(modes, m)
    if float(task.fixed_fraction) > 0:
        found["in-weight w*"] = InWeight.of(task)
    mean = known_mean(task)
    if mean is not None and float(jnp.abs(mean).max()) > 0:
        shrunk = "in-weight w*, shrunk to E[w]" if "in-weight w*" in found else "in-weight E[w]"
        found[shrunk] = InWeight(mean)
    found["ordinary least squares"] = OrdinaryLeastSquares()
    if isinstance(task.tasks, NormalTasks | TaskPool):
        name = "dMMSE (= Bayes)" if isinstance(task.tasks, TaskPool) else "Bayes"
        found[name] = bayes_predictor(task)
    found["gradient descent, 1 step"] = gradient_step(inside)
    prompts = Prompts.of(inside, sequences, seed)
    found["ridge"] = _best_ridge(inside, prompts)
    for steps in DESCENT_STEPS:
        found[f"gradient descent, {steps} steps"] = _best_descent(inside, steps, prompts)
    return _merge(found, prompts)


def _best_descent(task: Task, steps: int, prompts: Prompts) -> GradientSteps:
    """`steps` steps of plain descent at the rate with the least loss on the prompts."""
    largest = float(task.spectrum[0]) * LengthMoments.of(task).pairs
    rates = jnp.geomspace(0.05, 2.0, 40) / (largest if largest > 0 else 1.0)
    identity = jnp.eye(task.size)
    stacked = jax.vmap(lambda rate: GradientSteps(rate * identity, steps))(rates)
    targets = prompts.each(lambda prompt: prompt.target[0])
    losses = jnp.mean((prompts.predict_stacked(stacked) - targets[None]) ** 2, axis=1)
    return GradientSteps(rates[jnp.argmin(losses)] * identity, steps)


def ridges_of(task: Task) -> Float[np.ndarray, " K"]:
    """σ² first, which is best for w ~ N(0, I); then a grid."""
    scale = task.context * float(jnp.mean(task.spectrum))
    grid = RIDGES * (scale if scale > 0 else 1.0)
    return np.concatenate([[float(task.label_noise) ** 2], grid])


def _best_ridge(task: Task, prompts: Prompts) -> Ridge:
    """Ridge regression at the ρ with the least loss on the prompts; σ² unless 1% is gained."""
    ridges = ridges_of(task)
    targets = np.asarray(prompts.each(lambda prompt: prompt.target[0]))
    losses = [np.mean((np.asarray(prompts.predict(Ridge(r))) - targets) ** 2) for r in ridges]
    best = int(np.argmin(np.asarray(losses)))
    return Ridge(ridges[best if losses[best] < 0.99 * losses[0] else 0])


def _merge(found: dict[str, AbstractPredictor], prompts: Prompts) -> dict[str, AbstractPredictor]:
    """One candidate for all that predict the same; the first gives the name."""
    kept: dict[str, AbstractPredictor] = {}
    seen: list[np.ndarray] = []
    size = float(jnp.sqrt(jnp.mean(prompts.each(lambda prompt: prompt.target[0]) ** 2)))
    for name, predictor in found.items():
        values = np.asarray(prompts.predict(predictor))
        gaps = [np.sqrt(np.mean((values - other) ** 2)) for other in seen]
        twin = int(np.argmin(gaps)) if gaps and min(gaps) <= SAME * size else None
        if twin is None:
            kept[name] = predictor
            seen.append(values)
            continue
        names = list(kept)
        both = f"{names[twin]} (= {name})" if "(=" not in names[twin] else names[twin]
        kept = {both if key == names[twin] else key: value for key, value in kept.items()}
    return kept
