"""Stages in the loss of the linear transformer, and what finds them (second paper, Figs 3 and 4).

Well separated eigenvalues, s = 2, 1, ½, ¼, and N = 200: plateaus and cliffs, and the detectors of
time scales. Then N = 8, where the paper's theory fails and the exact one does not, and its error
against N. Losses have a factor ½; an epoch is ηP = 0.05 of t/τ.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from iclflow.experiments.linear_transformer_runs import (
    SCALE,
    diagonal,
    mean_training,
    products,
    stochastic,
    transformer_task,
)
from iclflow.experiments.runs import Variable, finished, named
from iclflow.measures import first_crossing
from iclflow.measures.detectors import Curvature, autocorrelation_curvature, time_curvature
from iclflow.measures.spectrum import effective_rank
from iclflow.measures.stages import Clock
from iclflow.results.messages import Progress
from iclflow.theory.linear_transformer import (
    CoupledFlow,
    DecoupledFlow,
    TransformerModes,
    optimum,
    plateau_losses,
)

SPECTRUM, CONTEXT = (2.0, 1.0, 0.5, 0.25), 200
EPOCH_RATE, EPOCHS = 0.05, 3400  # ηP; t/τ ends at 170
CLOCK = 0.001  # t/τ of a step of descent: its error must not hide what N = 200 changes
SMALL_SPECTRUM, SMALL_CONTEXT = (1.0, 0.7, 0.5, 0.35), 8
SMALL_CLOCK, SMALL_STEPS = 0.02, 6800  # t/τ ends at 136
BATCH = 128  # tasks an update at N = 8
CONTEXTS = (8, 32, 128, 512, 2048)
THIN = 10  # of the points at N = 8 one is kept
PROMINENCE = 0.02  # of the range: what counts as a peak


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Staged losses with both theories, curvatures and their peaks, errors against N.

    The quick form trains at N = 8 by descent on the population instead of SGD.
    """
    report = progress or (lambda done, total: None)
    report(0, 3)
    variables, modes = _staged()
    report(1, 3)
    variables |= _small(quick)
    report(2, 3)
    variables |= _against_context()
    report(3, 3)
    epochs = np.arange(EPOCHS + 1)
    coordinates = {
        "epoch": ("epoch", epochs, {"long_name": "epochs"}),
        "eigenvalue": ("mode", modes.spectrum, {"long_name": "s"}),
        "dropped": np.arange(modes.size - 1),
        "context": ("context", list(CONTEXTS), {"long_name": "N"}),
    }
    settings = {
        "figure": "linear transformer, stages",
        "quick": quick,
        "staged_context": CONTEXT,
        "small_context": SMALL_CONTEXT,
        "small_training": "population descent" if quick else f"SGD, batches of {BATCH} tasks",
        "small_clock": SMALL_CLOCK,
        "epoch_rate": EPOCH_RATE,
        "clock": CLOCK,
        "scale": SCALE,
    }
    return finished(xr.Dataset(named(variables), coordinates), settings)


def _staged() -> tuple[dict[str, Variable], TransformerModes]:
    task = transformer_task(SPECTRUM, CONTEXT)
    steps = round(EPOCH_RATE / CLOCK)
    epochs = np.arange(EPOCHS + 1)
    run = mean_training(task, epochs * steps, clock=CLOCK)
    run = run.isel(seed=0).drop_vars(["time", "step"]).rename(time="epoch")
    modes = TransformerModes.of(task)
    paper, exact = DecoupledFlow(modes), CoupledFlow(modes)
    start, time = np.full(modes.size, SCALE), EPOCH_RATE * epochs
    course = exact.solve(time, start, start)
    a, loss = diagonal(products(run)).values, run["loss"].values
    ends = paper.fixed_point
    half = [first_crossing(epochs, -row, -end / 2) for row, end in zip(a.T, ends, strict=True)]
    variables: dict[str, Variable] = {
        "loss": (("epoch",), loss, "loss with ½, simulated"),
        "loss_paper": (("epoch",), paper.loss(paper.products(time, start, start)), "(14)"),
        "loss_exact": (("epoch",), exact.loss(course.p, course.q), "loss, exact mean flow"),
        "a": (("epoch", "mode"), a, "a = (p₂q₁)_αα, simulated"),
        "half_time": (("mode",), half, "epochs until a = a∞/2, simulated"),
        "half_paper": (("mode",), paper.half_times(start**2) / EPOCH_RATE, "the same by (13)"),
        "drop_paper": (
            ("mode",),
            paper.drop_times(start**2) / EPOCH_RATE,
            "epochs until the loss of a mode is halfway down, by (13)(14)",
        ),
        "escape": (("mode",), paper.escape_times(start**2) / EPOCH_RATE, "t*, epochs"),
        "levels": (("stage",), plateau_losses(modes), "least loss with m modes learned"),
        "rank": (
            ("dropped", "epoch"),
            _ranks(jnp.asarray(a)),
            "effective rank (15) of the rest, over its start",
        ),
        **detectors(epochs, loss, np.linalg.norm(run["p"].values, axis=(1, 2)), modes.size),
    }
    return variables, modes


@jax.jit
def _ranks(a: Float[Array, "T D"]) -> Float[Array, "n T"]:
    """Marginalised effective rank (15), relative to the start: without the first 0, 1, … modes.

    As the eigenvectors do not move, the modes to drop are those of the largest eigenvalues.
    """
    drops = range(a.shape[1] - 1)
    ranks = jnp.stack([jax.vmap(effective_rank)(jnp.abs(a[:, drop:])) for drop in drops])
    return ranks / ranks[:, :1]


def detectors(
    epochs: np.ndarray, loss: np.ndarray, norm: np.ndarray, count: int
) -> dict[str, Variable]:
    """Curvatures over the logarithm of time, and where they are largest as a mode is learned."""
    found: dict[str, Variable] = {}
    log: dict[str, Any] = {"clock": Clock.LOG}
    for name, curve, sign, about in (
        ("autocorrelation", autocorrelation_curvature(epochs, loss, **log), 1, "d²A/d(ln lag)²"),
        ("norm", time_curvature(epochs, norm, **log), -1, "d²‖p₂‖/d(ln t)²"),
        ("baseline", time_curvature(epochs, loss, **log), 1, "d²L/d(ln t)²"),
    ):
        # A norm bends down where a mode has been learned, a loss bends up.
        bends = Curvature(curve.time, sign * curve.value).peaks(PROMINENCE, count)
        found[f"{name}_time"] = ((f"{name}_point",), curve.time, "epochs")
        found[f"{name}_curvature"] = ((f"{name}_point",), curve.value, about)
        found[f"{name}_bends"] = (("mode",), _padded(bends, count), "epochs of its bends")
        if sign < 0:
            onsets = _padded(curve.peaks(PROMINENCE, count), count)
            found[f"{name}_onsets"] = (("mode",), onsets, "epochs of its maxima: a rise begins")
    linear = autocorrelation_curvature(epochs, loss).peaks(1e-4)
    found["linear_peaks"] = (("linear_peak",), linear, "epochs of the peaks of A″(lag) itself")
    return found


def _padded(values: np.ndarray, count: int) -> np.ndarray:
    """`count` numbers, NaN where there are fewer."""
    padded = np.full(count, np.nan)
    padded[: values.size] = values
    return padded


def _small(quick: bool) -> dict[str, Variable]:
    """N = 8: training, the paper's theory, the exact one."""
    task = transformer_task(SMALL_SPECTRUM, SMALL_CONTEXT)
    marks = np.arange(EPOCHS + 1) * (SMALL_STEPS // EPOCHS)  # as many as above: one compilation
    if quick:
        run = mean_training(task, marks, clock=SMALL_CLOCK)
    else:
        run = stochastic(task, marks, clock=SMALL_CLOCK, batch=BATCH, seeds=1)
    run = run.isel(seed=0, time=slice(None, None, THIN))
    modes = TransformerModes.of(task)
    paper, exact = DecoupledFlow(modes), CoupledFlow(modes)
    start, time = np.full(modes.size, SCALE), SMALL_CLOCK * marks[::THIN]
    course = exact.solve(time, start, start)
    by_paper = paper.products(time, start, start)
    a = diagonal(products(run)).values
    dims = ("small_mark", "mode")
    return {
        "small_time": (("small_mark",), time, "t/τ"),
        "small_loss": (("small_mark",), run["loss"].values, "loss with ½, simulated, N = 8"),
        "small_loss_paper": (("small_mark",), paper.loss(by_paper), "(14), N = 8"),
        "small_loss_exact": (("small_mark",), exact.loss(course.p, course.q), "exact, N = 8"),
        "small_a": (dims, a, "a, simulated, N = 8"),
        "small_a_paper": (dims, by_paper, "(13), N = 8"),
        "small_a_exact": (dims, course.products, "exact, N = 8"),
        "small_a_infinity": (("mode",), paper.fixed_point, "a∞, N = 8"),
        "small_eigenvalue": (("mode",), modes.spectrum, "s, N = 8"),
    }


def _against_context() -> dict[str, Variable]:
    """Largest |a(t) - a_exact(t)|/a∞ of (13), and |L(∞)/L_opt - 1|, against N."""
    time, start = np.linspace(0, 400, 4001), np.full(len(SMALL_SPECTRUM), SCALE)
    errors, losses = [], []
    for context in CONTEXTS:
        modes = TransformerModes.given(SMALL_SPECTRUM, context)
        paper, best = DecoupledFlow(modes), optimum(modes)
        course = CoupledFlow(modes).solve(time, start, start, tolerance=1e-8)
        gap = np.abs(paper.products(time, start, start) - course.products)
        errors.append(float((gap / paper.fixed_point).max()))
        losses.append(float(abs(paper.final_loss / best.loss - 1)))
    return {
        "error": (("context",), errors, "largest |a (13) - a exact|/a∞ over time"),
        "final_error": (("context",), losses, "|L(∞)/L_opt - 1|"),
    }
