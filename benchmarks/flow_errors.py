"""Errors of fused flows over those of Diffrax at the same tolerance, on several problems.

    python benchmarks/flow_errors.py [RUNS]

Root mean square errors of the loss over runs and 40 save points, evenly spaced in the logarithm of
time, against flows of tolerance 1e-13. Attention in the population at D = 2 to 8, from small
weights and from larger ones, to several times. Each table has the error of Diffrax's `Tsit5`, and
what the fused errors are in units of it: by the pair that the sweep chooses, and by `Tsit5`.
"""

import argparse

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import iclflow as icl
from iclflow.models import draw_models
from iclflow.runs.device import vmapped
from iclflow.runs.fused import engine

TOLERANCES = (1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 1e-7, 3e-8, 1e-8, 1e-9)
RECORD = {"loss": lambda model, loss: loss(model)}
PROBLEMS = [  # D, heads, initial scale, end, model
    (2, 2, 0.1, 200.0, icl.Separate),
    (2, 2, 0.1, 4000.0, icl.Separate),
    (3, 2, 0.1, 200.0, icl.Merged),
    (4, 5, 0.01, 4000.0, icl.Separate),
    (4, 5, 0.07, 4000.0, icl.Separate),
    (4, 5, 0.3, 400.0, icl.Separate),
    (6, 7, 0.05, 4000.0, icl.Separate),
    (8, 9, 0.05, 4000.0, icl.Separate),
    (8, 9, 0.2, 1000.0, icl.Separate),
]


def errors(loss, models, marks):
    """name -> the error at each tolerance."""

    def parts(tolerance, solver):
        flow = icl.Flow(jnp.asarray(tolerance), solver=solver)
        start = eqx.filter_vmap(lambda m: flow.init(loss, m, jax.random.key(0)))
        return loss, flow, start(models)

    def fused(tolerance, solver):
        some = parts(tolerance, solver)
        loop = engine.Fused.of(*some, (False, False))
        loop.engine = engine.CPP
        assert loop.prepare(some, RECORD) is None
        return loop.advance(some, marks, RECORD).record["loss"]

    def plain(tolerance, solver):
        return vmapped(parts(tolerance, solver), (None, None), marks, RECORD).record["loss"]

    exact = fused(1e-13, diffrax.Tsit5())
    ways = {"Diffrax": (plain, None), "chosen": (fused, None), "Tsit5": (fused, diffrax.Tsit5())}
    return {
        name: np.asarray(
            [np.sqrt(np.mean((np.asarray(way(t, solver)) - exact) ** 2)) for t in TOLERANCES]
        )
        for name, (way, solver) in ways.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=int, nargs="?", default=16)
    count = parser.parse_args().runs
    jax.config.update("jax_enable_x64", True)
    print("tolerance                      ", *(f"{t:8.0e}" for t in TOLERANCES))
    for size, heads, scale, until, model in PROBLEMS:
        spectrum = 1 / np.arange(1, size + 1)
        task = icl.Task(spectrum / spectrum.sum(), 31)
        models = draw_models(model.initialiser(task, heads=heads, scale=scale), range(count))
        found = errors(icl.Population(task), models, np.geomspace(1.0, until, 40))
        print(f"D = {size}, {model.__name__.lower()}, w = {scale}, t/τ = {until:g}")
        print("   Diffrax                     ", *(f"{e:8.1e}" for e in found["Diffrax"]))
        for name in ("chosen", "Tsit5"):
            ratios = found[name] / found["Diffrax"]
            print(f"   {name:28}", *(f"{r:8.2f}" for r in ratios), flush=True)


if __name__ == "__main__":
    main()
