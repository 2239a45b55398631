"""Precision and recall of the stage detector on simulated staircases with known drops.

    python benchmarks/stages.py [--curves 60] [--seed 0]

Three tables: the detector, the other detectors on the same curves, and all detectors on minibatch
training of linear attention with rank-one heads, where the population loss gives the truth. The
detector was made on seed 0; a fair reading takes another `--seed`.

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

import jax
import jax.numpy as jnp
import numpy as np

from iclflow.diagnostics.detectors import autocorrelation_curvature, time_curvature
from iclflow.diagnostics.stages import Clock, find_stages


@dataclasses.dataclass
class Staircase:
    """A curve and its truth."""

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


def table(curves: int, confidence: float, resamples: int, seed: int) -> list[tuple]:
    rows = []
    for clock in (Clock.LOG, Clock.LINEAR):
        for name, gap in (("long", (12.0, 30.0)), ("brief", (7.0, 9.0))):
            for noise in (0.0, 0.02, 0.1, 0.3):
                for early_stop in (False, True):
                    rng = np.random.default_rng(seed)
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


def others(curves: int, seed: int) -> list[tuple]:
    """Peaks of the curvatures, whole log-clock curves, right within the drop's own length."""
    rows = []
    detectors = {
        "stages": lambda c: [d.time for d in find_stages(c.time, c.loss, resamples=0).drops],
        "d2L/d(ln t)2": lambda c: time_curvature(c.time, c.loss).peaks(prominence=0.1),
        "autocorrelation": lambda c: autocorrelation_curvature(
            c.time, c.loss, clock=Clock.LOG
        ).peaks(prominence=0.1),
    }
    for noise in (0.0, 0.02, 0.1):
        for name, detect in detectors.items():
            rng = np.random.default_rng(seed)
            right = found = true = 0
            for index in range(curves):
                curve = staircase(
                    rng, Clock.LOG, noise=noise, gap=(12.0, 30.0), drops=index % 6, early_stop=False
                )
                marks = np.log(np.asarray(detect(curve), float))
                reach = 2 * np.log(9) * curve.width
                near = np.abs(marks[:, None] - curve.drops[None, :]) <= reach[None, :]
                right += int(near.any(axis=0).sum())
                found += marks.size
                true += curve.drops.size
            rows.append((name, noise, right / max(found, 1), right / true))
    return rows


def training(seed: int, batch: int = 64, rate: float = 0.1, steps: int = 40_000) -> tuple:
    """Time, loss of every minibatch, exact loss of the same weights, and their norm ‖M‖_F."""
    spectrum, context, heads = jnp.array([0.4, 0.3, 0.2, 0.1]), 31, 5
    second = spectrum**2 * (1 + (1 + spectrum.sum() / spectrum) / context)  # (32)
    keys = jax.random.split(jax.random.key(seed), 4)
    size = spectrum.size
    weights = [0.07 / heads**0.5 * jax.random.normal(keys[0], (heads,))]
    for key in keys[1:3]:
        weights.append(0.07 / (heads * size) ** 0.5 * jax.random.normal(key, (heads, size)))

    def matrix(weights):
        v, k, q = weights
        return jnp.einsum("h,hc,hd->cd", v, k, q)

    def exact(weights):
        m = matrix(weights)
        linear = jnp.sum(jnp.diag(m) * spectrum**2)
        return spectrum.sum() - 2 * linear + jnp.einsum("cd,c,cd,d->", m, second, m, spectrum)

    def sampled(weights, key):
        one, two = jax.random.split(key)
        x = jax.random.normal(one, (batch, context + 1, size)) * jnp.sqrt(spectrum)[None, None]
        y = jnp.einsum("bnd,bd->bn", x, jax.random.normal(two, (batch, size)))
        beta = jnp.einsum("bnd,bn->bd", x[:, :-1], y[:, :-1]) / context
        return jnp.mean(
            (y[:, -1] - jnp.einsum("bc,cd,bd->b", beta, matrix(weights), x[:, -1])) ** 2
        )

    @jax.jit
    def run(weights):
        def step(weights, key):
            loss, slope = jax.value_and_grad(sampled)(weights, key)
            moved = [w - rate * s for w, s in zip(weights, slope, strict=True)]
            return moved, (loss, exact(weights), jnp.linalg.norm(matrix(weights)))

        return jax.lax.scan(step, weights, jax.random.split(keys[3], steps))[1]

    return np.arange(1, steps + 1.0), *(np.asarray(part) for part in run(weights))


def on_training(seeds: range) -> list[tuple]:
    """Precision and recall of every detector on the same minibatch runs.

    The truth is the drops of the exact loss; a mark is right if it lies within the drop's own
    length (10% to 90%, on a log clock) of its middle.
    """
    detectors = {
        "stages": lambda t, loss, norm: [
            d.time for d in find_stages(t, loss).drops if d.confidence >= 0.5
        ],
        "d2L/d(ln t)2": lambda t, loss, norm: time_curvature(t, loss).peaks(prominence=0.1),
        "autocorrelation": lambda t, loss, norm: autocorrelation_curvature(
            t, loss, clock=Clock.LOG
        ).peaks(prominence=0.1),
        "norm": lambda t, loss, norm: time_curvature(t, norm).peaks(prominence=0.1),
    }
    counts = {name: np.zeros(3, int) for name in detectors}
    for seed in seeds:
        time, noisy, clean, norm = training(seed)
        truth = find_stages(time, clean, resamples=0).drops
        middle = np.log([d.time for d in truth])
        reach = np.log([d.end / d.start for d in truth])
        for name, detect in detectors.items():
            marks = np.log(np.asarray(detect(time, noisy, norm), float))
            near = np.abs(marks[:, None] - middle[None, :]) <= reach[None, :]
            counts[name] += (int(near.any(axis=0).sum()), marks.size, middle.size)
    return [
        (name, right / max(found, 1), right / max(true, 1), true)
        for name, (right, found, true) in counts.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--curves", type=int, default=60)
    parser.add_argument("--confidence", type=float, default=0.5)
    parser.add_argument("--resamples", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=12, help="of minibatch training")
    options = parser.parse_args()
    start = clocks.perf_counter()
    print("clock   plateaus noise  stop   precision recall visible  time error/width  level error")
    for row in table(options.curves, options.confidence, options.resamples, options.seed):
        print("{:7} {:8} {:5.2f}  {:6} {:8.3f} {:7.3f} {:7.3f} {:12.3f} {:15.4f}".format(*row))
    seconds = clocks.perf_counter() - start
    print(f"{seconds / options.curves / 32 * 1e3:.0f} ms a curve\n")
    print("detector          noise  precision recall")
    for row in others(options.curves, options.seed):
        print("{:16} {:6.2f} {:9.3f} {:7.3f}".format(*row))
    print(f"\nminibatch training, {options.seeds} runs\ndetector         precision recall drops")
    for row in on_training(range(options.seed, options.seed + options.seeds)):
        print("{:16} {:9.3f} {:7.3f} {:5d}".format(*row))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
