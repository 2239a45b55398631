"""Two layers: how right the predicted staircase is, and what runs and sweeps of them cost.

    python benchmarks/depth.py [SEEDS] [SCALE]
    python benchmarks/depth.py --run
    python benchmarks/depth.py --sweep [SEEDS] [STEPS]
    python benchmarks/depth.py --losses [DRAWS]

λ = (0.4, 0.3, 0.2, 0.1), N = 31, five rank-one heads per layer. The first has relative errors of
all drop times against `Flow(1e-8)` on the exact population, and seconds of processor time of both.
Times of the flow are interpolated between save points 0.02 % apart. `--run` times one run from
w = 1e-3 to its end, compiling included. `--sweep` compares the fused loop of this machine with
`vmap` on gradient descent. `--losses` has the seconds of value and gradient of the closed forms,
and the spread of one prompt and of one draw over the mean, which says how many of them are needed.
"""

import argparse
import time

import equinox as eqx
import jax
import numpy as np

import iclflow as icl
from iclflow.losses.wishart import trace_moments
from iclflow.measures import first_crossings
from iclflow.runs import cost
from iclflow.theory.depth import best_tied, layer_minima

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


def losses(draws: int) -> None:
    print("value and gradient, the best of ten, seconds by the clock:")
    for layers, sizes in ((2, (4, 16, 64)), (3, (4, 512))):
        for size in sizes:
            task = icl.Task(np.linspace(2, 1, size) / size, context=2 * size)
            key = jax.random.key(0)
            if layers == 2:
                model = icl.Layers.initialiser(task, layers=2, heads=1, rank=None, scale=0.3)(key)
            else:
                model = icl.Steps.initialiser(task, layers=3, scale=0.3)(key)
            step = eqx.filter_jit(eqx.filter_value_and_grad(lambda m, loss: loss(m)))
            loss, found = icl.Population(task), []
            for _ in range(11):
                clock = time.perf_counter()
                jax.block_until_ready(step(model, loss))
                found.append(time.perf_counter() - clock)
            print(f"  L = {layers}, {type(model).__name__}, D = {size}: {min(found[1:]):.1e}")
    print("spread of one over the mean: prompts, draws, draws with controls")
    key, size = jax.random.key(1), TASK.size
    sample = icl.Statistics.sample(TASK, draws, key)
    wishart = icl.Draws.sample(TASK, draws, key)
    alone = eqx.filter_jit(lambda m, s: jax.lax.map(lambda i: s.take(i[None])(m), np.arange(draws)))
    each = eqx.filter_jit(lambda m, w: w.each(m)[0])
    delta = np.asarray(wishart.matrices[0]) - np.eye(size)
    rows, columns = np.triu_indices(size)
    known = [np.ones((draws, 1)), np.diagonal(delta, axis1=1, axis2=2)]
    known = np.concatenate([*known, delta[:, rows, columns] ** 2], axis=1)
    inverse = np.diag(1 / np.asarray(TASK.spectrum))
    tied = best_tied(trace_moments(size, TASK.context, 4), 2).steps[0] * inverse
    untied = layer_minima(TASK)[0][1]
    first = np.diag(np.arange(size) == 0)  # the first mode
    for name, pair in (
        ("the untied optimum", untied),
        ("the best tied layers γ Λ⁻¹", (tied, tied)),
        ("the first mode in both layers", [first * layer for layer in untied]),
    ):
        one = np.ones((1, 1, 1))
        model = icl.Layers.of([icl.Merged(one, np.asarray(m)[None]) for m in pair])
        prompts, plain = np.asarray(alone(model, sample)), np.asarray(each(model, wishart))
        left = plain - known @ np.linalg.lstsq(known, plain, rcond=None)[0]
        spreads = (prompts.std() / prompts.mean(), plain.std() / plain.mean())
        print(f"  {name}: {spreads[0]:.2f}, {spreads[1]:.2f}, {left.std() / plain.mean():.3f}")


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--losses", action="store_true")
    parser.add_argument("numbers", nargs="*", type=float)
    args = parser.parse_args()
    defaults = (128.0, 4000.0) if args.sweep else (4.0, 0.02)
    first, second = (*args.numbers, *defaults[len(args.numbers) :])
    if args.losses:
        losses(int(args.numbers[0]) if args.numbers else 40_000)
    elif args.run:
        run()
    elif args.sweep:
        sweep(int(first), int(second))
    else:
        errors(int(first), second)


if __name__ == "__main__":
    main()
