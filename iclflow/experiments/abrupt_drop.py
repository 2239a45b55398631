"""Fig. 1: merged key and query is a two-layer linear network; its loss drops once, abruptly.

The run of the figure: eight heads, all blocks trained, on P = 80,000 sequences, and the MLP on
cubic features from the same weights. Beside it what the claims need: the same two models through
independent code on few sequences, white inputs against the closed form, the two regressions.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from iclflow.diagnostics import find_stages
from iclflow.dynamics import Descent, Flow
from iclflow.experiments.base import Claim, Progress, below, near
from iclflow.experiments.four_inputs import (
    CONTEXT,
    QUICK_SEQUENCES,
    SEEDS,
    SEQUENCES,
    correlations,
    four_input_moments,
    four_input_population,
    four_input_task,
    label_deviation,
    regression_deviation,
)
from iclflow.experiments.runs import (
    clock,
    draw,
    first_crossing,
    labelled,
    spread,
    train,
)
from iclflow.losses import Moments, Population, Sequences
from iclflow.models import MLP, Merged
from iclflow.published import Options, PublishedInitialiser
from iclflow.simulation import simulate
from iclflow.task import Task
from iclflow.theory.conserved import conservation_drift, conserved_quantities
from iclflow.theory.plateaus import plateau_losses
from iclflow.theory.time_course import (
    WhiteCourse,
    logistic_strength,
    merged_course,
    merged_half_time,
    paper_merged_duration,
)

HEADS = 8
PUBLISHED_INIT, PUBLISHED_RATE = 1e-6, 0.001  # per entry, attention not divided by N
# E8, two weights in a term of the prediction: weights times √N, rate times N.
ENTRY = PUBLISHED_INIT * CONTEXT**0.5
RATE = PUBLISHED_RATE * CONTEXT
WINDOW = 4_001  # steps of the published run
STEPS = 20_000  # t/τ = 1240: the slowest mode has relaxed by e^-14
SCALE_VALUES = ENTRY * HEADS**0.5  # w of (34) from the value weights ...
SCALE_MERGED = SCALE_VALUES * 4  # ... and from the D² entries of each U: published init is neither

CHECK_SEQUENCES, CHECK_SCALE, CHECK_RATE, CHECK_STEPS = 256, 0.01, 0.05, 600
WHITE_SCALE, WHITE_TIME = 1e-3, 120.0
SOLVER = 1e-8  # relative tolerance of the reduced flow

CONVERSION = (
    f"published init {PUBLISHED_INIT:g} per entry, attention not divided by N; divided by N = "
    f"{CONTEXT} it is {ENTRY:.3g} per entry, i.e. w = {SCALE_VALUES:.3g} of (34) for the values "
    f"and {SCALE_MERGED:.3g} for the merged weights; rate {PUBLISHED_RATE:g} becomes {RATE:g}"
)


@functools.cache
def trained(quick: bool) -> dict[str, dict[str, np.ndarray]]:
    """The figure's runs, attention and MLP, from the same weights on the same data."""
    loss = four_input_moments(quick)
    options = Options(model="attnM", head_num=HEADS, init=ENTRY)
    attention = draw(PublishedInitialiser(options), range(SEEDS))
    assert isinstance(attention, Merged)
    marks = spread(STEPS)
    return {
        "attention": train(loss, attention, RATE, marks),
        "mlp": train(loss, eqx.filter_vmap(MLP.from_attention)(attention), RATE, marks),
    }


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Loss of ATTN_M and MLP over training, six seeds, with the theory; see the claims."""
    report = progress or (lambda done, total: None)
    task, population = four_input_task(), Population(four_input_task())
    report(0, 5)
    loss = four_input_moments(quick)
    report(1, 5)
    runs, marks = trained(quick), spread(STEPS)
    attention = runs["attention"]
    coordinates = clock(marks, RATE)
    time = coordinates["time"][1]
    report(2, 5)

    levels = np.asarray(plateau_losses(task))[[0, -1]]
    middle = levels.mean()
    starts = [
        Merged(jnp.asarray(attention["values"][s, 0]), jnp.asarray(attention["merged"][s, 0]))
        for s in range(SEEDS)
    ]
    courses = [merged_course(population, start, time, tolerance=SOLVER) for start in starts]
    norms = [float(np.linalg.norm(start.values)) for start in starts]
    stages = [find_stages(time, row, resamples=0) for row in attention["loss"]]
    final = np.einsum(
        "sh,shdc->sdc", attention["values"][:, -1, :, 0, 0], attention["merged"][:, -1]
    )
    report(3, 5)

    variables = {
        "loss": (("seed", "time"), attention["loss"], "loss of linear attention, merged"),
        "loss_mlp": (("seed", "time"), runs["mlp"]["loss"], "loss of the MLP on cubic features"),
        "loss_theory": (("seed", "time"), [c.loss for c in courses], "reduced flow, E2"),
        "levels": (("level",), levels, "loss at the two fixed points (14)"),
        "drop_count": (("seed",), [len(s.drops) for s in stages], "drops found by the detector"),
        "half_time": (
            ("seed",),
            [first_crossing(time, row, middle) for row in attention["loss"]],
            "t/τ at which the loss is halfway down",
        ),
        "half_time_theory": (
            ("seed",),
            [merged_half_time(population, start, tolerance=SOLVER) for start in starts],
            "the same from the reduced flow, E2",
        ),
        "half_time_paper": (
            ("seed",),
            np.asarray(paper_merged_duration(population, np.asarray(norms))),
            "the paper's estimate (51), w = |w₂(0)|",
        ),
        **_parallel(runs, marks),
        **_solutions(loss, population, final),
        **_equivalence(task),
    }
    report(4, 5)
    variables |= _white()
    report(5, 5)
    settings = {
        "figure": "Fig. 1 (right)",
        "sequences": QUICK_SEQUENCES if quick else SEQUENCES,
        "quick": quick,
        "heads": HEADS,
        "rate": RATE,
        "steps": STEPS,
        "window": WINDOW,
        "scale": SCALE_VALUES,
        "conversion": CONVERSION,
    }
    coordinates["seed"] = np.arange(SEEDS)
    return labelled(variables, coordinates, settings)


def _parallel(runs: dict[str, dict[str, np.ndarray]], marks: np.ndarray) -> dict:
    """Smallest |cos| between two heads at the end of the paper's window, and what (17) allows."""
    window = int(np.searchsorted(marks, WINDOW))

    def smallest(heads: np.ndarray) -> np.ndarray:
        flat = heads.reshape(*heads.shape[:2], -1)
        unit = flat / np.linalg.norm(flat, axis=-1, keepdims=True)
        return np.abs(np.einsum("shf,sgf->shg", unit, unit)).min(axis=(1, 2))

    first, second = runs["mlp"]["first"], runs["mlp"]["second"][..., 0, 0]
    start = np.einsum("sh,sg->shg", second[:, 0], second[:, 0])
    start -= np.einsum("shf,sgf->shg", first[:, 0], first[:, 0])
    weakest = (second[:, window] ** 2).min(axis=1)
    merged = runs["attention"]["merged"]
    about = "smallest |cos| between two heads"
    return {
        "head_cosine": (("seed",), smallest(first[:, window]), f"{about}, MLP"),
        "head_cosine_attention": (("seed",), smallest(merged[:, window]), f"{about}, all blocks"),
        "head_cosine_late": (("seed",), smallest(merged[:, -1]), f"{about}, all blocks, last step"),
        "head_cosine_bound": (
            ("seed",),
            2 * np.abs(start).max(axis=(1, 2)) / weakest,
            "1 - |cos| that the conserved w₂w₂ᵀ - W₁W₁ᵀ allows the weakest head",
        ),
    }


def _solutions(loss: Moments, population: Population, final: np.ndarray) -> dict:
    """The solution (16) by formula, by regression on z, and as the training's end."""
    size = final.shape[-1]
    covariance = np.asarray(population.covariance)
    identity = np.eye(size)
    formula = np.linalg.inv(covariance + (covariance + np.trace(covariance) * identity) / CONTEXT)

    def regress(moments: Moments) -> np.ndarray:
        cross, second = correlations(moments)
        return np.linalg.solve(second, cross).reshape(size, size)

    return {
        "formula": (("row", "column"), formula, "(Λ + (Λ + tr(Λ) I)/N)⁻¹ (16)"),
        "regression_population": (
            ("row", "column"),
            regress(four_input_population()),
            "regression of y on z, population",
        ),
        "regression_sample": (("row", "column"), regress(loss), "regression of y on z, sample"),
        "trained": (("seed", "row", "column"), final, "Σ vᵢ Uᵢ at the end of training"),
        "second": (("row", "column"), np.asarray(population.second), "B = E[ββᵀ]"),
        "covariance": (("row", "column"), covariance, "Λ"),
    }


def _equivalence(task: Task) -> dict:
    """ATTN_M and MLP trained through independent code, on prompts: no shared features."""
    loss = Sequences.sample(task, CHECK_SEQUENCES, jax.random.key(5))
    model = Merged.initialiser(task, heads=HEADS, scale=CHECK_SCALE)(jax.random.key(0))
    descent = Descent(CHECK_RATE, CHECK_STEPS)
    curves = [simulate(loss, m, descent).loss for m in (model, MLP.from_attention(model))]
    return {
        "check_attention": (("check",), curves[0], "ATTN_M on prompts, frozen blocks"),
        "check_mlp": (("check",), curves[1], "MLP on the cubic features of the same prompts"),
    }


def _white() -> dict:
    """White inputs, Λ = I/D: gradient flow against the closed form (15); conservation (17)."""
    task = Task(np.full(4, 0.25), CONTEXT)
    population = Population(task)
    model = Merged.initialiser(task, heads=HEADS, scale=WHITE_SCALE)(jax.random.key(0))
    time = np.linspace(0, WHITE_TIME, 241)
    run = simulate(population, model, Flow(WHITE_TIME), saveat=time, record=["loss", "weights"])
    course = WhiteCourse(population, model)
    strength = logistic_strength(time, jnp.sum(model.values**2), course.rate, course.saturation)
    paper = course.power - 2 * course.rate * strength + course.saturation * strength**2
    weights = run["weights"]
    series = jax.vmap(lambda v, u: conserved_quantities(Merged(v, u)))(
        weights["values"], weights["merged"]
    )
    drift = conservation_drift(series)["value_merged"]
    return {
        "white_time": (("white",), time, "t/τ, white inputs"),
        "white_loss": (("white",), run.loss, "gradient flow, white inputs, w = 1e-3"),
        "white_theory": (("white",), course.loss(time), "closed form (15), s(0) of E2"),
        "white_paper": (("white",), paper, "closed form (15), s(0) = |w₂(0)|²"),
        "conserved_drift": (("white",), drift, "largest change of w₂w₂ᵀ - W₁W₁ᵀ (17)"),
    }


def distance(data: xr.Dataset, weights: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """|B^(1/2) (M - M') Λ^(1/2)|/|B^(1/2) M' Λ^(1/2)|: predictors compared in the population."""
    second, covariance = data["second"].values, data["covariance"].values

    def square(m: np.ndarray) -> np.ndarray:
        return np.einsum("...dc,de,...ef,fc->...", m, second, m, covariance)

    return np.sqrt(square(weights - reference) / square(reference))


def claims(data: xr.Dataset) -> list[Claim]:
    """Equivalence, one drop, its levels and time, least squares, duality, parallel heads."""
    loss, levels = data["loss"].values, data["levels"].values
    sequences = int(data.attrs["sequences"])
    formula = data["formula"].values
    explained = float(levels[0] - levels[1])
    statistical = 3 * regression_deviation(sequences, 60, float(levels[1]), explained)
    narrow = 3 * regression_deviation(sequences, 16, float(levels[1]), explained)
    half, theory = data["half_time"].values, data["half_time_theory"].values
    paper = data["half_time_paper"].values
    scale = float(data.attrs["scale"])
    ends = np.abs(loss[:, [0, -1]] - levels).max()
    gap = np.abs(loss - data["loss_mlp"].values).max() / levels[0]
    white = np.abs(data["white_loss"] - data["white_theory"]).max() / data["white_loss"][0]
    off = np.abs(data["white_loss"] - data["white_paper"]).max() / data["white_loss"][0]
    return [
        below(
            "merged-equals-mlp",
            "Merged attention and the MLP on cubic features have the same training",
            "(11)(12)",
            float(np.abs(data["check_attention"] - data["check_mlp"]).max()),
            1e-12,
            "rounding; the two are computed by different code, on prompts",
            f"{CHECK_SEQUENCES} prompts, {CHECK_STEPS} steps, zero blocks frozen",
        ),
        below(
            "merged-mlp-finite-sample",
            "Loss curves of attention (all blocks trained) and MLP match on finite data",
            "Fig. 1",
            float(gap),
            5 * sequences**-0.5,
            "the extra blocks grow as P^(-1/2) and move the drop by as much; five times that",
            f"share of L(0), P = {sequences:,}; training the extra blocks is the only difference",
        ),
        near(
            "merged-single-drop",
            "Merged attention drops once: share of seeds with one detected drop",
            "Sec. 3.3",
            1.0,
            float(np.mean(data["drop_count"].values == 1)),
            0.0,
            "a count, by the detector of stages",
        ),
        below(
            "merged-levels",
            "The plateau is at L(0) = tr Λ, the end at the loss of (16)",
            "(14)(16)",
            float(ends),
            3 * label_deviation(sequences),
            "three standard errors of a mean of P squared labels",
        ),
        below(
            "least-squares-at-convergence",
            "Training ends at in-context least squares",
            "(16)",
            float(distance(data, data["trained"].values, formula).max()),
            statistical,
            "three standard errors of a regression on the 60 features from P sequences",
            "relative distance between predictors in the population",
        ),
        below(
            "regression-duality",
            "Regression on cubic features is regression in context",
            "(16)(41)(42)",
            float(distance(data, data["regression_population"].values, formula)),
            1e-10,
            "rounding; E[zzᵀ] from Wick's theorem against the formula",
            "on the P training sequences: "
            f"{float(distance(data, data['regression_sample'].values, formula)):.2g} "
            f"(three standard errors: {narrow:.2g})",
        ),
        near(
            "heads-parallel",
            "All heads become parallel: smallest |cos| between two heads",
            "(17), Sec. 3.5",
            1.0,
            float(data["head_cosine"].min()),
            float(data["head_cosine_bound"].max()),
            "what the conserved w₂w₂ᵀ - W₁W₁ᵀ of this start allows the weakest of the heads",
            f"rows of W₁ after {WINDOW:,} steps; attention with all blocks trained on P = "
            f"{sequences:,}: {float(data['head_cosine_attention'].min()):.6f}, and after "
            f"{int(data['step'][-1]):,} steps {float(data['head_cosine_late'].min()):.4f}, as the "
            f"heads share out the extra blocks",
        ),
        below(
            "merged-conserved",
            "w₂w₂ᵀ - W₁W₁ᵀ does not change under gradient flow",
            "(17)",
            float(data["conserved_drift"].max()),
            1e-8,
            "the tolerance of the solver, 1e-9 a step",
        ),
        below(
            "white-closed-form",
            "The closed form for white inputs is the loss from small weights",
            "(15)(45)-(48)",
            float(white),
            10 * WHITE_SCALE**2,
            "the closed form is the limit w → 0 and its error of order w²; w = 1e-3",
            f"with s(0) = ¼|w₂ + W₁m̂|² (E2); with the paper's |w₂(0)|²: {float(off):.2f} of L(0)",
        ),
        below(
            "merged-duration-paper",
            "The plateau lasts ln(1/w)/‖Λ²‖",
            "(49)-(51)",
            float(np.abs(paper / half - 1).max()),
            2 / np.log(1 / scale),
            "a leading logarithm: the terms left out are 1/ln(1/w) of it, times about 1",
            f"largest relative error over the seeds; the estimate is short by "
            f"{float((1 - paper / half).mean()):.0%} on average",
        ),
        below(
            "merged-duration-reduced-flow",
            "The reduced flow from the initial weights tells the time of the drop",
            "E2 (beyond the paper)",
            float(np.abs(theory / half - 1).max()),
            float(3 * sequences**-0.5 + RATE),
            "three times P^(-1/2) for the sample, plus the rate for descent against flow",
        ),
    ]
