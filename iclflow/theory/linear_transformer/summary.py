"""The numbers and curves behind `iclflow theory --model linear-transformer`."""

from typing import Any

import numpy as np
from jaxtyping import Float

from iclflow.theory.linear_transformer.coupled import CoupledFlow
from iclflow.theory.linear_transformer.decoupled import DecoupledFlow
from iclflow.theory.linear_transformer.optimum import optimum, overshoot, plateau_losses
from iclflow.theory.linear_transformer.spectrum import TransformerModes

POINTS, FINE = 600, 20_001  # of a curve that is drawn, and of one that is measured


def transformer_summary(
    modes: TransformerModes,
    start: tuple[float, float] | None = None,
    *,
    epoch_rate: float = 1.0,
) -> dict[str, Any]:
    """The paper's theory beside the exact one; with `start` (p, q) also escape and half times.

    Losses have the paper's ½; times are epochs at `epoch_rate` ηP (1: times t/τ).
    """
    paper, exact, best = DecoupledFlow(modes), CoupledFlow(modes), optimum(modes)
    rates = np.sort(np.linalg.eigvalsh(exact.hessian(*best.weights())))
    slow = rates[rates > 1e-9 * rates[-1]][0]  # one is zero: along the conserved C
    zero = np.zeros(modes.size)
    found: dict[str, Any] = {
        "model": "linear-transformer",
        "convention": "loss with 1/2; times in epochs = (t/tau)/(eta P)",
        "eigenvalues": modes.spectrum.tolist(),
        "context": modes.context,
        "task_variances": modes.variances.tolist(),
        "epoch_rate": epoch_rate,
        "timescales": (paper.timescales / epoch_rate).tolist(),
        "effective_eigenvalues": paper.effective.tolist(),
        "initial_loss": float(exact.loss(zero, zero)),
        "a_infinity": paper.fixed_point.tolist(),
        "paper_final_loss": paper.final_loss,
        "a_optimum": best.products.tolist(),
        "optimum_loss": best.loss,
        "active": best.active.tolist(),
        "overshoot": overshoot(modes).tolist(),
        "plateau_losses": plateau_losses(modes).tolist(),
        "drift_time": float(1 / slow / epoch_rate),
        "fixed_point_error": float(np.abs(best.products / paper.fixed_point - 1).max()),
    }
    if start is not None:
        found |= _from_start(modes, start, epoch_rate)
    return found


def _from_start(
    modes: TransformerModes, start: tuple[float, float], epoch_rate: float
) -> dict[str, Any]:
    paper = DecoupledFlow(modes)
    p, q = _diagonal(modes, start)
    a = p * q
    if not np.all((a > 0) & (a < paper.fixed_point / 2)):
        raise ValueError(
            f"times need a start p q between 0 and a∞/2 = {paper.fixed_point.min() / 2:.3g}, "
            f"got {a[0]:.3g}; p = q = 0.01 is usual"
        )
    time = np.linspace(0, 3 * float(paper.escape_times(a).max()), FINE)
    curves = {"paper": paper.products(time, p, q)}
    curves["exact"] = CoupledFlow(modes).solve(time, p, q).products
    half = paper.fixed_point / 2
    times = {
        f"{name}_half_times": [
            _crossing(time, row, level) / epoch_rate
            for row, level in zip(curve.T, half, strict=True)
        ]
        for name, curve in curves.items()
    }
    gap = np.abs(curves["paper"] - curves["exact"]) / paper.fixed_point
    return {
        "start": list(start),
        "conserved": float(np.sum(p**2 - q**2)),
        "escape_times": (paper.escape_times(a) / epoch_rate).tolist(),
        **times,
        "paper_error": float(gap.max()),
    }


def _diagonal(
    modes: TransformerModes, start: tuple[float, float]
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
    """p and q of the start p₂ = p I, q₁ = q I."""
    return np.full(modes.size, start[0], float), np.full(modes.size, start[1], float)


def _crossing(time: np.ndarray, values: np.ndarray, level: float) -> float:
    """When a curve first passes a level, by linear interpolation; NaN if never."""
    above = np.flatnonzero(values >= level)
    if above.size == 0 or above[0] == 0:
        return float("nan")
    i = int(above[0])
    share = (level - values[i - 1]) / (values[i] - values[i - 1])
    return float(time[i - 1] + share * (time[i] - time[i - 1]))


def transformer_curves(
    modes: TransformerModes, start: tuple[float, float], end: float | None = None
) -> dict[str, np.ndarray]:
    """a_α(t) and loss (with ½) of both theories over t/τ, from p₂ = p I and q₁ = q I.

    Until `end`; if omitted, three times the slowest mode's escape time. `time` [T]; `paper` and
    `exact`, the products a, and `balance`, p² - q² of the exact flow, [T, D].
    """
    paper, exact = DecoupledFlow(modes), CoupledFlow(modes)
    p, q = _diagonal(modes, start)
    escapes = paper.escape_times(p * q)
    end = 3 * float(escapes.max()) if end is None else end
    begin = min(float(escapes.min()), end) / 10
    time = np.concatenate([[0.0], np.geomspace(begin, end, POINTS - 1)])
    course = exact.solve(time, p, q)
    products = paper.products(time, p, q)
    return {
        "time": time,
        "paper": products,
        "exact": course.products,
        "balance": course.conserved,
        "paper_loss": paper.loss(products),
        "exact_loss": exact.loss(course.p, course.q),
    }
