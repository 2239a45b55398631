"""How many runs per second a sweep trains, by engine, and how much of the time is the host's.

    python benchmarks/runs.py [SEEDS] [STEPS]
    python benchmarks/runs.py --flow [SEEDS] [UNTIL]
    python benchmarks/runs.py --stiff [SEEDS] [UNTIL]
    python benchmarks/runs.py --precision PICTURE
    python benchmarks/runs.py --shares [SEEDS] [LENGTH]

The job: population descent, separate key and query of rank one, D = 4, H = 5, the loss at about
150 steps. One sweep under `vmap`, one by the fused loop of this machine (a GPU, or a CPU with
a C++ compiler), in the same process; their largest difference. The bare program is the
`vmap` loop, called once more on runs that are drawn already: what is left of that sweep is the
host's (plan, transfers, labels).

`--flow` does the same with gradient flow of tolerance 1e-6 from weights of 0.07 until t/τ = 4,000,
and has the errors of both engines against flows of tolerance 1e-11. Seconds are by the clock and of
all cores' time: on a busy machine the second says more. `--stiff` compares explicit and implicit
steps of the fused loop until t/τ = 200,000. `--precision` draws the errors of all of them at
tolerances of 1e-4 to 1e-9 over the seconds that a run takes. `--shares` has the time of a run under
`vmap` for shares of several sizes: what fits the caches of a core is what a sweep takes.
"""

import argparse
import time
from pathlib import Path

import diffrax
import equinox as eqx
import jax
import numpy as np

import iclflow as icl
from iclflow.dynamics.base import marks_until
from iclflow.models import draw_models
from iclflow.runs import cost
from iclflow.runs.device import one_clock, share_size, vmapped
from iclflow.runs.fused import cuda, engine
from iclflow.runs.simulate import SAVES

SEEDS = 1024


def seconds(call, times=3):
    """The least seconds of some calls after the first, and how much longer the first took."""
    clock, _, compiling = timed(call, times)
    return clock, compiling


def timed(call, times=3):
    """The least seconds of some calls after the first, by the clock and of all cores; compiling."""
    found = []
    for _ in range(times + 1):
        began, busy = time.perf_counter(), time.process_time()
        call()
        found.append((time.perf_counter() - began, time.process_time() - busy))
    clock, busy = (min(each) for each in zip(*(found[1:] or found), strict=True))
    return clock, busy, found[0][0] - clock


def kernel(loss, descent, models, marks):
    """The fused kernel without the sweep around it, on runs that are drawn already."""
    start = eqx.filter_vmap(lambda m: descent.init(loss, m, jax.random.key(0)))(models)
    parts = (loss, descent, eqx.tree_at(lambda s: s.step, start, start.step[0]))
    fused = engine.Fused.of(*parts, (False, False))
    record = {"loss": lambda model, loss: loss(model)}
    zeros = fused.zeros(parts, record)
    program, flat = fused.program(parts, record), engine.flattened(parts, fused.own, record)
    return lambda: cuda.advance(program, flat, zeros, marks, int(marks[-1]), start.running)


def main(seeds=SEEDS, steps=10_000):
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


def flow_problem():
    task = icl.Task([0.4, 0.3, 0.2, 0.1], 31)
    return icl.Population(task), icl.Separate.initialiser(task, heads=5, scale=0.07)


def by_engine(sweep, times=3, names=("vmap", "fused")):
    """Seconds of a sweep by `vmap` and fused: (clock, all cores, compiling), None if there is none.

    - `sweep`: makes one, and returns the Dataset.
    """
    own, worth = engine.available, cost.worth_compiling
    found, kept = {}, {}
    for name in names:
        if name == "fused" and own() == engine.VMAP:
            continue

        def call(name=name):
            kept[name] = sweep()
            assert kept[name].attrs["engine"].startswith(name), kept[name].attrs["engine"]

        engine.available = own if name == "fused" else (lambda: engine.VMAP)
        cost.worth_compiling = lambda *_: True
        found[name] = timed(call, times)
    engine.available, cost.worth_compiling = own, worth
    return found, kept


def errors(runs, exact):
    """The largest and the root mean square error of the loss."""
    apart = np.abs(runs["loss"].values[: len(exact)] - exact)
    return apart.max(), np.sqrt(np.mean(apart**2))


def flow(seeds, until):
    loss, init = flow_problem()
    sweep = lambda n, tolerance: icl.sweep(  # noqa: E731
        loss, init, icl.Flow(tolerance), until=until, seeds=n
    )
    spent, kept = by_engine(lambda: sweep(seeds, 1e-6), 3 if seeds < 2**17 else 1)
    exact = sweep(min(seeds, 64), 1e-11)["loss"].values if jax.config.jax_enable_x64 else None
    device = f"{jax.devices()[0].device_kind}, {loss.power.dtype}"
    print(f"{device}: {seeds} flows until t/τ = {until:g}")
    for name, (clock, busy, compiling) in spent.items():
        print(f"sweep, {name:6} {seeds / clock:12,.0f} runs/s  {clock:.3f} s, of all cores"
              f" {busy:.3f} s; compiled in {compiling:.1f} s; {kept[name].attrs['engine']}"
              )  # fmt: skip
        if exact is not None:
            largest, rms = errors(kept[name], exact)
            print(f"   its error   {largest:12.1e} of the loss at most, {rms:.1e} root mean square")
    if "fused" in spent:
        clock, busy = (spent["vmap"][i] / spent["fused"][i] for i in (0, 1))
        print(f"fused / vmap   {clock:12.1f} times by the clock, {busy:.1f} of all cores' time")


def stiff(seeds, until):
    """Explicit and implicit steps of the fused flow, over a time that stability makes long."""
    loss, init = flow_problem()
    cost.worth_compiling = lambda *_: True
    engine.FusedFlow.patience = lambda self, program, zeros, tolerance: np.inf * tolerance

    def sweep(tolerance, solver):
        flow = icl.Flow(tolerance, 10**7, solver)
        return icl.sweep(loss, init, flow, until=until, seeds=seeds)

    exact = sweep(1e-10, icl.Rosenbrock())["loss"].values
    print(f"{jax.devices()[0].device_kind}: {seeds} flows until t/τ = {until:g}")
    for tolerance in (1e-4, 1e-6, 1e-8):
        for name, solver in (("explicit", None), ("implicit", icl.Rosenbrock())):
            kept = []
            spent = timed(lambda t=tolerance, s=solver, k=kept: k.append(sweep(t, s)))
            print(f"{tolerance:.0e}, {name}: {spent[1] / seeds * 1e6:8.0f} µs of a core per run,"
                  f" error {errors(kept[0], exact)[1]:.1e}; {kept[0].attrs['engine']}",
                  flush=True)  # fmt: skip


def precision(path, until=4000.0):
    """Errors over seconds per run at tolerances of 1e-4 to 1e-9, as numbers and as a picture.

    The fused sweeps have more runs, so that what a sweep takes besides is no part of a run.
    """
    loss, init = flow_problem()
    solvers = {
        "vmap": ("vmap", None, 128),
        "fused": ("fused", None, 2048),
        "explicit": ("fused", diffrax.Tsit5(), 2048),
        "implicit": ("fused", icl.Rosenbrock(), 2048),
    }
    points = {name: [] for name in solvers}

    def sweep(tolerance, engine, solver, seeds, times):
        flow = icl.Flow(tolerance, solver=solver)
        call = lambda: icl.sweep(loss, init, flow, until=until, seeds=seeds)  # noqa: E731
        spent, kept = by_engine(call, times, (engine,))
        return spent[engine][1] / seeds, kept[engine]

    exact = sweep(1e-12, *solvers["vmap"], 0)[1]["loss"].values
    for tolerance in (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9):
        for name, how in solvers.items():
            if how[0] == "fused" and engine.available() == engine.VMAP:
                continue
            busy, runs = sweep(tolerance, *how, 2 if name == "vmap" else 6)
            points[name].append((busy, errors(runs, exact)[1]))
            print(f"{name:8} {tolerance:.0e}: {busy * 1e6:8.0f} µs of a core per run,"
                  f" error {points[name][-1][1]:.1e}; {runs.attrs['engine']}",
                  flush=True)  # fmt: skip
    draw(points, path)


def draw(points, path):
    """The picture of errors over seconds; `points`: engine -> [(seconds, error)]."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
    labels = {
        "vmap": "Tsit5, Diffrax under vmap",
        "fused": "chosen by tolerance, fused",
        "explicit": "Tsit5, fused",
        "implicit": "Rodas5P, fused",
    }
    for (name, found), mark, colour in zip(
        points.items(), "soD^", ("#0072b2", "#d55e00", "#cc79a7", "#009e73"), strict=True
    ):
        if found:
            times, apart = zip(*found, strict=True)
            axis.loglog(
                1e6 * np.asarray(times), apart, f"{mark}-", color=colour, label=labels[name]
            )
    ticks = (50, 100, 200, 500, 1000, 2000, 5000)
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("microseconds of one core per run")
    axis.set_ylabel("root mean square error of the loss")
    axis.set_title("Gradient flow to t/τ = 4,000, tolerances 1e-4 … 1e-9", fontsize=10)
    axis.grid(alpha=0.3, which="both", lw=0.4)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(path)


def shares(seeds, length):
    """The processor time of a run under `vmap`, by the number of runs that a core has together."""
    for name, (loss, init), dynamics, until in (
        ("descents", flow_problem(), icl.Descent(0.2), length or 500),
        ("flows", flow_problem(), icl.Flow(1e-6), length or 100.0),
    ):
        models = draw_models(init, range(seeds))
        start = eqx.filter_vmap(lambda m, d=dynamics, at=loss: d.init(at, m, jax.random.key(0)))
        parts = (loss, dynamics, one_clock(dynamics, start(models)))
        fits = cost.share(init(jax.random.key(0)), loss.scratch())
        for most in (fits // 8, fits // 2, fits, 2 * fits, 4 * fits, 8 * fits):
            advance = lambda p=parts, m=most, u=until: vmapped(  # noqa: E731
                p, (None, None), np.asarray([u]), {}, m
            )
            _, busy, _ = timed(advance, 2)
            print(f"{name}, {share_size(seeds, most):6} together: {busy / seeds * 1e6:8.1f} µs of a"
                  f" core per run{'; chosen' if most == fits else ''}", flush=True)  # fmt: skip


def command():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seeds", type=int, nargs="?")
    parser.add_argument("length", type=float, nargs="?", help="steps, or t/τ of a flow")
    parser.add_argument("--flow", action="store_true", help="gradient flow instead of descent")
    parser.add_argument("--stiff", action="store_true", help="a long flow by both kinds of steps")
    parser.add_argument("--precision", type=Path, metavar="PICTURE", help="errors over seconds")
    parser.add_argument("--shares", action="store_true", help="sizes of the shares of vmap")
    parser.add_argument("--double", action="store_true", help="double precision")
    args = parser.parse_args()
    if args.double or args.precision or args.stiff or args.shares:
        jax.config.update("jax_enable_x64", True)
    if args.precision:
        precision(args.precision)
    elif args.shares:
        shares(args.seeds or 16 * SEEDS, args.length)
    elif args.stiff:
        stiff(args.seeds or SEEDS, args.length or 200_000.0)
    elif args.flow:
        flow(args.seeds or SEEDS, args.length or 4000.0)
    else:
        main(args.seeds or SEEDS, int(args.length or 10_000))


if __name__ == "__main__":
    command()
