"""The claims about fixed points: where they are, how high, which are stable, long contexts."""

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, below, near

ROUNDING = 1e-11
FLAT = 1e-9  # eigenvalues below this are zero: those that are not are 1e-3 and more


def claims(data: xr.Dataset) -> list[Claim]:
    """All of them."""
    return [*_rest(data), *_conserved(data), *_stability(data), *_limits(data)]


def _rest(data: xr.Dataset) -> list[Claim]:
    count, high = data.sizes["point"], float(data["formula"].max())
    gap = abs(data["loss"] - data["formula"]).max("point")
    gradient, moved = (data[n].max("point") for n in ("gradient", "moved_gradient"))
    random = "at weights that meet the conditions and are random otherwise"
    off = float(np.abs(data["limit"] - data["formula"]).max())
    levels = f"largest over all {count} sets S, {random}; as N → ∞ it would be {off:.2g} lower"
    return [
        near(
            "fixed-point-levels", "The loss of every fixed point, on the path or off it, is "
            "tr Λ - Σ_S λ³/a: largest difference", "(59)", 0.0, float(gap.sel(rank=1)), ROUNDING,
            "rounding; losses from moments by Wick's theorem", levels, population=True,
        ),
        below(
            "fixed-points-at-rest", "At weights that meet (C1)-(C3) nothing moves",
            "(21)-(23), App. D.3", float(gradient.sel(rank=1)), ROUNDING,
            "rounding; gradients by automatic differentiation, all blocks",
            f"largest entry of the gradient over {count} sets S, {random}; with keys 1% longer "
            f"{float(moved.sel(rank=1)):.2g}", population=True,
        ),
        below(
            "rank-r-fixed-points", "Heads of rank R rest at the same fixed points",
            "(81)-(84), App. E.3", float(gradient.isel(rank=-1)), ROUNDING,
            "rounding; gradients by automatic differentiation, all blocks",
            f"R = {int(data['rank'][-1])}, {random}; heads with v = 0 meet (84) by a sum over "
            f"their pairs; with keys 1% longer {float(moved.isel(rank=-1)):.2g}", population=True,
        ),
        near(
            "rank-r-levels", "and have the same losses there: largest difference", "(83), (59)",
            0.0, float(gap.isel(rank=-1)), ROUNDING, "rounding",
            f"losses from {high:.3g} down to {float(data['formula'].min()):.3g}", population=True,
        ),
    ]  # fmt: skip


def _conserved(data: xr.Dataset) -> list[Claim]:
    size = float(np.abs(data["key_growth"]).max())
    balance = np.abs(data["balance_growth"].values)
    pairs = np.einsum("hrr->hr", balance)
    whole = max(float(pairs.max()), float(np.abs(data["value_growth"]).max()))
    alone = float(np.abs(data["pair_growth"]).max()) / size
    return [
        below(
            "rank-r-conserved", "‖k_r‖² - ‖q_r‖² of every pair and Σ_r ‖k_r‖² - v² of every head "
            "are conserved, whatever the loss", "(85)", whole / size, ROUNDING, "rounding",
            f"rate of change over that of the largest ‖k_r‖², at random weights with all blocks, "
            f"on P = {int(data.attrs['sequences']):,} sequences; that of ‖k_r‖² - v² without the "
            f"sum {alone:.2g}",
        ),
        below(
            "rank-r-conserved-matrix", "so is all of the R by R matrix KKᵀ - QQᵀ", "E7",
            float(balance.max()) / size, ROUNDING, "rounding", beyond=True,
        ),
    ]  # fmt: skip


def _stability(data: xr.Dataset) -> list[Claim]:
    full = data["learned"].all("component")
    saddles, minimum = data.sel(point=~full), data.sel(point=full)
    merged = data["merged_eigenvalues"].values
    index = (data["eigenvalues"] < -FLAT).sum("weight")
    visited, far = saddles["visited"].values, np.log(data["distance"].values)
    logs = np.log(saddles["fall"].where(saddles["fall"] > 0).values)
    slope = logs @ (far - far.mean()) / np.sum((far - far.mean()) ** 2)
    lowest = min(float(minimum["eigenvalues"].min()), float(merged[1].min()))
    return [
        near(
            "saddles-unstable", "Every fixed point but M_D is unstable: share with a way down",
            "Sec. 3.2, 4.3", 1.0, float((saddles["fall"] > 0).all("distance").mean()), 0.0,
            "a count", f"of {saddles.sizes['point']}, at weights of least norm; the zero point of "
            "merged attention has as many negative eigenvalues as heads, "
            f"{int((merged[0] < -FLAT).sum())}", population=True,
        ),
        below(
            "minimum-stable", "M_D and, merged, all of M* are stable: no negative curvature",
            "(14), Sec. 3.2", -lowest, FLAT, "rounding; the Hessian by automatic differentiation",
            "at weights of least norm, and at random ones of merged attention with Σ vU = M*",
            population=True,
        ),
        near(
            "merged-escape-rate", "Merged attention leaves zero at the rate ‖Λ²‖", "(49)-(51)",
            float(data["growth"][1]), float(-merged[0].min()), ROUNDING,
            "rounding; the Hessian by automatic differentiation", f"‖Λ‖ = "
            f"{float(data['growth'][0]):.3g}", population=True,
        ),
        near(
            "saddle-index", "Off the path a head can turn to a mode of larger drop, on the path "
            "none: share of fixed points with that many negative eigenvalues", "stability", 1.0,
            float((index == data["swaps"]).mean()), 0.0, "a count",
            "negative eigenvalues of the Hessian at weights of least norm against #{(d, j): d ∈ S, "
            "j ∉ S, j of larger drop}: so a visited saddle has none, and looks like a minimum",
            population=True, beyond=True,
        ),
        below(
            "escape-order", "Visited saddles are left at third order, all others at second",
            "stability", float(np.abs(slope - np.where(visited, 3, 2)).max()), 0.25,
            "slope of ln(fall) over ln(distance) against 3 and 2; half of their difference is ½",
            f"largest difference; slopes on the path {_span(slope[visited])}, off it "
            f"{_span(slope[~visited])}", population=True, beyond=True,
        ),
    ]  # fmt: skip


def _span(values: np.ndarray) -> str:
    return f"{values.min():.3f} to {values.max():.3f}"


def _limits(data: xr.Dataset) -> list[Claim]:
    contexts = data["context"].values.astype(float)
    losses = abs(data["path_loss"] - data["path_limit"]).max("level").values
    found = []
    for id, claim, equation, errors in (
        ("levels-large-context", "In long contexts L(M_m) is the sum of the eigenvalues not "
         "learned, with an error of 1/N: slope", "after (24)", losses),
        ("weights-large-context", "and the final weights are Λ⁻¹, least squares, with an error of "
         "1/N: slope", "after (16)", data["weight_error"].values),
    ):  # fmt: skip
        slope = np.polyfit(np.log(contexts), np.log(errors), 1)[0]
        found.append(
            near(
                id, claim, equation, -1.0, float(slope), 0.1,
                "the next order is 1/N², of relative size tr Λ/(λ N) at the shortest; a limit that "
                "is off by anything has slope 0",
                f"N = {contexts[0]:g} to {contexts[-1]:g}, error from {errors[0]:.2g} to "
                f"{errors[-1]:.2g}", population=True,
            )
        )  # fmt: skip
    return found


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim other data or another theory that turns its verdict round.

    - `fixed-point-levels`: the losses as N → ∞.
    - `fixed-points-at-rest` and `rank-r-fixed-points`: the gradient with keys 1% longer.
    - `rank-r-levels`: the loss there.
    - `rank-r-conserved`: ‖k_r‖² - v² without the sum over the pairs.
    - `rank-r-conserved-matrix`: KKᵀ alone.
    - `saddles-unstable`: the way out of the minimum, where the loss rises.
    - `minimum-stable`: the curvature at zero instead of at the minimum.
    - `merged-escape-rate`: ‖Λ‖ instead of ‖Λ²‖.
    - `saddle-index`: one negative eigenvalue per mode that is not learned.
    - `escape-order`: the orders of visited and other saddles exchanged.
    - `levels-large-context`: the levels of N = 31 as the limit.
    - `weights-large-context`: the weights of the last saddle, which lack one eigenvector.
    """
    spectrum, contexts = -np.diff(data["path_limit"].values), data["context"].values[:, None]
    weights = 1 / (spectrum + (spectrum + spectrum.sum()) / contexts)  # eigenvalues of (16)
    weights[:, -1] = 0.0
    off = np.linalg.norm(weights - 1 / spectrum, axis=1) / np.linalg.norm(1 / spectrum)
    visited = data["formula"].values[data["visited"].values]
    short = data["path_limit"].copy(data=np.sort(visited)[::-1])
    left_out = (~data["learned"]).sum("component")
    minimum = data["learned"].all("component")
    least = 0 * data["fall"] + data["fall"].sel(point=minimum)[0]
    swapped = data["merged_eigenvalues"].copy(data=data["merged_eigenvalues"].values[::-1])
    return {
        "fixed-point-levels": data.assign(formula=data["limit"]),
        "fixed-points-at-rest": data.assign(gradient=data["moved_gradient"]),
        "rank-r-fixed-points": data.assign(gradient=data["moved_gradient"]),
        "rank-r-levels": data.assign(loss=data["moved_loss"]),
        "rank-r-conserved": data.assign(value_growth=data["pair_growth"]),
        "rank-r-conserved-matrix": data.assign(balance_growth=data["key_growth"]),
        "saddles-unstable": data.assign(fall=least),
        "minimum-stable": data.assign(merged_eigenvalues=swapped),
        "merged-escape-rate": data.assign(growth=data["growth"][::-1]),
        "saddle-index": data.assign(swaps=left_out),
        "escape-order": data.assign_coords(visited=~data["visited"]),
        "levels-large-context": data.assign(path_limit=short),
        "weights-large-context": data.assign(weight_error=("context", off)),
    }
