"""Decompositions of one layer's heads at the shape of Pythia-160m: on one thread, and on all.

python benchmarks/threads.py
"""

import contextlib
import time

import jax
import numpy as np

from iclflow.checkpoints import Factors
from iclflow.checkpoints.measures import Plan, measure_heads, one_thread

HEADS, WIDTH, SIZE, REPEATS = 12, 768, 64, 5


def main() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=(HEADS, WIDTH, SIZE)).astype(np.float32) for _ in range(3)]
    out = rng.normal(size=(HEADS, SIZE, WIDTH)).astype(np.float32)
    heads, plan = Factors(*parts, out).heads(), Plan(("norm", "effective_rank"))
    jax.block_until_ready(measure_heads(heads.qk, plan))
    for label, limit in (("one thread", one_thread), ("all threads", contextlib.nullcontext)):
        with limit():
            began, clock = time.process_time(), time.perf_counter()
            for _ in range(REPEATS):
                jax.block_until_ready(measure_heads(heads.qk, plan))
            spent, wall = time.process_time() - began, time.perf_counter() - clock
        each, waited = 1e3 * spent / REPEATS, 1e3 * wall / REPEATS
        print(f"{label}: {each:.0f} ms of the processor, {waited:.0f} ms")


if __name__ == "__main__":
    main()
