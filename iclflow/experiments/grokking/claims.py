"""What Figs 3B and 7 of the second paper say about grokking, measured on every seed.

A measure moves with the test loss where its half-change comes within a factor `MARKED`, earlier or
later, of the half-change of the test loss: `change_time` gives both the same meaning, on whatever
scale a measure moves. A claim of this kind is one about every seed.
"""

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, Control, at_least, at_most, near
from iclflow.experiments.grokking.data import first_step
from iclflow.measures import Curvature, change_time, find_stages

DELAY = 5.0  # times the steps it takes to memorise: fewer is no delay to speak of
MARKED = 1.5  # what comes this factor before or after a step still comes with it
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
    """The half-change of a measure against that of the test loss, either way."""
    half, drop = data["half_change"], {"measure": "test_loss"}
    own = half.sel(measure=measure)
    ratios, to_end, answered = (
        (own / other).values
        for other in (half.sel(drop), data["settling"].sel(drop), data["grokked"])
    )
    return at_most(
        id, f"{what} with the drop of the test loss", equation, _factor(ratios), MARKED,
        f"within a factor {MARKED:g} in steps, before or after",
        "step of its half-change over that of the test loss, largest factor either way over seeds; "
        f"all {_span(ratios, 2)}; over the step at which the drop ends {_span(to_end, 2)}; over "
        f"that of 95% test accuracy {_span(answered, 2)}", beyond=beyond,
    )  # fmt: skip


def _factor(ratios: np.ndarray) -> float:
    """The largest factor by which a ratio is above or below one; NaN if a seed has none."""
    return float(np.exp(np.max(np.abs(np.log(ratios)))))


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
    return at_most(
        "lt-grok-curvature", "the curvature of the weight norm marks the drop of the test loss",
        "Fig. 4B", _factor(np.asarray(ratios)), MARKED,
        f"within a factor {MARKED:g} in steps",
        "the most prominent peak of |d²‖W‖/d(ln t)²| after memorising, in steps over those to the "
        f"test loss's half-change; largest factor either way over seeds; all "
        f"{_span(np.asarray(ratios), 2)}",
    )  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, Control]:
    """For each claim other curves of the same runs that turn its verdict round.

    - `lt-grok-generalises`: the test accuracy when all training pairs are memorised, as if training
      had ended there.
    - `lt-grok-delay`: the step at which 95% of the training pairs are right, not of the test pairs.
    - `lt-grok-stages`: the training loss itself in place of its logarithm. It falls once.
    - `lt-grok-subspace`, `lt-grok-rank`, `lt-grok-marginal`, `lt-grok-norm`, `lt-grok-embedding`,
      `lt-grok-unembedding`: in place of the measure the test accuracy, which moves with the test
      loss, and the training loss, which has fallen long before.
    - `lt-grok-curvature`: in place of the curvature of the norm the slopes of the test loss, which
      is steepest in its own drop, and of the training accuracy, which rests after memorising.
    """
    steps, half = data["step"].values, data["half_change"]
    memorised = data["test_accuracy"].where(data["step"] <= data["memorised"]).max("time")
    trained = [first_step(steps, row, 0.95) for row in data["train_accuracy"].values]

    def moves_as(measure: str, curve: str) -> xr.Dataset:
        pairs = zip(data[curve].values, data["memorised"].values, strict=True)
        times = xr.DataArray([change_time(steps, row, since=at) for row, at in pairs], dims="seed")
        return data.assign(half_change=half.where(half["measure"] != measure, times))

    def bends_as(curve: str) -> xr.Dataset:
        clock, points = np.log(np.maximum(steps, 1)), np.log(data["curvature_step"].values)
        slopes = [np.gradient(np.interp(points, clock, row), points) for row in data[curve].values]
        return data.assign(norm_curvature=(("seed", "point"), np.stack(slopes)))

    return {
        "lt-grok-generalises": data.assign(
            test_accuracy=memorised.broadcast_like(data["test_accuracy"])
        ),
        "lt-grok-delay": data.assign(grokked=("seed", trained)),
        "lt-grok-stages": data.assign(
            train_loss=data["train_loss"].copy(data=np.exp(data["train_loss"].values))
        ),
        **{
            id: tuple(moves_as(measure, curve) for curve in ("test_accuracy", "train_loss"))
            for id, measure, *_ in _MEASURES
        },
        "lt-grok-curvature": tuple(bends_as(curve) for curve in ("test_loss", "train_accuracy")),
    }


def _span(values: np.ndarray, digits: int = 0) -> str:
    """Median and range."""
    low, middle, high = np.min(values), np.median(values), np.max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"
