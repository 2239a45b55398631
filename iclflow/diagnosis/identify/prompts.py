"""Prompts on which predictors are compared, also of a shifted task."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.diagnosis.identify.space import Space
from iclflow.models import AbstractModel
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.prompt import Prompt
from iclflow.tasks.prompts import PromptSet, StackedPrompts
from iclflow.tasks.task import Task


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


def draw_prompts(task: AbstractTask, sequences: int, seed: int) -> StackedPrompts:
    """One set of independent prompts, on which predictors are compared."""
    drawn = PromptSet(task, jax.random.key(seed), sequences, exact=False)
    return StackedPrompts(drawn.prompts(), task.lengths)


def each(
    prompts: StackedPrompts, function: Callable[[Prompt], Float[Array, ""]]
) -> Float[Array, " P"]:
    """A function of every prefix of every prompt, in a row."""
    return prompts.prefixes(function, jnp.arange(prompts.count)).reshape(-1)


def targets_of(prompts: StackedPrompts) -> Float[np.ndarray, " P"]:
    """What the predictors should say."""
    return np.asarray(_targets(prompts))


@eqx.filter_jit
def _targets(prompts: StackedPrompts) -> Float[Array, " P"]:
    return each(prompts, lambda prompt: prompt.target[0])


@eqx.filter_jit
def predict(prompts: StackedPrompts, predictor: AbstractModel) -> Float[Array, " P"]:
    """The predictions of one predictor."""
    return each(prompts, lambda prompt: predictor(prompt)[0])


@eqx.filter_jit
def predict_stacked(prompts: StackedPrompts, models: AbstractModel) -> Float[Array, "T P"]:
    """The predictions of models with a leading axis, one after another."""
    return jax.lax.map(lambda model: predict(prompts, model), models)


@eqx.filter_jit
def own_predictions(
    models: AbstractModel, space: Space | None, prompts: StackedPrompts
) -> Float[Array, "T P"]:
    """Predictions of the models: a product with the features where they are linear in them."""
    if space is None:
        return predict_stacked(prompts, models)

    def features(prompt: Prompt) -> Float[Array, " F"]:
        return jnp.outer(space.map.statistic(prompt), prompt.query).reshape(-1)

    rows = prompts.prefixes(features, jnp.arange(prompts.count))
    weights = jax.vmap(space.vector)(models)[:, : rows.shape[-1]]
    return weights @ rows.reshape(-1, rows.shape[-1]).T
