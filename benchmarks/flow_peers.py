"""Flows by a peer, gradsolve, beside the fused flow: runs per second and errors, on this machine.

    python benchmarks/flow_peers.py [RUNS]      # where gradsolve[warp,diffrax] is installed

The problem is that of `benchmarks/runs.py --flow` until t/τ = 1,000, where most runs are between
two drops. Nothing is recorded but the last weights, since gradsolve's fused kernels record nothing
else. The tolerance is 1e-6; errors are those of the loss at the end, against tolerance 1e-12.
modax-solvers is not here: it needs CUDA.
"""

import argparse
import importlib.metadata
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import iclflow as icl
from iclflow.dynamics.flow import slope
from iclflow.models import draw_models
from iclflow.runs import cost

UNTIL = 1000.0


def cut_as(tree):
    """A vector of numbers -> the same numbers as a tree of this kind."""
    leaves, kind = jax.tree.flatten(tree)
    ends = np.cumsum([leaf.size for leaf in leaves]).tolist()

    def cut(vector):
        parts = [vector[e - a.size : e].reshape(a.shape) for e, a in zip(ends, leaves, strict=True)]
        return jax.tree.unflatten(kind, parts)

    return cut


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=int, nargs="?", default=1024)
    count = parser.parse_args().runs
    jax.config.update("jax_enable_x64", True)
    import gradsolve

    task = icl.Task([0.4, 0.3, 0.2, 0.1], 31)
    loss = icl.Population(task)
    init = icl.Separate.initialiser(task, heads=5, scale=0.07)
    models = draw_models(init, range(count))
    one = jax.tree.map(lambda a: a[0], models)
    starts = np.asarray(jax.vmap(lambda m: ravel_pytree(m)[0])(models))
    restore = cut_as(one)
    losses = jax.jit(jax.vmap(lambda y: loss(restore(y))))

    # A field for Warp may neither close over arrays nor split one, so that the numbers of the loss
    # are parameters, and both are cut out piece by piece.
    arrays, static = eqx.partition(loss, eqx.is_inexact_array)
    numbers, whole = ravel_pytree(arrays)[0], cut_as(arrays)

    class Flow:
        name, dim, t0, t1, is_stiff = "attention", starts.shape[1], 0.0, UNTIL, False

        def f_jax(self, t, y, p):
            del t
            rates = slope(eqx.combine(whole(p), static), restore(y))
            return jnp.concatenate([jnp.ravel(a) for a in jax.tree.leaves(rates)])

    gradsolve.register_jax_field(Flow.name, Flow().f_jax, Flow.dim, numbers.size)
    cost.worth_compiling = lambda *_: True
    ground = float(np.sqrt(np.mean(starts**2)))  # the absolute tolerance of `Flow`, on average

    def ours(tolerance):
        kept = icl.sweep(loss, init, icl.Flow(tolerance), saveat=[UNTIL], seeds=count)
        assert kept.attrs["engine"].startswith("fused"), kept.attrs["engine"]
        return kept["loss"].values[:, -1]

    def theirs(engine):
        def call(tolerance):
            allowed = {"rtol": tolerance, "atol": tolerance * ground}
            found = gradsolve.solve(Flow(), starts, params, engine=engine, device="cpu", **allowed)
            assert found.solver == engine, found.route
            return np.asarray(losses(jnp.asarray(found.y_final)))

        return call

    params = np.broadcast_to(np.asarray(numbers), (count, numbers.size)).copy()
    exact = ours(1e-12)
    print(
        f"{count} flows until t/τ = {UNTIL:g}, gradsolve {importlib.metadata.version('gradsolve')}"
    )
    for name, call in (
        ("iclflow, fused (C++)", ours),
        ("gradsolve, warp_ode", theirs("warp_ode")),
        ("gradsolve, tsit5_replay", theirs("tsit5_replay")),
        ("gradsolve, diffrax", theirs("diffrax")),
    ):
        try:
            spent = []
            for _ in range(3):
                began, busy = time.perf_counter(), time.process_time()
                found = call(1e-6)
                spent.append((time.perf_counter() - began, time.process_time() - busy))
        except Exception as error:  # a peer may refuse in its own way
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
            continue
        clock, busy = min(spent[1:])
        apart = np.sqrt(np.mean((found - exact) ** 2))
        print(f"{name:24} {count / clock:10,.0f} runs/s, {busy / count * 1e6:7.0f} µs of a core per"
              f" run, error {apart:.1e}, first call {spent[0][0]:.1f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
