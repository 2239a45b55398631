"""Precision and recall of the stage detector on simulated staircases with known drops.

    python benchmarks/stages.py [--curves 100]

A curve is a sum of logistic drops on a log or linear clock plus minibatch noise proportional to
the loss. `gap` is the distance between neighbouring drops in logistic widths (a drop takes 4.4
widths from 10% to 90%, so a gap of 7 leaves a plateau of about half a drop's length). A detected
drop is right if it lies between 10% and 90% of a true one. Early stopping cuts the curve between
the middle of the last drop and the plateau after it. `visible` is the recall among drops whose
levels differ by 8 standard errors when the points of both plateaus are averaged with the truth
known; the others cannot be seen by any method without many false alarms.
"""

import argparse
import dataclasses
import time as clocks

import numpy as np

from iclflow.diagnostics.stages import Clock, find_stages


@dataclasses.dataclass
class Staircase:
    time: np.ndarray
    loss: np.ndarray
    drops: np.ndarray  # clock readings
    width: np.ndarray
    levels: np.ndarray
    visible: np.ndarray


def staircase(
    rng: np.random.Generator,
    clock: Clock,
    *,
    noise: float,
    gap: tuple[float, float],
    drops: int,
    early_stop: bool,
    points: int = 4000,
) -> Staircase:
    sizes = 0.05 + rng.dirichlet(np.ones(drops)) * (1 - 0.05 * drops) if drops else np.zeros(0)
    levels = 0.2 + np.concatenate([sizes[::-1].cumsum()[::-1], [0.0]])
    gaps = rng.uniform(*gap, size=drops + 1)
    middle = gaps[:-1].cumsum()
    widths = rng.uniform(0.7, 1.0, size=drops)
    end = middle[-1] + (rng.uniform(0.5, 3.0) if early_stop else gaps[-1]) if drops else gap[1]
    if clock is Clock.LINEAR:
        time = np.arange(1, points + 1.0)
        scale = points / end
        reading = time / scale
    else:  # first drop near step 50, recorded at every k-th step
        scale = np.log(points / 20) / end
        time = np.arange(1, points + 1.0)
        reading = np.log(time / 20) / scale
    falls = 1 / (1 + np.exp(np.clip((reading[:, None] - middle) / widths, -60, 60)))
    loss = 0.2 + falls @ sizes if drops else np.full(points, 1.0)
    loss = loss * (1 + noise * rng.normal(size=points))
    place = middle * scale + (np.log(20) if clock is Clock.LOG else 0)
    return Staircase(
        time, loss, place, widths * scale, levels, visible(reading, middle, levels, noise)
    )


def visible(reading: np.ndarray, middle: np.ndarray, levels: np.ndarray, noise: float):
    edges = np.concatenate([[-np.inf], middle, [np.inf]])
    counts = np.histogram(reading, edges)[0]
    errors = noise * levels / np.sqrt(np.maximum(counts, 1))
    return -np.diff(levels) >= 8 * np.hypot(errors[:-1], errors[1:])


def score(curve: Staircase, clock: Clock, confidence: float, resamples: int) -> dict:
    found = find_stages(curve.time, curve.loss, clock=clock, resamples=resamples)
    kept = [d for d in found.drops if not d.confidence < confidence]
    places = np.array([np.log(d.time) if clock is Clock.LOG else d.time for d in kept])
    right, seen, errors, level_errors = 0, 0, [], []
    free = list(range(places.size))
    for place, width, shows in zip(curve.drops, curve.width, curve.visible, strict=True):
        near = [i for i in free if abs(places[i] - place) <= np.log(9) * width]
        if near:
            best = min(near, key=lambda i: abs(places[i] - place))
            free.remove(best)
            right += 1
            seen += int(shows)
            errors.append(abs(places[best] - place) / width)
    if right == curve.drops.size == len(found.drops):
        truth = curve.levels[: len(found.plateaus)]
        level_errors = list(np.abs([p.level for p in found.plateaus] - truth))
    return {
        "right": right,
        "seen": seen,
        "visible": int(curve.visible.sum()),
        "found": places.size,
        "true": curve.drops.size,
        "errors": errors,
        "levels": level_errors,
    }


def table(curves: int, confidence: float, resamples: int) -> list[tuple]:
    rows = []
    for clock in (Clock.LOG, Clock.LINEAR):
        for name, gap in (("long", (12.0, 30.0)), ("brief", (7.0, 9.0))):
            for noise in (0.0, 0.02, 0.1, 0.3):
                for early_stop in (False, True):
                    rng = np.random.default_rng(0)
                    total = dict.fromkeys(("right", "seen", "visible", "found", "true"), 0)
                    total |= {"errors": [], "levels": []}
                    for index in range(curves):
                        curve = staircase(
                            rng,
                            clock,
                            noise=noise,
                            gap=gap,
                            drops=index % 6,
                            early_stop=early_stop,
                        )
                        for key, value in score(curve, clock, confidence, resamples).items():
                            total[key] = total[key] + value
                    rows.append(
                        (
                            clock.value,
                            name,
                            noise,
                            "early" if early_stop else "whole",
                            total["right"] / max(total["found"], 1),
                            total["right"] / max(total["true"], 1),
                            total["seen"] / max(total["visible"], 1),
                            np.median(total["errors"]),
                            np.median(total["levels"] or [np.nan]),
                        )
                    )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--curves", type=int, default=60)
    parser.add_argument("--confidence", type=float, default=0.5)
    parser.add_argument("--resamples", type=int, default=20)
    options = parser.parse_args()
    start = clocks.perf_counter()
    print("clock   plateaus noise  stop   precision recall visible  time error/width  level error")
    for row in table(options.curves, options.confidence, options.resamples):
        print("{:7} {:8} {:5.2f}  {:6} {:8.3f} {:7.3f} {:7.3f} {:12.3f} {:15.4f}".format(*row))
    seconds = clocks.perf_counter() - start
    print(f"{seconds / options.curves / 32 * 1e3:.0f} ms a curve")


if __name__ == "__main__":
    main()
