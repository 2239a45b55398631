"""Lu, Letey, Zavatone-Veth, Maiti and Pehlevan: ridge end points on pools of tasks, and dMMSE."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from iclflow.experiments.field.comparisons.cells import Cells, Found, Report, error_of_difference
from iclflow.experiments.field.comparisons.end_points import (
    Sample,
    draws_for,
    end_point,
    law_of_pool,
    new_and_pool,
    pool,
    seed_of,
)
from iclflow.experiments.field.comparisons.reading import NUMBER, PublishedTable
from iclflow.tasks.task import Task
from iclflow.theory.algorithms.bayes import PoolBayes
from iclflow.theory.algorithms.conditional import conditional_losses
from iclflow.theory.algorithms.regression import Ridge
from iclflow.theory.ridge import ridge_limit

LIMIT = "the authors' formula for d → ∞ instead of prompts at their d"
SILENT = "no noise on the target of the test"
ERRORS = ("icl", "idg")


def _drawn(sample: Sample, many: int, draws: int, name: str) -> np.ndarray:
    """[draw, (e_icl, e_idg)] of fresh pools and prompts."""
    found = []
    for draw in range(draws):
        seed = seed_of(name, draw)
        tasks = pool(many, sample, seed)
        found.append(new_and_pool(end_point(sample, tasks, jax.random.key(seed)), tasks, sample))
    return np.asarray(found)


def _shared(many: int, wanted: float) -> int:
    """A multiple of the number of tasks, so that every task is used equally often."""
    return many * max(1, round(wanted / many))


def double_descent(table: PublishedTable, quick: bool, report: Report) -> Found:
    """The two errors against the number of prompts."""
    d, many = int(table.setting("d")), int(table.setting("K"))
    rho, lam, laws = table.setting("rho"), table.setting("lambda"), law_of_pool(table)
    groups = table.groups("alpha", "tau", "run")
    samples = [
        Sample(d, int(alpha * d + 1e-9), _shared(many, tau * d**2), rho, lam, **laws)
        for (alpha, tau, _), _ in groups
    ]
    names = [f"α {alpha:g}, τ {tau:g}, {run}" for (alpha, tau, run), _ in groups]
    cells = Cells()
    draws = draws_for(samples, quick, 10, order=names)
    for place, (((alpha, _, _), rows), sample) in enumerate(zip(groups, samples, strict=True)):
        if draws[place]:
            ours = _drawn(sample, many, draws[place], names[place])
            limit = ridge_limit(sample.prompts / d**2, alpha, many / d, rho, lam)
            for which, name in enumerate(ERRORS):
                values = table[f"e_{name}"][rows]
                error = error_of_difference(values.std(), len(values), ours[:, which])
                control = limit.new if which == 0 else limit.pool
                label = f"{name}, {names[place]}"
                cells.add(label, values.mean(), ours[:, which].mean(), error, control)
        report((place + 1) / len(groups))
    return Found(cells, LIMIT, 2 * len(groups))


def _means(
    table: PublishedTable, samples: list[Sample], tasks: list[int], names: list[str], quick: bool,
    report: Report, full: int, *, silent: bool,
) -> Found:  # fmt: skip
    """Rows with the mean and spread of both errors over draws.

    - `silent`: the mistake is a target without noise, instead of the limit.
    """
    cells = Cells()
    draws = draws_for(samples, quick, full, order=names)
    for row, (sample, many) in enumerate(zip(samples, tasks, strict=True)):
        if draws[row]:
            ours = _drawn(sample, many, draws[row], names[row])
            d = sample.size
            limit = ridge_limit(
                sample.prompts / d**2, sample.context / d, many / d, sample.noise, sample.penalty
            )
            for which, name in enumerate(ERRORS):
                std, count = table[f"{name}_std"][row], table["draws"][row]
                error = error_of_difference(std, count, ours[:, which])
                control = limit.new if which == 0 else limit.pool
                theirs = table[f"{name}_mean"][row]
                if silent:
                    control = ours[:, which].mean() - sample.noise
                cells.add(f"{name}, {names[row]}", theirs, ours[:, which].mean(), error, control)
        report((row + 1) / len(samples))
    return Found(cells, SILENT if silent else LIMIT, 2 * len(samples))


def context_length(table: PublishedTable, quick: bool, report: Report) -> Found:
    """The two errors against the length of the context."""
    d, tau = int(table.setting("d")), table.setting("tau")
    rho, lam, laws = table.setting("rho"), table.setting("lambda"), law_of_pool(table)
    tasks = [round(kappa * d) for kappa in table["kappa"]]
    samples = [
        Sample(d, int(alpha * d + 1e-9), _shared(many, tau * d**2), rho, lam, **laws)
        for alpha, many in zip(table["alpha"], tasks, strict=True)
    ]
    names = [
        f"α {alpha:g}, κ {kappa:g}"
        for alpha, kappa in zip(table["alpha"], table["kappa"], strict=True)
    ]
    return _means(table, samples, tasks, names, quick, report, 20, silent=True)


def task_diversity(table: PublishedTable, quick: bool, report: Report) -> Found:
    """The two errors against the number of tasks; the column `tasks` says which are rescaled."""
    equal = law_of_pool(table)["equal_shares"]
    d = table["d"].astype(int)
    tasks = [int(kappa * size + 1e-9) for kappa, size in zip(table["kappa"], d, strict=True)]
    kinds = [str(kind) for kind in table["tasks"]]
    samples = [
        Sample(
            int(d[i]), int(table["alpha"][i] * d[i] + 1e-9),
            _shared(tasks[i], table["tau"][i] * d[i] ** 2), float(table["rho"][i]),
            # "lambda 1e-8 (sphere), 1e-15 (gaussian)"
            table.number(rf"(\d[\d.e+-]*) \({kinds[i]}\)", f"lambda for {kinds[i]} tasks"),
            kinds[i] == "sphere", equal,
        )
        for i in range(len(table))
    ]  # fmt: skip
    names = [
        f"{kinds[i]}, d {d[i]}, α {table['alpha'][i]:g}, τ {table['tau'][i]:g}, "
        f"κ {table['kappa'][i]:g}"
        for i in range(len(table))
    ]
    return _means(table, samples, tasks, names, quick, report, 10, silent=False)


def task_gap(table: PublishedTable, quick: bool, report: Report) -> Found:
    """e_icl - e_idg of the end point and of the Bayes predictor, against the number of tasks."""
    alpha, tau = table.setting("alpha"), table.setting("tau")
    rho, lam, laws = table.setting("rho"), table.setting("lambda"), law_of_pool(table)
    theirs = table.number(r"mean over (\d+) draws", "number of draws")
    queries = table.number(r"([\d,]+) single queries", "number of queries of dMMSE")
    samples = [
        Sample(int(d), int(alpha * d + 1e-9), int(n), rho, lam, **laws)
        for d, n in zip(table["d"], table["n"], strict=True)
    ]
    names = [f"d {d:g}, κ {kappa:g}" for d, kappa in zip(table["d"], table["kappa"], strict=True)]
    made = draws_for(samples, quick, 20, order=names)
    # the printed spread is not that of the difference, so several draws of ours at least
    draws = [max(m, 10) if m else 0 for m in made]
    cells = Cells()
    for row, sample in enumerate(samples):
        many, d = int(table["K"][row]), sample.size
        if draws[row]:
            both = _drawn(sample, many, draws[row], names[row])
            ours = both[:, 0] - both[:, 1]
            error = np.std(ours, ddof=1) * (1 / theirs + 1 / len(ours)) ** 0.5
            limit = ridge_limit(tau, alpha, many / d, rho, lam)
            cells.add(
                f"end point, {names[row]}", table["gamma_mean"][row], ours.mean(), error,
                limit.new - limit.pool,
            )  # fmt: skip
            gap, spread, wrong = _bayes_gap(sample, many, quick, names[row])
            error = (table["dmmse_std"][row] ** 2 / queries + spread**2) ** 0.5
            cells.add(f"dMMSE, {names[row]}", table["dmmse_mean"][row], gap, error, wrong)
        report((row + 1) / len(samples))
    return Found(
        cells, f"{LIMIT}; dMMSE with a hundred times the noise variance", 2 * len(samples),
        authors=_stated_cost(table),
        note="the authors' time is that of twelve values of κ at every d",
    )  # fmt: skip


def _stated_cost(table: PublishedTable) -> float:
    """Seconds of the authors for the sizes of a table, "d = 64 73 min 13 s"; NaN if not stated."""
    line = re.search(r"stated cost of the authors:(.*)", table.header)
    total = 0.0
    for d in {int(d) for d in table["d"]}:
        found = re.search(rf"d = {d} (?:(\d+) min )?(\d+) s", line[1] if line else "")
        total += 60 * int(found[1] or 0) + int(found[2]) if found else float("nan")
    return total


def _bayes_gap(sample: Sample, many: int, quick: bool, name: str) -> tuple[float, float, float]:
    """e_icl - e_idg of dMMSE: mean over pools, their spread with its own error, and the control."""
    pools, contexts = (12, 30) if quick else (40, 200)
    plain = Sample(sample.size, sample.context, sample.prompts, sample.noise, sample.penalty)
    gaps = []
    for number in range(pools):
        seed = seed_of("dMMSE", name, number)
        keys = jax.random.split(jax.random.key(seed))
        tasks = pool(many, plain, seed)  # not rescaled
        laws = (_new(plain), plain.task(tasks))
        predictors = [_bayes(tasks, variance) for variance in (sample.noise, 100 * sample.noise)]
        new, known = (
            np.mean(conditional_losses(predictors, law, contexts, key), axis=1)
            for law, key in zip(laws, keys, strict=True)
        )
        gaps.append(new - known)
    found = np.asarray(gaps)
    spread = found[:, 0].std(ddof=1) * (1 + 1 / pools) ** 0.5
    return float(found[:, 0].mean()), float(spread), float(found[:, 1].mean())


def _bayes(tasks: Array, variance: float) -> PoolBayes:
    prior = jnp.full(len(tasks), 1 / len(tasks))
    return PoolBayes(tasks[:, None], prior, jnp.asarray(variance**0.5))


def _new(sample: Sample) -> Task:
    """Tasks N(0, I)."""
    spread, size = sample.noise**0.5, sample.size
    return Task([1 / size] * size, sample.context, label_noise=spread, target_noise=spread)


def bayes(table: PublishedTable, quick: bool, report: Report) -> Found:
    """dMMSE of one pool and ridge, on new tasks and on the pool."""
    d = int(table.setting("d"))
    variance = table.number(rf"eps ~ N\(0, {NUMBER}\)", "variance of the noise")
    theirs = table.number(r"over ([\d,]+) prompts", "number of prompts")
    pools, contexts = (16, 16) if quick else (40, 200)
    cells = Cells()
    for row in range(len(table)):
        alpha, kind, many = table["alpha"][row], str(table["kind"][row]), int(table["K"][row])
        if kind not in ERRORS:
            raise ValueError(
                f"{table.name} has kind {kind!r} in row {row + 1}; icl or idg is needed"
            )
        name = f"{kind}, α {alpha:g}, K {many}"
        sample = Sample(d, int(alpha * d + 1e-9), 1, variance, 0.0)
        found = []
        for number in range(pools):
            seed = seed_of(name, number)
            tasks = pool(many, sample, seed)
            law = _new(sample) if kind == "icl" else sample.task(tasks)
            predictors = (
                _bayes(tasks, variance), _bayes(tasks, variance**2), Ridge(variance),
                Ridge(variance**2),
            )  # fmt: skip
            found.append(conditional_losses(predictors, law, contexts, jax.random.key(seed)))
        values = np.asarray(found).transpose(1, 0, 2)  # [predictor, pool, context]
        for which, column in ((0, "dmmse"), (2, "ridge")):
            ours = values[which]
            cells.add(
                f"{column}, {name}", table[column][row], ours.mean(), _one_pool(ours, theirs),
                values[which + 1].mean(),
            )  # fmt: skip
        report((row + 1) / len(table))
    return Found(
        cells, "the noise variance squared, where it stands in a posterior", 2 * len(table),
        note="each row of theirs is one pool, so dMMSE on new tasks is coarse",
    )  # fmt: skip


def _one_pool(ours: np.ndarray, theirs: float) -> float:
    """The error of the difference to a mean of so many squared errors on one pool.

    - `ours`: losses given the context, [pool, context]; a squared error is one of them times χ².
    """
    pools, contexts = ours.shape
    single = 3 * np.mean(ours**2) - ours.mean() ** 2
    means = ours.mean(axis=1).var(ddof=1)
    between = max(0.0, means - ours.var(axis=1, ddof=1).mean() / contexts)
    return float((single / theirs + between + means / pools) ** 0.5)
