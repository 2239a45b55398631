"""Letey, Zavatone-Veth, Lu and Pehlevan: the covariance or the length of the test is another."""

import jax
import numpy as np

from iclflow.experiments.field.comparisons.cells import Cells, Found, Report, error_of_difference
from iclflow.experiments.field.comparisons.end_points import (
    Sample,
    covariance_error,
    draws_for,
    end_point,
    pool,
)
from iclflow.experiments.field.comparisons.reading import PublishedTable
from iclflow.losses.label_population import LabelPopulation
from iclflow.tasks.laws import Normal
from iclflow.theory.ridge import ridge_equivalent


def _gamma(sample: Sample, many: int, spectrum: np.ndarray, key: jax.Array):
    """The end point on a pool from N(0, C), and the pool; tasks are drawn at random."""
    keys = jax.random.split(key)
    tasks = pool(many, sample.size, keys[0], sphere=False, spread=np.sqrt(spectrum))
    return end_point(sample, tasks, keys[1], equal_shares=False), tasks


def half(table: PublishedTable, quick: bool, report: Report) -> Found:
    """A training covariance on half of the coordinates, five test covariances."""
    d = int(table.setting("d"))
    sample = Sample(
        d, int(table.setting("N")), int(table.setting("n")), table.setting("rho"),
        table.setting("lambda"),
    )  # fmt: skip
    index = np.arange(1, d + 1)
    train = np.where(index <= d // 2, 2.0, 0.0)
    spike = np.where(index == 2, float(d), 0.0)
    laws = {
        "train": train, "white": np.ones(d), "power_aligned": index**-0.5,
        "power_opposed": (d + 1 - index) ** -0.5, "spike": spike,
    }  # fmt: skip
    laws = {name: law * d / law.sum() for name, law in laws.items()}
    cells, draws = Cells(), draws_for([sample.operations] * len(table), quick, 4)
    # the sharpest rows are those with many tasks
    order = np.argsort(-table["kappa"]) if quick else np.arange(len(table))
    draws = dict(zip(order.tolist(), draws, strict=True))
    for row in range(len(table)):
        if draws[row]:
            found = []
            for draw in range(draws[row]):
                key = jax.random.fold_in(jax.random.key(row), draw)
                gamma, _ = _gamma(sample, int(table["K"][row]), train, key)
                found.append([
                    covariance_error(gamma, law, sample.context, sample.noise)
                    for law in laws.values()
                ])  # fmt: skip
            ours = np.asarray(found)
            for column, name in enumerate(laws):
                std, count = table[f"{name}_std"][row], table["draws"][row]
                error = error_of_difference(std, count, ours[:, column])
                mean = ours[:, column].mean()
                cells.add(
                    f"{name}, κ {table['kappa'][row]:g}", table[f"{name}_mean"][row], mean, error,
                    mean - sample.noise,
                )  # fmt: skip
        report((row + 1) / len(table))
    return Found(cells, "no noise on the target of the test", len(laws) * len(table))


def spikes(table: PublishedTable, quick: bool, report: Report) -> Found:
    """All of the test covariance on one coordinate."""
    d = int(table.setting("d"))
    sample = Sample(
        d, int(table.setting("N")), int(table.setting("n")), table.setting("rho"),
        table.setting("lambda"),
    )  # fmt: skip
    train = np.arange(d, 0, -1.0)
    train *= d / train.sum()
    groups = table.groups("kappa", "K")
    cells, draws = Cells(), draws_for([sample.operations] * len(groups), quick, 3)
    for place, ((kappa, many), rows) in enumerate(groups):
        names = [str(name) for name in table["test"][rows]]
        laws = [train if n == "train" else d * np.eye(d)[int(n) - 1] for n in names]
        if draws[place]:
            found = []
            for draw in range(draws[place]):
                key = jax.random.fold_in(jax.random.key(place), draw)
                gamma, tasks = _gamma(sample, int(many), train, key)
                found.append([
                    covariance_error(gamma, law, sample.context, sample.noise) for law in laws
                ])  # fmt: skip
            ours = np.asarray(found)
            control = _equivalents(sample, tasks, laws)
            for column, (row, name) in enumerate(zip(rows, names, strict=True)):
                # three draws have no spread of their own; theirs is used for both
                error = table["std"][row] * (1 / 29 + 1 / len(ours)) ** 0.5
                cells.add(
                    f"test {name}, κ {kappa:g}", table["mean"][row], ours[:, column].mean(),
                    error, control[column],
                )  # fmt: skip
        report((place + 1) / len(groups))
    return Found(
        cells, "Gaussian features (the deterministic equivalent) instead of prompts", len(table),
        note="tests of one draw share it, so their errors go together",
    )  # fmt: skip


def _equivalents(sample: Sample, tasks: jax.Array, laws: list[np.ndarray]) -> list[float]:
    """The deterministic equivalent of the error on every test covariance."""
    of_pool = sample.task(tasks)
    train = LabelPopulation(of_pool)
    return [
        float(ridge_equivalent(
            train, LabelPopulation(of_pool.replace(tasks=Normal(covariance=law))), sample.prompts,
        ))
        for law in laws
    ]  # fmt: skip


def length(table: PublishedTable, quick: bool, report: Report) -> Found:
    """Trained at one length, tested at many."""
    d = int(table.setting("d"))
    context, prompts = int(table.setting("N")), int(table.setting("n"))
    many = int(table.setting("K"))
    sample = Sample(d, context, prompts, table.setting("rho"), table.setting("lambda"))
    groups = table.groups("power")
    # Within a draw the error is linear in 1/l: a power has two numbers, and one draw each says
    # more than several of one power.
    draws = [1 if quick else 4] * len(groups)
    cells, total = Cells(), len(set(zip(table["power"], table["test_length"], strict=True)))
    for place, ((power,), rows) in enumerate(groups):
        if draws[place]:
            spectrum = np.arange(1, d + 1.0) ** -power
            spectrum *= d / spectrum.sum()
            gammas = [
                _gamma(sample, many, spectrum, jax.random.fold_in(jax.random.key(place), i))[0]
                for i in range(draws[place])
            ]
            for pairs, some in _by(table, rows):
                values = table["error"][some]
                ours, longer = (
                    np.asarray([covariance_error(g, spectrum, n, sample.noise) for g in gammas])
                    for n in (pairs, pairs + 1)
                )
                error = error_of_difference(values.std(), len(values), ours)
                label = f"power {power:g}, length {pairs:g}"
                cells.add(label, values.mean(), ours.mean(), error, longer.mean())
        report((place + 1) / len(groups))
    return Found(cells, "every test one pair longer", total)


def _by(table: PublishedTable, rows: np.ndarray) -> list[tuple[float, np.ndarray]]:
    """The rows with one power, by the length of the test."""
    lengths = table["test_length"][rows]
    return [(n, rows[lengths == n]) for n in dict.fromkeys(lengths.tolist())]
