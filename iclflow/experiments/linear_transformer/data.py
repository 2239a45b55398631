"""Where the linear transformer ends and how it gets there (second paper, Figs 1 and 2).

d = 4, s = (1.7, 1.4, 1.1, 1), N = 200, ηP = 0.02 an epoch, p₂ = q₁ = 0.01 I, 500 epochs: read off
the paper's figures, which state no settings. Stochastic training on fresh tasks, one update a
task, beside the paper's decoupled theory and the exact mean flow. Losses have a factor ½.
"""

import numpy as np
import xarray as xr

from iclflow.experiments.linear_transformer_runs import (
    SCALE,
    diagonal,
    standard_error,
    stochastic,
    transformer_task,
)
from iclflow.experiments.runs import Variable, labelled
from iclflow.results.progress import Progress
from iclflow.theory.linear_transformer import (
    CoupledFlow,
    DecoupledFlow,
    TransformerModes,
    optimum,
)

SPECTRUM, CONTEXT = (1.7, 1.4, 1.1, 1.0), 200
EPOCH_RATE, EPOCHS = 0.02, 500  # ηP; t/τ ends at 10
TASKS, QUICK_TASKS = 32, 4  # P, tasks an epoch
SEEDS = 4
EVERY = 5  # epochs between save points
DRIFT_POINTS = 300


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Weights over training, simulated and by both theories; the drift of p² - q² of a mode."""
    report = progress or (lambda done, total: None)
    report(0, 2)
    tasks = QUICK_TASKS if quick else TASKS
    task = transformer_task(SPECTRUM, CONTEXT)
    epochs = np.arange(0, EPOCHS + 1, EVERY)
    run = stochastic(task, epochs * tasks, clock=EPOCH_RATE / tasks, batch=1, seeds=SEEDS)
    report(1, 2)
    products = np.einsum("stab,stbc->stac", run["p"], run["q"])
    modes = TransformerModes.of(task)
    paper, exact = DecoupledFlow(modes), CoupledFlow(modes)
    start = np.full(modes.size, SCALE)
    time = EPOCH_RATE * epochs
    course = exact.solve(time, start, start)
    norms = [np.sum(run[name] ** 2, axis=(2, 3)) for name in ("p", "q")]
    trained = ("epoch", "mode")
    variables: dict[str, Variable] = {
        "products": (("seed", "row", "column"), products[:, -1], "p₂q₁ in U, at the end"),
        "a": (("seed", *trained), diagonal(products), "a = (p₂q₁)_αα, simulated"),
        "a_paper": (trained, paper.products(time, start, start), "a(t) (13)"),
        "a_exact": (trained, course.products, "a(t), exact mean flow"),
        "a_error": (trained, standard_error(diagonal(products)), "standard error of the mean"),
        "a_infinity": (("mode",), paper.fixed_point, "1/s∞ (11)"),
        "a_optimum": (("mode",), optimum(modes).products, "least loss"),
        "norm_p": (("seed", "epoch"), norms[0], "‖p₂‖²"),
        "norm_q": (("seed", "epoch"), norms[1], "‖q₁‖²"),
        "norm_exact": (("epoch",), np.sum(course.p**2, axis=1), "‖p₂‖², exact"),
        "conserved_exact": (("epoch",), course.conserved.sum(axis=1), "C, exact mean flow"),
        "loss": (("seed", "epoch"), run["loss"], "population loss, with ½"),
        **_drift(modes),
    }
    report(2, 2)
    coordinates = {
        "epoch": ("epoch", epochs, {"long_name": "epochs"}),
        "eigenvalue": ("mode", modes.spectrum, {"long_name": "s"}),
    }
    settings = {
        "figure": "linear transformer, fixed point and dynamics",
        "quick": quick,
        "data": f"fresh tasks, P = {tasks} an epoch",
        "context": CONTEXT,
        "epoch_rate": EPOCH_RATE,
        "tasks": tasks,
        "scale": SCALE,
    }
    return labelled(variables, coordinates, settings)


def _drift(modes: TransformerModes) -> dict[str, Variable]:
    """The exact flow until N times longer, when p² - q² of each mode has drifted to its end."""
    exact = CoupledFlow(modes)
    start = np.full(modes.size, SCALE)
    end = 4 * modes.context * EPOCHS * EPOCH_RATE
    time = np.concatenate([[0.0], np.geomspace(1.0, end, DRIFT_POINTS - 1)])
    course = exact.solve(time, start, start)
    p, q = optimum(modes).weights(float(np.sum(start**2 - start**2)))
    return {
        "drift_time": (("drift",), time / EPOCH_RATE, "epochs"),
        "drift": (("drift", "mode"), course.conserved, "p² - q² by mode, exact flow"),
        "drift_end": (("mode",), p**2 - q**2, "p² - q² of the optimum"),
        "drift_products": (("drift", "mode"), course.products, "a, exact flow"),
    }
