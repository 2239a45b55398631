"""What Figs 5 and 10 say about in-weight and in-context learning, measured."""

import itertools
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from iclflow.experiments.base import Claim, below, less, near
from iclflow.experiments.four_inputs import label_deviation
from iclflow.measures import first_crossing


def claims_fig5(data: xr.Dataset) -> list[Claim]:
    """In-weight first, then in-context; the larger the portion, the lower the first stop."""
    mixed = [p for p in data["portion"].values.tolist() if 0 < p < 1]
    order = {p: _half_time(data, "in_weight", p) / _half_time(data, "in_context", p) for p in mixed}
    worst = max(order.values())
    fixed = [p for p in data["portion"].values.tolist() if p > 0]
    after = _after_first_drop(data, fixed, 0.9)
    rise = max(float(np.max(np.diff(values))) for values in after.values())
    later = [
        share
        for share in (0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
        if all(np.all(np.diff(v) < 0) for v in _after_first_drop(data, fixed, share).values())
    ]
    shift = _drop_errors(data)
    gap = float(
        np.max(np.abs(data["sampled_training"] - data["training"].sel(portion=data.attrs["shown"])))
    )
    white = np.full(data.attrs["inputs"], 1 / data.attrs["inputs"])
    deviation = label_deviation(int(data.attrs["sampled_check_sequences"]), white)
    return [
        less(
            "fig5-order", "the model first learns in weight, then in context", "Section 7.1",
            worst, 1.0, "first means earlier",
            "time at which the in-weight test loss is halfway down over that of the in-context "
            "one, largest over portions; " + _listed(order), population=True,
        ),
        less(
            "fig5-portion", "right after the first drop training and in-weight test loss are "
            "lower for larger portions", "Section 7.1", rise, 0.0, "lower means lower",
            "largest change from one portion to the next, 0.2 to 1, where the first drop should be "
            "90% done; training " + ", ".join(f"{v:.2f}" for v in after["training"])
            + "; in weight " + ", ".join(f"{v:.2f}" for v in after["in_weight"])
            + f"; holds when read at {', '.join(f'{share:.0%}' for share in later)} of the drop, "
            "out of 50, 80, 90, 95, 98, 99%", population=True,
        ),
        below(
            "fig5-first-drop", "the first drop follows the leading direction of E[y S x_q]",
            "(15) with all blocks of (87)", max(shift.values()), 0.1,
            "the other directions are left out: an estimate to leading order",
            "relative error of the time at which the training loss is halfway down to the "
            "predicted level; " + _listed(shift), population=True, beyond=True,
        ),
        below(
            "fig5-sampled", "training on P sequences follows the population", "(87)", gap,
            3 * deviation, "three standard errors of the mean of P squared labels",
            f"largest difference of the two training losses, 60% fixed, P = "
            f"{data.attrs['sampled_check_sequences']}",
        ),
    ]  # fmt: skip


def claims_fig10(data: xr.Dataset) -> list[Claim]:
    """With no fixed task the model learns in context only, and least squares."""
    pure = data.sel(portion=0.0)
    learned = float(1 - pure["in_weight_noise"].min() / pure["in_weight_noise"][0])
    level = float(data.attrs["final_in_context"])
    memory = data["in_weight_noise"].min("time")
    lowest = {p: float(memory.sel(portion=p)) for p in memory["portion"].values.tolist()}
    rise = max(b - a for a, b in itertools.pairwise(lowest.values()))
    return [
        below(
            "fig10-in-context-only", "with random tasks alone nothing is learned in weight",
            "App. F, Fig. 10a", learned, 1e-6,
            "the initial weights are 1e-5: what they remember is of their size squared",
            "largest relative fall of the in-weight test loss without information in context",
            population=True,
        ),
        near(
            "fig10-final", "with random tasks alone the end is least squares in context", "(16)",
            level, float(pure["in_context"][-1]), 1e-6, "converged: the drop is exponential",
            population=True,
        ),
        less(
            "fig10-memory", "the larger the portion, the better the fixed task is memorised",
            "Section 7.1, App. F", rise, 0.0, "better means lower",
            "largest change from one portion to the next of the lowest in-weight test loss with "
            "noise for context labels; " + _listed(lowest), population=True,
        ),
    ]  # fmt: skip


def controls_fig5(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim of Fig. 5 other data or another theory that turns its verdict round.

    - `fig5-order`: the two test losses exchanged.
    - `fig5-portion`: the training losses of the portions in reverse.
    - `fig5-first-drop`: the predicted drop of random tasks alone, for every portion.
    - `fig5-sampled`: the training loss of another portion.
    """
    context = _portions(data["predicted"], [0] * data.sizes["portion"])
    return {
        "fig5-order": data.rename(in_weight="in_context", in_context="in_weight"),
        "fig5-portion": data.assign(training=_portions(data["training"], slice(None, None, -1))),
        "fig5-first-drop": data.assign(predicted=context),
        "fig5-sampled": data.assign(sampled_training=data["training"].sel(portion=1.0)),
    }


def controls_fig10(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim of Fig. 10 other data that turn its verdict round.

    - `fig10-in-context-only` and `fig10-final`: the run with a fifth of fixed tasks in place of the
      run with none.
    - `fig10-memory`: the losses of the portions in reverse.
    """
    noise, context = data["in_weight_noise"], data["in_context"]
    return {
        "fig10-in-context-only": data.assign(in_weight_noise=_portions(noise, [1, *range(1, 6)])),
        "fig10-final": data.assign(in_context=_portions(context, [1, *range(1, 6)])),
        "fig10-memory": data.assign(in_weight_noise=_portions(noise, slice(None, None, -1))),
    }


def _portions(runs: xr.DataArray, which: Any) -> xr.DataArray:
    """The runs of other portions under the names of these."""
    return runs.copy(data=runs.values[which])


def _half_time(data: xr.Dataset, name: str, portion: float) -> float:
    """When a test loss first is halfway from its start to its end."""
    curve = data[name].sel(portion=portion).values
    return first_crossing(data["time"].values, curve, (curve[0] + curve[-1]) / 2)


def _after_first_drop(
    data: xr.Dataset, portions: list[float], share: float
) -> dict[str, Float[np.ndarray, " p"]]:
    """Training and in-weight loss where the predicted first drop has come a share of its way.

    A logistic course at rate 2σ₁ goes from 90% to a share x in ln(x/(1-x)/9)/(2σ₁).
    """
    found: dict[str, list[float]] = {"training": [], "in_weight": []}
    for portion in portions:
        run = data.sel(portion=portion)
        delay = np.log(share / (1 - share) / 9) / (2 * float(run["growth"]))
        for name, values in found.items():
            values.append(_at(data, name, portion, float(run["predicted_end"]) + delay))
    return {name: np.asarray(values) for name, values in found.items()}


def _at(data: xr.Dataset, name: str, portion: float, time: float) -> float:
    return float(np.interp(time, data["time"].values, data[name].sel(portion=portion).values))


def _drop_errors(data: xr.Dataset) -> dict[float, float]:
    """Relative error of the predicted time of the first drop, each portion."""
    clock, errors = data["time"].values, {}
    for portion in data["portion"].values.tolist():
        run = data.sel(portion=portion)
        middle = (float(run["training"][0]) + float(run["first_level"])) / 2
        measured = first_crossing(clock, run["training"].values, middle)
        errors[portion] = abs(first_crossing(clock, run["predicted"].values, middle) / measured - 1)
    return errors


def _listed(values: dict[float, float]) -> str:
    return ", ".join(f"{p:.0%}: {value:.3f}" for p, value in values.items())
