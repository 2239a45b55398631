"""Tasks that the theory must cover, shared by its tests."""

import functools

import jax
import numpy as np
import pytest

from iclflow.tasks.base import Normaliser
from iclflow.tasks.laws import Mixture, Normal, Rademacher, StudentT
from iclflow.tasks.task import Task


def random_covariance(seed: int, size: int) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(size, size))
    return root @ root.T / size + 0.1 * np.eye(size)


def key(seed: int) -> jax.Array:
    return jax.random.key(seed)


# Said here so that tests can be told apart before any task is made, which compiles.
NAMES = (
    "paper", "rotated noise", "swapped order", "task covariance", "non-commuting",
    "non-commuting rotated", "task mean", "lengths", "fixed normaliser", "white", "doubled",
    "zero eigenvalue", "singular tasks", "one pair", "heavy tails", "signs", "in weight",
)  # fmt: skip
# Of these where each is costly: commuting and not, equal and zero eigenvalues.
FEW = ("paper", "non-commuting rotated", "task mean", "doubled", "zero eigenvalue")


@functools.cache
def tasks() -> dict[str, Task]:
    """Commuting tasks and not, degenerate ones included; D ≤ 4."""
    linear = [0.4, 0.3, 0.2, 0.1]
    found = {
        "paper": Task(linear, 31),
        "rotated noise": Task(linear, 10, rotation=key(0), label_noise=0.4, target_noise=0.2),
        "swapped order": Task([1.0, 0.5], 200, tasks=Normal(covariance=[1.0, 3.0])),
        "task covariance": Task(
            linear, 20, rotation=key(1), tasks=Normal(covariance=[0.3, 2.0, 1.0, 3.0])
        ),
        "non-commuting": Task(
            [1.0, 0.6, 0.3], 12, tasks=Normal(covariance=random_covariance(0, 3)), label_noise=0.3
        ),
        "non-commuting rotated": Task(
            [0.9, 0.5, 0.4, 0.1],
            5,
            rotation=key(2),
            tasks=Normal(covariance=random_covariance(1, 4)),
        ),
        "task mean": Task([0.7, 0.3], 8, tasks=Normal([0.5, -1.0])),
        "lengths": Task([0.5, 0.3], 9, lengths=(2, 5, 9), normaliser=Normaliser.TOKENS),
        "fixed normaliser": Task([0.5, 0.3], 9, lengths=(3, 9), normaliser=Normaliser.CONTEXT),
        "white": Task([0.5, 0.5, 0.5], 7, rotation=key(3)),
        "doubled": Task([0.35, 0.35, 0.15, 0.15], 31, rotation=key(4)),
        "zero eigenvalue": Task([0.5, 0.2, 0.0], 6, rotation=key(5)),
        "singular tasks": Task([0.5, 0.3, 0.2], 6, tasks=Normal(covariance=[1.0, 0.0, 2.0])),
        "one pair": Task([0.5, 0.3], 1),
        "heavy tails": Task([0.5, 0.3], 6, inputs=StudentT(8.0), rotation=key(6)),
        "signs": Task([0.5, 0.3], 6, inputs=Rademacher()),
        "in weight": Task([0.5, 0.3], 6, tasks=Mixture(fraction=0.3)),
    }
    assert tuple(found) == NAMES
    return found


def random_task(seed: int) -> Task:
    """A task with random dimension, spectrum, length, noise and task covariance."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 5))  # few dimensions: each one is compiled anew
    covariance = [1.0, rng.uniform(0.2, 3.0, size), random_covariance(seed, size)][seed % 3]
    return Task(
        rng.uniform(0.05, 2.0, size),
        int(rng.integers(1, 40)),
        rotation=key(seed),
        tasks=Normal(covariance=covariance),
        label_noise=float(rng.choice([0.0, 0.7])),
    )


def seeds(few: int, many: int) -> list:
    """Seeds of random tasks: a few, and in `make test-all` many."""
    return [pytest.param(n, marks=[pytest.mark.slow] if n >= few else []) for n in range(many)]


def named_or_random(which: str | int) -> Task:
    """One of `tasks` by its name, or a random one by its seed."""
    return tasks()[which] if isinstance(which, str) else random_task(which)
