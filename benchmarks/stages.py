"""False alarms, precision and recall of the stage detector, with the truth from the weights.

    python benchmarks/stages.py [--seed 700] [--seeds 8] [--curves 20]

Two tables. False alarms: the share of curves without a drop (power laws, straight lines, a
logarithm, a constant, with and without autocorrelated noise) in which a drop is found. Training:
linear attention with rank-one heads, on the population and on fresh minibatches; a drop is a head
whose strength |v| ‖k‖ ‖q‖ first reaches half of its last value, and a mark is right if it is as
near to that as the head takes from 10% to 90%, or within 2% of the time, or two saved points.
Each mark counts for one head. The detector was made on seeds 0 to 7 and noise seed 1, its treatment
of heavy tails on seeds 500 to 507.

Beside it stand the curvatures of `iclflow.measures.detectors` and, if `ruptures` is installed
(`pip install ruptures`; nothing else needs it), its PELT with the costs of piecewise constant and
of piecewise linear curves, on 256 means over equal stretches of ln t.
"""

import argparse
import importlib.util
import itertools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from scipy.signal import lfilter

from iclflow.measures.detectors import autocorrelation_curvature, time_curvature
from iclflow.measures.stages import Clock, find_stages

POINTS = 4000
STEPS = 40_000
NOISES = ((0.02, 0.0), (0.1, 0.0), (0.05, 0.5), (0.05, 0.9), (0.02, 0.98))  # size, AR(1)


def shapes() -> dict[str, np.ndarray]:
    """Losses without a drop, on either clock."""
    time = np.arange(1, POINTS + 1.0)
    share = time / POINTS
    return {
        "1 - .8 t": 1 - 0.8 * share,
        "1 - .8 t²": 1 - 0.8 * share**2,
        "1 - .8 √t": 1 - 0.8 * np.sqrt(share),
        "1 - .08 ln t": 1 - 0.08 * np.log(time),
        "t^-0.1": time**-0.1,
        "t^-0.3": time**-0.3,
        "0.1 + 1/t": 0.1 + 1 / time,
        "constant": np.ones(POINTS),
    }


def autoregressive(rng: np.random.Generator, memory: float) -> np.ndarray:
    drawn = rng.normal(size=POINTS)
    drawn[1:] *= np.sqrt(1 - memory**2)
    return np.asarray(lfilter([1], [1, -memory], drawn))


def false_alarms(curves: int, seed: int) -> Iterator[tuple]:
    """Clock, noise, its memory, and the share of curves with a drop; noise absolute or relative."""
    time = np.arange(1, POINTS + 1.0)
    for clock in Clock:
        for size, memory in NOISES:
            alarms = 0
            for number, curve in enumerate(shapes().values()):
                rng = np.random.default_rng([seed, number, round(100 * size), round(100 * memory)])
                for index in range(curves):
                    scale = curve if index % 2 else np.ones_like(curve)
                    noisy = curve + size * scale * autoregressive(rng, memory)
                    alarms += bool(find_stages(time, noisy, clock=clock, resamples=0).drops)
            yield clock.value, size, memory, alarms / curves / len(shapes())
        quiet = [find_stages(time, c, clock=clock, resamples=0).drops for c in shapes().values()]
        yield clock.value, 0.0, 0.0, float(np.mean([len(drops) > 0 for drops in quiet]))


def spectra(seeds: range, size: int | None) -> np.ndarray:
    """The paper's eigenvalues, or random ones of trace 1 for each seed."""
    if size is None:
        return np.tile([0.4, 0.3, 0.2, 0.1], (len(seeds), 1))
    drawn = np.stack([np.random.default_rng(s).uniform(0.05, 1, size) for s in seeds])
    return -np.sort(-drawn / drawn.sum(axis=1, keepdims=True))


def training(
    seeds: range, size: int | None, batch: int, init: float, rate: float = 0.1, context: int = 31
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Loss [seed, step], strength of every head [.., head], norm ‖M‖_F; batch 0: population."""
    eigenvalues = jnp.asarray(spectra(seeds, size))
    dim = eigenvalues.shape[1]
    heads = dim + 1

    def matrix(weights):
        return jnp.einsum("h,hc,hd->cd", *weights)

    def one(seed, spectrum):
        second = spectrum**2 * (1 + (1 + spectrum.sum() / spectrum) / context)  # (32)
        keys = jax.random.split(jax.random.key(seed), 4)
        shapes = ((heads,), (heads, dim), (heads, dim))
        weights = [
            init / np.prod(shape) ** 0.5 * jax.random.normal(key, shape)
            for key, shape in zip(keys, shapes, strict=False)
        ]

        def exact(weights, key):
            m = matrix(weights)
            linear = jnp.sum(jnp.diag(m) * spectrum**2)
            return spectrum.sum() - 2 * linear + jnp.einsum("cd,c,cd,d->", m, second, m, spectrum)

        def sampled(weights, key):
            one, two = jax.random.split(key)
            x = jax.random.normal(one, (batch, context + 1, dim)) * jnp.sqrt(spectrum)
            y = jnp.einsum("bnd,bd->bn", x, jax.random.normal(two, (batch, dim)))
            beta = jnp.einsum("bnd,bn->bd", x[:, :-1], y[:, :-1]) / context
            said = jnp.einsum("bc,cd,bd->b", beta, matrix(weights), x[:, -1])
            return jnp.mean((y[:, -1] - said) ** 2)

        def step(weights, key):
            loss, slope = jax.value_and_grad(sampled if batch else exact)(weights, key)
            v, k, q = weights
            strength = jnp.abs(v) * jnp.linalg.norm(k, axis=1) * jnp.linalg.norm(q, axis=1)
            moved = [w - rate * s for w, s in zip(weights, slope, strict=True)]
            return moved, (loss, strength, jnp.linalg.norm(matrix(weights)))

        return jax.lax.scan(step, weights, jax.random.split(keys[3], STEPS))[1]

    found = jax.jit(jax.vmap(one))(jnp.asarray(list(seeds)), eigenvalues)
    return tuple(np.asarray(part, float) for part in found)  # type: ignore[return-value]


def truth(strength: np.ndarray) -> tuple[np.ndarray, float]:
    """ln t of the rise of each head, 10%, 50% and 90% of its strength; when the run ends in one.

    The strength is the median over the last twentieth of the run; after the rise, weights trained
    on minibatches go on to fluctuate. Marks in a rise that the run ends in are not counted.
    """
    last = np.median(strength[-STEPS // 20 :], axis=0)
    settled = (strength[-STEPS // 20] > 0.8 * last) & (strength[-1] < 1.5 * last)
    rows, unfinished = [], float(STEPS)
    for head, final, done in zip(strength.T, last, settled, strict=True):
        if not done and head[-1] > 0.1 * last.max():
            unfinished = min(unfinished, np.flatnonzero(head < 0.1 * head[-1]).max(initial=0) + 1.0)
        if done and final > 0.1 * last.max():
            half = int(np.argmax(head >= final / 2))
            start = int(np.flatnonzero(head[: half + 1] < 0.1 * final).max(initial=0))
            end = half + int(np.argmax(head[half:] >= 0.9 * final))
            rows.append(np.log([start + 1, half + 1, end + 1]))
    return np.array(sorted(rows, key=lambda row: row[1])).reshape(-1, 3), unfinished


def matched(marks: np.ndarray, heads: np.ndarray, times: np.ndarray) -> int:
    """How many heads have a mark of their own near enough."""
    free, right = list(np.log(marks)), 0
    for start, middle, end in heads:
        at = int(np.searchsorted(times, np.exp(middle)).clip(2, times.size - 3))
        reach = max(end - start, 0.02, np.log(times[at + 2] / times[at - 2]) / 2)
        near = [mark for mark in free if abs(mark - middle) <= reach]
        if near:
            free.remove(min(near, key=lambda mark: abs(mark - middle)))
            right += 1
    return right


def by_ruptures(cost: str) -> Callable[..., np.ndarray]:
    """Change points of PELT at which the loss is lower after than before; BIC penalty."""
    rpt = importlib.import_module("ruptures")

    def detect(time: np.ndarray, loss: np.ndarray, norm: np.ndarray) -> np.ndarray:
        edges = np.geomspace(time[0], time[-1] * 1.0001, 257)
        count, total = np.histogram(time, edges)[0], np.histogram(time, edges, weights=loss)[0]
        middle = np.sqrt(edges[1:] * edges[:-1])[count > 0]
        means = total[count > 0] / count[count > 0]
        noise = 1.4826 * np.median(np.abs(np.diff(means, 2))) / 6**0.5
        signal = (means / max(noise, 5e-4 * float(np.ptp(means))))[:, None]
        kept = rpt.Pelt(model=cost, min_size=2, jump=1).fit(signal)
        cuts = [0, *kept.predict(pen=2 * np.log(means.size))]
        levels = [np.mean(means[a:b]) for a, b in itertools.pairwise(cuts)]
        down = [c for c, (a, b) in zip(cuts[1:], itertools.pairwise(levels), strict=False) if b < a]
        return np.sqrt(middle[np.array(down, int) - 1] * middle[down])

    return detect


def detectors() -> dict[str, Callable[..., np.ndarray]]:
    log = Clock.LOG
    found: dict[str, Callable[..., np.ndarray]] = {
        "find_stages": lambda t, loss, norm: np.array(
            [d.time for d in find_stages(t, loss, resamples=0).drops]
        ),
        "d2L/d(ln t)2": lambda t, loss, norm: time_curvature(t, loss).peaks(prominence=0.1),
        "autocorrelation": lambda t, loss, norm: autocorrelation_curvature(
            t, loss, clock=log
        ).peaks(prominence=0.1),
        "norm": lambda t, loss, norm: time_curvature(t, norm).peaks(prominence=0.1),
    }
    if importlib.util.find_spec("ruptures"):
        found |= {"ruptures, l2": by_ruptures("l2"), "ruptures, linear": by_ruptures("clinear")}
    return found


def on_training(seeds: range) -> Iterator[tuple]:
    """Runs, saved points, detector, precision, recall, number of heads."""
    all_steps = np.arange(STEPS)
    sparse = np.unique(np.geomspace(1, STEPS, 400).astype(int)) - 1
    for size, task in ((None, "paper's task"), (5, "random spectra")):
        for batch, init in ((0, 0.02), (64, 0.07)):
            losses, strengths, norms = training(seeds, size, batch, init)
            kept = {"every step": all_steps}
            kept |= {"6th step": all_steps[5::6]} if batch else {"400, log": sparse}
            for save, index in kept.items():
                for name, detect in detectors().items():
                    counts = np.zeros(3, int)
                    for loss, strength, norm in zip(losses, strengths, norms, strict=True):
                        times, (heads, unfinished) = index + 1.0, truth(strength)
                        marks = detect(times, loss[index], norm[index])
                        end = max(int(np.searchsorted(times, unfinished)) - 2, 0)
                        marks = marks[marks < times[end]] if unfinished < STEPS else marks
                        counts += (matched(marks, heads, times), len(marks), len(heads))
                    right, found, true = counts
                    noise = "minibatches" if batch else "population"
                    yield task, noise, save, name, right / max(found, 1), right / true, true


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--curves", type=int, default=20, help="of each shape and noise")
    parser.add_argument("--seed", type=int, default=700)
    parser.add_argument("--seeds", type=int, default=8, help="of training")
    options = parser.parse_args()
    print("clock   noise  AR(1)  false alarms")
    for row in false_alarms(options.curves, options.seed):
        print("{:7} {:5.2f} {:6.2f} {:9.3f}".format(*row), flush=True)
    print("\ntask            loss         saved       detector          precision recall heads")
    for row in on_training(range(options.seed, options.seed + options.seeds)):
        print("{:15} {:12} {:11} {:17} {:9.2f} {:6.2f} {:5d}".format(*row), flush=True)


if __name__ == "__main__":
    main()
