"""How often a drop that all positions have is called in-context learning, and how often one is.

    python benchmarks/in_context.py [--curves 40] [--seed 900]

Pairs of curves, early and late in the context, of 1000 points on a log clock, with a slow power law
and one drop. Under the null hypothesis the two fall together: by the same amount, by the same
factor with the late loss below the early one, or by the same amount from a start at which the late
loss is above. Otherwise late positions have a share of their fall alone, of which a tenth is the
edge of the null hypothesis. The noise is independent
at each position or shared by both, of constant size or proportional to the loss, with a memory or
with heavy tails. A curve counts if its drop is found.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from scipy.signal import lfilter

from iclflow.measures import find_stages

POINTS, LAST = 1000, 1e5
NOISES = {  # size, AR(1) coefficient, whether the tails are those of Student's t
    "0.05": (0.05, 0.0, False),
    "0.20": (0.2, 0.0, False),
    "0.10, AR(0.5)": (0.1, 0.5, False),
    "0.10, t(3)": (0.1, 0.0, True),
}
KINDS = {  # early and late loss of the common fall f(t), which goes from 1 to 0
    "same amount": lambda f: (2.0 + f, 2.0 + f),
    "same amount, late below": lambda f: (2.0 + f, 1.5 + f),
    "same factor": lambda f: (2.0 + f, 0.8 * (2.0 + f)),
    "late worse at the start": lambda f: (2.0 + f, 2.0 + 1.3 * f),
    "share 0.1": lambda f: (2.0 + 0.9 * f, 1.5 + f),
    "share 0.3": lambda f: (2.0 + 0.7 * f, 1.5 + f),
    "share 0.6": lambda f: (2.0 + 0.4 * f, 1.5 + f),
    "share 1": lambda f: (2.0 + 0.0 * f, 1.5 + f),
}


def noise(rng: np.random.Generator, size: float, memory: float, heavy: bool) -> np.ndarray:
    drawn = rng.standard_t(3, POINTS) / 3**0.5 if heavy else rng.normal(size=POINTS)
    drawn[1:] *= np.sqrt(1 - memory**2)
    return size * np.asarray(lfilter([1], [1, -memory], drawn))


def pair(rng: np.random.Generator, kind: str, name: str, number: int) -> tuple[np.ndarray, ...]:
    """Times, early and late losses; every other pair has relative noise, two of four a shared one.

    The time and the width of the drop are drawn as well.
    """
    time = np.geomspace(1, LAST, POINTS)
    middle, width = rng.uniform(5, 9), rng.uniform(0.05, 0.4)
    fall = 1 / (1 + np.exp((np.log(time) - middle) / width)) + 0.1 * time**-0.2
    shared = noise(rng, *NOISES[name])
    curves = []
    for curve in KINDS[kind](fall):
        own = noise(rng, *NOISES[name])
        whole = (shared + own) / 2**0.5 if number % 4 < 2 else own
        curves.append(curve * (1 + whole / 2) if number % 2 else curve + whole)
    return time, curves[0], curves[1]


def rates(curves: int, seed: int) -> Iterator[tuple[str, str, int, int, float]]:
    """Kind, noise, drops found, drops with the label, and the mean share."""
    rng = np.random.default_rng(seed)
    for kind in KINDS:
        for name in NOISES:
            found, labels, shares = 0, 0, []
            for number in range(curves):
                time, early, late = pair(rng, kind, name, number)
                stages = find_stages(time, (early + late) / 2, early=early, late=late, resamples=0)
                for drop in stages.drops[:1]:
                    assert drop.in_context is not None
                    found += 1
                    labels += drop.in_context.label
                    shares.append(drop.in_context.share)
            yield kind, name, found, labels, float(np.mean(shares)) if shares else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", type=int, default=40, help="per kind and noise")
    parser.add_argument("--seed", type=int, default=900)
    options = parser.parse_args()
    print(f"{'kind':26} {'noise':14} drops  labels  share")
    for kind, name, found, labels, share in rates(options.curves, options.seed):
        print(f"{kind:26} {name:14} {found:5} {labels:7} {share:6.2f}", flush=True)


if __name__ == "__main__":
    main()
