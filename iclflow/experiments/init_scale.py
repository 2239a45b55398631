"""The scale w of the initial weights, from 1e-6 to lazy training (second version of the paper).

Merged: simulated at every scale, its one plateau lasts ln(1/w)/‖Λ²‖ and more. Separate: a
plateau lasts ~ 1/w, so that 1e-6 would take 1e10 steps; the staircase predicted from the initial
weights lies over the simulations up to w = 0.1, and below 1e-2 stands alone. Large weights hardly
move: the loss decays exponentially, as a linear model with the kernel of the start.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array
from matplotlib import colormaps
from matplotlib.axes import Axes

from iclflow.dynamics import Descent
from iclflow.experiments.base import Claim, below, near
from iclflow.experiments.four_inputs import four_input_task, seed_count
from iclflow.experiments.runs import MARKS, Variable, at, finished, named, train
from iclflow.losses import Population
from iclflow.measures import first_crossing, first_crossings
from iclflow.models import Merged, Separate, draw_models
from iclflow.plots.losses import plot_levels
from iclflow.plots.style import BENEATH, COLOURS, THEORY, TIME, Picture, side_by_side, theory_of
from iclflow.results.messages import Progress
from iclflow.theory.drops.one_drop import merged_half_time, paper_merged_duration
from iclflow.theory.drops.staircase import staircase
from iclflow.theory.fixed_points.modes import plateau_losses, visited_levels

MERGED_HEADS, SEPARATE_HEADS = 8, 5
MERGED_SCALES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
MERGED_RATE, MERGED_STEPS = 0.02, 10_000
SMALL_SCALES, SMALL_RATE, SMALL_STEPS = (0.01, 0.03, 0.1), 0.4, 120_000
THEORY_SCALES = (1e-6, 1e-5, 1e-4, 1e-3, *SMALL_SCALES)  # separate: the staircase
QUICK_THEORY_SCALES = (1e-6, 1e-3, *SMALL_SCALES)
LARGE_SCALES, LARGE_RATE, LARGE_STEPS = (0.3, 1.0, 3.0), 0.02, 120_000
SHOWN_SEED = 2
LAZY = -1  # the last merged scale


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Loss over training for every scale, one seed; times of the drops, all seeds.

    In the population; the quick form has fewer seeds and fewer scales of the staircase.
    """
    report = progress or (lambda done, total: None)
    report(0, 3)
    seeds = seed_count(quick)
    variables = _merged(seeds)
    report(1, 3)
    theory_scales = QUICK_THEORY_SCALES if quick else THEORY_SCALES
    variables |= _separate(seeds, theory_scales)
    report(3, 3)
    coordinates = {
        "merged_scale": list(MERGED_SCALES),
        "separate_scale": [*SMALL_SCALES, *LARGE_SCALES],
        "theory_scale": list(theory_scales),
        "seed": np.arange(seeds),
    }
    settings = {
        "figure": "initialisation scale",
        "quick": quick,
        "data": "population",
        "shown_seed": SHOWN_SEED,
    }
    return finished(xr.Dataset(named(variables), coordinates), settings)


def _marks(last: int) -> np.ndarray:
    return np.unique(np.round(np.geomspace(1, last, MARKS)).astype(int)) - 1


def _stacked(one: Any, scales: tuple[float, ...]) -> Any:
    """The models of all seeds at all scales: a seed's weights differ by a factor only."""

    def scaled(a: Array) -> Array:
        whole = np.multiply.outer(scales, np.asarray(a))
        return jnp.asarray(whole.reshape(-1, *a.shape[1:]))

    return jax.tree.map(scaled, one)


def _merged(seeds: int) -> dict[str, Variable]:
    task = four_input_task()
    population = Population(task)
    init = Merged.initialiser(task, heads=MERGED_HEADS, scale=1.0)
    models = _stacked(draw_models(init, range(seeds)), MERGED_SCALES)
    marks = _marks(MERGED_STEPS)
    axes = {"scale": MERGED_SCALES}
    descent = Descent(MERGED_RATE)
    loss = train(population, init, descent, saveat=marks, seeds=seeds, axes=axes)["loss"]
    time = loss["time"].values
    levels = visited_levels(task, at(models, 0))
    half = [[first_crossing(time, row, levels.mean()) for row in rows] for rows in loss.values]
    predicted = np.full(len(MERGED_SCALES), np.nan)
    for i, scale in enumerate(MERGED_SCALES):
        if scale < 1:  # the reduced flow is the limit of small weights
            model = at(models, i * seeds + SHOWN_SEED)
            predicted[i] = merged_half_time(population, model, tolerance=1e-8)
    lazy = at(models, (len(MERGED_SCALES) + LAZY) * seeds + SHOWN_SEED)
    return {
        "merged_time": (("merged_mark",), time, "t/τ"),
        "merged_loss": (("merged_scale", "merged_mark"), loss.sel(seed=SHOWN_SEED), "loss, merged"),
        "merged_half_time": (("merged_scale", "seed"), half, "t/τ halfway down"),
        "merged_half_theory": (("merged_scale",), predicted, "reduced flow, E2, the shown seed"),
        "merged_half_paper": (
            ("merged_scale",),
            np.asarray(paper_merged_duration(population, np.asarray(MERGED_SCALES))),
            "ln(1/w)/‖Λ²‖ (51)",
        ),
        "merged_levels": (("merged_level",), levels, "L(0) and the least loss"),
        "lazy_loss": (("merged_mark",), _lazy_loss(population, lazy, time), "constant kernel"),
        "random_features_loss": (
            ("merged_mark",),
            _lazy_loss(population, lazy, time, merged_trained=False),
            "constant kernel of the value weights alone",
        ),
        "rate_of_growth": ((), float(jnp.linalg.norm(population.cross)), "‖Λ²‖"),
        "solution_norm": ((), _solution_norm(population), "‖M*‖"),
    }


def _kernel_parts(population: Population) -> tuple[np.ndarray, np.ndarray]:
    """vec G and K = B ⊗ Λ, rows of M stacked: L = E[y²] - 2 g·m + m·K m."""
    cross = np.asarray(population.cross[0]).reshape(-1)
    return cross, np.kron(np.asarray(population.second), np.asarray(population.covariance))


def _solution_norm(population: Population) -> float:
    cross, kernel = _kernel_parts(population)
    return float(np.linalg.norm(np.linalg.solve(kernel, cross)))


def _lazy_loss(
    population: Population, model: Merged, time: np.ndarray, merged_trained: bool = True
) -> np.ndarray:
    """τ dm/dt = Θ (g - K m) with the start's Θ = |v|² I + Σᵢ vec Uᵢ vec Uᵢᵀ, solved exactly.

    Without `merged_trained` only the value weights move, as in regression on random features, and
    Θ does not have its first term.
    """
    cross, kernel = _kernel_parts(population)
    values, first = np.asarray(model.values)[:, 0, 0], np.asarray(model.merged)
    first = first.reshape(len(values), -1)
    theta = merged_trained * (values @ values) * np.eye(len(cross)) + first.T @ first
    root = np.linalg.cholesky(kernel)  # K = R Rᵀ; Rᵀ m relaxes with the symmetric Rᵀ Θ R
    rates, vectors = np.linalg.eigh(root.T @ theta @ root)
    solution = np.linalg.solve(kernel, cross)
    off = vectors.T @ root.T @ (values @ first - solution)
    least = float(population.power) - cross @ solution
    return least + np.sum((off * np.exp(-np.outer(time, rates))) ** 2, axis=1)


def _separate(seeds: int, theory_scales: tuple[float, ...]) -> dict[str, Variable]:
    task = four_input_task()
    population = Population(task)
    init = Separate.initialiser(task, heads=SEPARATE_HEADS, scale=1.0)
    unit = draw_models(init, range(seeds))
    levels = np.asarray(plateau_losses(task))
    middle = (levels[:-1] + levels[1:]) / 2
    curves, clocks, drops = [], [], []
    for scales, rate, steps in (
        (SMALL_SCALES, SMALL_RATE, SMALL_STEPS),
        (LARGE_SCALES, LARGE_RATE, LARGE_STEPS),
    ):
        marks = _marks(steps)
        axes = {"scale": scales}
        descent = Descent(rate)
        loss = train(population, init, descent, saveat=marks, seeds=seeds, axes=axes)["loss"]
        time = loss["time"].values
        drops.append([[first_crossings(time, row, middle) for row in rows] for rows in loss.values])
        curves.append(loss.sel(seed=SHOWN_SEED))
        clocks.append(np.tile(time, (len(scales), 1)))
    starts = [_stacked(unit, (scale,)) for scale in theory_scales]
    stairs = [
        [staircase(population, at(models, s), probes=0) for s in range(seeds)] for models in starts
    ]
    shown = [rows[SHOWN_SEED] for rows in stairs]
    theory_time = np.stack([np.geomspace(1e-3, 1.5, 2 * MARKS) * s.times[-1] for s in shown])
    theory_loss = [s.at(t).loss for s, t in zip(shown, theory_time, strict=True)]
    return {
        "separate_time": (("separate_scale", "separate_mark"), np.concatenate(clocks), "t/τ"),
        "separate_loss": (("separate_scale", "separate_mark"), np.concatenate(curves), "loss"),
        "separate_drops": (
            ("separate_scale", "seed", "component"),
            np.concatenate(drops),
            "t/τ halfway between levels",
        ),
        "theory_time": (("theory_scale", "theory_mark"), theory_time, "t/τ"),
        "theory_loss": (("theory_scale", "theory_mark"), theory_loss, "staircase"),
        "theory_drops": (
            ("theory_scale", "seed", "component"),
            [[s.times for s in rows] for rows in stairs],
            "t/τ of the drops of the staircase",
        ),
        "levels": (("level",), levels, "L(M_m) (24)"),
    }


def claims(data: xr.Dataset) -> list[Claim]:
    """Larger weights, shorter plateaus; the laws of the durations; lazy training."""
    half = np.median(data["merged_half_time"].values, axis=1)
    scales = data["merged_scale"].values
    drops = np.median(data["separate_drops"].values, axis=1)  # [scale, component]
    tiny = scales <= 1e-3
    log_slope = np.polyfit(np.log(1 / scales[tiny]), half[tiny], 1)[0]
    first = data["separate_drops"].values[:2, :, 0]
    ratio = np.log(data["separate_scale"].values[1] / data["separate_scale"].values[0])
    power = np.log(first[1] / first[0]) / ratio
    lazy = data["merged_loss"].values[LAZY]
    error = np.abs(lazy - data["lazy_loss"].values).max() / lazy[0]
    fall = [np.mean(np.diff(a, axis=0) < 0) for a in (half, drops)]
    largest = float(scales[LAZY])
    return [
        near(
            "init-shortens-merged",
            "Merged: the larger the initial weights, the shorter the plateau", "second version",
            1.0, float(fall[0]), 0.0, f"an order of medians over {len(scales)} scales",
            population=True,
        ),
        near(
            "init-shortens-separate",
            "Separate: the larger the initial weights, the earlier every drop", "second version",
            1.0, float(fall[1]), 0.0,
            f"an order of medians over {len(drops)} simulated scales, all drops", population=True,
        ),
        near(
            "merged-duration-logarithm",
            "The merged plateau grows by 1/‖Λ²‖ for each factor e in 1/w", "(51)", 1.0,
            float(log_slope * data["rate_of_growth"]), 0.01,
            "slope times ‖Λ²‖; descent at rate η grows by ηλ less than flow, a few 1e-3",
            "the law that (51) is the leading term of; its constant is what (51) leaves out",
            population=True,
        ),
        near(
            "separate-duration-power",
            "Separate plateaus last ~ 1/w: power of the first drop's time", "(68)", -1.0,
            float(np.median(power)), float(data["separate_scale"].values[1]),
            "corrections are of relative order w", population=True,
        ),
        below(
            "lazy-training",
            "Large weights hardly move: the loss decays as with the kernel of the start",
            "second version", float(error), float(data["solution_norm"]) / largest**2,
            "weights need to change by ‖M*‖/w, relative to w",
            f"w = {largest:g}; largest difference over L(0)", population=True,
        ),
    ]  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim other data or another theory that turns its verdict round.

    - `init-shortens-merged` and `init-shortens-separate`: the times of the scales in reverse.
    - `merged-duration-logarithm`: the first drop of separate key and query, predicted from the
      initial weights, at the scales that both kinds have.
    - `separate-duration-power`: the drop of merged key and query at scales that both kinds have. It
      comes with the logarithm of 1/w.
    - `lazy-training`: the kernel of the value weights alone, as in regression on random features.
    """
    half, drops = data["merged_half_time"], data["separate_drops"]
    scales = data["merged_scale"].values
    both = scales[np.isin(scales, data["theory_scale"].values)]
    power = data["theory_drops"].sel(theory_scale=both).isel(component=0).values
    shared = scales[np.isin(scales, data["separate_scale"].values)][:2]
    logarithm = half.sel(merged_scale=shared).values[..., None].repeat(drops.shape[-1], axis=-1)
    return {
        "init-shortens-merged": data.assign(merged_half_time=half.copy(data=half.values[::-1])),
        "init-shortens-separate": data.assign(separate_drops=drops.copy(data=drops.values[::-1])),
        "merged-duration-logarithm": data.sel(merged_scale=both).assign(
            merged_half_time=(half.dims, power)
        ),
        "separate-duration-power": data.sel(separate_scale=shared).assign(
            separate_drops=(drops.dims, logarithm)
        ),
        "lazy-training": data.assign(lazy_loss=data["random_features_loss"]),
    }


NAME_APART = 3.5  # factor in time between the names of two drops


def draw(data: xr.Dataset) -> Picture:
    """Merged, separate, and the times of the drops against w."""
    return side_by_side(data, _merged_panel, _separate_panel, _times, height=0.86)


def _colour(scale: float):
    """Dark for small weights, light for large ones, the same in all panels."""
    return colormaps["viridis"](0.92 * np.clip((np.log10(scale) + 6) / 7, 0, 1))


def _power(scale: float) -> str:
    exponent = int(np.floor(np.log10(scale) + 1e-9))
    factor = scale / 10.0**exponent
    if abs(factor - 1) < 1e-6:
        return rf"$10^{{{exponent}}}$" if abs(exponent) > 1 else f"{scale:g}"
    return f"{scale:g}"


def _merged_panel(axes: Axes, data: xr.Dataset) -> None:
    time = data["merged_time"].values
    for i, scale in enumerate(data["merged_scale"].values):
        loss = data["merged_loss"].values[i]
        axes.plot(time[1:], loss[1:], color=_colour(scale), label=_power(scale))
    axes.plot(time[1:], data["lazy_loss"].values[1:], label="lazy", **THEORY)
    _frame(axes, "merged", (0.03, time[-1]), 1.7 * float(data["levels"][0]))
    axes.set_ylabel("loss")


def _separate_panel(axes: Axes, data: xr.Dataset) -> None:
    plot_levels(axes, data["levels"].values, names=False)
    for i, scale in enumerate(data["separate_scale"].values):
        time, loss = data["separate_time"].values[i], data["separate_loss"].values[i]
        has_theory = np.isclose(data["theory_scale"].values, scale).any()
        look = BENEATH if has_theory else {}
        axes.plot(time[1:], loss[1:], color=_colour(scale), label=_power(scale), **look)
    for i, scale in enumerate(data["theory_scale"].values):
        alone = not np.isclose(data["separate_scale"].values, scale).any()
        axes.plot(
            data["theory_time"].values[i], data["theory_loss"].values[i],
            label=_power(scale) if alone else None, **theory_of(_colour(scale)),
        )  # fmt: skip
    axes.plot([], [], label="predicted", **theory_of("0.3"))
    end = float(data["theory_time"].max())
    _frame(axes, "separate, rank one", (0.3, end), 1.7 * float(data["levels"][0]))


def _frame(axes: Axes, title: str, window: tuple[float, float], top: float) -> None:
    axes.set(xscale="log", xlim=window, ylim=(0, top), xlabel=TIME)
    axes.set_title(title, loc="left")
    axes.legend(
        title="$w$", ncols=2, loc="upper right", handlelength=1.2, columnspacing=0.8,
        labelspacing=0.25, borderaxespad=0.0, title_fontsize=7,
    )  # fmt: skip


def _times(axes: Axes, data: xr.Dataset) -> None:
    """Medians over seeds; merged with its two formulas, separate with the staircase."""
    scales = data["merged_scale"].values
    dots = {"linestyle": "", "markersize": 3.5, "marker": "o"}
    axes.plot(scales, data["merged_half_time"].median("seed"), color=COLOURS[1], **dots)
    axes.plot(scales, data["merged_half_theory"], **theory_of(COLOURS[1]))
    small = scales <= 0.1
    axes.plot(
        scales[small], data["merged_half_paper"].values[small], color=COLOURS[1], linewidth=0.8,
        linestyle=":",
    )  # fmt: skip
    height = 0.0
    drops, theory = data["separate_drops"].median("seed"), data["theory_drops"].median("seed")
    for d, colour in enumerate((COLOURS[0], COLOURS[5], COLOURS[2], COLOURS[3])):
        axes.plot(data["separate_scale"], drops.values[:, d], color=colour, **dots)
        axes.plot(data["theory_scale"], theory.values[:, d], **theory_of(colour))
        height = max(NAME_APART * height, float(theory[0, d]))  # drops may come close together
        axes.annotate(
            f"$t_{d + 1}$", (float(data["theory_scale"][0]), height), xytext=(-3, 0),
            textcoords="offset points", fontsize=6.5, color=colour, ha="right", va="center",
        )  # fmt: skip
    axes.plot([], [], color="0.4", label="simulated", **dots)
    axes.plot([], [], label="predicted", **theory_of("0.4"))
    axes.plot([], [], color="0.4", linewidth=0.8, linestyle=":", label="(51)")
    axes.annotate(
        "merged", (3e-6, float(data["merged_half_time"][0].median())), xytext=(0, 5),
        textcoords="offset points", fontsize=7, color=COLOURS[1],
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(1.5e-7, 2 * scales[-1])
    axes.set_xlabel("initial scale $w$")
    axes.set_ylabel(r"time of the drops $t/\tau$")
    axes.set_title("all seeds, medians", loc="left")
    axes.legend(loc="upper right", handlelength=1.4, borderaxespad=0.0)
