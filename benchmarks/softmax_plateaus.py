"""How long the plateaus of softmax attention last as the initial weights shrink.

    python benchmarks/softmax_plateaus.py [SEEDS]

λ = (0.4, 0.3, 0.2, 0.1), N = 31, five rank-one heads, `Flow` on `LargeContext` from w = 0.03, 0.01
and 0.003. Of every start: the time at which L falls below 0.8, times w, and the interval from there
to L = 0.3 and from 0.3 to 0.18. Below, the exponents of both in 1/w, of softmax and, from the same
starts, of linear attention in the population: 1 for a time ∝ 1/w, and near 0 for ln(1/w).
"""

import sys
import time

import jax
import numpy as np

import iclflow as icl

SCALES = (0.03, 0.01, 0.003)
LEVELS = (0.8, 0.3, 0.18)


def crossings(loss, init, end: float, seeds: int) -> tuple[np.ndarray, float]:
    """The times at which each run falls below the levels, and the largest ρ of all runs."""
    marks = np.concatenate([[0.0], np.geomspace(end / 300, end, 1500)])
    record = ["loss", "rho"] if isinstance(loss, icl.LargeContext) else ["loss"]
    flow = icl.Flow(1e-4, solver=icl.Chebyshev())
    runs = icl.sweep(loss, init, flow, seeds=seeds, saveat=marks, record=record, progress=False)
    least = np.minimum.accumulate(np.nan_to_num(runs["loss"].values, nan=9.0), axis=1)
    times = [
        [np.interp(-level, -row, marks) if row[-1] < level else np.nan for level in LEVELS]
        for row in least
    ]
    return np.asarray(times), float(runs["rho"].max()) if "rho" in runs else 0.0


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    task = icl.Task([0.4, 0.3, 0.2, 0.1], context=31)
    for name, loss, make, share in (
        ("softmax", icl.LargeContext(task), icl.Softmax.initialiser, 70),
        ("linear", icl.Population(task), icl.Separate.initialiser, 500),
    ):
        found, began = [], time.process_time()
        for scale in SCALES:
            init = make(task, heads=5, rank=1, scale=scale)
            times, rho = crossings(loss, init, share / scale + 6000, seeds)
            found.append(times)
            first, middle, last = times[:, 0], times[:, 1] - times[:, 0], times[:, 2] - times[:, 1]
            print(f"{name} w = {scale:g}: t w of L = .8 {np.round(scale * first, 2).tolist()}\n"
                  f"  .8 to .3 {np.round(middle).tolist()}\n  .3 to .18 {np.round(last).tolist()}"
                  + (f"\n  largest ρ {rho:.2f}" if rho else ""), flush=True)  # fmt: skip
        ends = [found[0], found[-1]]
        for what, of in (("L = .8", lambda t: t[:, 0]), (".3 to .18", lambda t: t[:, 2] - t[:, 1])):
            slopes = np.log(of(ends[1]) / of(ends[0])) / np.log(SCALES[0] / SCALES[-1])
            print(f"{name}: exponent of {what} in 1/w: median {np.nanmedian(slopes):.3f}, from "
                  f"{np.nanmin(slopes):.3f} to {np.nanmax(slopes):.3f}")  # fmt: skip
        print(f"{name}: {time.process_time() - began:.0f} s of processor time\n", flush=True)


if __name__ == "__main__":
    main()
