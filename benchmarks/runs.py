"""How many runs a second a sweep makes, and how much of the time is the host's.

    python benchmarks/runs.py [SEEDS] [STEPS]

The job: population descent, separate key and query of rank one, D = 4, H = 5. The bare program is
the same compiled loop, called once more on runs that are drawn already: what is left of the sweep
is the host's (plan, transfers, labels).
"""

import sys
import time

import equinox as eqx
import jax
import numpy as np

import iclflow as icl
from iclflow.dynamics.base import marks_until
from iclflow.models import draw_models
from iclflow.runs.simulate import SAVES


def seconds(call, times=3):
    call()  # compiles
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def main(seeds=1024, steps=10_000):
    task = icl.Task([0.4, 0.3, 0.2, 0.1], 31)
    loss, descent = icl.Population(task), icl.Descent(0.2)
    init = icl.Separate.initialiser(task, heads=5, scale=0.1)
    whole = seconds(lambda: icl.sweep(loss, init, descent, until=steps, seeds=seeds))
    models = draw_models(init, range(seeds))
    marks = marks_until(descent, steps, None, SAVES)

    @eqx.filter_jit
    def bare(models, marks):
        one = lambda m: icl.simulate(loss, m, descent, saveat=marks).loss  # noqa: E731
        return eqx.filter_vmap(one)(models)

    alone = seconds(lambda: np.asarray(jax.block_until_ready(bare(models, marks))))
    print(f"{jax.devices()[0].device_kind}, {seeds} runs of {steps} steps, {len(marks)} saves")
    print(f"sweep          {seeds / whole:12,.0f} runs/s  {whole:.3f} s")
    print(f"bare program   {seeds / alone:12,.0f} runs/s  {alone:.3f} s")
    print(f"host           {max(0.0, 1 - alone / whole):12.0%} of the sweep")


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:]))
