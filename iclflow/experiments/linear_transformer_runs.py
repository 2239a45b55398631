"""What the experiments on the linear transformer share: its task, stochastic and mean training.

Conventions of Mainali & Teixeira (2025): losses have a factor ½; an epoch is P tasks, each used
for one update at rate η with fresh inputs, so that t/τ = ηP times the epochs. The library's loss
has no ½: its rate for the same update is η/2.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from iclflow.dynamics import Descent
from iclflow.experiments.runs import trained
from iclflow.losses import AbstractLoss, Fresh, Population
from iclflow.models import Merged
from iclflow.tasks.commuting import Commuting
from iclflow.tasks.task import Task

ROTATION_SEED, DATA_SEED = 2, 5
SCALE = 0.01  # p₂ = q₁ = SCALE · I


def transformer_task(spectrum: tuple[float, ...], context: int) -> Task:
    """The task W = U diag Uᵀ, with a fixed random rotation U."""
    size = len(spectrum)
    rotation, _ = np.linalg.qr(np.random.default_rng(ROTATION_SEED).normal(size=(size, size)))
    return Task(spectrum, context, rotation=jnp.asarray(rotation), tasks=Commuting())


def stochastic(
    task: Task, marks: np.ndarray, *, clock: float, batch: int, seeds: int
) -> dict[str, np.ndarray]:
    """SGD on fresh tasks; an update with `batch` of them advances t/τ by `clock`.

    `loss` [seed, mark] is that of the population, with ½; `p` and `q` [seed, mark, D, D] are p₂
    and q₁ in the eigenvectors U.
    """
    loss = Fresh(task=task, evaluation=Population(task), size=batch)
    return _run(task, loss, marks, clock, seeds)


def mean_training(task: Task, marks: np.ndarray, *, clock: float) -> dict[str, np.ndarray]:
    """Descent on the population, infinitely many tasks a step: as `stochastic`, one seed."""
    return _run(task, Population(task), marks, clock, 1)


def _run(
    task: Task, loss: AbstractLoss, marks: np.ndarray, clock: float, seeds: int
) -> dict[str, np.ndarray]:
    init = Merged.linear_transformer(task, scale=SCALE)
    how: dict[str, Any] = {"saveat": marks, "record": ["loss", "weights"]}
    how["key"] = jax.random.key(DATA_SEED)
    found = trained(loss, init, Descent(clock / 2), seeds=seeds, **how)
    values, merged = (found[name][:, :, 0] for name in ("values", "merged"))
    basis = np.asarray(task.basis)
    return {
        "loss": found["loss"] / 2,
        "p": np.einsum("oa,stop,pb->stab", basis, values, basis),
        "q": np.einsum("oa,stop,pb->stab", basis, merged, basis),
    }


def diagonal(matrices: np.ndarray) -> np.ndarray:
    """The diagonals of stacked matrices."""
    return np.asarray(np.einsum("...aa->...a", matrices))


def standard_error(values: np.ndarray) -> np.ndarray:
    """Of the mean over seeds, the first axis."""
    return np.asarray(values.std(axis=0, ddof=1) / np.sqrt(len(values)))
