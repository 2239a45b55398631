"""How long a flow over a million time scales takes, and how accurate it is.

    python benchmarks/flows.py               # D = 64, to within 1 % of the final loss
    python benchmarks/flows.py 256           # another D
    python benchmarks/flows.py --accuracy    # drop times at D = 8, by every solver

Population loss, separate key and query of rank one, H = D + 1, λ ∝ 1/d with trace one, N = 31,
init scale 0.1. The flow goes on in stretches of time until the loss is within 1 % of the final one,
which the theory knows. `--accuracy` takes a flow of tolerance 1e-10 for the truth. Processor
seconds count both cores: on a busy machine they say more than the clock.
"""

import argparse
import time

import jax
import numpy as np

import iclflow as icl
from iclflow.theory import Modes

TOLERANCE = 3e-4
CONTEXT, SCALE = 31, 0.1
FIRST, GROWTH = 1e5, 1.3  # the end of the first stretch, and of the next over the last


def problem(size: int, key: int) -> tuple[icl.Population, icl.Separate, np.ndarray]:
    """The loss, the start and the levels of the plateaus."""
    spectrum = 1 / np.arange(1, size + 1)
    task = icl.Task(spectrum / spectrum.sum(), CONTEXT)
    model = icl.Separate.initialiser(task, heads=size + 1, scale=SCALE)(jax.random.key(key))
    modes = Modes.of(task)
    levels = float(modes.power) - np.cumsum([0.0, *np.asarray(modes.drops)])
    return icl.Population(task), model, levels


def long_flow(size: int, key: int, until: float) -> None:
    """Seconds until the loss is within 1 % of the final one."""
    loss, model, levels = problem(size, key)
    flow = icl.Flow(TOLERANCE, solver=icl.Rosenbrock())
    begin, busy = time.perf_counter(), time.process_time()
    run = icl.simulate(loss, model, flow, saveat=[1.0])
    run = icl.simulate(loss, model, flow, saveat=[2.0], state=run.state)
    jax.block_until_ready(run.loss)
    compiling = time.perf_counter() - begin, time.process_time() - busy
    begin, busy, end = time.perf_counter(), time.process_time(), FIRST
    while float(run.loss[-1]) > 1.01 * levels[-1] and end < until:
        run = icl.simulate(loss, model, flow, saveat=[end], state=run.state)
        end *= GROWTH
        print(f"  t/τ = {float(run.stopped):.3g}, loss {float(run.loss[-1]):.4f},"
              f" {time.perf_counter() - begin:.1f} s", flush=True)  # fmt: skip
    spent, busy = time.perf_counter() - begin, time.process_time() - busy
    print(f"D = {size}, H = {size + 1} on {jax.devices()[0].device_kind}: loss"
          f" {float(run.loss[-1]):.4f} (final {levels[-1]:.4f}) at t/τ = {float(run.stopped):.3g};"
          f" {spent:.1f} s (processor {busy:.1f} s), before that {compiling[0]:.1f} s"
          f" (processor {compiling[1]:.1f} s) to compile")  # fmt: skip


def accuracy(size: int, key: int, end: float) -> None:
    """Worst relative error of the drop times of each solver, and its seconds."""
    loss, model, levels = problem(size, key)
    marks = np.concatenate([[0.0], np.geomspace(20.0, end, 4000)])
    middles, exact = (levels[1:] + levels[:-1]) / 2, None
    for name, flow in (
        ("Tsit5, 1e-10", icl.Flow(1e-10, max_steps=10**8)),
        ("Tsit5, 1e-4", icl.Flow(1e-4, max_steps=10**8)),
        ("Chebyshev, 1e-4", icl.Flow(1e-4, max_steps=10**8, solver=icl.Chebyshev())),
        ("Chebyshev, 1e-5", icl.Flow(1e-5, max_steps=10**8, solver=icl.Chebyshev())),
        ("Rosenbrock, 1e-3", icl.Flow(1e-3, solver=icl.Rosenbrock())),
        ("Rosenbrock, 3e-4", icl.Flow(3e-4, solver=icl.Rosenbrock())),
        ("Rosenbrock, 1e-4", icl.Flow(1e-4, solver=icl.Rosenbrock())),
    ):
        for _ in range(2):  # the first compiles
            begin = time.perf_counter()
            run = jax.block_until_ready(icl.simulate(loss, model, flow, saveat=marks))
            spent = time.perf_counter() - begin
        curve = -np.asarray(run.loss[1:])
        times = np.exp(np.interp(-middles, curve, np.log(marks[1:])))
        exact = times if exact is None else exact
        print(f"D = {size}, {name}: {spent:.2f} s, drop times off by at most"
              f" {np.abs(times / exact - 1).max():.1e}", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", type=int, nargs="?", default=64, help="the dimension D")
    parser.add_argument("--until", type=float, default=1e12, help="stop at this t/τ at the latest")
    parser.add_argument("--key", type=int, default=0, help="of the initial weights")
    parser.add_argument("--accuracy", action="store_true", help="drop times at D = 8 instead")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if args.accuracy:
        accuracy(8, args.key, 6e4)
    else:
        long_flow(args.size, args.key, args.until)


if __name__ == "__main__":
    main()
