"""The claims about stages in the loss of the linear transformer (second paper, Figs 3 and 4)."""

import numpy as np
import xarray as xr

from iclflow.diagnostics import find_stages
from iclflow.experiments.base import Claim, below, near
from iclflow.experiments.linear_transformer.claims import ROUNDING
from iclflow.experiments.runs import delayed

INSIDE = "inside the cliff, a from a tenth to nine tenths: ln 9/ln(1/(s a₀)) of its half-time"


def claims(data: xr.Dataset) -> list[Claim]:
    """Stages and their times, the loss, what N does to the theory, the detectors."""
    return [*_stages(data), *_context(data), *_detectors(data), _rank(data)]


def _stages(data: xr.Dataset) -> list[Claim]:
    s, context = data["eigenvalue"].values, int(data.attrs["staged_context"])
    loss = data["loss"].values
    paper, exact = (
        float(np.abs(loss - data[name].values).max() / loss[0])
        for name in ("loss_paper", "loss_exact")
    )
    apart = float(np.abs(data["loss_paper"] - data["loss_exact"]).max() / loss[0])
    # Steps of size δ grow by the factor 1 + δs² instead of exp(δs²), and come δs²/2 of their time
    # late; a cliff of height h falls by (16/27) h s² a unit of time where it is steepest.
    start = np.log(1 / (s * float(data.attrs["scale"]) ** 2))
    height = -np.diff(data["levels"].values) / loss[0]
    step = float(np.max(4 / 27 * height * float(data.attrs["clock"]) * s**2 * start))
    late = "what finite steps delay the steepest cliff: (4/27) h (rate) s² ln(1/(s a₀)), height h"
    half, theory = data["half_time"].values, data["half_paper"].values
    drops = find_stages(data["epoch"].values[1:], loss[1:], resamples=0).drops
    return [
        near(
            "lt-stages", "The loss falls in as many cliffs as there are separated eigenvalues",
            "2nd paper, Fig. 3A", float(s.size), float(len(drops)), 0.0,
            "a count, by the detector of stages", population=True,
        ),
        below(
            "lt-half-times", "Mode α is learned at (τ_α/2) ln(1/(s∞a₀))", "2nd paper (13)",
            float(np.abs(half / theory - 1).max()), float(s.sum() / (s.min() * context)),
            "tr S/(s N): the others slow the growth of a mode by (T_q/s + T_p)/2N",
            f"largest relative error of the half-times, N = {context}", population=True,
        ),
        below(
            "lt-loss", "The loss follows the sum over modes", "2nd paper (14), Fig. 3A", paper,
            s.size / context, "d/N, the order of what the theory leaves out",
            f"largest difference over L(0), N = {context}; of the exact mean flow {exact:.2g}",
            population=True,
        ),
        below(
            "lt-loss-exact", "The loss follows the exact coupled mean flow", "exact flow", exact,
            step, late, f"largest difference over L(0), N = {context}; the two theories are "
            f"{apart:.2g} apart, and (14) has {paper:.2g}", population=True, beyond=True,
        ),
    ]  # fmt: skip


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
    training = str(data.attrs["small_training"])
    listed = ", ".join(f"{e:.2g} at {n:g}" for n, e in zip(contexts, error, strict=True))
    return [
        below(
            "lt-exact", "The closed form of a(t) is exact at finite context length",
            "2nd paper (13)", float(error.min()), ROUNDING,
            "called exact; largest difference from the exact mean flow over a∞",
            f"exact only as N → ∞: {listed}", population=True,
        ),
        near(
            "lt-error-slope", "The error of the closed form falls as 1/N", "exact flow", -1.0,
            float(slope), 0.05,
            f"slope over N = {contexts[late][0]:g} to {contexts[-1]:g}; the next order is 1/N²",
            population=True, beyond=True,
        ),
        below(
            "lt-exact-small-context",
            "At N = 8 training follows the exact mean flow, not the closed form",
            "exact flow", exact, paper / 4,
            f"a quarter of the error of (13), which is {paper:.2g}; over a∞", f"by {training}",
            population=not training.startswith("SGD"), beyond=True,
        ),
        below(
            "lt-final-loss", "L(∞) is the least loss, up to corrections of order 1/N",
            "2nd paper (14)", float(data["final_error"][-1]), count / contexts[-1],
            f"d/N at N = {contexts[-1]:g}",
            f"relative; it stays at (1+d) tr S/(tr S + (Σ√s)²) - 1 = {ratio:.3f} as N → ∞: both "
            f"losses are of order 1/N, and the slow drift of p/q lowers it", population=True,
        ),
    ]  # fmt: skip


def _detectors(data: xr.Dataset) -> list[Claim]:
    half, found = data["half_time"].values, []
    for name, what, where in (
        ("autocorrelation", "a maximum in the curvature of the loss's autocorrelation", "Fig. 4A"),
        ("norm", "a minimum in the curvature of the norm ‖p₂‖", "Fig. 4B"),
        ("baseline", "a maximum in the curvature of the loss itself", ""),
    ):
        bends = data[f"{name}_bends"].values
        note = f"bends at {_epochs(bends)}; half-times {_epochs(half)} epochs"
        if name == "autocorrelation":
            linear = _epochs(data["linear_peaks"].values)
            note += f"; peaks of A″(lag) itself, the end of the record among them: {linear}"
        if name == "norm":
            early = 1 - data["norm_onsets"].values / half
            note += (
                f"; a norm bends down where a mode has been learned; its maxima, where a rise "
                f"begins, come {early.min():.0%} to {early.max():.0%} before the half-times"
            )
        found.append(
            below(
                f"lt-detects-{name}", f"Every time scale is {what}, over the logarithm of time",
                f"2nd paper, {where}" if where else "", _distance(data, bends), 1.0, INSIDE, note,
                population=True, beyond=not where,
            )
        )  # fmt: skip
    return found


def _distance(data: xr.Dataset, found: np.ndarray) -> float:
    """How far times are from their half-times, in half the width of each cliff, by (13)."""
    start = data["eigenvalue"].values * float(data.attrs["scale"]) ** 2
    width = np.log(9) / np.log(1 / start)
    return float((np.abs(found / data["half_time"].values - 1) / width).max())


def _rank(data: xr.Dataset) -> Claim:
    """With n modes left out the effective rank is least when mode n + 1 has just been learned."""
    ranks, half = data["rank"].values, data["half_time"].values
    least = data["epoch"].values[np.argmin(ranks, axis=1)]
    # The last mode left alone has rank one: it shows in the last rise only.
    slope = np.gradient(ranks[-1, 1:], np.log(data["epoch"].values[1:]))
    rise = float(data["epoch"][1:][np.argmax(slope)])
    found = np.append(least, rise)
    return below(
        "lt-detects-rank", "Every time scale shows in the effective rank without the modes learned "
        "before", "2nd paper, Fig. 4C", _distance(data, found), 1.0, INSIDE,
        f"least rank without 0, 1, … modes at {_epochs(least)}, and the last rise at {rise:.0f} "
        f"epochs; half-times {_epochs(half)}", population=True,
    )  # fmt: skip


def _epochs(times: np.ndarray) -> str:
    return ", ".join(f"{time:.0f}" for time in times)


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim data that turn its verdict round."""
    epochs, exact = data["epoch"].values, data["small_a_exact"]
    late = delayed(epochs, data["loss_paper"].values, 1.05)
    bends = ("autocorrelation", "norm", "baseline")
    return {
        "lt-stages": data.assign(loss=data["loss"].clip(max=data["levels"][1])),
        "lt-half-times": data.assign(half_paper=1.2 * data["half_paper"]),
        "lt-loss": data.assign(loss_paper=("epoch", late)),
        "lt-loss-exact": data.assign(loss_exact=data["loss_paper"]),  # the other theory
        "lt-exact": data.assign(error=1e-8 * data["error"]),
        "lt-error-slope": data.assign(error=np.sqrt(data["error"])),
        "lt-exact-small-context": data.assign(small_a_exact=1.2 * exact),
        "lt-final-loss": data.assign(final_error=1 / data["context"]),
        "lt-detects-rank": data.assign(rank=0 * data["rank"] + data["rank"][0]),  # none left out
        **{f"lt-detects-{n}": data.assign({f"{n}_bends": 1.3 * data[f"{n}_bends"]}) for n in bends},
    }
