"""Figs 3 and 7: separate key and query of rank one learns one eigenvector at a time.

Five heads, all blocks trained, on P = 80,000 sequences, six seeds, until every seed has made its
D drops; the same starts in the population; and the staircase that the initial weights predict, once
for those very sequences and once for the population. Two more kinds of runs are for the controls:
two heads, which can learn two eigenvectors, and heads of full rank, one of which learns them all.
"""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import xarray as xr

from iclflow.dynamics import Descent
from iclflow.experiments.four_inputs import (
    CONTEXT,
    QUICK_SEQUENCES,
    SEEDS,
    SEQUENCES,
    four_input_moments,
    four_input_population,
    four_input_task,
)
from iclflow.experiments.runs import (
    Variable,
    at,
    called,
    drop_counts,
    finished,
    largest_blocks,
    named,
    spread,
    train,
)
from iclflow.losses import Population, Sequences
from iclflow.measures import first_crossing
from iclflow.models import (
    Blocks,
    ConvNet,
    Separate,
    SeparateInitialiser,
    draw_model,
    draw_models,
)
from iclflow.results.messages import Progress
from iclflow.runs.simulate import simulate
from iclflow.tasks.task import Task
from iclflow.theory.drops.scalar_ode import X_MID, paper_duration, value_course
from iclflow.theory.drops.staircase import Staircase, staircase
from iclflow.theory.fixed_points.modes import Modes, plateau_losses
from iclflow.theory.predict import predict

HEADS, RANK = 5, 1
PUBLISHED_INIT, PUBLISHED_RATE = 1e-2, 0.02  # attention not divided by N
# E8, three weights in a term: weights times N^(1/3), rate times N^(2/3); √H is the √ in (36).
SCALE = PUBLISHED_INIT * HEADS**0.5 * CONTEXT ** (1 / 3)
RATE = PUBLISHED_RATE * CONTEXT ** (2 / 3)
WINDOW = 10_001  # steps of the published run: too few for the last drop of most seeds
MARGIN = 1.25  # times the last drop that the staircase predicts for any seed

SHOWN_SEED = 2  # the run of Figs 3b, 3c and 7
CHECK_SEQUENCES, CHECK_SCALE, CHECK_STEPS = 96, 0.5, 600
OPTIONS: dict[str, Any] = {"seeds": SEEDS, "record": ["loss", "weights"]}
SOURCES = ("sequences", "population")  # what the starts are trained on

CONVERSION = (
    f"published init {PUBLISHED_INIT:g}, attention not divided by N = {CONTEXT}: w = "
    f"{PUBLISHED_INIT:g}·√{HEADS}·{CONTEXT}^(1/3) = {SCALE:.2g} in (36); "
    f"rate {PUBLISHED_RATE:g}·{CONTEXT}^(2/3) = {RATE:.3f}"
)


class Runs(NamedTuple):
    """The six starts, the staircase of each, save points until all are done, and the runs."""

    init: SeparateInitialiser
    stairs: list[Staircase]
    marks: np.ndarray
    population: xr.Dataset


@functools.cache
def population_runs() -> Runs:
    """The runs in the population, and what comes before them."""
    task = four_input_task()
    init = Separate.initialiser(task, heads=HEADS, rank=RANK, scale=SCALE, blocks=Blocks.FULL)
    models = draw_models(init, range(SEEDS))
    assert isinstance(models, Separate)
    source = Population(task)
    stairs = [staircase(source, at(models, s).reduce(), probes=0) for s in range(SEEDS)]
    last = MARGIN * max(float(s.times[-1]) for s in stairs) / (2 * RATE)
    marks = spread(int(np.ceil(last / 1000)) * 1000)
    found = train(four_input_population(), init, Descent(RATE), saveat=marks, **OPTIONS)
    return Runs(init, stairs, marks, found)


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Loss and weights of six seeds, sampled and in the population, with all the theory."""
    report = progress or (lambda done, total: None)
    report(0, 5)
    modes = Modes.of(Population(four_input_task()))
    report(1, 5)
    init, stairs, marks, population = population_runs()
    report(2, 5)
    loss = four_input_moments(quick)
    sample = train(loss, init, Descent(RATE), saveat=marks, **OPTIONS)
    models, time = draw_models(init, range(SEEDS)), sample["time"].values
    predictions = [predict(loss, at(models, s), probes=0).to_dataset(time) for s in range(SEEDS)]
    own = xr.concat(predictions, sample["seed"]).rename(event="component")
    report(3, 5)
    levels = np.asarray(plateau_losses(modes))
    own_levels = np.asarray(plateau_losses(loss))
    runs = ((sample, own_levels), (population, levels))
    parts = [_theory_of_drops(_stages(run, at_levels), modes) for run, at_levels in runs]
    data = xr.concat(parts, xr.DataArray(list(SOURCES), dims="source", name="source"))
    lead = ("source", "seed", "component")
    data = data.assign(
        named({
            "levels": (("level",), levels, "L(M_m) (24)"),
            "own_levels": (("level",), own_levels, "levels of the P sequences (Q4)"),
            "eigenvectors": (("row", "component"), np.asarray(modes.right), "eigenvectors of Λ"),
            "eigenvalues": (("component",), np.asarray(modes.eigenvalue), "eigenvalues of Λ"),
            "gain": (("component",), np.asarray(modes.g), "g = λ²"),
            "curvature": (("component",), np.asarray(modes.eigenvalue * modes.b), "λ a"),
            "value_limit": (("component",), 1 / np.asarray(modes.c), "value weight at M_D (25)"),
            "staircase_time": (
                lead, [own["drop_times"], [s.times for s in stairs]],
                "drops of the staircase that the initial weights predict, t/τ",
            ),
            "staircase_head": (
                lead, [own["drop_head"], [s.heads for s in stairs]], "heads that make these drops",
            ),
        })
    )  # fmt: skip
    data = data.assign(
        staircase_loss=called(
            own["loss"], "staircase of the P sequences, predicted from the initial weights"
        ),
        drop_count=("seed", drop_counts(time, sample["loss"].values)),
    ).assign(named(_shown(data.sel(source="sequences"), modes)))
    data["drop_count"].attrs |= {"long_name": "drops found by the detector", "units": "1"}
    half = train(four_input_population(), init, Descent(RATE / 2), saveat=2 * marks, **OPTIONS)
    rates = ("rate_halved",)
    kept, keys = (np.array(pair) for pair in zip(_drifts(population), _drifts(half), strict=True))
    about = "at the rate and at half of it"
    variables: dict[str, Variable] = {
        "conserved_drift": (rates, kept, f"largest change of what (79) conserves, {about}"),
        "key_drift": (rates, keys, f"largest change of ‖k‖² alone, {about}"),
    }
    variables |= _others(marks, time, levels)
    report(4, 5)
    variables |= _equivalence(four_input_task())
    report(5, 5)
    settings = {
        "figure": "Figs 3 and 7",
        "sequences": QUICK_SEQUENCES if quick else SEQUENCES,
        "quick": quick,
        "heads": HEADS,
        "rate": RATE,
        "scale": SCALE,
        "steps": int(marks[-1]),
        "window": WINDOW,
        "shown_seed": SHOWN_SEED,
        "context": CONTEXT,
        "conversion": CONVERSION,
    }
    return finished(data.assign(named(variables)), settings)


def drop_times(time: np.ndarray, loss: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """When each curve is halfway between levels, [seed, drop]."""
    middle = (levels[:-1] + levels[1:]) / 2
    return np.array([[first_crossing(time, row, m) for m in middle] for row in loss])


def _stages(run: xr.Dataset, levels: np.ndarray) -> xr.Dataset:
    """Curves of one set of runs, its drops, and its weights in the middle of each plateau."""
    time = run["time"].values
    drops = drop_times(time, run["loss"].values, levels)
    ends = np.concatenate([drops, np.full((len(drops), 1), time[-1])], axis=1)
    begins = np.concatenate([np.zeros((len(drops), 1)), drops], axis=1)
    # The middle of a plateau on a logarithmic clock (of the first: three quarters of the way).
    centre = np.sqrt(np.maximum(begins, 0.5 * ends) * ends)
    index = np.stack([np.searchsorted(time, row).clip(max=len(time) - 1) for row in centre])
    weights = run[["loss", "values", "keys", "queries"]].isel(pair=0)
    each = xr.DataArray(np.arange(len(drops)), dims="seed")
    there = weights.isel(seed=each, time=xr.DataArray(index, dims=("seed", "level")))
    there = there.drop_vars(["time", "step"])
    effective = xr.dot(there["values"], there["keys"], there["queries"], dim="head")
    data = xr.Dataset({
        "loss": called(run["loss"], "training loss"),
        "values": called(run["values"], "value weights"),
        "blocks": called(largest_blocks(run), "largest entry of the blocks that theory leaves out"),
        "plateau_loss": called(there["loss"], "loss inside each plateau"),
        "plateau_values": called(there["values"], "value weights there"),
        "plateau_keys": called(there["keys"], "keys there"),
        "plateau_queries": called(there["queries"], "queries there"),
        "plateau_effective": called(effective, "Σ v k qᵀ there"),
    })  # fmt: skip
    return data.assign(
        named({
            "drop_time": (("seed", "component"), drops, "t/τ halfway between levels"),
            "plateau_time": (("seed", "level"), time[index], "t/τ inside each plateau"),
        })
    )  # fmt: skip


def learners(values: np.ndarray, time: np.ndarray, drops: np.ndarray) -> np.ndarray:
    """For every seed and drop the head whose value weight grows most through it."""
    count = drops.shape[1]
    edges = np.concatenate([drops, np.full((len(drops), 1), time[-1])], axis=1)
    heads = np.zeros((len(drops), count), int)
    for s in range(len(drops)):
        before = np.abs(values[s, 0])
        for m in range(count):
            after = np.sqrt(edges[s, m] * edges[s, m + 1])
            size = np.abs(values[s, np.searchsorted(time, after).clip(max=len(time) - 1)])
            heads[s, m] = int(np.argmax(size - before))
            before = np.maximum(before, size)
    return heads


def _theory_of_drops(runs: xr.Dataset, modes: Modes) -> xr.Dataset:
    """For the head of every drop: (26), set going at mid-drop, and the paper's duration (73)."""
    time, values, drops = (runs[name].values for name in ("time", "values", "drop_time"))
    heads = learners(values, time, drops)
    gain, curvature = np.asarray(modes.g), np.asarray(modes.eigenvalue * modes.b)
    half = X_MID / np.asarray(modes.c)
    elapsed = time[None, :, None] - drops[:, None, :]
    curves = np.asarray(value_course(elapsed, *(a[None, None] for a in (half, gain, curvature))))
    seed = np.arange(len(drops))[:, None]
    sign = np.sign(values[seed, -1, heads])
    # A plateau begins with the drop before; (68)(73) take |v| of the next head there.
    begins = np.concatenate([np.zeros((len(drops), 1)), drops[:, :-1]], axis=1)
    small = values[seed, np.searchsorted(time, begins).clip(max=len(time) - 1), heads]
    lead = ("seed", "component")
    return runs.assign(
        named({
            "drop_head": (lead, heads, "head that makes the drop"),
            "value_course": (
                ("seed", "time", "component"), curves * sign[:, None, :],
                "value weight of the head that makes the drop, from (26)",
            ),
            "paper_duration": (
                lead, paper_duration(small, gain[None, :]),
                "the paper's plateau durations (68)(73), t/τ",
            ),
        })
    )  # fmt: skip


def _shown(runs: xr.Dataset, modes: Modes) -> dict[str, Variable]:
    """Fig. 3c: keys of one run on each plateau, heads in the order in which they learn (25)."""
    run = runs.isel(seed=SHOWN_SEED)
    learners = run["drop_head"].values
    order = [*learners, *(h for h in range(HEADS) if h not in learners)]
    keys = run["plateau_keys"].values[:, order]
    theory = (np.asarray(modes.right) / np.asarray(modes.c)).T  # rows v_d e_d
    theory = np.pad(theory, [(0, HEADS - len(theory)), (0, 0)])  # the other heads stay at 0
    sign = np.sign(np.sum(keys[-1] * theory, axis=1))
    return {
        "shown_keys": (("level", "head", "row"), keys, "keys of one run on each plateau"),
        "shown_theory": (("head", "row"), sign[:, None] * theory, "v_d e_d (25)"),
    }


def _equivalence(task: Task) -> dict[str, Variable]:
    """ATTN_S and the convolutional network trained through independent code, on prompts.

    The third curve is for the control. It is that of the network from weights with the same
    function and the same loss, which are shared out between the layers in another way.
    """
    loss = Sequences.sample(task, CHECK_SEQUENCES, jax.random.key(5))
    init = Separate.initialiser(task, heads=HEADS, scale=CHECK_SCALE)
    model = draw_model(init, jax.random.key(0))
    assert isinstance(model, Separate)
    network = ConvNet.from_attention(model)
    unbalanced = ConvNet(2 * network.kernels, network.second, network.third / 2)
    three = (model, network, unbalanced)
    curves = [simulate(loss, m, Descent(RATE), until=CHECK_STEPS).loss for m in three]
    return {
        "check_attention": (("check",), curves[0], "ATTN_S on prompts, frozen blocks"),
        "check_convolution": (("check",), curves[1], "convolutional network, same prompts"),
        "check_unbalanced": (("check",), curves[2], "network from twice k(0) and half of v(0)"),
    }


def _drifts(run: xr.Dataset) -> tuple[float, float]:
    """Largest change over the run: of ‖k‖² - ‖q‖² and ‖k‖² - v² (79), and of ‖k‖² alone."""
    keys = (run["keys"] ** 2).sum(["pair", "row"])
    queries = (run["queries"] ** 2).sum(["pair", "column"])
    kept = xr.concat([keys - queries, keys - run["values"] ** 2], "difference")
    ends = [(a.isel(time=-1, drop=True), a.isel(time=0, drop=True)) for a in (kept, keys)]
    change = [abs(last - first).max() for last, first in ends]
    return float(change[0]), float(change[1])


def _others(marks: np.ndarray, time: np.ndarray, levels: np.ndarray) -> dict[str, Variable]:
    """Two heads, and heads of full rank, from starts of the same size, in the population."""
    task = four_input_task()

    def losses(heads: int, rank: int) -> np.ndarray:
        init = Separate.initialiser(task, heads=heads, rank=rank, scale=SCALE)
        return train(Population(task), init, Descent(RATE), saveat=marks, seeds=SEEDS)[
            "loss"
        ].values

    two = losses(2, RANK)
    drops = drop_times(time, losses(HEADS, task.size), levels)
    return {
        "two_heads_loss": (("seed", "time"), two, "training loss of two heads"),
        "two_heads_drop_count": (("seed",), drop_counts(time, two), "drops of two heads"),
        "full_rank_drop_time": (("seed", "component"), drops, "drops of heads of full rank, t/τ"),
    }
