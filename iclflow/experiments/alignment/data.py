"""Fig. 6: the merged weights of Fig. 1 beside the statistics of the data that predict them.

On the plateau every head is parallel to E[y zᵀ]; at convergence to E[y zᵀ] E[z zᵀ]⁻¹.
"""

import numpy as np
import xarray as xr

from iclflow.experiments.abrupt_drop.data import HEADS, RATE, STEPS, WINDOW, runs_of
from iclflow.experiments.four_inputs import (
    QUICK_SEQUENCES,
    SEQUENCES,
    correlations,
    four_input_moments,
    four_input_task,
)
from iclflow.experiments.runs import Variable, clock, labelled, spread
from iclflow.measures import first_crossing
from iclflow.results.progress import Progress
from iclflow.theory.fixed_points.levels import plateau_losses

SEED = 0  # the run that is drawn
PLATEAU = 0.01  # the plateau is read when this share of the drop is done: late, still flat


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Weights of attention and MLP at two moments, and the cosines of every head over training."""
    report = progress or (lambda done, total: None)
    report(0, 2)
    runs, marks = runs_of(quick), spread(STEPS)
    report(1, 2)
    attention, mlp = runs["attention"], runs["mlp"]
    cross, second = correlations(four_input_moments(quick))
    solution = np.linalg.solve(second, cross)
    size = attention["merged"].shape[-1]
    seeds = len(attention["loss"])
    shape = (seeds, len(marks), HEADS, size * size)
    first = mlp["first"].reshape(*shape[:-1], size, size)  # its rows stack columns of U
    weights = {
        "attention": attention["merged"].reshape(shape),
        "mlp": np.swapaxes(first, -1, -2).reshape(shape),
    }
    loss = attention["loss"]
    level = (1 - PLATEAU) * loss[:, 0] + PLATEAU * loss[:, -1]
    steps = [first_crossing(marks, row, h) for row, h in zip(loss, level, strict=True)]
    early = np.searchsorted(marks, steps) - 1
    late = np.full(seeds, int(np.searchsorted(marks, WINDOW)))
    index = np.stack([early, late], axis=1)
    seed = np.arange(seeds)[:, None]
    statistics = np.stack([cross, solution])
    unit = statistics / np.linalg.norm(statistics, axis=1, keepdims=True)

    variables: dict[str, Variable] = {
        "statistics": (("moment", "feature"), statistics, "what the weights align with"),
        "moment_time": (("seed", "moment"), 2 * RATE * marks[index], "t/τ of the two moments"),
    }
    for name, heads in weights.items():
        chosen = heads[seed, index]  # [seed, moment, head, feature]
        along = np.einsum("smhf,mf->smh", chosen, unit)
        cosine = np.abs(along) / np.linalg.norm(chosen, axis=-1)
        variables[name] = (
            ("moment", "head", "feature"),
            chosen[SEED],
            f"first-layer weights, {name}, seed {SEED}",
        )
        variables[f"{name}_cosine"] = (
            ("seed", "moment", "head"),
            cosine,
            "|cos| between a head and the statistic of its moment",
        )
    heads = weights["attention"]
    along = np.abs(np.einsum("sthf,mf->sthm", heads, unit))
    cosines = (along / np.linalg.norm(heads, axis=-1, keepdims=True)).mean(axis=2)
    levels = np.asarray(plateau_losses(four_input_task()))[[0, -1]]  # merged: one drop
    variables |= {
        "loss": (("seed", "time"), loss, "training loss of attention"),
        "levels": (("level",), levels, "loss at the two fixed points (14)"),
        "cosines": (("seed", "time", "moment"), cosines, "|cos| with either, mean of heads"),
    }
    gap = np.abs(weights["attention"] - weights["mlp"])[:, : late[0] + 1].max(axis=(1, 2, 3))
    variables["weight_gap"] = (
        ("seed",),
        gap / np.abs(weights["mlp"][:, late[0]]).max(axis=(1, 2)),
        "largest difference of the weights along training over the largest weight",
    )
    report(2, 2)
    settings = {
        "figure": "Fig. 6",
        "sequences": QUICK_SEQUENCES if quick else SEQUENCES,
        "quick": quick,
        "heads": HEADS,
        "window": WINDOW,
        "size": size,
        "shown_seed": SEED,
    }
    coordinates = {"seed": np.arange(seeds), "moment": ["plateau", "convergence"]}
    coordinates |= clock(marks, RATE)
    return labelled(variables, coordinates, settings)
