"""Somebody's loss curve beside the theory: which plateau is it on, when does the next drop come."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from iclflow.measures import Clock, Stages, find_stages
from iclflow.models import AbstractModel
from iclflow.tasks.task import Task
from iclflow.theory import Modes, plateau_losses, predict, visited_levels

QUANTILES = (0.1, 0.5, 0.9)
UNKNOWN = "early and late losses are not known on both sides of it"
RISE = 0.05  # of the loss: a stage that ends higher by more than this is no plateau
MATCH = 0.25  # of the distance between two levels: a plateau farther from both is on neither


def diagnose_curve(
    steps: Float[np.ndarray, " T"],
    losses: Float[np.ndarray, " T"],
    *,
    early: Float[np.ndarray, " T"] | None = None,
    late: Float[np.ndarray, " T"] | None = None,
    metrics: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
    task: Task | None = None,
    starts: Sequence[AbstractModel] = (),
    rate: float | None = None,
    clock: Clock = Clock.LOG,
) -> xr.Dataset:
    """Stages of a curve, the plateau levels L(M_m), and the next drop.

    `starts` are initial weights drawn as the run drew its own; each has a drop time by theory
    (`theory.predict`), on the clock t/τ = 2 `rate` · step. The
    next drop is predicted from the starts whose plateau lasts at least as long as this one has.

    `early` and `late` are the losses at early and late positions of the context, at the same steps.
    With them the Dataset has `early_loss` and `late_loss` over `time`, and over `drop_number`
    `in_context_share`, `in_context_error`, `in_context_p_value` and `in_context_label` (1 or 0) of
    each drop, and all that in words as `in_context`. `metrics` are further curves by name, each as
    its steps and values, such as the induction scores of checkpoints. They are kept on an axis of
    their own, `metric_step`.

    Over `time` (steps): `loss`. Over `stage`: `start`, `end`, `level`, `confidence`, and with a
    task the nearest `plateau_number`, `gap` = level - L(M_m), and whether it `matches`: the gap is
    less than a quarter of the distance between levels. `predicted` [next, quantile] are 10%, 50%
    and 90% of the next drop's step; `drop_steps` [plateau drop, quantile] those of every drop, from
    the start. `rises_to` is the loss at the end of a stage that rises, NaN where it does not: such
    a stage is no plateau, and `level` is where the rise began. Attributes: `falling`, `rising`, and
    `now` (number of the plateau); `not_finite`, how many losses are NaN or infinite, and
    `failed_at`, the step from which on all of them are. Where the last stage matches no level, the
    loss rises at the end or the training failed, there is neither `now` nor `predicted`.

    - `steps`, `losses`: the curve.
    - `task`: what was trained on, for the levels of the plateaus.
    - `clock`: the time in which a plateau is long.

    >>> import numpy as np, iclflow as icl
    >>> steps = np.arange(0, 2000.0, 10)
    >>> losses = 0.5 + 0.5 / (1 + np.exp((steps - 1000) / 40))
    >>> found = icl.diagnosis.diagnose_curve(steps, losses)
    >>> found.sizes["stage"], bool(found.attrs["falling"])
    (2, False)
    """
    finite = int(np.sum(np.isfinite(losses) & np.isfinite(steps)))
    if finite < 3:
        raise ValueError(
            f"a loss curve needs at least 3 finite points, got {finite}; did it diverge?"
        )
    kept = np.isfinite(losses) & np.isfinite(steps)
    stages = find_stages(steps, losses, early=early, late=late, clock=clock)
    found: dict[str, Any] = {"loss": ("time", losses)}
    if early is not None and late is not None:
        found |= _in_context(early, late, stages)
        words = [
            UNKNOWN if drop.in_context is None else str(drop.in_context) for drop in stages.drops
        ]
        found["in_context"] = ("drop_number", np.array(words, str))
    for field in ("start", "end", "level", "confidence"):
        values = [getattr(plateau, field) for plateau in stages.plateaus]
        found[field] = ("stage", np.array(values, float))
    found["drop_time"] = ("drop_number", np.array([drop.time for drop in stages.drops], float))
    falling = bool(stages.drops) and not stages.drops[-1].complete
    attrs: dict[str, Any] = {"falling": int(falling), "not_finite": int(np.sum(~kept))}
    if not kept[-1]:
        attrs["failed_at"] = float(steps[np.flatnonzero(kept)[-1] + 1])
    ends = _ends_of_rises(steps[kept], losses[kept], stages)
    found["rises_to"] = ("stage", ends)
    rising = bool(ends.size) and bool(np.isfinite(ends[-1])) and not falling
    attrs["rising"] = int(rising)
    levels = np.zeros(0)
    if task is not None:
        levels = visited_levels(task, starts[0]) if starts else np.asarray(plateau_losses(task))
        gaps = found["level"][1][:, None] - levels[None]
        nearest = np.argmin(np.abs(gaps), axis=1)
        found["plateau_number"] = ("stage", nearest)
        found["gap"] = ("stage", gaps[np.arange(len(nearest)), nearest])
        matches = np.abs(found["gap"][1]) < MATCH * _spacing(levels)[nearest]
        found["matches"] = ("stage", matches)
        if matches.size and matches[-1] and kept[-1] and not rising:
            attrs["now"] = int(nearest[-1]) + falling
    if task is not None and starts and rate is not None:
        times = _drop_steps(task, starts, rate, len(levels) - 1)
        found["drop_steps"] = (
            ("number", "quantile"),
            np.quantile(times, QUANTILES, axis=0, method="inverted_cdf").T,
        )
        attrs["starts"] = len(starts)
        if "now" in attrs:
            passed = stages.drops[-1].time if stages.drops else 0.0
            predicted = _next_drop(times, attrs["now"], passed, float(steps[-1]))
            found["predicted"] = (("next", "quantile"), predicted)
    found["level_theory"] = ("plateau", levels)
    data = xr.Dataset(found, attrs=attrs).assign_coords(
        time=("time", steps, {"long_name": "training steps", "units": "1"}),
    )
    return data if not metrics else data.assign(_on_one_axis(metrics))


def _in_context(
    early: Float[np.ndarray, " T"], late: Float[np.ndarray, " T"], stages: Stages
) -> dict[str, Any]:
    """The two losses, and what every drop is by them; NaN where there are too few points."""
    shares = [drop.in_context for drop in stages.drops]
    found: dict[str, Any] = {
        f"{side}_loss": ("time", values, {"long_name": f"{side} in the context", "units": "1"})
        for side, values in (("early", early), ("late", late))
    }
    for field in ("share", "error", "p_value", "label"):
        values = [np.nan if one is None else float(getattr(one, field)) for one in shares]
        about = {"long_name": f"in-context learning: {field.replace('_', ' ')}", "units": "1"}
        found[f"in_context_{field}"] = ("drop_number", np.array(values, float), about)
    return found


def _on_one_axis(metrics: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> xr.Dataset:
    """Curves by name on the steps of all of them, NaN where one has no value."""
    about = {"long_name": "step", "units": "1"}
    curves = [
        xr.DataArray(
            np.asarray(values, float),
            {"metric_step": np.asarray(steps, float)},
            ["metric_step"],
            name=name,
            attrs={"long_name": name.replace("_", " "), "units": "1"},
        )
        for name, (steps, values) in metrics.items()
    ]
    whole = xr.merge(curves, join="outer", compat="no_conflicts")
    whole["metric_step"].attrs |= about
    return whole


def _ends_of_rises(
    steps: Float[np.ndarray, " T"], losses: Float[np.ndarray, " T"], stages: Stages
) -> Float[np.ndarray, " n"]:
    """The loss at the end of each stage that rises; NaN for the others.

    A stage lasts from its plateau's start until the next drop begins, or the curve ends. It rises
    if the median of its last fifth is above that of its first fifth by more than `RISE` of the
    loss and by more than five standard errors. The errors are those of medians of a fifth of the
    points, with the noise taken from the differences of neighbours.
    """
    found = np.full(len(stages.plateaus), np.nan)
    for i, plateau in enumerate(stages.plateaus):
        later = [p.start for p in stages.plateaus[i + 1 : i + 2]]
        later += [d.start for d in stages.drops if d.start >= plateau.start]
        inside = losses[(steps >= plateau.start) & (steps <= min(later, default=np.inf))]
        part = len(inside) // 5
        if part < 2:
            continue
        first, last = np.median(inside[:part]), np.median(inside[-part:])
        noise = 1.4826 * np.median(np.abs(np.diff(inside))) / np.sqrt(2)
        error = 1.2533 * noise * np.sqrt(2 / part)
        if last - first > max(RISE * abs(first), 5 * error):
            found[i] = last
    return found


def _spacing(levels: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The distance of each level to the nearest other one."""
    apart = np.abs(np.diff(levels))
    return np.minimum(np.append(apart, np.inf), np.append(np.inf, apart))


def _drop_steps(
    task: Task, starts: Sequence[AbstractModel], rate: float, count: int
) -> Float[np.ndarray, "S n"]:
    """The steps of the drops of every start; infinite where a drop never comes."""
    modes, steps = Modes.of(task), np.full((len(starts), count), np.inf)
    for row, model in zip(steps, starts, strict=True):
        times = predict(modes, model, probes=0).times
        row[: len(times)] = times
    return steps / (2 * rate)


def _next_drop(
    times: Float[np.ndarray, "S n"], now: int, passed: float, last: float
) -> Float[np.ndarray, "k 3"]:
    """Quantiles of the next drop among the starts that agree with having waited so long.

    Empty after the last drop; NaN if no start agrees.
    """
    if now >= times.shape[1]:
        return np.zeros((0, len(QUANTILES)))
    before = times[:, now - 1] if now else np.zeros(times.shape[0])
    finite = np.isfinite(before)
    coming = passed + (times[finite, now] - before[finite])
    coming = coming[coming > last]
    if coming.size == 0:
        return np.full((1, len(QUANTILES)), np.nan)
    # without interpolation: a drop that never comes is infinitely late
    return np.quantile(coming, QUANTILES, method="inverted_cdf")[None]
