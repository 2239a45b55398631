"""Inputs that are correlated along the context: Letey et al. 2026, and Li, Bai and Huang 2024."""

import jax
import numpy as np

from iclflow.experiments.field.comparisons.cells import Cells, Found, Report, error_of_difference
from iclflow.experiments.field.comparisons.end_points import (
    Sample,
    fitted,
    law_of_pool,
    model_of,
    pool,
    seed_of,
    spread_over,
)
from iclflow.experiments.field.comparisons.reading import NUMBER, PublishedTable
from iclflow.losses.label_population import LabelPopulation
from iclflow.losses.label_rows import label_rows
from iclflow.tasks.base import Normaliser
from iclflow.tasks.laws import Normal
from iclflow.tasks.memory import Memory
from iclflow.tasks.task import Task
from iclflow.theory.ridge import ridge


def correlated(table: PublishedTable, quick: bool, report: Report) -> Found:
    """Autoregressive tokens; the query is independent, or the next token."""
    d, many = int(table.setting("d")), int(table.setting("K"))
    prompts = int(table.setting("n"))
    rho, lam = table.setting("rho"), table.setting("lambda")
    laws = law_of_pool(table)
    draws = 3 if quick else 20
    names = [
        f"{table['curve'][i]}, ξ {table['xi_of_row'][i]:g}, N {table['N'][i]:g}"
        for i in range(len(table))
    ]
    rows = spread_over(names, 8) if quick else list(range(len(table)))
    cells = Cells()
    # the mistake: tokens without memory and a context of the whole length
    plain = Sample(d, int(table["N"].max()), prompts, rho, lam, **laws)
    control = np.mean([_ending(plain, many, None, True, "control", k)[0] for k in range(draws)])
    for done, row in enumerate(rows):
        xi, context, curve = table["xi"][row], int(table["N"][row]), str(table["curve"][row])
        sample = Sample(d, context, prompts, rho, lam, **laws)
        together = curve == "context_and_query"
        xi = float(xi) if curve != "independent" else None
        ours = np.concatenate([
            _ending(sample, many, xi, together, names[row], k) for k in range(draws)
        ])  # fmt: skip
        error = error_of_difference(table["std"][row], table["draws"][row], ours)
        cells.add(names[row], table["mean"][row], ours.mean(), error, control)
        report((done + 1) / len(rows))
    return Found(
        cells, "independent tokens, N as stated", len(table),
        note="rows of theirs share random numbers, so their errors go together",
    )  # fmt: skip


def _ending(
    sample: Sample, many: int, xi: float | None, together: bool, name: str, draw: int
) -> np.ndarray:
    """The exact test error of the end point of one draw."""
    seed = seed_of(name, draw)
    tasks = pool(many, sample, seed)
    train = sample.task(tasks)
    test = train.replace(tasks=Normal())
    if xi is not None and xi > 0:
        train, test = (
            Memory.autoregressive(task, length=xi, query=together) for task in (train, test)
        )
    gamma = fitted(sample, train, jax.random.key(seed))
    return np.asarray([float(LabelPopulation(test)(model_of(gamma, sample.size)))])


def spin_task(size: int, context: int) -> Task:
    """x ~ N(0, I), y = w·x/√D with w ~ N(0, I), no noise, divided by N + 1."""
    return Task(
        [1.0] * size, context, tasks=Normal(covariance=1 / size), normaliser=Normaliser.TOKENS
    )


def context(table: PublishedTable, quick: bool, report: Report) -> Found:
    """The ridge minimum that Adam with decay reaches, against the context length."""
    size, prompts = int(table.setting("D")), int(table.setting("P"))
    decay = _decay(table)
    draws = 3 if quick else 20
    names = [f"N {int(n):05d}" for n in table["N"]]
    rows = spread_over(names, 4) if quick else list(range(len(table)))
    cells = Cells()
    for done, row in enumerate(rows):
        task = spin_task(size, int(table["N"][row]))
        ours, wrong = _minima(task, prompts, (decay / 2, decay), draws, names[row])
        error = error_of_difference(table["test_std"][row], table["repeats"][row], ours)
        cells.add(
            f"N {table['N'][row]:g}", table["test_mean"][row], ours.mean(), error, wrong.mean()
        )
        report((done + 1) / len(rows))
    return Found(
        cells, "the whole weight decay as the ridge constant, instead of half of it", len(table)
    )


def _decay(table: PublishedTable) -> float:
    """Weight decay, which the header states as "weight decay 0.01"."""
    return table.number(rf"weight decay {NUMBER}", "weight decay")


def _minima(
    task: Task | Memory, prompts: int, penalties: tuple[float, float], draws: int, name: str,
    other: Task | Memory | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Test errors of ridge minima of several draws, at two penalties or of two tasks."""
    found = []
    for draw in range(draws):
        key = jax.random.key(seed_of(name, draw))
        pair = []
        for law, penalty in zip((task, other or task), penalties, strict=True):
            model = ridge(label_rows(law, prompts, key), penalty)
            pair.append(float(LabelPopulation(law)(model)))
        found.append(pair)
    ours, wrong = np.asarray(found).T
    return ours, wrong


def token_correlation(table: PublishedTable, quick: bool, report: Report) -> Found:
    """Equal correlations of all tokens, up to a slip: the covariance is LᵀL and not LLᵀ."""
    size, count = int(table.setting("D")), int(table.setting("N"))
    prompts, decay = int(table.setting("P")), _decay(table)
    draws = 2 if quick else 6
    groups = table.groups("c")
    if quick:
        groups = [groups[i] for i in spread_over([f"c {c:.6f}" for (c,), _ in groups], 4)]
    cells = Cells()
    for done, ((c,), rows) in enumerate(groups):
        equal = np.full((count + 1, count + 1), c) + (1 - c) * np.eye(count + 1)
        lower = np.linalg.cholesky(equal)
        task = spin_task(size, count)
        ours, wrong = _minima(
            Memory(task, lower.T @ lower), prompts, (decay / 2, decay / 2), draws, f"c {c:g}",
            Memory(task, equal),
        )  # fmt: skip
        values = table["test_error"][rows]
        error = error_of_difference(values.std(), len(values), ours)
        cells.add(f"c {c:g}", values.mean(), ours.mean(), error, wrong.mean())
        report((done + 1) / len(groups))
    return Found(cells, "equal correlations, the covariance LLᵀ", len(table.groups("c")))
