"""The label row at its ridge minimum, in the conventions that the tables of end points share.

x ~ N(0, I/d), features x_q ⊗ [(d/N) Σ y x; (1/N) Σ y²], and the minimum of Σ (y - ŷ)² +
(n/d) λ |Γ|² over n prompts: λ/d on the mean.
"""

import dataclasses
import math
import zlib
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.experiments.field.comparisons.reading import PublishedTable
from iclflow.losses.features import Features
from iclflow.losses.label_rows import label_rows
from iclflow.models import LabelRow
from iclflow.tasks.checks import require_memory
from iclflow.tasks.laws import Pool
from iclflow.tasks.memory import Memory
from iclflow.tasks.task import Task
from iclflow.theory.ridge import ENOUGH, ridge_weights

QUICK = 3e11  # operations for one table in the quick form
COMPILING = 6e10  # what compiling for another shape costs, in operations
PRECISE = 1e-6  # residual of the end points, far below the standard errors


def seed_of(*words: object) -> int:
    """A seed that depends on what a cell is, so that rows may come in any order."""
    return zlib.crc32(" ".join(map(str, words)).encode())


def law_of_pool(table: PublishedTable) -> dict[str, bool]:
    """Whether tasks lie on the sphere |w|² = d and are used equally often, as the header says."""
    return {
        "sphere": table.states("rescaled to |w|^2 = d"),
        "equal_shares": table.states("every task") and table.states("equally often"),
    }


@dataclasses.dataclass(frozen=True)
class Sample:
    """What one draw is made of.

    - `size`, `context`, `prompts`: d, N and n.
    - `noise`, `penalty`: ρ and the authors' λ.
    - `sphere`: whether the tasks are rescaled to |w|² = d.
    - `equal_shares`: whether every task of the pool is used equally often.
    """

    size: int
    context: int
    prompts: int
    noise: float
    penalty: float
    sphere: bool = False
    equal_shares: bool = False

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
        steps = -2 * math.log(PRECISE) / math.log(n / features)
        return drawing + 5 * steps * n * features


def fitted(sample: Sample, law: Task | Memory, key: PRNGKeyArray) -> Float[Array, "T d"]:
    """Γᵀ of one draw of prompts, on [(d/N) Σ y x; (1/N) Σ y²]."""
    rows = label_rows(law, sample.prompts, key, equal_shares=sample.equal_shares)
    scaled = Features(
        rows.statistic * _units(sample.size)[None, None], rows.query, rows.target, rows.map
    )
    return ridge_weights(scaled, sample.penalty / sample.size, tolerance=PRECISE)[0]


def model_of(gamma: Float[Array, "T d"], size: int) -> LabelRow:
    """The model with these weights; its features are [β; mean y²] with β = (1/N) Σ y x."""
    return LabelRow(None, gamma * _units(size)[:, None])


def _units(size: int) -> Float[Array, " T"]:
    return jnp.asarray(np.append(np.full(size, float(size)), 1.0))


def end_point(sample: Sample, tasks: Float[Array, "K d"], key: PRNGKeyArray) -> np.ndarray:
    """Γ [d, d + 1] of one draw of prompts on a pool."""
    return np.asarray(fitted(sample, sample.task(tasks), key)).T


def pool(
    many: int, sample: Sample, seed: int, *, spread: np.ndarray | None = None
) -> Float[Array, "K d"]:
    """Tasks N(0, C); rescaled to |w|² = d on the sphere.

    - `spread`: the square roots of the diagonal of C.
    """
    require_memory(16 * many * sample.size, f"a pool of {many} tasks", "check K of the table")
    drawn = np.random.default_rng(seed).standard_normal((many, sample.size))
    if spread is not None:
        drawn *= spread[None, :]
    if sample.sphere:
        drawn *= (sample.size**0.5 / np.linalg.norm(drawn, axis=1))[:, None]
    return jnp.asarray(drawn)


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


def draws_for(
    samples: Sequence[Sample], quick: bool, full: int, *, order: Sequence[object] | None = None
) -> list[int]:
    """How many draws of each setting are made: all at full scale, what is affordable if quick.

    - `full`: draws of the full form, and the most of the quick one.
    - `order`: which settings come first among those of equal cost; their places if omitted.
    """
    if not quick:
        return [full] * len(samples)
    made, left, shapes = [0] * len(samples), QUICK, set()
    ties = list(range(len(samples))) if order is None else list(order)
    for place in sorted(range(len(samples)), key=lambda i: (samples[i].operations, ties[i])):
        cost, shape = samples[place].operations, (samples[place].size, samples[place].prompts)
        compiling = 0.0 if shape in shapes else COMPILING
        if cost + compiling > left and any(made):
            break
        made[place] = int(np.clip((left - compiling) / 2 / cost, 1, full))
        left -= made[place] * cost + compiling
        shapes.add(shape)
    return made


def spread_over(names: list[str], most: int) -> list[int]:
    """Which of the cells the quick form makes: evenly, in an order that is that of their names."""
    order = sorted(range(len(names)), key=lambda i: names[i])
    return sorted(order[:: math.ceil(len(names) / most)])
