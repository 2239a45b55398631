"""How well the predicted drop times and heads agree with the flow, and what they cost.

    python benchmarks/staircase.py

Random tasks, 30 on which constants of the engine were set and 30 fresh ones: for each engine and
init scale the relative error of the drop times (median and worst over all drops), how many heads
are named wrongly, and milliseconds of processor time (the first call of a shape apart). Then the
paper's task from 40 starts, nearly equal eigenvalues, and cost. The truth is the gradient flow of
all weights at a tolerance of 1e-10.
"""

import time

import jax
import numpy as np
from scipy.integrate import LSODA
from scipy.optimize import brentq

from iclflow.models import Separate
from iclflow.tasks.task import Task
from iclflow.tasks.task_vectors import Normal
from iclflow.theory import DropsBy, Modes, drop_times, staircase
from iclflow.theory.drops.frame import separate_weights
from iclflow.theory.drops.head_flow import HeadFlow

SCALES = (1e-2, 0.07)
SEEDS = (range(30), range(1000, 1030))  # constants were set on the first
PAPER = Task([0.4, 0.3, 0.2, 0.1], 31)


def random_task(seed: int) -> Task:
    """Two to five dimensions, eigenvalues from 0.1 to 1, contexts of 5 to 60, task variances."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 6))
    variances = rng.uniform(0.5, 2.0, size)
    tasks = Normal(covariance=variances if seed % 2 else np.ones(size))
    return Task(rng.uniform(0.1, 1.0, size), int(rng.integers(5, 61)), tasks=tasks)


def truth(modes: Modes, model: Separate) -> tuple[np.ndarray, np.ndarray]:
    """Drop times of the flow, and its heads in the order in which they grow."""
    weights = separate_weights(model)
    flow, y = HeadFlow.of(modes, weights), np.concatenate([a.ravel() for a in weights])
    levels = flow.power - np.concatenate([[0.0], np.cumsum(np.asarray(modes.drops))])
    middles, times = (levels[:-1] + levels[1:]) / 2, []
    solver = LSODA(
        flow.slope, 0.0, y, 1e12, rtol=1e-10, atol=1e-12 * float(np.abs(y).max()), jac=flow.jacobian
    )
    after, clock, values = 0, [], []
    while after < 200 and solver.status == "running":
        solver.step()
        while len(times) < len(middles) and flow.loss(solver.y[None])[0] < middles[len(times)]:
            dense, middle = solver.dense_output(), middles[len(times)]
            times.append(
                brentq(
                    lambda t, f=dense, m=middle: flow.loss(f(t)[None])[0] - m,
                    solver.t_old,
                    solver.t,
                )
            )
        after += len(times) == len(middles)
        clock.append(solver.t)
        values.append(np.abs(flow.split(solver.y)[0]))
    assert len(times) == len(middles), (solver.status, solver.t, times)
    grown = np.flatnonzero(values[-1] > 0.5)
    halfway = np.argmax(np.asarray(values)[:, grown] > values[-1][grown] / 2, axis=0)
    return np.asarray(times), grown[np.argsort(np.asarray(clock)[halfway])]


def compare(
    cases: list[tuple[Modes, Separate]], by: DropsBy | None, known: list
) -> tuple[np.ndarray, int, float, set[str]]:
    """Relative errors of all drop times, heads named wrongly, ms a prediction, engines used."""
    errors, wrong, spent, used = [np.zeros(0)], 0, 0.0, set()
    for (modes, model), (times, heads) in zip(cases, known, strict=True):
        try:
            staircase(modes, model, drops_by=by, probes=0)
        except ValueError:  # no scalar courses
            continue
        begin = time.process_time()
        found = staircase(modes, model, drops_by=by, probes=0)
        spent += time.process_time() - begin
        count = min(len(found.times), len(times))
        errors += [np.abs(found.times[:count] / times[:count] - 1)]
        errors += [np.full(len(times) - count, np.inf)]
        wrong += int(np.sum(found.heads[:count] != heads[:count]))
        used.add(found.by.value)
    return np.concatenate(errors), wrong, 1e3 * spent / len(cases), used


def start(task: Task, seed: int, scale: float, heads: int | None = None) -> Separate:
    return Separate.initialiser(task, heads=heads or task.size + 1, scale=scale)(
        jax.random.key(seed)
    )


def random_tasks() -> None:
    print(f"{'scale':>6} {'seeds':>10} {'engine':>8} {'median':>9} {'worst':>9} {'heads wrong':>12}"
          f" {'ms':>6}")  # fmt: skip
    for scale in SCALES:
        for seeds in SEEDS:
            cases = [
                (Modes.of(task), start(task, seed, scale))
                for seed in seeds
                for task in [random_task(seed)]
            ]
            known = [truth(modes, model) for modes, model in cases]
            for by in (DropsBy.COURSE, DropsBy.FLOW, None):
                errors, wrong, spent, used = compare(cases, by, known)
                name, span = by.value if by else "default", f"{seeds[0]}-{seeds[-1]}"
                print(
                    f"{scale:6g} {span:>10} {name:>8} {np.median(errors):9.1e} {errors.max():9.1e} "
                    f"{wrong:4d} of {errors.size:3d} {spent:8.0f}  " + ", ".join(sorted(used)),
                    flush=True,
                )


def starts_of_the_paper() -> None:
    cases = [(Modes.of(PAPER), start(PAPER, key, 0.07)) for key in range(40)]
    errors, wrong, _, _ = compare(cases, None, [truth(*case) for case in cases])
    found = staircase(*cases[0], probes=0)
    print(f"\nλ = .4 .3 .2 .1, N = 31, H = 5, w = 0.07: key 0 by heads {found.heads}; 40 keys:"
          f" heads wrong {wrong} of {errors.size}, median {np.median(errors):.1e},"
          f" worst {errors.max():.1e}")  # fmt: skip


def nearly_equal() -> None:
    print(
        "\nλ = .3(1 + gap) .3 .2, N = 31, H = 4, w = 1e-3, key 0: error and condition of each drop"
    )
    for gap in (1e-1, 1e-2, 1e-3, 1e-5, 0.0):
        task = Task([0.3 * (1 + gap), 0.3, 0.2], 31)
        modes, model = Modes.of(task), start(task, 0, 1e-3)
        found = staircase(modes, model)
        errors = np.abs(found.times / truth(modes, model)[0] - 1)
        numbers = ", ".join(
            f"{e:.0e} ({c:.2g})" for e, c in zip(errors, found.condition, strict=True)
        )
        print(f"gap {gap:5g}: {numbers}")


def cost() -> None:
    print("\nmilliseconds of processor time, after a first call")
    power = 1 / np.arange(1, 65)
    for name, task, scale in (
        ("D = 4", PAPER, 1e-2),
        ("D = 9", Task(np.arange(9, 0, -1) / 45, 31), 0.05),
        ("D = 64, λ ∝ 1/d", Task(power / power.sum(), 31), 0.1),
    ):
        modes, spent = Modes.of(task), []
        for key in range(4):
            model, begin = start(task, key, scale), time.process_time()
            found = staircase(modes, model)
            spent.append(time.process_time() - begin)
        print(f"{name}, with its condition: {1e3 * np.median(spent[1:]):.0f} ({found.by.value})")
    for scale in SCALES:
        models = [start(PAPER, key, scale) for key in range(1000)]
        drop_times(PAPER, models[:2])
        begin = time.process_time()
        together = drop_times(PAPER, models)
        spent = time.process_time() - begin
        alone = [staircase(PAPER, model, probes=0).times for model in models[:200]]
        shares = [0.1, 0.5, 0.9]
        off = np.quantile(together[:200], shares, axis=0) / np.quantile(alone, shares, axis=0) - 1
        print(f"1000 starts of D = 4 at w = {scale:g} together: {1e3 * spent:.0f}; 10%, 50% and 90%"
              f" of the times of 200 off by {np.abs(off).max(axis=1).round(4)}")  # fmt: skip


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    random_tasks()
    starts_of_the_paper()
    nearly_equal()
    cost()


if __name__ == "__main__":
    main()
