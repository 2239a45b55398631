"""What the theory says of one task, and of one start: the numbers behind `iclflow theory`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from iclflow.losses import AbstractLoss, AbstractPromptLoss, Population
from iclflow.tasks.task import Task
from iclflow.theory.algorithms.bayes import bayes_loss
from iclflow.theory.algorithms.linear import gradient_step, least_squares, zero_predictor
from iclflow.theory.algorithms.monte_carlo import Estimate, monte_carlo_loss
from iclflow.theory.algorithms.regression import OrdinaryLeastSquares, Ridge
from iclflow.theory.drops.quadratic import Quadratic
from iclflow.theory.drops.staircase import Staircase, saddle_levels
from iclflow.theory.fixed_points.modes import (
    Modes,
    conspicuous_plateaus,
    fixed_point_count,
    plateau_losses,
)
from iclflow.theory.fixed_points.points import saddle_path
from iclflow.theory.fixed_points.stability import separate_stability
from iclflow.theory.predict import Prediction

SEQUENCES = 4000  # behind the losses that have no closed form
DRAWN = 20_000_000  # numbers, at most, for one of them


def task_summary(task: Task, heads: int, rank: int) -> dict[str, Any]:
    """Levels, drops, stability of the visited saddles and losses of in-context algorithms.

    `a` are the eigenvalues of E[Λ̂²] (32), of B in general, in the order of the drops; None for a
    task whose moments have no common eigenvectors.
    """
    population = Population(task)
    modes = Modes.of(population)
    commuting = modes.commuting
    path = [
        _saddle(point, heads, rank)
        for point in saddle_path(modes)
        if len(point.index_set) <= heads * rank
    ]
    counts, levels = conspicuous_plateaus(modes, rank)
    return {
        "eigenvalues": np.asarray(task.spectrum).tolist(),
        "a": np.asarray(modes.b).tolist() if commuting else None,
        "commuting": commuting,
        "plateau_losses": np.asarray(plateau_losses(modes)).tolist(),
        "drop_sizes": np.asarray(modes.drops).tolist(),
        "gains": np.asarray(modes.gains(()).values).tolist(),
        "value_weights": np.asarray(1 / modes.c).tolist() if commuting else None,
        "fixed_points": fixed_point_count(modes),
        "long_plateaus": {"modes_learned": list(counts), "loss": np.asarray(levels).tolist()},
        "saddles": path,
        **algorithm_losses(task, population),
    }


def _saddle(point: Any, heads: int, rank: int) -> dict[str, Any]:
    stability = separate_stability(point, heads, rank)
    return {
        "modes": list(point.index_set),
        "loss": float(point.loss),
        "order": stability.order.value,
        "index": stability.index,
        "cubic_gain": float(stability.cubic_gain),
    }


def algorithm_losses(task: Task, population: Population) -> dict[str, Any]:
    """Population losses of in-context algorithms; by Monte Carlo (with its error) where needed."""
    key, count = jax.random.key(0), min(SEQUENCES, DRAWN // ((task.context + 1) * task.size))
    if count < 2:  # a context too long to be sampled
        bayes = ordinary = ridge = Estimate(jnp.asarray(jnp.nan), jnp.asarray(jnp.nan))
    else:
        bayes = bayes_loss(task, count, key)
        ordinary = monte_carlo_loss(OrdinaryLeastSquares(), task, count, key)
        ridge = monte_carlo_loss(Ridge(float(task.label_noise) ** 2), task, count, key)
    return {
        "zero_loss": float(population(zero_predictor(population))),
        "gradient_step_loss": float(population(gradient_step(population))),
        "least_squares_loss": float(population(least_squares(population))),
        "ordinary_least_squares_loss": float(ordinary.mean),
        "ordinary_least_squares_error": float(ordinary.error),
        "ridge_loss": float(ridge.mean),
        "ridge_error": float(ridge.error),
        "bayes_loss": float(bayes.mean),
        "bayes_error": float(bayes.error),
        "sampled_sequences": count,
    }


def prompts_summary(loss: AbstractPromptLoss) -> dict[str, Any]:
    """What the theory says of given prompts: the plateaus of linear attention, and how far it gets.

    Nothing is known of their law, so that no algorithm but those that are linear in β x_qᵀ has a
    loss here: zero, M = η I with the best η (one step of gradient descent in context), and the best
    M of all (least squares over the prompts).
    """
    quadratic = Quadratic.of(loss)
    levels = saddle_levels(quadratic)
    identity = np.eye(quadratic.size)
    step = np.trace(quadratic.cross) ** 2 / np.sum(identity * quadratic.curved(identity))
    return {
        "plateau_losses": levels.tolist(),
        "drop_sizes": (-np.diff(levels)).tolist(),
        "gains": np.linalg.svd(quadratic.cross, compute_uv=False).tolist(),
        "zero_loss": quadratic.power,
        "gradient_step_loss": quadratic.power - float(step),
        "least_squares_loss": float(quadratic.loss(quadratic.least_squares)),
    }


def start_summary(found: Prediction, source: Task | AbstractLoss, scale: float) -> dict[str, Any]:
    """When the drops come from given initial weights, beside the paper's own estimates."""
    common = {
        "drop_times": found.times.tolist(),
        "condition": None if found.condition is None else found.condition.tolist(),
        "heads": None if found.heads is None else found.heads.tolist(),
        "engine": type(found.engine).__name__,
        "assumes": found.assumes,
        "doubts": list(found.notes),
    }
    stairs = found.details
    if not isinstance(stairs, Staircase):
        paper = -np.log(scale) / np.linalg.norm(Quadratic.of(source).cross)  # (51)
        return common | {"paper_durations": [float(paper)]}
    return common | {
        "durations": stairs.durations.tolist(),
        "new_head": stairs.escapes.tolist(),
        "values": stairs.values.tolist(),
        "paper_durations": stairs.paper_durations.tolist(),
        "margin": stairs.margin.tolist(),
        "ended": stairs.ended,
    }
