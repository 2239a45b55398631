"""What Figs 3B and 7 of the second paper say about grokking, measured on every seed.

A measure moves with something where its half-change comes within a factor `WITH` of it, earlier or
later; the interval over seeds decides. There are two clocks, the step of 95% test accuracy and the
half-change of the test loss, which comes earlier. The change of a measure is taken to end soon
after generalisation (`END`), so that the clean-up of the weights that follows does not count.
"""

from typing import Any

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, Control, at_least, near
from iclflow.experiments.grokking.data import first_step
from iclflow.experiments.intervals import around
from iclflow.measures import Curvature, find_stages

DELAY = 5.0  # times the steps it takes to memorise: fewer is no delay to speak of
WITH = 1.1  # a tenth; set by seeds that take no part here
END = "1.1"
_SUBSPACE, _RANK, _MARGINAL = "projector_distance", "effective_rank", "marginalised_rank"
_PAPER = (
    ("lt-grok-subspace", _SUBSPACE, "the subspaces of OV settle", "(16), Fig. 7"),
    ("lt-grok-rank", _RANK, "the effective rank of OV moves", "(15), Fig. 7"),
    ("lt-grok-marginal", _MARGINAL, "the marginalised effective rank of OV moves",
     "(15), Figs 4C, 7"),
)  # fmt: skip
_BEYOND = (
    ("lt-grok-norm", "weight_norm", "the norm of the weights moves"),
    ("lt-grok-embedding", "embedding_concentration", "the embedding gathers on few frequencies"),
    ("lt-grok-unembedding", "unembedding_concentration",
     "the unembedding gathers on few frequencies"),
)  # fmt: skip


def claims(data: xr.Dataset) -> list[Claim]:
    """The delay, the stages of the training loss, and the order of the measures."""
    accuracy, loss = "generalisation", "the first half of the test loss's drop"
    return [
        *_delay(data),
        _stages(data),
        *(_moves(data, id, m, f"{what} with {accuracy}", eq) for id, m, what, eq in _PAPER),
        *(
            _moves(data, f"{id}-loss", m, f"{what} with {loss}", eq, loss=True)
            for id, m, what, eq in _PAPER
        ),
        _moves(
            data, "lt-grok-subspace-run", _SUBSPACE, "so do they by the distance to the end of the "
            f"run: {_PAPER[0][2]} with {accuracy}", "(16), Fig. 7", end="run",
        ),
        *(
            _moves(data, id, m, f"{what} with {accuracy}", "", beyond=True)
            for id, m, what in _BEYOND
        ),
        _curvature(data),
    ]  # fmt: skip


def _delay(data: xr.Dataset) -> list[Claim]:
    delays = (data["grokked"] / data["memorised"]).values
    least = float(np.min(delays))  # NaN if a seed never gets there
    final = data["test_accuracy"].isel(time=-1).values
    return [
        near(
            "lt-grok-generalises", "in the end the pairs left out are answered too", "Fig. 3B", 1.0,
            float(np.min(final)), 0.05, "95% right counts as learned",
            f"test accuracy at the end, lowest of {final.size} runs",
        ),
        at_least(
            "lt-grok-delay", "generalisation comes long after memorisation", "Fig. 3B", least,
            DELAY, f"less than {DELAY:g} times the steps is no delay to speak of",
            "steps to 95% test accuracy over steps to 100% training accuracy, least over runs; "
            f"memorised at {_span(data['memorised'])}, generalised at {_span(data['grokked'])}",
        ),
    ]  # fmt: skip


def _stages(data: xr.Dataset) -> Claim:
    """Plateaus and cliffs of the training loss, as in the linear transformer."""
    steps = data["step"].values
    losses = data["train_loss"].values.reshape(-1, len(steps))
    counts = [len(find_stages(steps, np.log(loss), resamples=0).drops) for loss in losses]
    return at_least(
        "lt-grok-stages", "the training loss has plateaus and cliffs, like that of the linear "
        "transformer", "Fig. 3B", float(min(counts)), 2.0, "a count; one drop is no staircase",
        "drops of the logarithm of the training loss found on a logarithmic clock, fewest; each "
        "run " + ", ".join(map(str, counts)),
    )  # fmt: skip


def half_change(data: xr.Dataset, measure: str, end: str = END) -> xr.DataArray:
    """The half-change step of a measure, [task, seed], its change taken to end at `end`."""
    return data["half_change"].sel(measure=measure, end=end, drop=True)


def clocks(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """The step of 95% test accuracy and the half-change of the test loss, [task, seed]."""
    return {"accuracy": data["grokked"], "loss": half_change(data, "test_loss", "run")}


def _moves(
    data: xr.Dataset,
    id: str,
    measure: str,
    what: str,
    equation: str,
    *,
    loss: bool = False,
    end: str = END,
    beyond: bool = False,
) -> Claim:
    """The half-change of a measure against one of the clocks, either way."""
    own, clock = half_change(data, measure, end), clocks(data)
    ratios = {name: own / other for name, other in clock.items()}
    whole = half_change(data, measure, "run") / clock["accuracy"]
    return around(
        id, what, equation, ratios["loss" if loss else "accuracy"].values, WITH,
        "a tenth, before or after; worst task",
        f"step of half of its change over that of 95% test accuracy {_span(ratios['accuracy'], 2)} "
        f"and over that of half of the test loss's change {_span(ratios['loss'], 2)}; with the "
        f"change taken to the end of the run, over 95% test accuracy {_span(whole, 2)}",
        beyond=beyond,
    )  # fmt: skip


def _curvature(data: xr.Dataset) -> Claim:
    """The strongest bend of the weight norm after memorising, against the test loss's drop."""
    half, ratios = clocks(data)["loss"], np.full(data["grokked"].shape, np.nan)
    for task, seed in np.ndindex(ratios.shape):
        steps = data["curvature_step"].values[task]
        curve = np.abs(data["norm_curvature"].values[task, seed])
        after = steps >= data["memorised"].values[task, seed]
        if np.isfinite(curve).all() and after.sum() > 2:
            peaks = Curvature(steps[after], curve[after]).peaks(count=1)
            if peaks.size:
                ratios[task, seed] = float(peaks[0]) / half.values[task, seed]
    ratio = half.copy(data=ratios)
    return around(
        "lt-grok-curvature", "the curvature of the weight norm marks the drop of the test loss",
        "Fig. 4B", ratios, WITH, "a tenth, before or after; worst task",
        "the most prominent peak of |d²‖W‖/d(ln t)²| after memorising, in steps over those to half "
        f"of the test loss's change: {_span(ratio, 2)}",
    )  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, Control]:
    """For each claim other curves of the same runs that turn its verdict round.

    - `lt-grok-generalises`: the test accuracy when all training pairs are memorised, as if training
      had ended there.
    - `lt-grok-delay`: the step at which 95% of the training pairs are right, not of the test pairs.
    - `lt-grok-stages`: the training loss itself in place of its logarithm. It falls once.
    - What is held against a clock: the clock itself in the place of the measure, and the training
      loss, which has fallen long before.
    - `lt-grok-curvature`: in place of the curvature of the norm a bump at the half-change of the
      test loss, and the slope of the training accuracy, which rests after memorising.
    """
    steps, half = data["step"].values, data["half_change"]
    memorised = data["test_accuracy"].where(data["step"] <= data["memorised"]).max("time")
    trained = data["grokked"].copy(
        data=np.apply_along_axis(
            lambda row: first_step(steps, row, 0.95), -1, data["train_accuracy"].values
        )
    )
    clock = clocks(data)

    def moves_at(measure: str, times: xr.DataArray) -> xr.Dataset:
        return data.assign(half_change=half.where(half["measure"] != measure, times))

    def bends_as(curve: xr.DataArray) -> xr.Dataset:
        return data.assign(norm_curvature=curve.transpose(*data["norm_curvature"].dims))

    around_loss = np.log(data["curvature_step"] / clock["loss"])
    bump: Any = np.exp(-0.5 * (around_loss / 0.1) ** 2)
    flat: Any = 0 * around_loss + np.exp(-data["curvature_step"])
    found: dict[str, Control] = {
        "lt-grok-generalises": data.assign(
            test_accuracy=memorised.broadcast_like(data["test_accuracy"])
        ),
        "lt-grok-delay": data.assign(grokked=trained),
        "lt-grok-stages": data.assign(
            train_loss=data["train_loss"].copy(data=np.exp(data["train_loss"].values))
        ),
        "lt-grok-curvature": (bends_as(bump), bends_as(flat)),
    }
    of_paper = ("lt-grok-subspace", "lt-grok-rank", "lt-grok-marginal")
    measured = {id: measure for id, measure, *_ in (*_PAPER, *_BEYOND)}
    for id in (*of_paper, "lt-grok-norm", "lt-grok-embedding", "lt-grok-unembedding"):
        found[id] = (moves_at(measured[id], clock["accuracy"]), moves_at(measured[id], trained))
    for id in ("lt-grok-subspace-loss", "lt-grok-rank-loss", "lt-grok-marginal-loss"):
        measure = measured[id.removesuffix("-loss")]
        found[id] = (moves_at(measure, clock["loss"]), moves_at(measure, trained))
    found["lt-grok-subspace-run"] = (
        moves_at(_SUBSPACE, clock["accuracy"]), moves_at(_SUBSPACE, trained),
    )  # fmt: skip
    return found


def _span(values: xr.DataArray, digits: int = 0) -> str:
    """Median and range of the seeds of each task, in words."""
    parts = []
    for task in values["task"].values:
        one = values.sel(task=task).values
        low, middle, high = np.min(one), np.median(one), np.max(one)
        parts.append(f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f}, {task})")
    return ", ".join(parts)
