"""What recording costs in the Fig. 3 job: `python benchmarks/recording.py [--repeats 20]`.

The job of Fig. 3 (five heads of rank one, D = 4, N = 31, 10,001 steps, six seeds, moments of the
features) is run with the loss alone and with more, at log-spaced times, compiled beforehand; the
best of several repeats is compared.
"""

import argparse
import time

import jax

jax.config.update("jax_enable_x64", True)

from iclflow.settings import Settings  # noqa: E402
from iclflow.study import Study  # noqa: E402

RECORDS = {
    "loss": ("loss",),
    "and values, weights": ("loss", "values", "weights"),
    "and gradient norm, conserved": ("loss", "values", "weights", "gradient_norm", "conserved"),
    "and sharpness": ("loss", "values", "weights", "gradient_norm", "conserved", "sharpness"),
    "and top eigenvalues": (
        *("loss", "values", "weights", "gradient_norm", "conserved"),
        "top_eigenvalues",
    ),
}


def study(record: tuple[str, ...], sequences: int) -> Study:
    """The job, compiled."""
    made = Study.of(
        Settings(sequences=sequences, init=0.07, rate=0.2, seeds=6, record=record, save="log:100")
    )
    made.run()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--sequences", type=int, default=80_000)
    args = parser.parse_args()
    studies = {name: study(record, args.sequences) for name, record in RECORDS.items()}
    best = dict.fromkeys(studies, float("inf"))
    for _ in range(args.repeats):  # in turn, so that a busy moment hits all alike
        for name, made in studies.items():
            begin = time.perf_counter()
            made.run()
            best[name] = min(best[name], time.perf_counter() - begin)
    for name, took in best.items():
        print(f"{name:<32} {took:7.3f} s  {100 * (took / best['loss'] - 1):+6.1f}%")


if __name__ == "__main__":
    main()
