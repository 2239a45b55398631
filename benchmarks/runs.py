"""How many runs a second a sweep makes, by engine, and how much of the time is the host's.

    python benchmarks/runs.py [SEEDS] [STEPS]

The job: population descent, separate key and query of rank one, D = 4, H = 5, the loss at about
150 steps. One sweep under `vmap`, one by the fused loop of this machine (a GPU, or a CPU with
a C++ compiler), in the same process; their largest difference. The bare program is the
`vmap` loop, called once more on runs that are drawn already: what is left of that sweep is the
host's (plan, transfers, labels).
"""

import sys
import time

import equinox as eqx
import jax
import numpy as np

import iclflow as icl
from iclflow.dynamics.base import marks_until
from iclflow.models import draw_models
from iclflow.runs import cost
from iclflow.runs.fused import cuda, engine
from iclflow.runs.simulate import SAVES


def seconds(call, times=3):
    began = time.perf_counter()
    call()
    first, found = time.perf_counter() - began, []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found), first - min(found)


def kernel(loss, descent, models, marks):
    """The fused kernel without the sweep around it, on runs that are drawn already."""
    start = eqx.filter_vmap(lambda m: descent.init(loss, m, jax.random.key(0)))(models)
    parts = (loss, descent, eqx.tree_at(lambda s: s.step, start, start.step[0]))
    fused = engine.Fused.of(*parts, (False, False))
    record = {"loss": lambda model, loss: loss(model)}
    zeros = fused.zeros(parts, record)
    program, flat = fused.program(parts, record), engine.flattened(parts, fused.own, record)
    return lambda: cuda.advance(program, flat, zeros, marks, int(marks[-1]), start.running)


def main(seeds=1024, steps=10_000):
    task = icl.Task([0.4, 0.3, 0.2, 0.1], 31)
    loss, descent = icl.Population(task), icl.Descent(0.2)
    init = icl.Separate.initialiser(task, heads=5, scale=0.1)
    kept = {}

    def sweep(name):
        kept[name] = icl.sweep(loss, init, descent, until=steps, seeds=seeds)
        assert kept[name].attrs["engine"].startswith(name), kept[name].attrs["engine"]

    own = engine.available
    engine.available = lambda: engine.VMAP
    plain, _ = seconds(lambda: sweep("vmap"))
    engine.available, cost.worth_compiling = own, lambda *_: True
    fused = seconds(lambda: sweep("fused")) if own() != engine.VMAP else None
    models = draw_models(init, range(seeds))
    marks = marks_until(descent, steps, None, SAVES)

    @eqx.filter_jit
    def bare(models, marks):
        one = lambda m: icl.simulate(loss, m, descent, saveat=marks).loss  # noqa: E731
        return eqx.filter_vmap(one)(models)

    alone, _ = seconds(lambda: jax.block_until_ready(bare(models, marks)))
    device = f"{jax.devices()[0].device_kind}, {loss.power.dtype}"
    print(f"{device}: {seeds} runs of {steps} steps, {len(marks)} saves")
    print(f"sweep, vmap    {seeds / plain:12,.0f} runs/s  {plain:.3f} s")
    print(f"bare program   {seeds / alone:12,.0f} runs/s  {alone:.3f} s")
    print(f"host           {max(0.0, 1 - alone / plain):12.0%} of the sweep")
    if fused is None:
        print("sweep, fused   none: it needs a C++ compiler, or CuPy on a GPU")
        return
    time_, compiling = fused
    apart = float(np.abs(kept["fused"]["loss"] - kept["vmap"]["loss"]).max())
    print(f"sweep, fused   {seeds / time_:12,.0f} runs/s  {time_:.3f} s  {own()}")
    if own() == engine.CUDA:
        one, _ = seconds(kernel(loss, descent, models, np.asarray([steps])))
        print(f"its kernel     {seeds / one:12,.0f} runs/s  {one:.3f} s, the last loss saved")
    print(f"fused / vmap   {plain / time_:12.1f} times, compiled in {compiling:.1f} s")
    print(f"difference     {apart:12.1e} of the loss at most")


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:]))
