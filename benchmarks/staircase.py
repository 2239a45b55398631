"""How well the predicted drop times and heads agree with the flow: 30 random tasks a scale.

    python benchmarks/staircase.py

Each row: an engine at an init scale; the relative error of the drop times (median and worst over
all drops of all tasks), how many heads are named wrongly, and milliseconds a prediction (the first
call of a shape apart). The truth is the gradient flow of all weights at a tolerance of 1e-10.
"""

import time

import jax
import numpy as np
from scipy.integrate import LSODA
from scipy.optimize import brentq

from iclflow.models import Separate
from iclflow.tasks.task import Task
from iclflow.tasks.task_vectors import Normal
from iclflow.theory import DropsBy, Modes, staircase
from iclflow.theory.drops.frame import separate_weights
from iclflow.theory.drops.head_flow import HeadFlow

TASKS, SCALES = 30, (1e-2, 0.07)


def random_task(seed: int) -> Task:
    """Two to five dimensions, eigenvalues from 0.1 to 1, contexts of 5 to 60, task variances."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 6))
    variances = rng.uniform(0.5, 2.0, size) if seed % 2 else np.ones(size)
    tasks = Normal(covariance=variances)
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


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    starts = []
    for seed in range(TASKS):
        task = random_task(seed)
        model = Separate.initialiser(task, heads=task.size + 1, scale=1.0)(jax.random.key(seed))
        starts.append((Modes.of(task), model))
    print(f"{'scale':>6} {'engine':>8} {'median':>9} {'worst':>9} {'heads wrong':>12} {'ms':>6}")
    for scale in SCALES:
        cases = [(modes, jax.tree.map(lambda a, w=scale: a * w, model)) for modes, model in starts]
        known = [truth(modes, model) for modes, model in cases]
        for by in (DropsBy.COURSE, DropsBy.FLOW, None):
            errors, wrong, spent, used = [], 0, 0.0, set()
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
            all_errors, name = np.concatenate(errors), by.value if by else "default"
            print(
                f"{scale:6g} {name:>8} {np.median(all_errors):9.1e} {all_errors.max():9.1e} "
                f"{wrong:4d} of {all_errors.size:3d} {1e3 * spent / TASKS:8.0f}  "
                + ", ".join(sorted(used))
            )


if __name__ == "__main__":
    main()
