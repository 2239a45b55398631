"""Softmax attention drops too: merged once, separate several times (Figs 1 and 3 of v2).

Softmax attention is linear in no fixed features, so it trains on the sequences themselves, and
fewer of them. They come in fours, (±w, ±x_q), besides being matched in moments: odd averages
such as the mean of y_q over tokens, which vanish in the population but would drive softmax
attention from the start, are then zero, and the zero blocks stay zero.
"""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray
from matplotlib.lines import Line2D

from iclflow.dynamics import Flow
from iclflow.dynamics.chebyshev import Chebyshev
from iclflow.experiments.base import Claim, at_least, near
from iclflow.experiments.four_inputs import CONTEXT, DATA_KEY, four_input_task
from iclflow.experiments.runs import called, finished, train
from iclflow.losses import AbstractLoss, Moments, ReducedFeatures, Sequences
from iclflow.measures import find_stages
from iclflow.models import AbstractInitialiser, Merged, Separate, empty_model
from iclflow.models.softmax import SoftmaxInitialiser
from iclflow.plots.losses import LEVEL, plot_levels
from iclflow.plots.style import COLOURS, COLUMN, LOSS, TIME, Picture, style, theory_of
from iclflow.results.messages import Progress
from iclflow.tasks.task import Task
from iclflow.theory.fixed_points.modes import visited_levels

SEQUENCES = 1_200  # 300 fours
QUICK_SEQUENCES = 160
MERGED_HEADS, MERGED_SCALE, MERGED_END = 8, 1e-4, 250.0
HEADS, SCALE, END = 5, 0.01, 6_000.0
SEEDS, QUICK_SEEDS = 3, 1
TOLERANCE = 5e-3  # of a step of the flow
MARKS = 240


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Losses of softmax attention and, at full scale, of linear attention from the same start."""
    sequences, seeds = (QUICK_SEQUENCES, QUICK_SEEDS) if quick else (SEQUENCES, SEEDS)
    task = four_input_task()
    softmax = in_fours(task, sequences, jax.random.key(DATA_KEY))
    linear = _moments(softmax)
    merged = Merged.initialiser(task, heads=MERGED_HEADS, scale=MERGED_SCALE)
    separate = Separate.initialiser(task, heads=HEADS, scale=SCALE)
    jobs: dict[str, tuple[AbstractLoss, AbstractInitialiser, int, float]] = {
        "merged": (softmax, SoftmaxInitialiser(merged), 1, MERGED_END),
        "separate": (softmax, SoftmaxInitialiser(separate), seeds, END),
    }
    if not quick:
        jobs["merged_linear"] = (linear, merged, 1, MERGED_END)
        jobs["separate_linear"] = (linear, separate, seeds, END)
    flow = Flow(TOLERANCE, solver=Chebyshev())
    data = xr.Dataset()
    for i, (name, (loss, init, count, end)) in enumerate(jobs.items()):
        marks = np.concatenate([[0.0], np.linspace(end / 6, end, MARKS - 1)])
        # One after another: seeds trained together would all wait for the one with shortest steps.
        rows = [train(loss, init, flow, saveat=marks, seeds=[s])["loss"] for s in range(count)]
        kind = name.removesuffix("_linear")
        curves = xr.concat(rows, "seed").drop_vars(["step", "seed"])
        curves = curves.rename(time=f"{kind}_time", seed=f"{kind}_seed")
        data[name] = called(curves, f"training loss, {name.replace('_', ', ')}")
        if progress is not None:
            progress(i + 1, len(jobs))
    for name, init in (("merged", merged), ("separate", separate)):
        levels = visited_levels(task, empty_model(init)) * float(linear.power)
        about = "levels (24) of linear attention, this sample"
        data[f"{name}_levels"] = called(xr.DataArray(levels, dims=f"{name}_plateau"), about)
    settings = {
        "inputs": task.size, "context": CONTEXT, "sequences": sequences,
        "merged_heads": MERGED_HEADS, "merged_scale": MERGED_SCALE, "heads": HEADS, "rank": 1,
        "scale": SCALE, "seeds": seeds, "tolerance": TOLERANCE,
        "training": "gradient flow on sequences matched in moments, in fours (±w, ±x_q), so that "
        "the zero blocks stay zero",
    }  # fmt: skip
    return finished(data, settings)


def in_fours(task: Task, sequences: int, key: PRNGKeyArray) -> Sequences:
    """Matched sequences, each with w, x_q → -w, -x_q in all combinations."""
    base = Sequences.sample(task, sequences // 4, key, matched=True)
    prompts = base.prompts
    arrays = [np.asarray(a) for a in (prompts.inputs, prompts.labels, prompts.targets)]
    last = np.arange(task.context + 1)[:, None] == task.context
    images = []
    for task_sign, query_sign in itertools.product((1.0, -1.0), repeat=2):
        query = np.where(last, query_sign, 1.0)
        signs = (query, task_sign * query, task_sign * query)
        images.append([a * sign for a, sign in zip(arrays, signs, strict=True)])
    whole = [jnp.asarray(np.concatenate(part)) for part in zip(*images, strict=True)]
    prompts = eqx.tree_at(lambda p: (p.inputs, p.labels, p.targets), prompts, whole)
    return Sequences.of(prompts, lengths=base.lengths)


@eqx.filter_jit
def _moments(sequences: Sequences) -> Moments:
    """What linear attention needs of the same sequences."""
    return Moments.of(sequences.prompts, lengths=sequences.lengths, features=ReducedFeatures())


def claims(data: xr.Dataset) -> list[Claim]:
    """One drop against several, counted by the detector of plateaus."""
    merged = _drops(data, "merged")
    separate = _drops(data, "separate")
    fewest = min(separate)
    return [
        near(
            "v2-softmax-merged", "softmax attention with merged key and query drops once",
            "Fig. 1, v2", 1.0, float(max(merged, key=lambda n: abs(n - 1))), 0.0, "a count",
            f"drops found on a logarithmic clock{_linear(data, 'merged')}",
        ),
        at_least(
            "v2-softmax-separate", "softmax attention with separate key and query drops several "
            "times", "Fig. 3, v2", float(fewest), 2.0, "a count",
            f"drops of each seed {_listed(separate)}{_linear(data, 'separate')}; drops that "
            f"overlap count as one, so with a quarter of the time resolution "
            f"{_listed(_drops(data, 'separate', coarser=4))}",
        ),
    ]  # fmt: skip


def _drops(data: xr.Dataset, name: str, coarser: int = 1) -> list[int]:
    time = data[f"{name.removesuffix('_linear')}_time"].values
    return [
        # Drops are close to one another here, so every save point counts.
        len(find_stages(time, loss, resamples=0, resolution=time.size // coarser).drops)
        for loss in data[name].values
    ]


def _linear(data: xr.Dataset, name: str) -> str:
    """The drops of linear attention in the same time, where it was trained too."""
    if f"{name}_linear" not in data:
        return ""
    return f"; linear attention in the same time {_listed(_drops(data, f'{name}_linear'))}"


def _listed(counts: list[int]) -> str:
    return ", ".join(str(count) for count in counts)


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """Merged and separate key and query under each other's name, for both claims."""
    names = {f"{kind}{part}" for kind in ("merged", "separate") for part in ("", "_time", "_seed")}
    names |= {f"{kind}_linear" for kind in ("merged", "separate") if f"{kind}_linear" in data}
    other = {"merged": "separate", "separate": "merged"}
    exchanged = {name: name.replace(kind := name.split("_")[0], other[kind]) for name in names}
    swapped = data.rename(exchanged)
    return {"v2-softmax-merged": swapped, "v2-softmax-separate": swapped}


def draw(data: xr.Dataset) -> Picture:
    """Left: merged. Right: separate, one colour per seed; linear attention dashed."""
    with style():
        figure = Picture(figsize=(2 * COLUMN, 0.9 * COLUMN))
        left, right = figure.subplots(1, 2, sharey=True)
        for axes, name in ((left, "merged"), (right, "separate")):
            time = data[f"{name}_time"].values
            for i, loss in enumerate(data[name].values):
                axes.plot(time, loss, color=COLOURS[i], linewidth=1.5)
                if f"{name}_linear" in data:
                    axes.plot(time, data[f"{name}_linear"].values[i], **theory_of(COLOURS[i]))
            axes.set_xlim(0, time[-1])
            levels = data[f"{name}_levels"].values
            axes.set_ylim(0, 1.08 * max(levels[0], float(data[name].max())))
            plot_levels(axes, levels)
            axes.set_xlabel(TIME)
        left.set_title("merged key and query")
        right.set_title("separate key and query, rank one")
        left.set_ylabel(LOSS)
        handles = [
            Line2D([], [], color=COLOURS[0], linewidth=1.5, label="softmax (one colour per seed)"),
            Line2D([], [], **LEVEL, label="levels (24), linear"),
        ]
        if "merged_linear" in data:
            label = "linear attention, same start and data"
            handles.insert(1, Line2D([], [], **theory_of("0.3"), label=label))
        figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure
