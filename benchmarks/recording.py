"""What recording costs in the Fig. 3 job: `python benchmarks/recording.py [--repeats 15]`.

The job of Fig. 3 (five heads of rank one, D = 4, N = 31, 10,001 steps, six seeds, moments of the
features of 80,000 sequences) is run with the loss alone and with more, at log-spaced times,
compiled beforehand. Each repeat runs all of them in turn; the cost is the median over repeats of
the ratio of processor times to the loss alone. The accuracy is that of the recorded Hessian
eigenvalues against those of the dense Hessian at the same weights, relative to the largest.
"""

import argparse
import statistics
import time

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from jax.flatten_util import ravel_pytree  # noqa: E402

from iclflow.runs.record import TOP_EIGENVALUES, recorded_models  # noqa: E402
from iclflow.study.study import Settings, Study  # noqa: E402

RECORDS = {
    "loss": (),
    "weights": ("weights",),
    "gradient_norm": ("gradient_norm",),
    "sharpness": ("sharpness",),
    "top_eigenvalues": ("top_eigenvalues",),
    "rate_times_sharpness": ("rate_times_sharpness",),
    "conserved_drift": ("conserved_drift",),
    "fixed_point_distance": ("fixed_point_distance",),
}
EVERYTHING = "all of these together"


def study(record: tuple[str, ...], sequences: int, save: str) -> Study:
    """The job, compiled."""
    made = Study.of(
        Settings(
            sequences=sequences, scale=0.07, rate=0.2, seeds=6, record=("loss", *record), save=save
        )
    )
    made.run()
    return made


def accuracy(made: Study) -> np.ndarray:
    """Largest error of each recorded eigenvalue over the sharpness, all seeds and times."""
    runs = made.run()
    worst = np.zeros(TOP_EIGENVALUES)
    for seed in runs["seed"].values:
        run = runs.sel(seed=seed)
        run = run.isel(time=np.isfinite(run["sharpness"].values))
        models = recorded_models(run, made.init)
        unravel = ravel_pytree(jax.tree.map(lambda a: a[0], models))[1]
        hessian = jax.jit(jax.hessian(lambda flat, f=unravel: made.loss(f(flat))))
        for i in range(run.sizes["time"]):
            flat = ravel_pytree(jax.tree.map(lambda a, i=i: a[i], models))[0]
            dense = np.linalg.eigvalsh(np.asarray(hessian(flat)))[::-1][:TOP_EIGENVALUES]
            error = np.abs(run["top_eigenvalues"].values[i] - dense) / dense[0]
            worst = np.maximum(worst, error)
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--sequences", type=int, default=80_000)
    parser.add_argument("--save", default="log:100")
    args = parser.parse_args()
    records = RECORDS | {EVERYTHING: tuple(name for names in RECORDS.values() for name in names)}
    studies = {name: study(r, args.sequences, args.save) for name, r in records.items()}
    spent: dict[str, list[float]] = {name: [] for name in studies}
    for _ in range(args.repeats):  # in turn, so that a busy moment hits all alike
        for name, made in studies.items():
            begin = time.process_time()
            made.run()
            spent[name].append(time.process_time() - begin)
    for name, seconds in spent.items():
        ratios = [mine / loss for mine, loss in zip(seconds, spent["loss"], strict=True)]
        cost = 100 * (statistics.median(ratios) - 1)
        print(f"{name:<24} {statistics.median(seconds):7.3f} s  {cost:+6.1f}%")
    errors = ", ".join(f"{error:.1e}" for error in accuracy(studies[EVERYTHING]))
    print(f"largest error of the {TOP_EIGENVALUES} eigenvalues over the sharpness: {errors}")


if __name__ == "__main__":
    main()
