"""Fig. 6: the merged weights of Fig. 1 beside the statistics of the data that predict them.

On the plateau every head is parallel to E[y zᵀ]; at convergence to E[y zᵀ] E[z zᵀ]⁻¹.
"""

import numpy as np
import xarray as xr
from matplotlib.axes import Axes

from iclflow.experiments.abrupt_drop.data import HEADS, WINDOW, runs_of
from iclflow.experiments.base import Claim, below, near
from iclflow.experiments.four_inputs import (
    QUICK_SEQUENCES,
    SEQUENCES,
    correlations,
    four_input_moments,
    four_input_task,
)
from iclflow.experiments.runs import Variable, called, finished, named
from iclflow.measures import first_crossing
from iclflow.plots.style import COLUMN, HEAT, Picture, style
from iclflow.results.messages import Progress
from iclflow.theory.fixed_points.modes import plateau_losses

SEED = 0  # the run that is drawn
PLATEAU = 0.01  # the plateau is read when this share of the drop is done: late, still flat


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Weights of attention and MLP at two moments, and the cosines of every head over training."""
    report = progress or (lambda done, total: None)
    report(0, 2)
    runs = runs_of(quick)
    report(1, 2)
    attention, mlp = runs["attention"], runs["mlp"]
    cross, second = correlations(four_input_moments(quick))
    solution = np.linalg.solve(second, cross)
    size = attention.sizes["row"]
    first = mlp["first"].values  # its rows stack columns of U
    first = np.swapaxes(first.reshape(*first.shape[:-1], size, size), -1, -2)
    weights = {
        name: found.reshape(*found.shape[:3], size * size)
        for name, found in (("attention", attention["merged"].values), ("mlp", first))
    }
    loss, marks = attention["loss"].values, attention["step"].values
    seeds = len(loss)
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
        "moment_time": (
            ("seed", "moment"),
            attention["time"].values[index],
            "t/τ of the two moments",
        ),
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
    data = xr.Dataset({"loss": called(attention["loss"], "training loss of attention")})
    data = data.assign(named(variables)).assign_coords(moment=["plateau", "convergence"])
    return finished(data, settings)


def claims(data: xr.Dataset) -> list[Claim]:
    """Early and late alignment of the heads; weights of attention and MLP."""
    sequences = int(data.attrs["sequences"])
    early, late = (
        {name: float(data[f"{name}_cosine"].isel(moment=i).min()) for name in ("attention", "mlp")}
        for i in (0, 1)
    )
    return [
        near(
            "early-alignment", "On the plateau every head is parallel to E[y zᵀ]: smallest |cos|",
            "App. C.6.2, Fig. 6", 1.0, early["attention"], float(PLATEAU + 5 * sequences**-0.5),
            "read when 1% of the drop is done and the weights have begun to turn by as much; the "
            "extra blocks turn the weakest head by some P^(-1/2)",
            f"over heads and seeds; MLP {early['mlp']:.6f}",
        ),
        near(
            "late-alignment",
            "At convergence every head is parallel to E[y zᵀ] E[z zᵀ]⁻¹: smallest |cos|",
            "App. C.6.2, Fig. 6", 1.0, late["attention"], 0.01,
            "the slowest mode is still e^(-2) from its end after the published number of steps",
            f"after {int(data.attrs['window']):,} steps, over heads and seeds; "
            f"MLP {late['mlp']:.6f}",
        ),
        below(
            "merged-mlp-weights",
            "The weights of attention stay close to those of the MLP throughout training", "Fig. 6",
            float(data["weight_gap"].max()), float(10 * sequences**-0.5),
            "the extra blocks grow as P^(-1/2) and move the drop by as much; ten times that",
        ),
    ]  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim other data or another theory that turns its verdict round.

    - `early-alignment` and `late-alignment`: the heads of the shown seed beside the statistic of
      the other moment, E[y zᵀ] E[z zᵀ]⁻¹ on the plateau and E[y zᵀ] at convergence.
    - `merged-mlp-weights`: every head of attention beside the next head of the MLP, shown seed.
    """
    heads, network = data["attention"].values, data["mlp"].values  # [moment, head, feature]
    other = data["statistics"].values[::-1]
    along = np.abs(np.einsum("mhf,mf->mh", heads, other))
    sizes = np.linalg.norm(heads, axis=-1) * np.linalg.norm(other, axis=-1)[:, None]
    apart = np.abs(heads - np.roll(network, 1, axis=1)).max() / np.abs(network[1]).max()
    cosine, gap = data["attention_cosine"].copy(), data["weight_gap"].copy()
    cosine[int(data.attrs["shown_seed"])] = along / sizes
    gap[int(data.attrs["shown_seed"])] = apart
    return {
        "early-alignment": data.assign(attention_cosine=cosine),
        "late-alignment": data.assign(attention_cosine=cosine),
        "merged-mlp-weights": data.assign(weight_gap=gap),
    }


NAMES = (r"$\mathbb{E}[y_q \mathbf{z}^\top]$",)
NAMES += (r"$\mathbb{E}[y_q \mathbf{z}^\top]\,\mathbb{E}[\mathbf{z}\mathbf{z}^\top]^{-1}$",)


def draw(data: xr.Dataset) -> Picture:
    """Rows: during the plateau, at convergence. Columns: ATTN_M, MLP, the data."""
    with style():
        figure = Picture(figsize=(2.08 * COLUMN, 0.92 * COLUMN))
        panels = figure.subplots(2, 3, width_ratios=(1, 1, 1), squeeze=False)
        for row, moment in enumerate(data["moment"].values):
            at = data.isel(moment=row)
            time = float(at["moment_time"].isel(seed=data.attrs["shown_seed"]))
            image = _heat(panels[row, 0], at["attention"].values)
            _heat(panels[row, 1], at["mlp"].values)
            _heat(panels[row, 2], at["statistics"].values[None, :])
            when = "on the plateau" if moment == "plateau" else "at convergence"
            panels[row, 0].set_ylabel(f"{when}\n$t/\\tau$ = {time:.0f}\nhead")
            panels[row, 1].set_ylabel("hidden unit")
            panels[row, 2].set_title(NAMES[row])
            panels[row, 2].set_yticks([])
        panels[0, 0].set_title(r"$\mathrm{ATTN_M}$: rows $\mathrm{vec}(U_i)^\top$")
        panels[0, 1].set_title(r"$\mathrm{MLP}(\mathbf{z})$: rows of $W_1$")
        for axes in panels[1]:
            axes.set_xlabel(r"entry of $\mathbf{z}$")
        figure.colorbar(
            image, ax=list(panels[:, 2]), shrink=0.8, label="over the panel's largest", pad=0.03
        )
    return figure


def _heat(axes: Axes, values: np.ndarray):
    """A matrix on the scale of its own largest entry: directions are what is compared."""
    image = axes.imshow(
        values / np.abs(values).max(), cmap=HEAT, vmin=-1, vmax=1, aspect="auto",
        interpolation="nearest",
    )  # fmt: skip
    rows, columns = values.shape
    axes.set_xticks(range(0, columns, 5), [f"{i + 1}" for i in range(0, columns, 5)])
    axes.set_yticks(range(0, rows, 7), [f"{i + 1}" for i in range(0, rows, 7)])
    axes.tick_params(length=2)
    if rows == 1:
        axes.set_box_aspect(0.14)
    return image
