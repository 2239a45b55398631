"""Letey, Zavatone-Veth, Lu and Pehlevan: the covariance or the length of the test is another."""

import re

import jax
import numpy as np

from iclflow.experiments.field.comparisons.cells import Cells, Found, Report, error_of_difference
from iclflow.experiments.field.comparisons.end_points import (
    Sample,
    covariance_error,
    draws_for,
    end_point,
    law_of_pool,
    pool,
    seed_of,
)
from iclflow.experiments.field.comparisons.reading import NUMBER, PublishedTable
from iclflow.losses.label_population import LabelPopulation
from iclflow.tasks.laws import Normal
from iclflow.theory.ridge import ridge_equivalent


def _sample(table: PublishedTable) -> Sample:
    return Sample(
        int(table.setting("d")), int(table.setting("N")), int(table.setting("n")),
        table.setting("rho"), table.setting("lambda"), **law_of_pool(table),
    )  # fmt: skip


def _gamma(sample: Sample, many: int, spectrum: np.ndarray, *name: object):
    """The end point on a pool from N(0, C), and the pool."""
    seed = seed_of(*name)
    tasks = pool(many, sample, seed, spread=np.sqrt(spectrum))
    return end_point(sample, tasks, jax.random.key(seed)), tasks


def _diagonal(table: PublishedTable, d: int) -> np.ndarray:
    """C_train as the header writes it, "diag(2 x 40, 0 x 40)" or "diag(120, 119, ..., 1)"."""
    found = re.search(r"C_train = diag\(([^)]*)\)", table.header)
    parts = [part.strip() for part in found[1].split(",")] if found else []
    try:
        if "..." in parts:  # evenly from the first to the last
            values = np.linspace(float(parts[0]), float(parts[-1]), d)
        else:
            pairs = [part.split(" x ") for part in parts]
            values = np.concatenate([np.full(int(many), float(value)) for value, many in pairs])
    except (ValueError, IndexError):
        values = np.empty(0)
    if values.shape != (d,) or not values.sum() > 0 or values.min() < 0:
        raise ValueError(
            f"the header of {table.name} states no C_train for d = {d}; write it as "
            f"'C_train = diag(2 x 40, 0 x 40)' or 'C_train = diag(120, 119, ..., 1)'"
        )
    return values * d / values.sum()


def half(table: PublishedTable, quick: bool, report: Report) -> Found:
    """A training covariance on half of the coordinates, five test covariances."""
    sample = _sample(table)
    d = sample.size
    train, index = _diagonal(table, d), np.arange(1, d + 1.0)
    power = table.number(rf"proportional to j\^{NUMBER}", "power of the aligned covariance")
    other = table.number(rf"- j\)\^{NUMBER}", "power of the opposed covariance")
    spike = int(table.number(r"spike: all of it on coordinate (\d+)", "coordinate of the spike"))
    laws = {
        "train": train, "white": np.ones(d), "power_aligned": index**power,
        "power_opposed": (d + 1 - index) ** other, "spike": np.where(index == spike, d, 0.0),
    }  # fmt: skip
    laws = {name: law * d / law.sum() for name, law in laws.items()}
    cells, names = Cells(), [f"κ {kappa:g}" for kappa in table["kappa"]]
    # if quick those with the most tasks, which are the sharpest
    draws = draws_for([sample] * len(table), quick, 4, order=[-kappa for kappa in table["kappa"]])
    for row in range(len(table)):
        if draws[row]:
            gammas = [
                _gamma(sample, int(table["K"][row]), train, names[row], draw)[0]
                for draw in range(draws[row])
            ]
            for name, law in laws.items():
                ours = np.asarray([
                    covariance_error(g, law, sample.context, sample.noise) for g in gammas
                ])  # fmt: skip
                std, count = table[f"{name}_std"][row], table["draws"][row]
                cells.add(
                    f"{name}, {names[row]}", table[f"{name}_mean"][row], ours.mean(),
                    error_of_difference(std, count, ours), ours.mean() - sample.noise,
                )  # fmt: skip
        report((row + 1) / len(table))
    return Found(cells, "no noise on the target of the test", len(laws) * len(table))


def spikes(table: PublishedTable, quick: bool, report: Report) -> Found:
    """All of the test covariance on one coordinate."""
    sample = _sample(table)
    d = sample.size
    train = _diagonal(table, d)
    theirs = table.number(r"over (\d+) draws", "number of draws")
    groups = table.groups("kappa", "K")
    labels = [f"κ {kappa:g}" for (kappa, _), _ in groups]
    cells = Cells()
    draws = draws_for([sample] * len(groups), quick, 3, order=labels)
    for place, ((_, many), rows) in enumerate(groups):
        names = [str(name) for name in table["test"][rows]]
        laws = [_law_of_test(table, name, train) for name in names]
        if draws[place]:
            found, tasks = [], None
            for draw in range(draws[place]):
                gamma, tasks = _gamma(sample, int(many), train, labels[place], draw)
                found.append([
                    covariance_error(gamma, law, sample.context, sample.noise) for law in laws
                ])  # fmt: skip
            assert tasks is not None
            ours = np.asarray(found)
            control = _equivalents(sample, tasks, laws)
            for column, (row, name) in enumerate(zip(rows, names, strict=True)):
                # three draws have no spread of their own; theirs is used for both
                error = table["std"][row] * (1 / (theirs - 1) + 1 / len(ours)) ** 0.5
                cells.add(
                    f"test {name}, {labels[place]}", table["mean"][row], ours[:, column].mean(),
                    error, control[column],
                )  # fmt: skip
        report((place + 1) / len(groups))
    return Found(
        cells, "Gaussian features (the deterministic equivalent) instead of prompts", len(table),
        note="tests of one draw share it, so their errors go together",
    )  # fmt: skip


def _law_of_test(table: PublishedTable, name: str, train: np.ndarray) -> np.ndarray:
    d = len(train)
    if name == "train":
        return train
    if not name.isdecimal() or not 1 <= int(name) <= d:
        raise ValueError(f"{table.name} has test {name!r}; a coordinate from 1 to {d} is needed")
    return d * np.eye(d)[int(name) - 1]


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
    sample, many = _sample(table), int(table.setting("K"))
    d = sample.size
    groups = table.groups("power")
    # Within a draw the error is linear in 1/l: a power has two numbers, and one draw each says
    # more than several of one power.
    draws = 1 if quick else 4
    cells, total = Cells(), len(set(zip(table["power"], table["test_length"], strict=True)))
    for place, ((power,), rows) in enumerate(groups):
        spectrum = np.arange(1, d + 1.0) ** -power
        spectrum *= d / spectrum.sum()
        gammas = [_gamma(sample, many, spectrum, f"power {power:g}", i)[0] for i in range(draws)]
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
