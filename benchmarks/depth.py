"""Two layers: how right the predicted staircase is, and what runs and sweeps of them cost.

    python benchmarks/depth.py [SEEDS] [SCALE]
    python benchmarks/depth.py --run
    python benchmarks/depth.py --sweep [SEEDS] [STEPS]

λ = (0.4, 0.3, 0.2, 0.1), N = 31, five rank-one heads per layer. The first has relative errors of
all drop times against `Flow(1e-8)` on the exact population, and seconds of processor time of both.
Times of the flow are interpolated between save points 0.02 % apart. `--run` times one run from
w = 1e-3 to its end, compiling included. `--sweep` compares the fused loop of this machine with
`vmap` on gradient descent.
"""

import argparse
import time

import jax
import numpy as np

import iclflow as icl
from iclflow.measures import first_crossings
from iclflow.runs import cost

TASK = icl.Task([0.4, 0.3, 0.2, 0.1], context=31)
END = 4e6  # t/τ after the last drop from w = 1e-3


def start(scale: float) -> icl.models.AbstractInitialiser:
    return icl.Layers.initialiser(TASK, layers=2, heads=5, scale=scale)


def errors(seeds: int, scale: float) -> None:
    init, loss, found, drops = start(scale), icl.Population(TASK), [], 0
    for seed in range(seeds):
        model, begin = init(jax.random.key(seed)), time.process_time()
        theory = icl.predict(TASK, model, probes=0)
        predicted = time.process_time()
        near = [t * np.linspace(0.98, 1.02, 201) for t in theory.times]
        marks = np.unique(np.concatenate([[0.0], *near]))
        run = icl.simulate(loss, model, icl.Flow(1e-8), saveat=marks)
        middles = (theory.levels[:-1] + theory.levels[1:]) / 2
        times = first_crossings(marks, np.asarray(run.loss), middles)
        found.append(np.abs(theory.times / times - 1))
        drops += len(times)
        print(f"seed {seed}: {len(times)} drops, layers {(theory.heads // 5).tolist()}, worst "
              f"error {np.nanmax(found[-1]):.1e}, prediction {predicted - begin:.1f} s, flow "
              f"{time.process_time() - predicted:.1f} s", flush=True)  # fmt: skip
    every = np.concatenate(found)
    print(f"{drops} drops: median {np.nanmedian(every):.1e}, worst {np.nanmax(every):.1e}, "
          f"{int(np.isnan(every).sum())} not seen within 2 %")  # fmt: skip


def run() -> None:
    model = start(1e-3)(jax.random.key(0))
    for word in ("with compiling", "again"):
        clock, busy = time.perf_counter(), time.process_time()
        marks = np.concatenate([[0.0], np.geomspace(1e3, END, 500)])
        flow = icl.Flow(1e-6, solver=icl.Rosenbrock())
        found = icl.simulate(icl.Population(TASK), model, flow, saveat=marks)
        last = float(found.loss[-1])
        print(f"w = 1e-3 to t/τ = {END:g}, loss {last:.6f}, {word}: "
              f"{time.perf_counter() - clock:.1f} s by the clock, "
              f"{time.process_time() - busy:.1f} s of processor time", flush=True)  # fmt: skip


def sweep(seeds: int, steps: int) -> None:
    init, losses = start(0.05), []
    for worth in (False, True):
        cost.worth_compiling = lambda *_, answer=worth: answer
        for word in ("with compiling", "again"):
            clock, busy = time.perf_counter(), time.process_time()
            runs = icl.sweep(TASK, init, icl.Descent(0.2), until=steps, seeds=seeds, progress=False)
            took, used = time.perf_counter() - clock, time.process_time() - busy
            print(f"{runs.attrs['engine']}, {seeds} runs of {steps} steps, {word}: {took:.1f} s "
                  f"by the clock, {used:.1f} s of processor time", flush=True)  # fmt: skip
        losses.append(runs["loss"].values)
    print(f"largest relative difference {np.abs(losses[0] / losses[1] - 1).max():.1e}")


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("numbers", nargs="*", type=float)
    args = parser.parse_args()
    defaults = (128.0, 4000.0) if args.sweep else (4.0, 0.02)
    first, second = (*args.numbers, *defaults[len(args.numbers) :])
    if args.run:
        run()
    elif args.sweep:
        sweep(int(first), int(second))
    else:
        errors(int(first), second)


if __name__ == "__main__":
    main()
