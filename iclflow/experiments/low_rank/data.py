"""Rank of key and query: which plateaus are long, and which value weights grow (Figs 4, 8, 9).

With rank R a head that has escaped goes on to learn R modes, so long plateaus are expected only
where a new head must escape, at m = 0, R, 2R, … learned modes (Section 5, App. E.4).
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from iclflow.dynamics import Flow
from iclflow.dynamics.chebyshev import Chebyshev
from iclflow.experiments.four_inputs import (
    CONTEXT,
    DATA_KEY,
    QUICK_SEQUENCES,
    SEEDS,
    SEQUENCES,
    four_input_moments,
    four_input_task,
)
from iclflow.experiments.runs import called, finished, named, train
from iclflow.losses import Moments
from iclflow.measures import first_crossings
from iclflow.models import Blocks, Separate, SeparateInitialiser, draw_model
from iclflow.models.base import AbstractInitialiser
from iclflow.results.messages import Progress
from iclflow.tasks.laws import named_spectrum
from iclflow.tasks.task import Task
from iclflow.theory.drops.staircase import Staircase, staircase
from iclflow.theory.fixed_points.modes import plateau_losses
from iclflow.theory.fixed_points.points import FixedPoint

# Figs 4 and 9. λ ∝ 1/d as their captions say; the published command has λ ∝ d.
SPECTRUM = "power:1"
SIZE, HEADS = 8, 9
RANKS = {"fig4": (1, 2, 4, 8), "fig9": (3, 5, 6, 7)}
ROTATION_KEY = 8
QUICK_SEEDS = 1
QUICK_SHARE = 0.55  # of the training time: enough for that seed
POINTS, QUICK_POINTS = 181, 61  # save points, twice: even in time, and in its logarithm
# Training time t/τ: until all, or nearly all, of the six seeds have learned the D modes.
ENDS = {1: 1.2e5, 2: 4.6e4, 3: 4e4, 4: 2.2e4, 5: 3.6e4, 6: 4e4, 7: 5.2e4, 8: 3e3}

PUBLISHED_INIT, PUBLISHED_RATE, PUBLISHED_STEPS = 5e-3, 0.02, 20_000
SCALE = PUBLISHED_INIT * HEADS**0.5 * CONTEXT ** (1 / 3)
PAPER_WINDOW = 2 * PUBLISHED_RATE * CONTEXT ** (2 / 3) * PUBLISHED_STEPS  # t/τ

# Fig. 8: the setting of Fig. 3, other ranks, shown for 5,000 steps.
HEADS_8, RANKS_8, END_8 = 5, (2, 3, 4), 4000.0
SCALE_8 = 1e-2 * HEADS_8**0.5 * CONTEXT ** (1 / 3)
WINDOW_8 = 2 * PUBLISHED_RATE * CONTEXT ** (2 / 3) * 5_000

CONVERSION = (
    f"published attention is not divided by N = {CONTEXT}: init {PUBLISHED_INIT:g} (of the "
    f"values) is w = {PUBLISHED_INIT:g}·√{HEADS}·{CONTEXT}^(1/3) = {SCALE:.3f} in (36), rate "
    f"{PUBLISHED_RATE:g} is {PUBLISHED_RATE * CONTEXT ** (2 / 3):.3f}, so t/τ = "
    f"{PAPER_WINDOW / PUBLISHED_STEPS:.3f} per step; its keys and queries start √(D/(D+1)) smaller"
)

TOLERANCE = 1e-4  # of a step of the flow: drop times to 2%


class PaddedInitialiser(AbstractInitialiser):
    """Separate key and query of rank `rank` as weights of a larger rank with empty pairs.

    A pair with k = q = 0 stays so (its gradient is zero), so this is rank R exactly, and all
    ranks share one compiled program.
    """

    whole: SeparateInitialiser
    rank: Int[Array, ""]

    def __call__(self, key: PRNGKeyArray) -> Separate:
        model = self.whole(key)
        used = jnp.arange(self.whole.rank) < self.rank
        # N(0, w²/(H R D)) entries: fewer pairs, larger ones (36).
        factor = jnp.where(used, jnp.sqrt(self.whole.rank / self.rank), 0.0)[None, :, None]
        pairs = (model.keys * factor, model.queries * factor)
        return eqx.tree_at(lambda m: (m.keys, m.queries), model, pairs)


def padded(task: Task, heads: int, largest: int, scale: float) -> PaddedInitialiser:
    """key -> weights with all blocks trained, stored as rank `largest`."""
    whole = Separate.initialiser(task, heads=heads, rank=largest, scale=scale, blocks=Blocks.FULL)
    return PaddedInitialiser(whole, jnp.asarray(largest))


@functools.cache
def _eight_inputs(sequences: int) -> tuple[Task, Moments]:
    """The task of Figs 4 and 9 and the moments of its training set, shared by all ranks."""
    task = Task(named_spectrum(SPECTRUM, SIZE), CONTEXT, rotation=jax.random.key(ROTATION_KEY))
    return task, Moments.sample(task, sequences, jax.random.key(DATA_KEY), matched=True)


def compute_fig4(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Loss and value weights for R = 1, 2, 4, 8 with D = 8, six seeds each (Fig. 4)."""
    return _ranks("fig4", quick, progress)


def compute_fig9(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """The same for R = 3, 5, 6, 7 (Fig. 9)."""
    return _ranks("fig9", quick, progress)


def _ranks(name: str, quick: bool, progress: Progress | None) -> xr.Dataset:
    seeds, sequences = (QUICK_SEEDS, QUICK_SEQUENCES) if quick else (SEEDS, SEQUENCES)
    task, loss = _eight_inputs(sequences)
    start = padded(task, HEADS, SIZE, SCALE)
    found: list[xr.Dataset] = []
    for i, rank in enumerate(RANKS[name]):
        end = ENDS[rank] * (QUICK_SHARE if quick else 1.0)
        found.append(_train(loss, start, [rank], seeds, _marks(end, quick)))
        if progress is not None:
            progress(i + 1, len(RANKS[name]))
    return _labelled(name, xr.concat(found, "rank"), task, PAPER_WINDOW, sequences, SCALE)


def compute_fig8(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Loss and value weights for R = 2, 3, 4 with D = 4, and their prediction (Fig. 8)."""
    seeds, sequences = (2, QUICK_SEQUENCES) if quick else (SEEDS, SEQUENCES)
    task = four_input_task()
    start = padded(task, HEADS_8, max(RANKS_8), SCALE_8)
    marks = _marks(END_8, quick, 20.0)
    loss = four_input_moments(quick)
    runs = _train(loss, start, RANKS_8, seeds, marks)
    data = _labelled("fig8", runs, task, WINDOW_8, sequences, SCALE_8)
    times, values, final = [], [], []
    for i, rank in enumerate(RANKS_8):
        stairs = _prediction(loss, start, rank)
        near_drops = [t + np.linspace(-70, 70, 15) for t in stairs.times]
        grid = np.sort(np.concatenate([np.linspace(0, END_8, 100 - 15 * task.size), *near_drops]))
        times.append(grid.clip(0, END_8))
        values.append(stairs.at(times[-1]).values)
        final.append(_final_values(task, rank))
        if progress is not None:
            progress(i + 1, len(RANKS_8))
    dims = ("rank", "predicted_point")
    return data.assign(
        named({
            "predicted_clock": (dims, np.stack(times), r"training time $t/\tau$"),
            "predicted_values": (
                (*dims, "head"), np.stack(values),
                "value weights predicted from the initial weights of seed 0",
            ),
            "final_values": (
                ("rank", "head"), np.stack(final),
                "final value weights of the grown heads, largest first (0: none)",
            ),
        })
    )  # fmt: skip


def _prediction(loss: Moments, start: PaddedInitialiser, rank: int) -> Staircase:
    """The staircase of seed 0 on the sequences that are trained on, from its initial weights."""
    model = draw_model(dataclasses.replace(start, rank=jnp.asarray(rank)), jax.random.key(0))
    assert isinstance(model, Separate)
    alone = Separate(
        values=model.values, keys=model.keys[:, :rank], queries=model.queries[:, :rank]
    )
    return staircase(loss, alone, probes=0)


def _train(
    loss: Moments,
    start: PaddedInitialiser,
    ranks: Sequence[int],
    seeds: int,
    marks: Float[np.ndarray, " T"],
) -> xr.Dataset:
    """Loss and values (rank, seed, point) and the clock (rank, point) of all seeds."""
    flow = Flow(TOLERANCE, solver=Chebyshev())
    how: dict[str, Any] = {"saveat": marks, "axes": {"rank": ranks}, "record": ["loss", "values"]}
    # One after another: seeds trained together would all wait for the one with shortest steps.
    found = [train(loss, start, flow, seeds=[seed], **how) for seed in range(seeds)]
    runs = xr.concat([run[["loss", "values"]] for run in found], "seed")
    runs = runs.transpose("rank", "seed", ...).drop_vars("step")
    clock = xr.DataArray(np.tile(marks, (len(ranks), 1)), dims=("rank", "time"))
    return runs.assign(clock=clock).drop_vars("time").rename(time="point")


def _final_values(task: Task, rank: int) -> Float[np.ndarray, " H"]:
    """v = (Σ_{d∈T} m_d)^(1/3) of heads that hold R modes each in order (E9), largest first."""
    point = FixedPoint.of(task, range(task.size))
    model = point.weights(HEADS_8, rank, point.learned_holdings(rank))
    return np.sort(np.abs(np.asarray(model.values)[:, 0, 0]))[::-1]


def _marks(end: float, quick: bool, first: float = 300.0) -> Float[np.ndarray, " T"]:
    """Save points that show early drops and late ones: even in the logarithm, and in time."""
    count = QUICK_POINTS if quick else POINTS
    grids = [[0.0], np.geomspace(first, end, count + 39), np.linspace(first, end, count + 1)[1:-1]]
    return np.sort(np.concatenate(grids))


def _labelled(
    name: str, runs: xr.Dataset, task: Task, window: float, sequences: int, scale: float
) -> xr.Dataset:
    """The runs with the levels (24), the times at which they cross between them, settings."""
    levels = np.asarray(plateau_losses(task))
    middle = (levels[1:] + levels[:-1]) / 2
    times = [
        [first_crossings(one["clock"].values, curve, middle) for curve in one["loss"].values]
        for one in (runs.sel(rank=rank) for rank in runs["rank"])
    ]
    data = runs.assign(
        clock=called(runs["clock"], r"training time $t/\tau$"),
        loss=called(runs["loss"], "training loss $L$"),
        values=called(runs["values"], "value weights $v_i$"),
    ).assign(
        named({
            "spectrum": (("drop_number",), task.spectrum, r"eigenvalues $\lambda_d$"),
            "levels": (("plateau",), levels, "plateau level $L(M_m)$ (24)"),
            "drop_times": (
                ("rank", "seed", "drop_number"), times, "middle of each drop, $t/\\tau$",
            ),
        })
    )  # fmt: skip
    settings = {
        "figure": name,
        "inputs": task.size,
        "context": CONTEXT,
        "heads": runs.sizes["head"],
        "scale": scale,
        "paper_window": window,
        "sequences": sequences,
        "blocks": "full: the zero blocks are trained",
        "training": "gradient flow on the moments of the sequences, matched in moments",
        "spectrum": "1/d, as in the caption" if name != "fig8" else "0.4 0.3 0.2 0.1",
        "conversion": CONVERSION,
    }
    return finished(data, settings)
