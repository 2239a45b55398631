"""How right the predicted staircase is, and what it costs.

    python benchmarks/staircase.py [SAMPLES]

Random samples and random tasks, drawn by fixed rules: the relative error of the drop times (median,
90 % and worst over all drops), how many heads are named wrongly, and seconds of processor time of a
prediction. Beside it the error of the population's theory on the same samples. The truth is the
gradient flow of all weights at a tolerance of 1e-10 on the same loss.
"""

import sys
import time

import jax
import numpy as np
from scipy.integrate import LSODA
from scipy.optimize import brentq

from iclflow.losses import Moments, ReducedFeatures
from iclflow.models import Separate
from iclflow.tasks.task import Task
from iclflow.tasks.task_vectors import Normal
from iclflow.theory import Quadratic, staircase
from iclflow.theory.drops.frame import separate_weights
from iclflow.theory.drops.head_flow import HeadFlow

Case = tuple[Quadratic, Separate, Task]


def random_task(seed: int, scale: float) -> Case:
    """Two to five dimensions, eigenvalues from 0.1 to 1, contexts of 5 to 60, task variances."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 6))
    variances = rng.uniform(0.5, 2.0, size)
    tasks = Normal(covariance=variances if seed % 2 else np.ones(size))
    task = Task(rng.uniform(0.1, 1.0, size), int(rng.integers(5, 61)), tasks=tasks)
    return Quadratic.of(task), start(task, seed, scale), task


def random_sample(seed: int) -> Case:
    """D 2-4, N 8-39, P 200 to 5,000, H = D + 1, w 0.003 to 0.03."""
    rng = np.random.default_rng(seed)
    size = int(rng.integers(2, 5))
    spectrum = np.sort(rng.uniform(0.1, 1, size))[::-1]
    context, prompts = int(rng.integers(8, 40)), int(rng.choice([200, 1000, 5000]))
    scale = float(rng.choice([3e-3, 1e-2, 3e-2]))
    task = Task((spectrum / spectrum.sum()).tolist(), context)
    loss = Moments.sample(task, prompts, jax.random.key(100 + seed), features=ReducedFeatures())
    return Quadratic.of(loss), start(task, seed, scale), task


def start(task: Task, seed: int, scale: float) -> Separate:
    return Separate.initialiser(task, heads=task.size + 1, scale=scale)(jax.random.key(seed))


def truth(loss: Quadratic, model: Separate, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drop times of the flow, and its heads in the order in which they grow."""
    weights = separate_weights(model)
    flow, y = HeadFlow(loss, *weights[1].shape[:2]), np.concatenate([a.ravel() for a in weights])
    middles, times = (levels[:-1] + levels[1:]) / 2, []
    solver = LSODA(
        flow.slope, 0.0, y, 1e12, rtol=1e-10, atol=1e-12 * float(np.abs(y).max()),
        jac=lambda t, y: flow.jacobian(t, y),
    )  # fmt: skip
    after, clock, values = 0, [], []
    while after < 200 and solver.status == "running":
        solver.step()
        while len(times) < len(middles) and flow.loss(solver.y[None])[0] < middles[len(times)]:
            dense, middle = solver.dense_output(), middles[len(times)]

            def excess(t: float, course=dense, level=middle) -> float:
                return float(flow.loss(course(t)[None])[0]) - level

            times.append(brentq(excess, solver.t_old, solver.t))
        after += len(times) == len(middles)
        clock.append(solver.t)
        values.append(np.abs(flow.split(solver.y)[0]))
    grown = np.argsort(-values[-1])[: len(middles)]
    halfway = np.argmax(np.asarray(values)[:, grown] > values[-1][grown] / 2, axis=0)
    return np.asarray(times), grown[np.argsort(np.asarray(clock)[halfway])]


def report(name: str, cases: list[Case], population: bool = False) -> None:
    errors, others, wrong, spent = [], [], 0, []
    for loss, model, task in cases:
        begin = time.process_time()
        found = staircase(loss, model, probes=0)
        spent.append(time.process_time() - begin)
        times, heads = truth(loss, model, found.levels)
        errors += [np.abs(found.times / times - 1)]
        wrong += int(np.sum(found.heads != heads))
        if population:
            theirs = staircase(task, model, probes=0).times
            count = min(len(theirs), len(times))
            others += [np.abs(theirs[:count] / times[:count] - 1)]
    for label, parts in ((name, errors), ("  the population's theory", others)):
        if parts:
            e = np.concatenate(parts)
            print(f"{label}: {e.size} drops, median {np.median(e):.1e}, 90 %"
                  f" {np.quantile(e, 0.9):.1e}, worst {e.max():.1e}", flush=True)  # fmt: skip
    print(f"  heads wrong {wrong}; seconds: median {np.median(spent):.2f}, worst {max(spent):.2f}")


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    report(f"{count} samples", [random_sample(seed) for seed in range(count)], population=True)
    for scale in (1e-2, 0.07):
        tasks = [random_task(seed, scale) for seed in range(1000, 1000 + count // 2)]
        report(f"{count // 2} tasks, w = {scale:g}", tasks)


if __name__ == "__main__":
    main()
