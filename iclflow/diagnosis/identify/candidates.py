"""The in-context algorithms of a task, by name."""

from collections.abc import Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from iclflow.diagnosis.identify.prompts import (
    draw_prompts,
    predict,
    predict_stacked,
    targets_of,
)
from iclflow.losses.population import LengthMoments
from iclflow.models import AbstractModel
from iclflow.tasks.prompts import StackedPrompts
from iclflow.tasks.task import Task
from iclflow.tasks.task_vectors import Normal, Pool
from iclflow.theory import (
    AbstractPredictor,
    GradientSteps,
    InWeight,
    LinearPredictor,
    Modes,
    OrdinaryLeastSquares,
    Ridge,
    bayes_predictor,
    gradient_step,
    zero_predictor,
)

LEAST_SQUARES = "least squares (= PCR-D)"
DESCENT_STEPS = (2, 4, 8)
RIDGES = np.geomspace(1e-3, 1e1, 17)  # in units of N tr(Λ)/D
Model = TypeVar("Model", bound=AbstractModel)
ALIKE = 1e-5  # relative difference of eigenvalues that single precision may make
SAME = 1e-6  # relative distance below which two candidates are one


def candidates(task: Task, *, sequences: int = 2000, seed: int = 0) -> dict[str, AbstractPredictor]:
    """The in-context algorithms of a task by name; those that coincide are one candidate.

    PCR and least squares are those of the in-context part of a mixture with w*, where PCR-m is
    left out if it would split equal eigenvalues: one component along w* mimics w* itself. Where a
    task covariance reorders the components, names say which they are (`component_sets`). Ridge has
    the ρ, and steps of gradient descent the rate, with the least loss: no candidate is fitted to
    the model, since ridge with a free ρ passes from least squares to zero, near everything.
    """
    mixed = task.tasks.mixed()
    inside = task.in_context() if mixed else task
    modes = Modes.of(inside)
    found: dict[str, AbstractPredictor] = {"zero": zero_predictor(inside)}
    for name, chosen in component_sets(inside, modes).items():
        if not mixed or partial_group(modes, chosen) == ():
            found[name] = LinearPredictor(modes.weight(chosen)[None, None])
    if mixed:
        found["in-weight w*"] = InWeight.of(task)
    mean = task.tasks.mean
    if float(jnp.abs(mean).max()) > 0:
        shrunk = "in-weight w*, shrunk to E[w]" if "in-weight w*" in found else "in-weight E[w]"
        found[shrunk] = InWeight(mean)
    found["ordinary least squares"] = OrdinaryLeastSquares()
    if isinstance(task.tasks.in_context(), Normal | Pool):
        name = "dMMSE (= Bayes)" if isinstance(task.tasks.in_context(), Pool) else "Bayes"
        found[name] = bayes_predictor(task)
    found["gradient descent, 1 step"] = gradient_step(inside)
    prompts = draw_prompts(inside, sequences, seed)
    found["ridge"] = _best_ridge(inside, prompts)
    for steps in DESCENT_STEPS:
        found[f"gradient descent, {steps} steps"] = _best_descent(inside, steps, prompts)
    return merge_equal(found, prompts)


def component_sets(task: Task, modes: Modes) -> dict[str, tuple[int, ...]]:
    """The modes that each regression on components uses, by its name.

    The first m in the order of their drops in time (largest gain g), of their size (largest σ) and
    of the eigenvalues λ, which a task covariance may make three different orders. PCR-m has the m
    largest eigenvalues; other sets name their components, counted from the largest eigenvalue, in
    the order in which they drop. Without common eigenvectors there are modes instead of components.
    """
    every = range(modes.rank)
    if not modes.commuting:
        names = [f"regression on {m} mode{'s' * (m > 1)}" for m in range(1, modes.rank)]
        return {
            name: tuple(range(m))
            for m, name in enumerate([*names, LEAST_SQUARES][: modes.rank], start=1)
        }
    overlap = np.abs(np.asarray(task.largest_first().basis).T @ np.asarray(modes.right))
    component = linear_sum_assignment(-overlap.T)[1]
    gain, eigenvalue = np.asarray(modes.g), np.asarray(modes.eigenvalue)
    for group in map(list, modes.groups(ALIKE)):  # equal in all: any of them may be the first
        if np.ptp(eigenvalue[group]) <= ALIKE * eigenvalue[group[0]]:
            component[group] = np.sort(component[group])
    by_gain = sorted(every, key=lambda s: (-round(float(gain[s] / gain.max()) / ALIKE), s))
    by_eigenvalue = sorted(every, key=lambda s: component[s])
    sets: dict[str, tuple[int, ...]] = {}
    for order in (by_gain, list(every), by_eigenvalue):
        for m in range(1, modes.rank + 1):
            chosen = [s for s in by_gain if s in order[:m]]
            numbers = [int(component[s]) + 1 for s in chosen]
            name = f"PCR-{m}" if max(numbers) == m else _named(numbers)
            sets[LEAST_SQUARES if m == modes.rank else name] = tuple(sorted(chosen))
    return sets


def _named(numbers: list[int]) -> str:
    return f"regression on component{'s' * (len(numbers) > 1)} " + ", ".join(map(str, numbers))


def partial_group(modes: Modes, chosen: tuple[int, ...]) -> tuple[int, ...]:
    """The group of equal σ of which some modes are chosen and others not; () if there is none."""
    split = (g for g in modes.groups() if 0 < len(set(g) & set(chosen)) < len(g))
    return next(split, ())


def _best_descent(task: Task, steps: int, prompts: StackedPrompts) -> GradientSteps:
    """`steps` steps of plain descent at the rate with the least loss on the prompts."""
    largest = float(jnp.max(task.spectrum)) * LengthMoments.of(task).pairs
    rates = np.geomspace(0.05, 2.0, 40) / (largest if largest > 0 else 1.0)
    matrices = jnp.asarray(rates[:, None, None] * np.eye(task.size))
    stacked = jax.vmap(lambda matrix: GradientSteps(matrix, steps))(matrices)
    errors = np.asarray(predict_stacked(prompts, stacked)) - targets_of(prompts)
    return GradientSteps(matrices[int(np.argmin(np.mean(errors**2, axis=1)))], steps)


def ridges_of(task: Task) -> Float[np.ndarray, " K"]:
    """σ² first, which is best for w ~ N(0, I); then a grid."""
    scale = task.context * float(jnp.mean(task.spectrum))
    grid = RIDGES * (scale if scale > 0 else 1.0)
    return np.concatenate([[float(task.label_noise) ** 2], grid])


def _best_ridge(task: Task, prompts: StackedPrompts) -> Ridge:
    """Ridge regression at the ρ with the least loss on the prompts; σ² unless 1% is gained."""
    ridges = ridges_of(task)
    targets = targets_of(prompts)
    losses = [np.mean((np.asarray(predict(prompts, Ridge(r))) - targets) ** 2) for r in ridges]
    best = int(np.argmin(np.asarray(losses)))
    return Ridge(ridges[best if losses[best] < 0.99 * losses[0] else 0])


def merge_equal(found: Mapping[str, Model], prompts: StackedPrompts) -> dict[str, Model]:
    """One candidate for all that predict the same; the first gives the name."""
    kept: dict[str, Model] = {}
    seen: list[np.ndarray] = []
    size = np.sqrt(np.mean(targets_of(prompts) ** 2))
    for name, predictor in found.items():
        values = np.asarray(predict(prompts, predictor))
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
