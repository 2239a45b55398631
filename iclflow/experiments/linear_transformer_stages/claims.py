"""The claims about modes and stages of the linear transformer (second paper, Figs 2A, 3 and 4)."""

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, below, near
from iclflow.experiments.linear_transformer import ROUNDING
from iclflow.experiments.linear_transformer_stages.data import detectors
from iclflow.measures import find_stages
from iclflow.theory.linear_transformer import (
    CoupledFlow,
    DecoupledFlow,
    DiagonalCourse,
    TransformerModes,
    optimum,
)

SHORT_CONTEXT = 8  # of the run that is not to be taken for the staged one
INSIDE = "inside the cliff, a from a tenth to nine tenths: ln 9/ln(1/(s a₀)) of its half-time"


def claims(data: xr.Dataset) -> list[Claim]:
    """The course of the modes, stages and their times, the loss, what N does, the detectors."""
    return [
        *_dynamics(data),
        *_stages(data),
        _final_loss(data),
        *_context(data),
        *_detectors(data),
        _rank(data),
    ]


def _dynamics(data: xr.Dataset) -> list[Claim]:
    """a(t) of every mode, trained on the population: no noise hides what tells the theories apart.

    A mode that comes late by the share ε of its half-time (τ_α/2) ln(1/(s a₀)) is off by at most
    (ε/4) ln(1/(s a₀)) of a∞, as (13) is steepest at its half-time, a∞/(2τ_α).
    """
    s, context = data["eigenvalue"].values, int(data.attrs["staged_context"])
    theory = DecoupledFlow(_modes(data))
    closed, coupled = _closed_form(data, context)[0], _exact(data, context).products
    trained = data["a"].values
    paper, exact, apart = (
        float((np.abs(one - other) / theory.fixed_point).max())
        for one, other in ((trained, closed), (trained, coupled), (closed, coupled))
    )
    logarithm = np.log(1 / (s * float(data.attrs["scale"]) ** 2))
    slowed = s.sum() / (s * context)
    # Steps of size δ grow by the factor 1 + δs² instead of exp(δs²): δs²/2 of their time late.
    delayed = float(data.attrs["clock"]) * s**2 / 2
    return [
        below(
            "lt-dynamics", "a(t) follows the closed form of each mode, up to order 1/N",
            "2nd paper (13), Fig. 2A", paper, float(np.max(logarithm * slowed / 4)),
            "(tr S/4sN) ln(1/(s a₀)): the others slow the growth of a mode by (T_q/s + T_p)/2N",
            f"largest error over a∞, N = {context}", population=True,
        ),
        below(
            "lt-dynamics-exact", "a(t) follows the exact coupled mean flow, not the closed form",
            "exact flow", exact, float(np.max(logarithm * delayed / 4)),
            "what finite steps delay the steepest rise: (rate/8) s² ln(1/(s a₀))",
            f"largest error over a∞, N = {context}; the two theories are {apart:.2g} apart, and "
            f"(13) has {paper:.2g}", population=True, beyond=True,
        ),
    ]  # fmt: skip


def _modes(data: xr.Dataset, context: int | None = None) -> TransformerModes:
    """The modes of the staged run; with `context`, at another context length."""
    length = int(data.attrs["staged_context"]) if context is None else context
    return TransformerModes.given(data["eigenvalue"].values, length)


def _closed_form(data: xr.Dataset, context: int) -> tuple[np.ndarray, np.ndarray]:
    """a(t) (13) and the loss (14) at a context length, over the epochs of the staged run."""
    theory = DecoupledFlow(_modes(data, context))
    start = np.full(data.sizes["mode"], float(data.attrs["scale"]))
    products = theory.products(float(data.attrs["epoch_rate"]) * data["epoch"].values, start, start)
    return products, theory.loss(products)


def _exact(data: xr.Dataset, context: int) -> DiagonalCourse:
    """The exact mean flow at a context length, over the epochs of the staged run."""
    start = np.full(data.sizes["mode"], float(data.attrs["scale"]))
    time = float(data.attrs["epoch_rate"]) * data["epoch"].values
    return CoupledFlow(_modes(data, context)).solve(time, start, start)


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


def _final_loss(data: xr.Dataset) -> Claim:
    """Where the loss ends, against the end of (14)."""
    s, context = data["eigenvalue"].values, int(data.attrs["staged_context"])
    stated, best = DecoupledFlow(_modes(data)).final_loss, optimum(_modes(data)).loss
    end, count = float(data["loss"][-1]), s.size
    ratio = (1 + count) * s.sum() / (s.sum() + np.sqrt(s).sum() ** 2) - 1
    return below(
        "lt-final-loss", "The loss ends at L(∞) = ½ Σ s(s + tr S)/((N+1)s + tr S)",
        "2nd paper (14)", abs(end / stated - 1), count / context,
        "d/N, the order of what the theory leaves out",
        f"relative, N = {context}: training ends at {end:.4g}, L(∞) is {stated:.4g} and the least "
        f"loss {best:.4g}. L(∞) stays (1+d) tr S/(tr S + (Σ√s)²) - 1 = {ratio:.3f} above the least "
        "as N → ∞: both are of order 1/N, and the slow drift of p/q lowers the loss",
        population=True,
    )  # fmt: skip


def _context(data: xr.Dataset) -> list[Claim]:
    contexts, error = data["context"].values.astype(float), data["error"].values
    limit = data["small_a_infinity"].values
    paper, exact = (
        float((np.abs(data["small_a"].values - data[name].values) / limit).max())
        for name in ("small_a_paper", "small_a_exact")
    )
    late = contexts >= 100
    slope = np.polyfit(np.log(contexts[late]), np.log(error[late]), 1)[0]
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
    """For each claim other data or another theory that turn its verdict round.

    - `lt-dynamics`: a run with a context of 8 pairs, by the exact flow.
    - `lt-dynamics-exact`: the closed form (13) in place of training. The exact flow must tell it.
    - `lt-stages`: white inputs. Equal eigenvalues are learned in one cliff.
    - `lt-half-times`: when the loss of a mode is halfway down by (14), which is not when a is.
    - `lt-loss`: the sum over modes (14) for half the context length.
    - `lt-loss-exact`: the other theory, (14).
    - `lt-final-loss`: white inputs, where L(∞) is the least loss.
    - `lt-exact`: white inputs, for which (13) is exact at any context length.
    - `lt-error-slope`: the error of the final loss, which does not fall with N.
    - `lt-exact-small-context`: the rival theory (13) in place of the exact flow at N = 8.
    - `lt-detects-autocorrelation`, `lt-detects-norm`, `lt-detects-baseline`: the bends that the
      same detector finds in a run on other eigenvalues, s^(3/4), which are closer together.
    - `lt-detects-rank`: the effective rank with no mode left out.
    """
    context = int(data.attrs["staged_context"])
    equal = np.full(data.sizes["mode"], float(data["eigenvalue"].mean()))
    white = data.assign_coords(eigenvalue=("mode", equal))
    closer = data.assign_coords(eigenvalue=data["eigenvalue"] ** 0.75)
    one, four = _exact(white, context), _exact(closer, context)
    one_cliff = CoupledFlow(_modes(white)).loss(one.p, one.q)
    four_cliffs = CoupledFlow(_modes(closer)).loss(four.p, four.q)
    norm = np.linalg.norm(four.p, axis=1)
    bends = detectors(data["epoch"].values, four_cliffs, norm, equal.size)
    return {
        "lt-dynamics": data.assign(a=(("epoch", "mode"), _exact(data, SHORT_CONTEXT).products)),
        "lt-dynamics-exact": data.assign(a=(("epoch", "mode"), _closed_form(data, context)[0])),
        "lt-stages": white.assign(loss=("epoch", one_cliff)),
        "lt-half-times": data.assign(half_paper=data["drop_paper"]),
        "lt-loss": data.assign(loss_paper=("epoch", _closed_form(data, context // 2)[1])),
        "lt-loss-exact": data.assign(loss_exact=data["loss_paper"]),
        "lt-final-loss": white.assign(loss=("epoch", one_cliff)),
        "lt-exact": data.assign(error=("context", _white_errors(white))),
        "lt-error-slope": data.assign(error=data["final_error"]),
        "lt-exact-small-context": data.assign(small_a_exact=data["small_a_paper"]),
        "lt-detects-rank": data.assign(rank=0 * data["rank"] + data["rank"][0]),
        **{
            f"lt-detects-{name}": data.assign(
                {f"{name}_bends": ("mode", bends[f"{name}_bends"][1])}
            )
            for name in ("autocorrelation", "norm", "baseline")
        },
    }


def _white_errors(data: xr.Dataset) -> list[float]:
    """The largest |a (13) - a exact|/a∞ at each context length, over the staged run's epochs."""
    found = []
    for context in data["context"].values.tolist():
        gap = _closed_form(data, context)[0] - _exact(data, context).products
        found.append(float((np.abs(gap) / DecoupledFlow(_modes(data, context)).fixed_point).max()))
    return found
