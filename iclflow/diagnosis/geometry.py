"""Geometry of a run's weights over time: alignment, parallelism, effective rank."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.measures import (
    assign_heads,
    effective_rank,
    head_alignment,
    head_contributions,
    head_parallelism,
    singular_values,
)
from iclflow.models import AbstractModel, Separate
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.task import Task
from iclflow.theory import Modes

LEARNED = 0.1  # share of a mode that a head must make to be the head of that mode


def geometry(models: AbstractModel, task: AbstractTask) -> dict[str, Any]:
    """Variables over time: effective rank; alignment (separate) or parallelism (merged)."""
    part = jax.vmap(lambda m: m.as_attention())(models)
    if part is None:
        return {}
    label = {"long_name": "effective rank of the effective weights", "units": "1"}
    found: dict[str, Any] = {"effective_rank": ("time", np.asarray(_ranks(part)), label)}
    if isinstance(part, Separate) and isinstance(task, Task):
        found["alignment"] = (("time", "component"), _alignment(part, task))
    elif not isinstance(part, Separate):
        found["parallelism"] = ("time", np.asarray(_parallelism(part)))
    return found


def _alignment(models: Separate, task: Task) -> Float[np.ndarray, "T D"]:
    """Share of each eigenvector in the keys of the head that ends up with it; NaN if none does.

    The eigenvectors are in the order of their eigenvalues, largest first.
    """
    basis = task.largest_first().basis

    def contributions(model: Separate) -> Float[Array, "H D"]:
        return head_contributions(model.values[:, 0, 0], model.keys, model.queries, basis)

    last = np.abs(np.asarray(contributions(jax.tree.map(lambda a: a[-1], models))))
    if models.keys.shape[2] > 1:  # a head of rank R may learn several: the strongest for each
        heads = np.argmax(last, axis=0)
        heads[last.max(axis=0) <= 0] = -1
    else:
        heads = assign_heads(last)
    weights = Modes.of(task.in_context()).weight(range(Modes.of(task.in_context()).rank))
    needed = LEARNED * np.abs(np.asarray(jnp.diagonal(basis.T @ weights @ basis)))
    columns = np.arange(task.size)
    heads = np.where(last[heads, columns] > needed, heads, -1)
    table = np.asarray(_head_alignments(models, basis))
    return np.where(heads[None] >= 0, table[:, heads, columns], np.nan)


@jax.jit
def _ranks(models: Any) -> Float[Array, " T"]:
    return jax.vmap(lambda m: effective_rank(singular_values(m.reduced_weights()[0, 0])))(models)


@jax.jit
def _parallelism(models: Any) -> Float[Array, " T"]:
    return jax.vmap(lambda m: head_parallelism(m.key_query()))(models)


@jax.jit
def _head_alignments(models: Separate, basis: Float[Array, "D D"]) -> Float[Array, "T H D"]:
    return jax.vmap(lambda m: head_alignment(m.keys, basis))(models)
