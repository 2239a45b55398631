"""The claims about stages in the loss of the linear transformer (second paper, Figs 3 and 4)."""

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, below, near
from iclflow.experiments.linear_transformer.claims import ROUNDING

DETECTED = 0.2  # of a half-time: less than the width of a cliff, and stages are a factor 4 apart


def claims(data: xr.Dataset) -> list[Claim]:
    """Stages and their times, the loss, what N does to the theory, the detectors."""
    return [*_stages(data), *_context(data), *_detectors(data)]


def _stages(data: xr.Dataset) -> list[Claim]:
    s, context = data["eigenvalue"].values, int(data.attrs["staged_context"])
    loss = data["loss"].values
    paper, exact = (
        float(np.abs(loss - data[name].values).max() / loss[0])
        for name in ("loss_paper", "loss_exact")
    )
    logarithm = np.log(1 / float(data.attrs["scale"]) ** 2)
    step = float(data.attrs["clock"]) * float(s.max()) ** 2 * logarithm / 8
    half, theory = data["half_time"].values, data["half_paper"].values
    return [
        near(
            "lt-stages",
            "The loss falls in as many cliffs as there are separated eigenvalues",
            "2nd paper, Fig. 3A",
            float(s.size),
            float(data.sizes["drop"]),
            0.0,
            "a count, by the detector of stages",
        ),
        below(
            "lt-half-times",
            "Mode α is learned at (τ_α/2) ln(1/(s∞a₀))",
            "2nd paper (13)",
            float(np.abs(half / theory - 1).max()),
            float(s.sum() / (s.min() * context)),
            "tr S/(s N): the others slow the growth of a mode by (T_q/s + T_p)/2N",
            f"largest relative error of the half-times, N = {context}",
        ),
        below(
            "lt-loss",
            "The loss follows the sum over modes",
            "2nd paper (14), Fig. 3A",
            paper,
            s.size / context + step,
            "d/N, and the delay of descent at the steepest point, (rate) s² ln(1/a₀)/8",
            f"largest difference over L(0), N = {context}",
        ),
        below(
            "lt-loss-exact",
            "The loss follows the exact coupled mean flow",
            "exact flow (beyond the paper)",
            exact,
            step,
            "the delay of descent at the steepest point, (rate) s² ln(1/a₀)/8",
            f"largest difference over L(0), N = {context}",
        ),
    ]


def _context(data: xr.Dataset) -> list[Claim]:
    contexts, error = data["context"].values.astype(float), data["error"].values
    count = data.sizes["mode"]
    limit = data["small_a_infinity"].values
    paper, exact = (
        float((np.abs(data["small_a"].values - data[name].values) / limit).max())
        for name in ("small_a_paper", "small_a_exact")
    )
    late = contexts >= 100
    slope = np.polyfit(np.log(contexts[late]), np.log(error[late]), 1)[0]
    s = data["small_eigenvalue"].values
    ratio = (1 + count) * s.sum() / (s.sum() + np.sqrt(s).sum() ** 2) - 1
    listed = ", ".join(f"{e:.2g} at {n:g}" for n, e in zip(contexts, error, strict=True))
    return [
        below(
            "lt-exact",
            "The closed form of a(t) is exact at finite context length",
            "2nd paper (13)",
            float(error.min()),
            ROUNDING,
            "called exact; largest difference from the exact mean flow over a∞",
            f"exact only as N → ∞: {listed}",
        ),
        near(
            "lt-error-slope",
            "The error of the closed form falls as 1/N",
            "exact flow (beyond the paper)",
            -1.0,
            float(slope),
            0.05,
            f"slope over N = {contexts[late][0]:g} to {contexts[-1]:g}; the next order is 1/N²",
        ),
        below(
            "lt-exact-small-context",
            "At N = 8 training follows the exact mean flow, not the closed form",
            "exact flow (beyond the paper)",
            exact,
            paper / 4,
            f"a quarter of the error of (13), which is {paper:.2g}; over a∞",
            f"by {data.attrs['small_training']}",
        ),
        below(
            "lt-final-loss",
            "L(∞) is the least loss, up to corrections of order 1/N",
            "2nd paper (14)",
            float(data["final_error"][-1]),
            count / contexts[-1],
            f"d/N at N = {contexts[-1]:g}",
            f"relative; it stays at (1+d) tr S/(tr S + (Σ√s)²) - 1 = {ratio:.3f} as N → ∞: both "
            f"losses are of order 1/N, and the slow drift of p/q lowers it",
        ),
    ]


def _detectors(data: xr.Dataset) -> list[Claim]:
    half = data["half_time"].values
    found = []
    for name, what, where in (
        ("autocorrelation", "the autocorrelation of the loss, over ln lag", "Fig. 4A"),
        ("norm", "the norm of p₂q₁, over ln t", "Fig. 4B"),
        ("baseline", "the loss, over ln t", "baseline"),
    ):
        peaks = data[f"{name}_peaks"].values
        listed = ", ".join(f"{p:.0f}" for p in peaks)
        note = f"peaks at {listed}; half-times {', '.join(f'{h:.0f}' for h in half)} epochs"
        if name == "autocorrelation":
            linear = ", ".join(f"{p:.0f}" for p in data["linear_peaks"].values)
            note += f"; peaks of A″(lag) itself, the end of the record among them: {linear}"
        if name == "norm":
            apart = np.abs(np.diff(np.log(peaks)) - np.diff(np.log(half))).max()
            note += f"; late by one factor at every stage, so that ratios are right to {apart:.1%}"
        found.append(
            below(
                f"lt-detects-{name}",
                f"Every time scale is a peak in the curvature of {what}",
                f"2nd paper, {where}",
                float(np.abs(peaks / half - 1).max()),
                DETECTED,
                "a fifth of a half-time: less than a cliff's width, and stages are a factor "
                "four apart",
                note,
            )
        )
    return found
