"""What Figs 3B and 7 of the second paper say about grokking, measured on every seed.

A measure moves before or with the test loss where its half-change comes before the end of the test
loss's drop: `change_time` gives both the same meaning, on whatever scale a measure moves. A claim
about order is one about every seed.
"""

import numpy as np
import xarray as xr

from iclflow.diagnostics import Curvature, find_stages
from iclflow.experiments.base import Claim, Control, at_least, at_most, near

DELAY = 5.0  # times the steps it takes to memorise: fewer is no delay to speak of
MARKED = 1.5  # a mark this factor away from a step still marks it
_MEASURES = (
    ("lt-grok-subspace", "subspace_distance", "the subspaces of OV settle", "(16), Fig. 7", False),
    ("lt-grok-rank", "effective_rank", "the effective rank of OV moves", "(15), Fig. 7", False),
    ("lt-grok-marginal", "marginalised_rank", "the marginalised effective rank of OV moves",
     "(15), Figs 4C, 7", False),
    ("lt-grok-norm", "weight_norm", "the norm of the weights moves", "", True),
    ("lt-grok-embedding", "embedding_concentration", "the embedding gathers on few frequencies",
     "", True),
    ("lt-grok-unembedding", "unembedding_concentration", "the unembedding gathers on few "
     "frequencies", "", True),
)  # fmt: skip


def claims(data: xr.Dataset) -> list[Claim]:
    """The delay, the stages of the training loss, and the order of the measures."""
    return [
        *_delay(data),
        _stages(data),
        *(_coincides(data, *about) for about in _MEASURES),
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
        at_least(
            "lt-grok-delay", "generalisation comes long after memorisation", "Fig. 3B", least,
            DELAY, f"less than {DELAY:g} times the steps is no delay to speak of",
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
    return at_least(
        "lt-grok-stages", "the training loss has plateaus and cliffs, like that of the linear "
        "transformer", "Fig. 3B", float(min(counts)), 2.0, "a count; one drop is no staircase",
        "drops of the logarithm of the training loss found on a logarithmic clock, fewest; each "
        "seed " + ", ".join(map(str, counts)),
    )  # fmt: skip


def _coincides(
    data: xr.Dataset, id: str, measure: str, what: str, equation: str, beyond: bool
) -> Claim:
    half, drop = data["half_change"], {"measure": "test_loss"}
    own = half.sel(measure=measure)
    to_end, ratios, answered = (
        (own / other).values
        for other in (data["settling"].sel(drop), half.sel(drop), data["grokked"])
    )
    leads = (half.sel(drop) - own).values
    return at_most(
        id, f"{what} before or with the drop of the test loss", equation, float(np.max(to_end)),
        1.0, "with it means until its end, when a quarter of the test loss's change is left",
        "step of its half-change over that at which the drop ends, largest over seeds; all "
        f"{_span(to_end, 2)}; over the half-change of the test loss {_span(ratios, 2)}, lead in "
        f"steps {_span(leads)}; over the step of 95% test accuracy {_span(answered, 2)}",
        beyond=beyond,
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
    return at_most(
        "lt-grok-curvature", "the curvature of the weight norm marks the drop of the test loss",
        "Fig. 4B", factor, MARKED,
        f"within a factor {MARKED:g} in steps",
        "the most prominent peak of |d²‖W‖/d(ln t)²| after memorising, in steps over those to the "
        f"test loss's half-change; largest factor either way over seeds; all "
        f"{_span(np.asarray(ratios), 2)}",
    )  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, Control]:
    """For each claim data that turn its verdict round; both ways where it is about an order."""
    half, end = data["half_change"], data["settling"].sel(measure="test_loss", drop=True)
    order = {
        id: tuple(
            data.assign(half_change=half.where(half["measure"] != measure, factor * end))
            for factor in (0.5, 2.0)
        )
        for id, measure, *_ in _MEASURES
    }
    # A bend where the test loss is halfway down and nowhere else, and one elsewhere.
    middle = half.sel(measure="test_loss", drop=True)
    distance = np.log(data["curvature_step"].values / middle.values[:, None])
    bend = data["norm_curvature"].copy(data=np.exp(-100 * distance**2))
    return {
        "lt-grok-generalises": data.assign(test_accuracy=0.5 * data["test_accuracy"]),
        "lt-grok-delay": data.assign(grokked=data["memorised"]),
        "lt-grok-stages": data.assign(train_loss=data["train_loss"] * 0 + 1.0),
        **order,
        "lt-grok-curvature": tuple(
            data.assign(norm_curvature=bend.roll(point=shift)) for shift in (0, -50)
        ),
    }


def _span(values: np.ndarray, digits: int = 0) -> str:
    """Median and range."""
    low, middle, high = np.min(values), np.median(values), np.max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
