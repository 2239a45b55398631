"""In-weight and in-context learning when a portion of the task vectors is fixed (Figs 5, 10).

Merged key and query, D = 4, Λ = I/D, eight heads. With a fixed task the zero blocks do not stay
zero (87), so all blocks are trained. Training and test losses are exact: the moments of all
features in the population, so that a test loss carries no sampling error.
"""

import functools
import itertools
from typing import Any

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import Float, PRNGKeyArray
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from iclflow.dynamics import Descent
from iclflow.experiments.base import Claim, below, less, near
from iclflow.experiments.four_inputs import CONTEXT, QUICK_SEQUENCES, SEQUENCES, label_deviation
from iclflow.experiments.runs import MARKS, called, finished, named, train
from iclflow.losses import Moments, population_moments
from iclflow.measures import first_crossing
from iclflow.models import AbstractInitialiser, Blocks, Merged, MergedInitialiser, draw_model
from iclflow.plots.losses import LEVEL
from iclflow.plots.style import BENEATH, COLOURS, COLUMN, LOSS, TIME, Picture, style, theory_of
from iclflow.results.messages import Progress
from iclflow.tasks.laws import Mixture
from iclflow.tasks.task import ContextLabels, Task
from iclflow.theory.drops.one_drop import first_drop, least_loss
from iclflow.theory.fixed_points.modes import plateau_losses

SIZE, HEADS = 4, 8
PORTIONS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SHOWN = 0.6  # Fig. 5 (left)
SEED, DATA_KEY = 0, 1

# Two weights in a term: published weights times N^(1/2), its rate times N. Its init is the
# standard deviation of every entry, of v and of U, which is not (34): U is D times larger.
PUBLISHED_INIT, PUBLISHED_RATE, PUBLISHED_STEPS = 1e-6, 5e-4, 4_000
RATE = PUBLISHED_RATE * CONTEXT
SCALE = PUBLISHED_INIT * CONTEXT**0.5 * HEADS**0.5  # w of (34), from the value weights
STEPS = 8_000  # twice the paper's window, for the slow part after the drops
CONVERSION = (
    f"published init {PUBLISHED_INIT:g} per entry, attention not divided by N = {CONTEXT}: "
    f"{PUBLISHED_INIT * CONTEXT**0.5:.3g} per entry here, w = {SCALE:.3g} of (34) for the values; "
    f"rate {PUBLISHED_RATE:g} is {RATE:.4g}, so t/τ = {2 * RATE:.3g} per step"
)
TESTS = {
    "in_context": "in-context test loss: every task vector random",
    "in_weight": "in-weight test loss: every task vector the fixed one (the paper)",
    "in_weight_noise": (
        "in-weight test loss, context labels pure noise (the published code's test set)"
    ),
}


def compute_fig5(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Training and test losses at all portions of fixed task vectors (Fig. 5)."""
    data = _compute(quick)
    if progress is not None:
        progress(1, 1)
    return data


def compute_fig10(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """The same runs, of which Fig. 10 shows all losses."""
    return compute_fig5(quick=quick, progress=progress)


def portion_task(portion: float, context_labels: ContextLabels = ContextLabels.TASK) -> Task:
    """The training task; the fixed task vector has |w*|² = D."""
    return Task(
        np.full(SIZE, 1 / SIZE),
        CONTEXT,
        tasks=Mixture(fraction=portion),
        context_labels=context_labels,
    )


@functools.cache
def _compute(quick: bool) -> xr.Dataset:
    sequences = QUICK_SEQUENCES if quick else SEQUENCES
    tasks = [portion_task(portion) for portion in PORTIONS]
    populations = [population_moments(task) for task in tasks]
    # Beside them: "all fixed" as the published code trains it, and one portion on sequences.
    noisy = population_moments(portion_task(1.0, ContextLabels.NOISE))
    sampled = Moments.sample(portion_task(SHOWN), sequences, jax.random.key(DATA_KEY), matched=True)
    tests = {
        "in_context": population_moments(tasks[0].in_context()),
        "in_weight": population_moments(tasks[0].in_weight()),
        "in_weight_noise": population_moments(tasks[0].in_weight(ContextLabels.NOISE)),
    }
    init = PublishedStart(
        Merged.initialiser(tasks[0], heads=HEADS, scale=SCALE, blocks=Blocks.FULL)
    )
    model = draw_model(init, jax.random.key(SEED))
    assert isinstance(model, Merged)
    marks = np.round(np.linspace(0, STEPS, MARKS)).astype(int)
    losses = dict(zip(PORTIONS, populations, strict=True))
    losses |= {"published": noisy, "sampled": sampled}
    what = {"loss": "loss", **tests}
    runs = train(losses, init, Descent(RATE), saveat=marks, seeds=[SEED], record=what)
    runs = runs[list(what)].isel(seed=0, drop=True)
    portions = runs.isel(source=slice(len(PORTIONS)))
    portions = portions.rename(source="portion").assign_coords(portion=list(PORTIONS))
    times = runs["time"].values
    theory = [first_drop(loss, model) for loss in populations]
    growth, level = (np.asarray([getattr(t, n) for t in theory]) for n in ("growth", "level"))
    least = [least_loss(loss) for loss in populations]
    levels = np.stack([[t.power for t in theory], level, least], axis=1)
    of_portion = ("portion",)
    data = portions.drop_vars("loss").assign(
        training=called(portions["loss"], "training loss"),
        published_training=called(
            runs["loss"].sel(source="published", drop=True), "all fixed, context labels noise"
        ),
        sampled_training=called(
            runs["loss"].sel(source="sampled", drop=True), f"P = {sequences}, 60% fixed"
        ),
    )
    data = data.assign({name: called(data[name], about) for name, about in TESTS.items()})
    data = data.assign(
        named({
            "predicted": (
                ("portion", "time"), [t.loss(times) for t in theory], "first drop, predicted",
            ),
            "predicted_end": (of_portion, [t.time(0.9) for t in theory], "its end: 90% of the way"),
            "growth": (of_portion, growth, r"growth rate on the first plateau, $\sigma_1$"),
            "first_level": (of_portion, level, "predicted loss after the first drop"),
            "drop_time": (of_portion, [t.time() for t in theory], "its middle, t/τ"),
            "levels": (
                ("portion", "level"), levels, "start, end of the first drop, least loss (87)",
            ),
        })
    )  # fmt: skip
    settings = {
        "inputs": SIZE, "context": CONTEXT, "heads": HEADS, "rate": RATE, "scale": SCALE,
        "paper_window": 2 * RATE * PUBLISHED_STEPS, "shown": SHOWN,
        "sampled_check_sequences": sequences,
        "final_in_context": float(plateau_losses(tasks[0])[-1]), "conversion": CONVERSION,
        "training": "gradient descent on population moments of all features, all blocks trained",
        "in_weight": "drawn: context labels of the fixed task, as the paper's appendix says; "
        "in_weight_noise has the published code's noise labels",
    }  # fmt: skip
    return finished(data, settings)


class PublishedStart(AbstractInitialiser):
    """key -> entries of v and U with one standard deviation, as published."""

    inner: MergedInitialiser

    def __call__(self, key: PRNGKeyArray) -> Merged:
        model = self.inner(key)
        return eqx.tree_at(lambda m: m.merged, model, model.merged * SIZE)


def claims_fig5(data: xr.Dataset) -> list[Claim]:
    """In-weight first, then in-context; the larger the portion, the lower the first stop."""
    mixed = [p for p in data["portion"].values.tolist() if 0 < p < 1]
    order = {p: _half_time(data, "in_weight", p) / _half_time(data, "in_context", p) for p in mixed}
    worst = max(order.values())
    fixed = [p for p in data["portion"].values.tolist() if p > 0]
    after = _after_first_drop(data, fixed, 0.9)
    rise = max(float(np.max(np.diff(values))) for values in after.values())
    later = [
        share
        for share in (0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
        if all(np.all(np.diff(v) < 0) for v in _after_first_drop(data, fixed, share).values())
    ]
    shift = _drop_errors(data)
    gap = float(
        np.max(np.abs(data["sampled_training"] - data["training"].sel(portion=data.attrs["shown"])))
    )
    white = np.full(data.attrs["inputs"], 1 / data.attrs["inputs"])
    deviation = label_deviation(int(data.attrs["sampled_check_sequences"]), white)
    return [
        less(
            "fig5-order", "the model first learns in weight, then in context", "Section 7.1",
            worst, 1.0, "first means earlier",
            "time at which the in-weight test loss is halfway down over that of the in-context "
            "one, largest over portions; " + _listed(order), population=True,
        ),
        less(
            "fig5-portion", "right after the first drop training and in-weight test loss are "
            "lower for larger portions", "Section 7.1", rise, 0.0, "lower means lower",
            "largest change from one portion to the next, 0.2 to 1, where the first drop should be "
            "90% done; training " + ", ".join(f"{v:.2f}" for v in after["training"])
            + "; in weight " + ", ".join(f"{v:.2f}" for v in after["in_weight"])
            + f"; holds when read at {', '.join(f'{share:.0%}' for share in later)} of the drop, "
            "out of 50, 80, 90, 95, 98, 99%", population=True,
        ),
        below(
            "fig5-first-drop", "the first drop follows the leading direction of E[y S x_q]",
            "(15) with all blocks of (87)", max(shift.values()), 0.1,
            "the other directions are left out: an estimate to leading order",
            "relative error of the time at which the training loss is halfway down to the "
            "predicted level; " + _listed(shift), population=True, beyond=True,
        ),
        below(
            "fig5-sampled", "training on P sequences follows the population", "(87)", gap,
            3 * deviation, "three standard errors of the mean of P squared labels",
            f"largest difference of the two training losses, 60% fixed, P = "
            f"{data.attrs['sampled_check_sequences']}",
        ),
    ]  # fmt: skip


def claims_fig10(data: xr.Dataset) -> list[Claim]:
    """With no fixed task the model learns in context only, and least squares."""
    pure = data.sel(portion=0.0)
    learned = float(1 - pure["in_weight_noise"].min() / pure["in_weight_noise"][0])
    level = float(data.attrs["final_in_context"])
    memory = data["in_weight_noise"].min("time")
    lowest = {p: float(memory.sel(portion=p)) for p in memory["portion"].values.tolist()}
    rise = max(b - a for a, b in itertools.pairwise(lowest.values()))
    return [
        below(
            "fig10-in-context-only", "with random tasks alone nothing is learned in weight",
            "App. F, Fig. 10a", learned, 1e-6,
            "the initial weights are 1e-5: what they remember is of their size squared",
            "largest relative fall of the in-weight test loss without information in context",
            population=True,
        ),
        near(
            "fig10-final", "with random tasks alone the end is least squares in context", "(16)",
            level, float(pure["in_context"][-1]), 1e-6, "converged: the drop is exponential",
            population=True,
        ),
        less(
            "fig10-memory", "the larger the portion, the better the fixed task is memorised",
            "Section 7.1, App. F", rise, 0.0, "better means lower",
            "largest change from one portion to the next of the lowest in-weight test loss with "
            "noise for context labels; " + _listed(lowest), population=True,
        ),
    ]  # fmt: skip


def controls_fig5(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim of Fig. 5 other data or another theory that turns its verdict round.

    - `fig5-order`: the two test losses exchanged.
    - `fig5-portion`: the training losses of the portions in reverse.
    - `fig5-first-drop`: the predicted drop of random tasks alone, for every portion.
    - `fig5-sampled`: the training loss of another portion.
    """
    context = _portions(data["predicted"], [0] * data.sizes["portion"])
    return {
        "fig5-order": data.rename(in_weight="in_context", in_context="in_weight"),
        "fig5-portion": data.assign(training=_portions(data["training"], slice(None, None, -1))),
        "fig5-first-drop": data.assign(predicted=context),
        "fig5-sampled": data.assign(sampled_training=data["training"].sel(portion=1.0)),
    }


def controls_fig10(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim of Fig. 10 other data that turn its verdict round.

    - `fig10-in-context-only` and `fig10-final`: the run with a fifth of fixed tasks in place of the
      run with none.
    - `fig10-memory`: the losses of the portions in reverse.
    """
    noise, context = data["in_weight_noise"], data["in_context"]
    return {
        "fig10-in-context-only": data.assign(in_weight_noise=_portions(noise, [1, *range(1, 6)])),
        "fig10-final": data.assign(in_context=_portions(context, [1, *range(1, 6)])),
        "fig10-memory": data.assign(in_weight_noise=_portions(noise, slice(None, None, -1))),
    }


def _portions(runs: xr.DataArray, which: Any) -> xr.DataArray:
    """The runs of other portions under the names of these."""
    return runs.copy(data=runs.values[which])


def _half_time(data: xr.Dataset, name: str, portion: float) -> float:
    """When a test loss first is halfway from its start to its end."""
    curve = data[name].sel(portion=portion).values
    return first_crossing(data["time"].values, curve, (curve[0] + curve[-1]) / 2)


def _after_first_drop(
    data: xr.Dataset, portions: list[float], share: float
) -> dict[str, Float[np.ndarray, " p"]]:
    """Training and in-weight loss where the predicted first drop has come a share of its way.

    A logistic course at rate 2σ₁ goes from 90% to a share x in ln(x/(1-x)/9)/(2σ₁).
    """
    found: dict[str, list[float]] = {"training": [], "in_weight": []}
    for portion in portions:
        run = data.sel(portion=portion)
        delay = np.log(share / (1 - share) / 9) / (2 * float(run["growth"]))
        for name, values in found.items():
            values.append(_at(data, name, portion, float(run["predicted_end"]) + delay))
    return {name: np.asarray(values) for name, values in found.items()}


def _at(data: xr.Dataset, name: str, portion: float, time: float) -> float:
    return float(np.interp(time, data["time"].values, data[name].sel(portion=portion).values))


def _drop_errors(data: xr.Dataset) -> dict[float, float]:
    """Relative error of the predicted time of the first drop, each portion."""
    clock, errors = data["time"].values, {}
    for portion in data["portion"].values.tolist():
        run = data.sel(portion=portion)
        middle = (float(run["training"][0]) + float(run["first_level"])) / 2
        measured = first_crossing(clock, run["training"].values, middle)
        errors[portion] = abs(first_crossing(clock, run["predicted"].values, middle) / measured - 1)
    return errors


def _listed(values: dict[float, float]) -> str:
    return ", ".join(f"{p:.0%}: {value:.3f}" for p, value in values.items())


# Name and look: where curves coincide the wider ones show beside the narrower.
_BENEATH = {**BENEATH, "alpha": 0.55}  # parts of these curves have no theory on top
_TRAINING = COLOURS[2]
_CURVES: dict[str, tuple[str, dict[str, Any]]] = {
    "training": ("training loss", {**_BENEATH, "color": _TRAINING}),
    "in_weight": ("in-weight test loss", {"color": COLOURS[1], "linewidth": 1.4}),
    "in_context": ("in-context test loss", {"color": COLOURS[0], "linewidth": 0.9}),
}


def _predicted(colour: Any) -> dict[str, Any]:
    return {**theory_of(colour), "zorder": 5}


def draw_fig5(data: xr.Dataset) -> Picture:
    """Left: three losses at one portion. Right: the training loss at every portion."""
    with style():
        figure = Picture(figsize=(2 * COLUMN, 0.85 * COLUMN))
        left, right = figure.subplots(1, 2)
        shown = float(data.attrs["shown"])
        _losses(left, data.sel(portion=shown), float(data.attrs["final_in_context"]))
        left.set_title(f"{shown:.0%} of task vectors fixed")
        left.set_ylabel(LOSS)
        left.legend(handles=_handles(), loc="upper right")
        # Past the dark end of a map that reads in grey; its yellow end is too pale for lines.
        shades = colormaps["viridis"](np.linspace(0.0, 0.85, data.sizes["portion"]))
        for colour, portion in zip(shades, data["portion"].values, strict=True):
            run = data.sel(portion=portion)
            right.plot(
                run["time"], run["training"], color=colour, label=f"{portion:.0%}", **BENEATH
            )
            _prediction(right, run, colour)
        right.set_title("training loss, portions fixed")
        right.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), title="fixed", title_fontsize=7)
        for axes in (left, right):
            _frame(axes, data)
    return figure


def draw_fig10(data: xr.Dataset) -> Picture:
    """A panel for each portion, three losses each."""
    with style():
        figure = Picture(figsize=(2 * COLUMN, 1.25 * COLUMN))
        panels = figure.subplots(2, -(-data.sizes["portion"] // 2), sharex=True, sharey=True)
        for i, (axes, portion) in enumerate(zip(panels.flat, data["portion"].values, strict=True)):
            _losses(axes, data.sel(portion=portion), float(data.attrs["final_in_context"]))
            axes.set_title(f"({'abcdef'[i]}) {portion:.0%} fixed")
            _frame(axes, data)
            axes.set_ylim(0, 1.6)
            if i % panels.shape[1]:
                axes.set_ylabel("")
            else:
                axes.set_ylabel(LOSS)
            if i < panels.shape[1]:
                axes.set_xlabel("")
        figure.legend(handles=_handles(), loc="outside upper center", ncols=3)
    return figure


def _losses(axes: Axes, run: xr.Dataset, level: float) -> None:
    for name, (_, look) in _CURVES.items():
        axes.plot(run["time"], run[name], **look)
    _prediction(axes, run, _TRAINING)
    axes.axhline(level, **LEVEL)


def _handles() -> list[Line2D]:
    lines = [Line2D([], [], label=name, **look) for name, look in _CURVES.values()]
    lines.append(Line2D([], [], **_predicted(_TRAINING), label="first drop, predicted"))
    lines.append(Line2D([], [], **LEVEL, label="least squares in context"))
    return lines


def _prediction(axes: Axes, run: xr.Dataset, colour: Any) -> None:
    """The predicted first drop, up to a little after its end: it knows nothing of the rest."""
    until = run["time"].values <= float(run["predicted_end"]) + 15
    axes.plot(run["time"].values[until], run["predicted"].values[until], **_predicted(colour))


def _frame(axes: Axes, data: xr.Dataset) -> None:
    axes.set_xlim(0, 1.25 * float(data.attrs["paper_window"]))
    axes.set_ylim(0, None)
    axes.set_xlabel(TIME)
