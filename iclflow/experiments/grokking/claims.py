"""What Figs 3B and 7 of the second paper say about grokking, measured on every seed.

A measure leads where its half-change comes before that of the test loss: `change_time` gives both
the same meaning, on whatever scale a measure moves. A claim about order is one about every seed.
"""

import numpy as np
import xarray as xr

from iclflow.diagnostics import Curvature, find_stages
from iclflow.experiments.base import Claim, near

DELAY = 5.0  # times the steps it takes to memorise: fewer is no delay to speak of
MARKED = 1.5  # a mark this factor away from a step still marks it
_LEADS = (
    ("lt-grok-subspace", "subspace_distance", "the subspaces of OV settle before the test loss "
     "drops", "(16), Fig. 7"),
    ("lt-grok-rank", "effective_rank", "the effective rank of OV moves before the test loss drops",
     "(15), Fig. 7"),
    ("lt-grok-marginal", "marginalised_rank", "the marginalised effective rank of OV moves before "
     "the test loss drops", "(15), Figs 4C, 7"),
    ("lt-grok-norm", "weight_norm", "the norm of the weights moves before the test loss drops",
     "beyond the paper"),
    ("lt-grok-embedding", "embedding_concentration", "the embedding gathers on few frequencies "
     "before the test loss drops", "beyond the paper"),
    ("lt-grok-unembedding", "unembedding_concentration", "the unembedding gathers on few "
     "frequencies before the test loss drops", "beyond the paper"),
)  # fmt: skip


def claims(data: xr.Dataset) -> list[Claim]:
    """The delay, the stages of the training loss, and the order of the measures."""
    return [
        *_delay(data),
        _stages(data),
        *(_lead(data, *about) for about in _LEADS),
        _curvature(data),
    ]


def _delay(data: xr.Dataset) -> list[Claim]:
    delays = data["grokked"].values / data["memorised"].values
    least = float(np.min(delays))  # NaN if a seed never gets there
    final = data["test_accuracy"].values[:, -1]
    return [
        near(
            "lt-grok-generalises", "in the end the pairs left out are answered too", "Fig. 3B", 1.0,
            float(np.min(final)), 0.05, "95% right counts as learned",
            f"test accuracy at the end, lowest of {final.size} seeds",
        ),
        Claim(
            "lt-grok-delay", "generalisation comes long after memorisation", "Fig. 3B",
            f"at least {DELAY:g}", least, DELAY, bool(least >= DELAY),
            f"less than {DELAY:g} times the steps is no delay to speak of",
            "steps to 95% test accuracy over steps to 100% training accuracy, least over seeds; "
            f"memorised at {_span(data['memorised'].values)}, "
            f"generalised at {_span(data['grokked'].values)}",
        ),
    ]  # fmt: skip


def _stages(data: xr.Dataset) -> Claim:
    """Plateaus and cliffs of the training loss, as in the linear transformer."""
    steps = data["step"].values
    counts = [
        len(find_stages(steps, np.log(loss), resamples=0).drops)
        for loss in data["train_loss"].values
    ]
    return Claim(
        "lt-grok-stages", "the training loss has plateaus and cliffs, like that of the linear "
        "transformer", "Fig. 3B", "at least 2", float(min(counts)), 2.0, min(counts) >= 2,
        "a count; one drop is no staircase",
        "drops of the logarithm of the training loss found on a logarithmic clock, fewest; each "
        "seed " + ", ".join(map(str, counts)),
    )  # fmt: skip


def _lead(data: xr.Dataset, id: str, measure: str, claim: str, equation: str) -> Claim:
    early, ratios, late = (
        data[stage].sel(measure=measure).values / data[stage].sel(measure="test_loss").values
        for stage in ("onset", "half_change", "settling")
    )
    half = data["half_change"]
    answered = half.sel(measure=measure).values / data["grokked"].values
    leads = (half.sel(measure="test_loss") - half.sel(measure=measure)).values
    worst = float(np.max(ratios))
    return Claim(
        id, claim, equation, "below 1", worst, 1.0, bool(worst < 1), "before means earlier",
        "step of its half-change over that of the test loss, largest over seeds; all "
        f"{_span(ratios, 2)}; lead in steps {_span(leads)}; the same ratio with 75% of the change "
        f"left {_span(early, 2)}, with 25% left {_span(late, 2)}; its half-change over the step of "
        f"95% test accuracy {_span(answered, 2)}",
    )  # fmt: skip


def _curvature(data: xr.Dataset) -> Claim:
    """The strongest bend of the weight norm after memorising, against the test loss's drop."""
    steps, half = data["curvature_step"].values, data["half_change"].sel(measure="test_loss").values
    ratios = []
    for curve, begin, middle in zip(
        data["norm_curvature"].values, data["memorised"].values, half, strict=True
    ):
        after = steps >= begin
        peaks = (
            Curvature(steps[after], np.abs(curve[after])).peaks(count=1)
            if np.isfinite(curve).all() and after.sum() > 2
            else np.empty(0)
        )
        ratios.append(float(peaks[0]) / middle if peaks.size else np.nan)
    factor = float(np.exp(np.max(np.abs(np.log(ratios)))))
    return Claim(
        "lt-grok-curvature", "the curvature of the weight norm marks the drop of the test loss",
        "Fig. 4B", f"at most {MARKED:g}", factor, MARKED, bool(factor <= MARKED),
        f"within a factor {MARKED:g} in steps",
        "the most prominent peak of |d²‖W‖/d(ln t)²| after memorising, in steps over those to the "
        f"test loss's half-change; largest factor either way over seeds; all "
        f"{_span(np.asarray(ratios), 2)}",
    )  # fmt: skip


def _span(values: np.ndarray, digits: int = 0) -> str:
    """Median and range."""
    low, middle, high = np.min(values), np.median(values), np.max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
