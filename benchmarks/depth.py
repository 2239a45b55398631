"""How right the predicted staircase of two layers is, and what it costs.

    python benchmarks/depth.py [SEEDS] [SCALE]

λ = (0.4, 0.3, 0.2, 0.1), N = 31, five rank-one heads per layer. Relative errors of all drop times
against `Flow(1e-8)` on the exact population, and seconds of processor time of both. Times of the
flow are interpolated between save points 0.02 % apart.
"""

import sys
import time

import jax
import numpy as np

import iclflow as icl
from iclflow.measures import first_crossings


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    scale = float(sys.argv[2]) if len(sys.argv) > 2 else 0.02
    task = icl.Task([0.4, 0.3, 0.2, 0.1], context=31)
    init = icl.Layers.initialiser(task, layers=2, heads=5, scale=scale)
    loss, errors, drops = icl.Population(task), [], 0
    for seed in range(seeds):
        model, begin = init(jax.random.key(seed)), time.process_time()
        found = icl.predict(task, model, probes=0)
        predicted = time.process_time()
        near = [t * np.linspace(0.98, 1.02, 201) for t in found.times]
        marks = np.unique(np.concatenate([[0.0], *near]))
        run = icl.simulate(loss, model, icl.Flow(1e-8), saveat=marks)
        middles = (found.levels[:-1] + found.levels[1:]) / 2
        times = first_crossings(marks, np.asarray(run.loss), middles)
        errors.append(np.abs(found.times / times - 1))
        drops += len(times)
        print(f"seed {seed}: {len(times)} drops, layers {(found.heads // 5).tolist()}, worst error "
              f"{np.nanmax(errors[-1]):.1e}, prediction {predicted - begin:.1f} s, flow "
              f"{time.process_time() - predicted:.1f} s", flush=True)  # fmt: skip
    all_errors = np.concatenate(errors)
    lost = int(np.isnan(all_errors).sum())
    print(f"{drops} drops: median {np.nanmedian(all_errors):.1e}, worst "
          f"{np.nanmax(all_errors):.1e}, {lost} not seen within 2 %")  # fmt: skip


if __name__ == "__main__":
    main()
