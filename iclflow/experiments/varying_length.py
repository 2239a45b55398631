"""Contexts of varying length: the loss averaged over n = 1 … 31 pairs (second version, E3).

The average of the loss is the average of its moments, so all of the theory holds with averaged B
and G. Attention is divided by the number of tokens, query included, as the published code does
when the length varies.
"""

import functools
from typing import Any

import jax
import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from iclflow.dynamics import Descent
from iclflow.experiments.base import Claim, below, level_tolerance, near
from iclflow.experiments.four_inputs import CONTEXT, ROTATION_KEY, SPECTRUM, seed_count
from iclflow.experiments.runs import Variable, at, called, finished, named, spread, train
from iclflow.losses import Moments, Population
from iclflow.measures import first_crossing
from iclflow.models import Blocks, Merged, Separate, draw_models
from iclflow.plots.losses import plot_levels
from iclflow.plots.style import BENEATH, COLOURS, THEORY, TIME, Picture, side_by_side, theory_of
from iclflow.results.messages import Progress
from iclflow.tasks.base import Normaliser
from iclflow.tasks.task import Task
from iclflow.theory.drops.one_drop import merged_course
from iclflow.theory.fixed_points.modes import plateau_losses, visited_levels
from iclflow.theory.predict import predict

LENGTHS = tuple(range(1, CONTEXT + 1))
SEQUENCES, QUICK_SEQUENCES = 5_000, 1_000  # each at 31 lengths: 155,000 prompts
MERGED_HEADS, MERGED_SCALE, MERGED_RATE, MERGED_STEPS = 8, 1e-3, 0.03, 15_000
SEPARATE_HEADS, SEPARATE_SCALE, SEPARATE_RATE = 5, 0.07, 0.197
MARGIN = 1.25  # times the last drop that the staircase predicts for any seed


@functools.cache
def varying_task(normaliser: Normaliser = Normaliser.TOKENS) -> Task:
    """The task of Fig. 3 with every context length from 1 to 31."""
    rotation = jax.random.key(ROTATION_KEY)
    return Task(SPECTRUM, CONTEXT, rotation=rotation, lengths=LENGTHS, normaliser=normaliser)


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Losses of merged and separate attention, theory of the averaged moments, loss by length."""
    report = progress or (lambda done, total: None)
    report(0, 3)
    task = varying_task()
    population = Population(task)
    seeds, sequences = seed_count(quick), QUICK_SEQUENCES if quick else SEQUENCES
    loss = Moments.sample(task, sequences, jax.random.key(1), matched=True)
    report(1, 3)

    init = Merged.initialiser(task, heads=MERGED_HEADS, scale=MERGED_SCALE, blocks=Blocks.FULL)
    models = draw_models(init, range(seeds))
    options: dict[str, Any] = {"seeds": seeds, "record": ["loss", "weights"]}
    merged = train(loss, init, Descent(MERGED_RATE), saveat=spread(MERGED_STEPS), **options)
    merged_time = merged["time"].values
    start = at(models, 0).reduce()
    course = merged_course(loss, start, merged_time, tolerance=1e-8)
    report(2, 3)

    init = Separate.initialiser(
        task, heads=SEPARATE_HEADS, scale=SEPARATE_SCALE, blocks=Blocks.FULL
    )
    models = draw_models(init, range(seeds))
    stairs = [predict(loss, at(models, s), probes=0) for s in range(seeds)]
    dynamics = Descent(SEPARATE_RATE)
    last = float(dynamics.steps(MARGIN * max(float(s.times[-1]) for s in stairs)))
    marks = spread(int(np.ceil(last / 1000)) * 1000)
    separate = train(loss, init, dynamics, saveat=marks, **options)
    time = separate["time"].values
    levels = np.asarray(plateau_losses(population))
    on_plateaus = [_on_plateaus(time, row, levels) for row in separate["loss"].values]
    predicted = xr.concat([one.to_dataset(time)["loss"] for one in stairs], separate["seed"])

    merged_loss = merged["loss"].drop_vars(["time", "step"]).rename(time="merged_mark")
    data = separate[["loss"]].assign(
        loss=called(separate["loss"], "loss, separate"),
        staircase_loss=called(predicted, "of the sample"),
        merged_loss=called(merged_loss, "loss, merged"),
    )
    data = data.assign(
        named({
            "levels": (("level",), levels, "L(M_m) of the averaged moments (24), E3"),
            "merged_levels": (
                ("merged_level",), visited_levels(population, start), "L(M_m), merged",
            ),
            "merged_time": (("merged_mark",), merged_time, "t/τ"),
            "merged_theory": (("merged_mark",), course.loss, "reduced flow of the sample, seed 0"),
            "plateau_loss": (("seed", "level"), on_plateaus, "loss inside each plateau"),
            **_by_length(merged, population),
            **_conventions(),
        })
    ).assign_coords(length=list(LENGTHS))  # fmt: skip
    report(3, 3)
    settings = {
        "figure": "varying context length",
        "sequences": sequences,
        "quick": quick,
        "scale": SEPARATE_SCALE,
        "normaliser": Normaliser.TOKENS.value,
    }
    return finished(data, settings)


def _on_plateaus(time: np.ndarray, loss: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The loss in the middle, on a logarithmic clock, of each plateau."""
    edges = [first_crossing(time, loss, m) for m in (levels[:-1] + levels[1:]) / 2]
    middles = [
        np.sqrt(a * b) for a, b in zip([edges[0] / 2, *edges], [*edges, time[-1]], strict=True)
    ]
    return np.interp(middles, time, loss)


def _by_length(merged: xr.Dataset, population: Population) -> dict[str, Variable]:
    """The trained model's population loss at each length, beside the best for the average."""
    end = merged.isel(seed=0, time=-1)
    trained = (end["values"] * end["merged"]).sum("head").values
    cross, second = np.asarray(population.cross[0]), np.asarray(population.second)
    covariance = np.asarray(population.covariance)
    inverse, square = np.linalg.inv(covariance), covariance @ covariance
    best = np.linalg.solve(second, cross) @ inverse
    found = []
    for n in LENGTHS:
        # E3 for one length and z = n + 1 tokens: G = (n/z) Λ², B = (n(n+1) Λ² + n tr(Λ) Λ)/z².
        z, total = n + 1, np.trace(covariance)
        g = n / z * square
        b = (n * (n + 1) * square + n * total * covariance) / z**2
        own = np.linalg.solve(b, g) @ inverse
        found.append(
            [total + np.sum(m * (b @ m @ covariance - 2 * g)) for m in (trained, best, own)]
        )
    columns = np.asarray(found).T
    return {
        "length_trained": (("length",), columns[0], "trained at all lengths"),
        "length_best": (("length",), columns[1], "closed form, one M for all lengths"),
        "length_own": (("length",), columns[2], "closed form, M for that length alone"),
    }


def _conventions() -> dict[str, Variable]:
    """Divided by pairs, the averaged loss is that of one length, the harmonic mean (E3)."""
    averaged = np.asarray(plateau_losses(varying_task(Normaliser.PAIRS)))
    n = np.asarray(LENGTHS, float)

    def fixed(inverse: float) -> np.ndarray:
        """Levels (24) with 1/N replaced by a given number."""
        spectrum = np.asarray(SPECTRUM)
        total = spectrum.sum()
        steps = spectrum / (1 + (1 + total / spectrum) * inverse)
        return total - np.concatenate([[0.0], np.cumsum(steps)])

    return {
        "pairs_levels": (("level",), averaged, "L(M_m), divided by pairs"),
        "harmonic_levels": (("level",), fixed(float(np.mean(1 / n))), "(24) with the mean of 1/n"),
        "mean_levels": (("level",), fixed(1 / float(n.mean())), "(24) with the mean of n"),
    }


def claims(data: xr.Dataset) -> list[Claim]:
    """Levels, one and several drops, the harmonic mean."""
    levels = data["levels"].values
    sequences = int(data.attrs["sequences"])
    error = np.abs(data["plateau_loss"].values - levels).max()
    # Task vectors are whitened, and a sequence has as many targets as lengths: Var y² = 2 (wᵀΛw)².
    targets = sequences * data.sizes["length"]
    deviation = np.sqrt(2 * (1 + 2 * sum(v**2 for v in SPECTRUM)) / targets)
    final = data["merged_loss"].isel(merged_mark=-1).values
    gap = np.abs(data["length_trained"] / data["length_best"] - 1).max()
    off = abs(float(data["mean_levels"][-1] / data["pairs_levels"][-1]) - 1)
    return [
        below(
            "varying-length-levels",
            "Averaged over lengths, the plateaus lie at the levels of the averaged moments",
            "(24), E3", float(error), level_tolerance(levels, deviation),
            "three standard errors of the mean of all squared labels, at most half the smallest "
            "step between levels", f"P = {sequences:,}, each at {data.sizes['length']} lengths",
        ),
        near(
            "varying-length-end", "Merged attention ends at the last of these levels", "(16), E3",
            float(levels[-1]), float(final.mean()), float(3 * deviation),
            "three standard errors of the mean of all squared labels",
        ),
        below(
            "varying-length-by-length",
            "The trained model has the closed form's loss at every length", "E3", float(gap),
            float(3 * 60 / sequences),
            "a regression on 60 features loses 60/P of the least loss; three times that",
            "largest relative difference over the lengths, population loss", beyond=True,
        ),
        below(
            "varying-length-harmonic-mean",
            "Divided by the number of pairs, N is the harmonic mean of the lengths", "E3",
            float(np.abs(data["harmonic_levels"] - data["pairs_levels"]).max()), 1e-12, "rounding",
            f"with the arithmetic mean the last level would be off by {off:.0%}", population=True,
            beyond=True,
        ),
    ]  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim data that turn its verdict round."""
    return {
        "varying-length-levels": data.assign(levels=data["mean_levels"]),
        "varying-length-end": data.assign(levels=data["mean_levels"]),
        "varying-length-by-length": data.assign(length_best=data["length_own"]),
        "varying-length-harmonic-mean": data.assign(harmonic_levels=data["mean_levels"]),
    }


def draw(data: xr.Dataset) -> Picture:
    """Merged, separate, and the loss at every length."""
    return side_by_side(data, _merged, _separate, _lengths, height=0.78)


def _merged(axes: Axes, data: xr.Dataset) -> None:
    time = data["merged_time"].values
    axes.plot(time, data["merged_loss"].values.T, color=COLOURS[0], **BENEATH)
    axes.plot([], [], color=COLOURS[0], label="simulation", **BENEATH)
    axes.plot(time, data["merged_theory"].values, label="reduced flow", **theory_of(COLOURS[0]))
    axes.set_xlim(0, 250)
    axes.set_ylim(0, 1.08 * float(data["levels"][0]))
    plot_levels(axes, data["merged_levels"].values)
    axes.set_xlabel(TIME)
    axes.set_ylabel(r"loss, mean over $n$ = 1 $\dots$ 31")
    axes.set_title("merged", loc="left")
    axes.legend(loc="upper right", bbox_to_anchor=(1.0, 0.92), handlelength=1.6)


def _separate(axes: Axes, data: xr.Dataset) -> None:
    time = data["time"].values
    for s in range(data.sizes["seed"]):
        colour = COLOURS[s % len(COLOURS)]
        axes.plot(time, data["loss"].values[s], color=colour, **BENEATH)
        axes.plot(time, data["staircase_loss"].values[s], **theory_of(colour))
    axes.plot([], [], label="predicted from $W(0)$", **theory_of("0.3"))
    axes.set_xscale("log")
    axes.set_xlim(time[1], time[-1])
    axes.set_ylim(0, 1.08 * float(data["levels"][0]))
    plot_levels(axes, data["levels"].values)
    axes.set_xlabel(TIME)
    axes.set_title("separate, rank one", loc="left")
    axes.legend(loc="lower left", handlelength=1.6)


def _lengths(axes: Axes, data: xr.Dataset) -> None:
    n = data["length"].values
    axes.plot(n, data["length_trained"], "o", color=COLOURS[0], markersize=3, label="trained")
    axes.plot(n, data["length_best"], label="closed form", **THEORY)
    axes.plot(
        n, data["length_own"], color=COLOURS[1], linewidth=0.9, linestyle=":",
        label="best for $n$ alone",
    )  # fmt: skip
    axes.set_xlabel("pairs in the context $n$")
    axes.set_ylabel("loss at length $n$")
    axes.set_ylim(0, None)
    axes.set_xlim(0, n[-1] + 1)
    axes.set_title("merged, at the end", loc="left")
    axes.legend(loc="upper right")
