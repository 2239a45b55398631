"""Lu, Letey, Zavatone-Veth, Maiti and Pehlevan: ridge end points on pools of tasks, and dMMSE."""

import jax
import jax.numpy as jnp
import numpy as np

from iclflow.experiments.field.comparisons.cells import Cells, Found, Report, error_of_difference
from iclflow.experiments.field.comparisons.end_points import (
    Sample,
    draws_for,
    end_point,
    new_and_pool,
    pool,
)
from iclflow.experiments.field.comparisons.reading import PublishedTable
from iclflow.tasks.compressed import compressed_prompts
from iclflow.tasks.laws import Normal
from iclflow.tasks.task import Task
from iclflow.theory.algorithms.bayes import PoolBayes
from iclflow.theory.algorithms.regression import Ridge
from iclflow.theory.ridge import ridge_limit

LIMIT = "the authors' formula for d → ∞ instead of prompts at their d"
SILENT = "no noise on the target of the test"
ERRORS = ("icl", "idg")


def _drawn(sample: Sample, many: int, draws: int, seed: int, *, sphere: bool) -> np.ndarray:
    """[draw, (e_icl, e_idg)] of fresh pools and prompts."""
    found = []
    for draw in range(draws):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), draw))
        tasks = pool(many, sample.size, keys[0], sphere=sphere)
        gamma = end_point(sample, tasks, keys[1], equal_shares=True)
        found.append(new_and_pool(gamma, tasks, sample))
    return np.asarray(found)


def _shared(many: int, wanted: float) -> int:
    """A multiple of the number of tasks, so that every task is used equally often."""
    return many * max(1, round(wanted / many))


def double_descent(table: PublishedTable, quick: bool, report: Report) -> Found:
    """The two errors against the number of prompts."""
    d, many = int(table.setting("d")), int(table.setting("K"))
    rho, lam = table.setting("rho"), table.setting("lambda")
    groups = table.groups("alpha", "tau", "run")
    samples = [
        Sample(d, int(alpha * d), _shared(many, tau * d**2), rho, lam)
        for (alpha, tau, _), _ in groups
    ]
    cells, draws = Cells(), draws_for([s.operations for s in samples], quick, 10)
    for place, (((alpha, tau, run), rows), sample) in enumerate(zip(groups, samples, strict=True)):
        if draws[place]:
            ours = _drawn(sample, many, draws[place], place, sphere=True)
            limit = ridge_limit(sample.prompts / d**2, alpha, many / d, rho, lam)
            for which, name in enumerate(ERRORS):
                values = table[f"e_{name}"][rows]
                error = error_of_difference(values.std(), len(values), ours[:, which])
                control = limit.new if which == 0 else limit.pool
                cells.add(
                    f"{name}, α {alpha:g}, τ {tau:g}, {run}",
                    values.mean(), ours[:, which].mean(), error, control,
                )  # fmt: skip
        report((place + 1) / len(groups))
    return Found(cells, LIMIT, 2 * len(groups))


def _means(
    table: PublishedTable, samples: list[Sample], tasks: list[int], spheres: list[bool],
    labels: list[str], quick: bool, report: Report, full: int, silent: bool,
) -> Found:  # fmt: skip
    """Rows with the mean and spread of both errors over draws.

    - `silent`: the mistake is a target without noise, instead of the limit.
    """
    cells, draws = Cells(), draws_for([s.operations for s in samples], quick, full)
    for row, (sample, many) in enumerate(zip(samples, tasks, strict=True)):
        if draws[row]:
            ours = _drawn(sample, many, draws[row], row, sphere=spheres[row])
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
                cells.add(f"{name}, {labels[row]}", theirs, ours[:, which].mean(), error, control)
        report((row + 1) / len(samples))
    return Found(cells, SILENT if silent else LIMIT, 2 * len(samples))


def context_length(table: PublishedTable, quick: bool, report: Report) -> Found:
    """The two errors against the length of the context."""
    d, tau = int(table.setting("d")), table.setting("tau")
    rho, lam = table.setting("rho"), table.setting("lambda")
    tasks = [round(kappa * d) for kappa in table["kappa"]]
    samples = [
        Sample(d, int(alpha * d + 1e-9), _shared(many, tau * d**2), rho, lam)
        for alpha, many in zip(table["alpha"], tasks, strict=True)
    ]
    labels = [
        f"α {alpha:g}, κ {kappa:g}"
        for alpha, kappa in zip(table["alpha"], table["kappa"], strict=True)
    ]
    return _means(table, samples, tasks, [True] * len(tasks), labels, quick, report, 20, True)


def task_diversity(table: PublishedTable, quick: bool, report: Report) -> Found:
    """The two errors against the number of tasks."""
    sphere = [kind == "sphere" for kind in table["tasks"]]
    d = table["d"].astype(int)
    tasks = [int(kappa * size + 1e-9) for kappa, size in zip(table["kappa"], d, strict=True)]
    samples = [
        Sample(
            int(d[i]), int(table["alpha"][i] * d[i] + 1e-9),
            _shared(tasks[i], table["tau"][i] * d[i] ** 2), float(table["rho"][i]),
            _penalty(table, str(table["tasks"][i])),
        )
        for i in range(len(table))
    ]  # fmt: skip
    labels = [
        f"{table['tasks'][i]}, d {d[i]}, α {table['alpha'][i]:g}, τ {table['tau'][i]:g}, "
        f"κ {table['kappa'][i]:g}"
        for i in range(len(table))
    ]
    return _means(table, samples, tasks, sphere, labels, quick, report, 10, False)


def _penalty(table: PublishedTable, kind: str) -> float:
    """λ of one kind of tasks: the header states "lambda 1e-8 (sphere), 1e-15 (gaussian)"."""
    import re

    found = re.search(rf"(\d[\d.e+-]*) \({kind}\)", table.header)
    if found is None:
        raise ValueError(f"the header of {table.name} states no lambda for {kind} tasks")
    return float(found[1])


def task_gap(table: PublishedTable, quick: bool, report: Report) -> Found:
    """e_icl - e_idg of the end point and of the Bayes predictor, against the number of tasks."""
    alpha, tau = table.setting("alpha"), table.setting("tau")
    rho, lam = table.setting("rho"), table.setting("lambda")
    samples = [
        Sample(int(d), int(alpha * d), int(n), rho, lam)
        for d, n in zip(table["d"], table["n"], strict=True)
    ]
    # the printed spread is not that of the difference, so at least several draws of ours
    draws = [max(m, 5) if m else 0 for m in draws_for([s.operations for s in samples], quick, 20)]
    cells = Cells()
    for row, sample in enumerate(samples):
        many, d = int(table["K"][row]), sample.size
        if draws[row]:
            both = _drawn(sample, many, draws[row], row, sphere=True)
            ours = both[:, 0] - both[:, 1]
            error = np.std(ours, ddof=1) * (1 / 20 + 1 / len(ours)) ** 0.5
            limit = ridge_limit(tau, alpha, many / d, rho, lam)
            cells.add(
                f"end point, d {d}, κ {table['kappa'][row]:g}", table["gamma_mean"][row],
                ours.mean(), error, limit.new - limit.pool,
            )  # fmt: skip
            gap, spread, wrong = _bayes_gap(sample, many, quick, row)
            error = (table["dmmse_std"][row] ** 2 / 1000 + spread**2) ** 0.5
            label = f"dMMSE, d {d}, κ {table['kappa'][row]:g}"
            cells.add(label, table["dmmse_mean"][row], gap, error, wrong)
        report((row + 1) / len(samples))
    seconds = {10: 18.0, 32: 260.0, 64: 4393.0}
    stated = sum(seconds.get(int(d), float("nan")) for d in set(table["d"]))
    return Found(
        cells, f"{LIMIT}; dMMSE with a hundred times the noise variance", 2 * len(samples),
        authors=stated,
        note="the authors' time is that of twelve values of κ at every d",
    )  # fmt: skip


def _bayes_gap(sample: Sample, many: int, quick: bool, seed: int) -> tuple[float, float, float]:
    """e_icl - e_idg of dMMSE: mean over pools, their spread with its own error, and the control."""
    pools, count = (6, 250) if quick else (20, 1000)
    gaps = []
    for number in range(pools):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(1000 + seed), number), 3)
        tasks = pool(many, sample.size, keys[0], sphere=False)
        of_pool = sample.task(tasks)
        new = of_pool.replace(tasks=Normal())
        row = []
        for noise in (sample.noise, 100 * sample.noise):
            right = [
                _errors(_bayes(tasks, noise), law, count, key).mean()
                for law, key in ((new, keys[1]), (of_pool, keys[2]))
            ]
            row.append(right[0] - right[1])
        gaps.append(row)
    found = np.asarray(gaps)
    spread = found[:, 0].std(ddof=1) * (1 + 1 / pools) ** 0.5
    return float(found[:, 0].mean()), float(spread), float(found[:, 1].mean())


def _bayes(tasks: jax.Array, variance: float) -> PoolBayes:
    prior = jnp.full(len(tasks), 1 / len(tasks))
    return PoolBayes(tasks[:, None], prior, jnp.asarray(variance**0.5))


AT_ONCE = 50_000_000  # numbers of the residuals of all tasks


def _errors(predictor: PoolBayes | Ridge, task: Task, count: int, key: jax.Array) -> np.ndarray:
    """Squared errors on prompts that are compressed to at most d pairs."""
    tasks = len(predictor.tasks) if isinstance(predictor, PoolBayes) else 1
    short = min(task.size, task.context)
    block = int(np.clip(AT_ONCE // (tasks * short), 1, count))
    parts = []
    for number in range(-(-count // block)):
        prompts = compressed_prompts(task, block, jax.random.fold_in(key, number))
        parts.append(np.asarray(_squared(predictor, prompts)))
    return np.concatenate(parts)[:count]


@jax.jit
def _squared(predictor: PoolBayes | Ridge, prompts: object) -> jax.Array:
    return jax.vmap(lambda p: jnp.sum((p.target - predictor(p)) ** 2))(prompts)


def bayes(table: PublishedTable, quick: bool, report: Report) -> Found:
    """dMMSE of one pool and ridge, on new tasks and on the pool."""
    d = int(table.setting("d"))
    variance = 0.25 if "eps ~ N(0, 0.25)" in table.header else table.setting("sigma^2")
    rows = range(len(table))
    order = sorted(rows, key=lambda i: (table["K"][i] * min(table["alpha"][i], 1.0), i))
    # in the quick form the cheapest third
    chosen = sorted(order[: max(4, len(order) // 3)] if quick else order)
    cells, theirs = Cells(), 10_000
    for done, row in enumerate(chosen):
        alpha, kind, many = table["alpha"][row], str(table["kind"][row]), int(table["K"][row])
        count = 1000 if quick else 4000
        spread = variance**0.5
        plain = Task([1 / d] * d, int(alpha * d + 1e-9), label_noise=spread, target_noise=spread)
        pools = (6 if quick else 10) if kind == "icl" else 2
        means, wrong = [], []
        for number in range(pools):
            keys = jax.random.split(jax.random.fold_in(jax.random.key(row), number), 2)
            tasks = pool(many, d, keys[0], sphere=False)
            law = plain if kind == "icl" else Sample(d, plain.context, 1, variance, 0).task(tasks)
            part = count // pools
            means.append(_errors(_bayes(tasks, variance), law, part, keys[1]))
            wrong.append(_errors(_bayes(tasks, variance**2), law, part, keys[1]))
        values = np.asarray(means)
        single = values.std()
        between = values.mean(axis=1).var(ddof=1) if kind == "icl" else 0.0
        error = (single**2 / theirs + single**2 / values.size + between) ** 0.5
        label = f"{kind}, α {alpha:g}, K {many}"
        control = np.mean(wrong)
        cells.add(f"dMMSE, {label}", table["dmmse"][row], values.mean(), error, control)
        ridge = _errors(Ridge(variance), plain, count, jax.random.key(row))
        error = 2**0.5 * ridge.mean() * (1 / theirs + 1 / count) ** 0.5
        loose = _errors(Ridge(variance**2), plain, count, jax.random.key(row)).mean()
        cells.add(f"ridge, {label}", table["ridge"][row], ridge.mean(), error, loose)
        report((done + 1) / len(chosen))
    return Found(
        cells, "the noise variance squared, where it stands in a posterior", 2 * len(table),
        note="each row of theirs is one pool, so dMMSE on new tasks is coarse",
    )  # fmt: skip
