"""Fig. 1: merged key and query is a two-layer linear network; its loss drops once, abruptly.

The run of the figure: eight heads, all blocks trained, on P = 80,000 sequences, and the MLP on
cubic features from the same weights. Beside it what the claims need: the same two models through
independent code on few sequences, white inputs against the closed form, the two regressions.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array
from scipy.integrate import solve_ivp

from iclflow.dynamics import Descent
from iclflow.experiments.four_inputs import (
    CONTEXT,
    QUICK_SEQUENCES,
    SEQUENCES,
    correlations,
    four_input_moments,
    four_input_population,
    four_input_task,
    seed_count,
)
from iclflow.experiments.runs import (
    Variable,
    called,
    drop_counts,
    finished,
    largest_blocks,
    named,
    spread,
    train,
)
from iclflow.losses import Moments, Population, Sequences
from iclflow.measures import first_crossing
from iclflow.models import (
    MLP,
    AbstractInitialiser,
    Merged,
    NetworkInitialiser,
    Separate,
    draw_model,
)
from iclflow.published import Options, PublishedInitialiser
from iclflow.results.messages import Progress
from iclflow.runs.simulate import simulate
from iclflow.tasks.task import Task
from iclflow.theory.drops.one_drop import (
    WhiteCourse,
    logistic_strength,
    merged_course,
    merged_half_time,
    paper_merged_duration,
)
from iclflow.theory.fixed_points.modes import visited_levels
from iclflow.theory.fixed_points.stationarity import conservation_drift, conserved_quantities

HEADS = 8
PUBLISHED_INIT, PUBLISHED_RATE = 1e-6, 0.001  # per entry, attention not divided by N
# E8, two weights in a term of the prediction: weights times √N, rate times N.
ENTRY = PUBLISHED_INIT * CONTEXT**0.5
RATE = PUBLISHED_RATE * CONTEXT
WINDOW = 4_001  # steps of the published run
STEPS = 20_000  # t/τ = 1240: the slowest mode has relaxed by e^-14
SCALE_VALUES = ENTRY * HEADS**0.5  # w of (34) from the value weights ...
SCALE_MERGED = SCALE_VALUES * 4  # ... and from the D² entries of each U: published init is neither

CHECK_SEQUENCES, CHECK_SCALE, CHECK_RATE, CHECK_STEPS = 96, 0.01, 0.05, 600
WHITE_SCALE, WHITE_TIME = 1e-3, 120.0
SEPARATE_SCALE = 0.1  # of separate key and query, for a control: several drops in as many steps
SOLVER = 1e-8  # relative tolerance of the reduced flow

CONVERSION = (
    f"published init {PUBLISHED_INIT:g} per entry, attention not divided by N; divided by N = "
    f"{CONTEXT} it is {ENTRY:.3g} per entry, i.e. w = {SCALE_VALUES:.3g} of (34) for the values "
    f"and {SCALE_MERGED:.3g} for the merged weights; rate {PUBLISHED_RATE:g} becomes {RATE:g}"
)


@functools.cache
def runs_of(quick: bool) -> dict[str, xr.Dataset]:
    """The figure's runs, attention and MLP, from the same weights on the same data."""
    loss = four_input_moments(quick)
    return {name: _train(loss, init, quick) for name, init in _starts().items()}


def _starts() -> dict[str, AbstractInitialiser]:
    attention = PublishedInitialiser(Options(model="attnM", head_num=HEADS, init=ENTRY))
    return {"attention": attention, "mlp": NetworkInitialiser(attention, MLP)}


def _train(loss: Moments, init: AbstractInitialiser, quick: bool) -> xr.Dataset:
    how: dict[str, Any] = {"saveat": spread(STEPS), "record": ["loss", "weights"]}
    return train(loss, init, Descent(RATE), seeds=seed_count(quick), **how)


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Loss of ATTN_M and MLP over training, six seeds, with the theory; see the claims."""
    report = progress or (lambda done, total: None)
    task, population = four_input_task(), Population(four_input_task())
    report(0, 5)
    loss = four_input_moments(quick)
    report(1, 5)
    runs = runs_of(quick)
    attention = runs["attention"]
    population_run = _train(four_input_population(), _starts()["attention"], quick)
    time, losses = attention["time"].values, attention["loss"].values
    report(2, 5)

    values, merged = (attention[name].values for name in ("values", "merged"))
    starts = [
        Merged(values=jnp.asarray(v[0, :, None, None]), merged=jnp.asarray(u[0]))
        for v, u in zip(values, merged, strict=True)
    ]
    levels = visited_levels(task, starts[0])
    middle = visited_levels(loss, starts[0]).mean()  # of the sequences that are trained on
    courses = [merged_course(loss, start, time, tolerance=SOLVER) for start in starts]
    norms = [float(np.linalg.norm(start.values)) for start in starts]
    final = np.einsum("sh,shdc->sdc", values[:, -1], merged[:, -1])
    report(3, 5)

    own = {
        "loss": called(attention["loss"], "loss of linear attention, merged"),
        "loss_mlp": called(runs["mlp"]["loss"], "loss of the MLP on cubic features"),
        "attention_blocks": called(largest_blocks(attention), "largest extra entry"),
        "population_blocks": called(largest_blocks(population_run), "the same at P → ∞"),
    }
    each = ("seed",)
    variables: dict[str, Variable] = {
        "loss_theory": (("seed", "time"), [c.loss for c in courses], "reduced flow of the sample"),
        "levels": (("level",), levels, "loss at the two fixed points (14)"),
        "drop_count": (each, drop_counts(time, losses), "drops detected"),
        "half_time": (
            each,
            [first_crossing(time, row, middle) for row in losses],
            "t/τ at which the loss is halfway down",
        ),
        "half_time_theory": (
            each,
            [merged_half_time(loss, start, tolerance=SOLVER) for start in starts],
            "the same from the reduced flow of the sample (Q6)",
        ),
        "half_time_population": (
            each,
            [merged_half_time(population, start, tolerance=SOLVER) for start in starts],
            "the same from the reduced flow of the population, E2",
        ),
        "half_time_paper": (
            each,
            paper_merged_duration(population, np.asarray(norms)),
            "the paper's estimate (51), w = |w₂(0)|",
        ),
        **_parallel(runs),
        **_solutions(loss, population, final),
        **_equivalence(task),
        **_separate(task, time, quick),
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
        "white_scale": WHITE_SCALE,
        "conversion": CONVERSION,
    }
    return finished(xr.Dataset(own).assign(named(variables)), settings)


def _parallel(runs: dict[str, xr.Dataset]) -> dict[str, Variable]:
    """Smallest |cos| between two heads at the end of the paper's window, and what (17) allows."""
    window = int(np.searchsorted(runs["mlp"]["step"].values, WINDOW))

    def smallest(heads: np.ndarray) -> np.ndarray:
        flat = heads.reshape(*heads.shape[:2], -1)
        unit = flat / np.linalg.norm(flat, axis=-1, keepdims=True)
        return np.abs(np.einsum("shf,sgf->shg", unit, unit)).min(axis=(1, 2))

    first, second = (runs["mlp"][name].values for name in ("first", "second"))
    start = np.einsum("sh,sg->shg", second[:, 0], second[:, 0])
    start -= np.einsum("shf,sgf->shg", first[:, 0], first[:, 0])
    weakest = (second[:, window] ** 2).min(axis=1)
    merged = runs["attention"]["merged"].values
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


def _solutions(loss: Moments, population: Population, final: np.ndarray) -> dict[str, Variable]:
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


def _equivalence(task: Task) -> dict[str, Variable]:
    """ATTN_M and MLP trained through independent code, on prompts: no shared features.

    The third curve is for the control. It is that of the MLP from weights with the same function
    and the same loss, which are shared out between the layers in another way.
    """
    loss = Sequences.sample(task, CHECK_SEQUENCES, jax.random.key(5))
    model = draw_model(Merged.initialiser(task, heads=HEADS, scale=CHECK_SCALE), jax.random.key(0))
    assert isinstance(model, Merged)
    network = MLP.from_attention(model)
    three = (model, network, MLP(first=2 * network.first, second=network.second / 2))
    curves = [simulate(loss, m, Descent(CHECK_RATE), until=CHECK_STEPS).loss for m in three]
    return {
        "check_attention": (("check",), curves[0], "ATTN_M on prompts, frozen blocks"),
        "check_mlp": (("check",), curves[1], "MLP on the cubic features of the same prompts"),
        "check_unbalanced": (("check",), curves[2], "MLP from twice W₁(0) and half of w₂(0)"),
    }


def _separate(task: Task, time: np.ndarray, quick: bool) -> dict[str, Variable]:
    """Separate key and query of rank one, trained as long in the population: for a control."""
    init = Separate.initialiser(task, heads=HEADS, scale=SEPARATE_SCALE)
    how: dict[str, Any] = {"saveat": spread(STEPS), "seeds": seed_count(quick)}
    loss = train(Population(task), init, Descent(RATE), **how)["loss"].values
    return {
        "separate_loss": (("seed", "time"), loss, "loss of separate key and query, rank one"),
        "separate_drop_count": (("seed",), drop_counts(time, loss), "its drops"),
    }


def _white() -> dict[str, Variable]:
    """White inputs, Λ = I/D: gradient flow against the closed form (15); conservation (17)."""
    task = Task(np.full(4, 0.25), CONTEXT)
    population = Population(task)
    model = draw_model(Merged.initialiser(task, heads=HEADS, scale=WHITE_SCALE), jax.random.key(0))
    assert isinstance(model, Merged)
    time = np.linspace(0, WHITE_TIME, 241)
    loss, weights = _integrated(population, model, time)
    course = WhiteCourse(population, model)
    power, rate, saturation = (float(a) for a in (course.power, course.rate, course.saturation))
    small = np.sum(np.asarray(model.values) ** 2)
    strength = np.asarray(logistic_strength(time, small, rate, saturation))
    paper = power - 2 * rate * strength + saturation * strength**2
    rows = np.asarray(weights["merged"]).reshape(len(time), HEADS, -1)
    products = np.einsum("thf,tgf->thg", rows, rows)
    return {
        "white_time": (("white",), time, "t/τ, white inputs"),
        "white_loss": (("white",), loss, "gradient flow, white inputs, w = 1e-3"),
        "white_theory": (("white",), course.loss(time), "closed form (15), s(0) of E2"),
        "white_paper": (("white",), paper, "closed form (15), s(0) = |w₂(0)|²"),
        "conserved_drift": (
            ("white",),
            _drift(weights),
            "largest change of w₂w₂ᵀ - W₁W₁ᵀ (17)",
        ),
        "merged_drift": (
            ("white",),
            np.abs(products - products[0]).max(axis=(1, 2)),
            "largest change of W₁W₁ᵀ alone",
        ),
    }


def _integrated(
    population: Population, model: Merged, time: np.ndarray
) -> tuple[np.ndarray, dict[str, Array]]:
    """The gradient flow by SciPy: another solver than `Flow`, and little to compile."""
    start, build = ravel_pytree(model)
    whole = jax.jit(jax.value_and_grad(lambda flat: population(build(flat))))

    def slope(t: float, flat: np.ndarray) -> np.ndarray:
        return -np.asarray(whole(flat)[1]) / 2  # τ dW/dt = -½ ∂L/∂W (10)

    span, small = (time[0], time[-1]), 1e-2 * SOLVER * WHITE_SCALE
    found = solve_ivp(slope, span, np.asarray(start), "DOP853", time, rtol=SOLVER, atol=small)
    states = jnp.asarray(found.y.T)
    models = jax.jit(jax.vmap(build))(states)
    loss = np.array([whole(flat)[0] for flat in found.y.T])
    return loss, {"values": models.values, "merged": models.merged}


@eqx.filter_jit
def _drift(weights: dict[str, Array]) -> Array:
    series = jax.vmap(lambda v, u: conserved_quantities(Merged(values=v, merged=u)))(
        weights["values"], weights["merged"]
    )
    return conservation_drift(series)["value_merged"]
