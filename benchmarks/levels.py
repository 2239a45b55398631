"""Moments or features: what a step costs, and where one becomes cheaper than the other.

    python benchmarks/levels.py [D ...]

For each D, full blocks, D + 1 heads: seconds to build the moments of 2,000 prompts, peak memory,
seconds per step from moments and from features, and P at which both cost the same, measured (a step
from features is proportional to P) and by the cost model of `icl.select`.
"""

import resource
import sys
import time

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import iclflow as icl  # noqa: E402
from iclflow.losses.select import equal_cost  # noqa: E402
from iclflow.models import Blocks  # noqa: E402

SEQUENCES, CONTEXT = 2000, 31


def seconds_a_step(loss, model) -> float:
    """The median of a few short runs, from the difference of two lengths."""
    few, found = [0, 2], []
    more = max(4, int(0.3 / _timed(loss, model, few) * 2))
    for _ in range(3):
        found.append((_timed(loss, model, [0, 2 + more]) - _timed(loss, model, few)) / more)
    return float(np.median(found))


def _timed(loss, model, marks) -> float:
    best = np.inf
    for _ in range(3):  # the first compiles
        began = time.perf_counter()
        jax.block_until_ready(icl.simulate(loss, model, icl.Descent(1e-3), saveat=marks).loss)
        best = min(best, time.perf_counter() - began)
    return best


def main(sizes: list[int]) -> None:
    print("   D      F  build s   GiB  moments s  features s   equal at P  model")
    for size in sizes:
        task = icl.Task(np.full(size, 1 / size), CONTEXT)
        init = icl.Separate.initialiser(task, heads=size + 1, scale=0.1, blocks=Blocks.FULL)
        model, key = init(jax.random.key(0)), jax.random.key(1)
        began = time.perf_counter()
        moments = jax.block_until_ready(icl.Moments.sample(task, SEQUENCES, key))
        built = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        from_moments = seconds_a_step(moments, model)
        count = moments.cross.size
        del moments
        from_features = seconds_a_step(icl.Features.sample(task, SEQUENCES, key), model)
        equal = SEQUENCES * from_moments / from_features
        print(f"{size:4d} {count:6d} {built:8.1f} {peak:5.1f} {from_moments:10.2e} "
              f"{from_features:11.2e} {equal:12,.0f} {equal_cost(count):6,.0f}")  # fmt: skip


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or [4, 8, 12, 16, 24, 32])
