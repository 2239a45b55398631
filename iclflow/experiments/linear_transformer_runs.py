"""What the experiments on the linear transformer share: its task, stochastic and mean training.

Conventions of Mainali & Teixeira (2025): losses have a factor ½; an epoch is P tasks, each used
for one update at rate η with fresh inputs, so that t/τ = ηP times the epochs. The library's loss
has no ½: its rate for the same update is η/2.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from iclflow.dynamics import Descent
from iclflow.experiments.runs import train
from iclflow.losses import AbstractLoss, Fresh, Population
from iclflow.models import Merged
from iclflow.tasks.laws import Commuting
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
) -> xr.Dataset:
    """SGD on fresh tasks; an update with `batch` of them advances t/τ by `clock`.

    `loss` (seed, time) is that of the population, with ½; `p` and `q` (seed, time, row, column)
    are p₂ and q₁ in the eigenvectors U.
    """
    loss = Fresh(task=task, evaluation=Population(task), size=batch)
    return _run(task, loss, marks, clock, seeds)


def mean_training(task: Task, marks: np.ndarray, *, clock: float) -> xr.Dataset:
    """Descent on the population, infinitely many tasks per step: as `stochastic`, one seed."""
    return _run(task, Population(task), marks, clock, 1)


def _run(task: Task, loss: AbstractLoss, marks: np.ndarray, clock: float, seeds: int) -> xr.Dataset:
    init = Merged.linear_transformer(task, scale=SCALE)
    how: dict[str, Any] = {"saveat": marks, "record": ["loss", "weights"]}
    how["key"] = jax.random.key(DATA_SEED)
    runs = train(loss, init, Descent(clock / 2), seeds=seeds, **how).isel(head=0)
    basis = np.asarray(task.basis)

    def turned(name: str) -> tuple[tuple[str, ...], np.ndarray]:
        found = np.einsum("oa,stop,pb->stab", basis, runs[name].values, basis)
        return ("seed", "time", "row", "column"), found

    return xr.Dataset(
        {"loss": runs["loss"] / 2, "p": turned("values"), "q": turned("merged")},
        runs["loss"].coords,
    )


def products(run: xr.Dataset) -> xr.DataArray:
    """The matrices p₂q₁ of every run at every time."""
    inner = run["p"].rename(column="inner"), run["q"].rename(row="inner")
    return xr.dot(*inner, dim="inner").transpose(..., "row", "column")


def diagonal(matrices: xr.DataArray) -> xr.DataArray:
    """The diagonals of matrices (row, column), along `mode`."""
    found = np.einsum("...aa->...a", matrices.transpose(..., "row", "column").values)
    dims = (*(dim for dim in matrices.dims if dim not in ("row", "column")), "mode")
    return xr.DataArray(found, dims=dims)


def standard_error(values: xr.DataArray) -> xr.DataArray:
    """Of the mean over seeds."""
    return values.std("seed", ddof=1) / np.sqrt(values.sizes["seed"])
