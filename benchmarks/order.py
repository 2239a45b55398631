"""What the order of statements is worth in a fused loop of the CPU.

    python benchmarks/order.py [RUNS] [STEPS]

Population descent, D = 4, H = 5, one core, single precision: the loop with its statements in the
order of `iclflow.runs.fused.schedule`, and in that in which automatic differentiation has them.
"""

import os
import sys
import time

os.environ["NPROC"] = "1"

import numpy as np

from iclflow.bench import RATE, RECORD, Job, _start
from iclflow.dynamics import Descent
from iclflow.runs.fused import cpp
from iclflow.runs.fused.engine import Fused
from iclflow.runs.fused.schedule import scheduled
from iclflow.runs.fused.values import Statement


def as_it_comes(statements, places, kinds):
    """All loads, then the statements as they are."""
    read = {name for s in statements for name in s.reads} & set(places)
    return [*(Statement(name, kinds[name], places[name]) for name in sorted(read)), *statements]


def main(runs=1024, steps=4000):
    for model, rank in (("separate", 1), ("merged", 1), ("separate", 2)):
        job = Job("population", model, R=rank, runs=runs)
        loss, models, descent = job.loss(), job.models(), Descent(RATE)
        parts = (loss, descent, _start(loss, descent, models))
        fused, found = Fused.of(*parts, (False, False)), {}
        for name, order in (("scheduled", scheduled), ("as it comes", as_it_comes)):
            cpp.scheduled = order
            cpp._compiled.cache_clear()
            began = time.perf_counter()
            fused.advance(parts, np.asarray([1]), RECORD)
            compiled, spent = time.perf_counter() - began, []
            for _ in range(15):
                began = time.process_time()
                fused.advance(parts, np.asarray([steps]), RECORD)
                spent.append(time.process_time() - began)
            found[name] = runs * steps / min(spent)
            print(f"{model} R={rank} {name:12} {found[name] / 1e6:6.1f} million steps/s a core, "
                  f"compiled in {compiled:.1f} s", flush=True)  # fmt: skip
        print(f"  {fused.engine}: ratio {found['scheduled'] / found['as it comes']:.2f}")


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:]))
