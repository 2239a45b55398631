"""The label row at its ridge minimum, in the conventions that the tables of end points share.

x ~ N(0, I/d), features x_q ⊗ [(d/N) Σ y x; (1/N) Σ y²], and the minimum of Σ (y - ŷ)² +
(n/d) λ |Γ|² over n prompts: λ/d on the mean.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.losses.features import Features
from iclflow.losses.label_rows import label_rows
from iclflow.tasks.laws import Pool
from iclflow.tasks.task import Task
from iclflow.theory.ridge import ENOUGH, ridge_weights

QUICK = 5e11  # operations for one table in the quick form
COMPILING = 6e10  # what compiling for another shape costs, in operations


@dataclasses.dataclass(frozen=True)
class Sample:
    """What one draw is made of: d, N, n, ρ and the authors' λ."""

    size: int
    context: int
    prompts: int
    noise: float
    penalty: float

    def task(self, tasks: Array) -> Task:
        """The law of the prompts, from a pool of tasks [K, d]."""
        spread = math.sqrt(self.noise)
        return Task(
            [1 / self.size] * self.size, self.context, tasks=Pool(tasks),
            label_noise=spread, target_noise=spread,
        )  # fmt: skip

    @property
    def operations(self) -> float:
        """About how many a draw takes."""
        n, features = self.prompts, self.size * (self.size + 1)
        drawing = 400.0 * n * self.size
        if n <= features:
            return drawing + n**3 / 3 + 4 * n**2 * self.size
        if n < ENOUGH * features:
            return drawing + n * features**2 * 2 + features**3 / 3
        steps = 51 / math.log(n / features)
        return drawing + 10 * steps * n * features


def end_point(
    sample: Sample, tasks: Float[Array, "K d"], key: PRNGKeyArray, *, equal_shares: bool
) -> np.ndarray:
    """Γ [d, d + 1] of one draw of prompts."""
    rows = label_rows(sample.task(tasks), sample.prompts, key, equal_shares=equal_shares)
    scale = np.append(np.full(sample.size, float(sample.size)), 1.0)
    scaled = Features(rows.statistic * jnp.asarray(scale), rows.query, rows.target, rows.map)
    return np.asarray(ridge_weights(scaled, sample.penalty / sample.size)[0]).T


def pool(
    many: int, size: int, key: PRNGKeyArray, *, sphere: bool, spread: np.ndarray | None = None
) -> Float[Array, "K d"]:
    """Tasks N(0, C); rescaled to |w|² = d on the sphere.

    - `spread`: the square roots of the diagonal of C.
    """
    drawn = jax.random.normal(key, (many, size))
    if spread is not None:
        drawn = drawn * jnp.asarray(spread)[None, :]
    if sphere:
        drawn = drawn * (size**0.5 / jnp.linalg.norm(drawn, axis=1))[:, None]
    return drawn


def test_error(gamma: np.ndarray, mean: np.ndarray, second: np.ndarray, sample: Sample) -> float:
    """The exact error on tasks with |w|² = d, with their mean μ and second moment R."""
    d, n, rho = sample.size, sample.context, sample.noise
    power = 1 + rho
    a = np.vstack([second, power * mean[None]])
    corner = power * (1 + 2 / n) * mean
    b = np.block([
        [power * d / n * np.eye(d) + (1 + 1 / n) * second, corner[:, None]],
        [corner[None], np.array([[power**2 * (1 + 2 / n)]])],
    ])  # fmt: skip
    return float(power - 2 / d * np.sum(gamma * a.T) + np.sum((gamma @ b) * gamma) / d)


def new_and_pool(gamma: np.ndarray, tasks: Array, sample: Sample) -> tuple[float, float]:
    """e_icl and e_idg."""
    w, d = np.asarray(tasks), sample.size
    new = test_error(gamma, np.zeros(d), np.eye(d), sample)
    return new, test_error(gamma, w.mean(axis=0), w.T @ w / len(w), sample)


def covariance_error(gamma: np.ndarray, spectrum: np.ndarray, length: float, noise: float) -> float:
    """The error on tasks N(0, diag(spectrum)) at a context length, without terms of order 1/l."""
    d = len(spectrum)
    c = float(np.sum(spectrum)) / d
    left, last = gamma[:, :-1], gamma[:, -1]
    inner = spectrum + (c + noise) * d / length
    error = c + noise - 2 / d * np.sum(np.diagonal(left) * spectrum)
    return float(error + (np.sum(left**2 * inner) + (c + noise) ** 2 * np.sum(last**2)) / d)


def draws_for(costs: Sequence[float], quick: bool, full: int) -> list[int]:
    """How many draws of each setting are made: all at full scale, what is affordable if quick."""
    if not quick:
        return [full] * len(costs)
    made, left = [0] * len(costs), QUICK
    for place in np.argsort(costs):
        cost = costs[place]
        if cost + COMPILING > left and any(made):
            break
        made[place] = int(np.clip((left - COMPILING) / 2 / cost, 1, full))
        left -= made[place] * cost + COMPILING
    return made
