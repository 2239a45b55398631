"""What the scale of the initial weights does, measured."""

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, below, near
from iclflow.experiments.init_scale.data import LAZY


def claims(data: xr.Dataset) -> list[Claim]:
    """Larger weights, shorter plateaus; the laws of the durations; lazy training."""
    half = np.median(data["merged_half_time"].values, axis=1)
    scales = data["merged_scale"].values
    drops = np.median(data["separate_drops"].values, axis=1)  # [scale, component]
    tiny = scales <= 1e-3
    log_slope = np.polyfit(np.log(1 / scales[tiny]), half[tiny], 1)[0]
    first = data["separate_drops"].values[:2, :, 0]
    ratio = np.log(data["separate_scale"].values[1] / data["separate_scale"].values[0])
    power = np.log(first[1] / first[0]) / ratio
    lazy = data["merged_loss"].values[LAZY]
    error = np.abs(lazy - data["lazy_loss"].values).max() / lazy[0]
    fall = [np.mean(np.diff(a, axis=0) < 0) for a in (half, drops)]
    largest = float(scales[LAZY])
    return [
        near(
            "init-shortens-merged",
            "Merged: the larger the initial weights, the shorter the plateau", "second version",
            1.0, float(fall[0]), 0.0, f"an order of medians over {len(scales)} scales",
            population=True,
        ),
        near(
            "init-shortens-separate",
            "Separate: the larger the initial weights, the earlier every drop", "second version",
            1.0, float(fall[1]), 0.0,
            f"an order of medians over {len(drops)} simulated scales, all drops", population=True,
        ),
        near(
            "merged-duration-logarithm",
            "The merged plateau grows by 1/‖Λ²‖ for each factor e in 1/w", "(51)", 1.0,
            float(log_slope * data["rate_of_growth"]), 0.01,
            "slope times ‖Λ²‖; descent at rate η grows by ηλ less than flow, a few 1e-3",
            "the law that (51) is the leading term of; its constant is what (51) leaves out",
            population=True,
        ),
        near(
            "separate-duration-power",
            "Separate plateaus last ~ 1/w: power of the first drop's time", "(68)", -1.0,
            float(np.median(power)), float(data["separate_scale"].values[1]),
            "corrections are of relative order w", population=True,
        ),
        below(
            "lazy-training",
            "Large weights hardly move: the loss decays as with the kernel of the start",
            "second version", float(error), float(data["solution_norm"]) / largest**2,
            "weights need to change by ‖M*‖/w, relative to w",
            f"w = {largest:g}; largest difference over L(0)", population=True,
        ),
    ]  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim other data or another theory that turns its verdict round.

    - `init-shortens-merged` and `init-shortens-separate`: the times of the scales in reverse.
    - `merged-duration-logarithm`: the first drop of separate key and query, predicted from the
      initial weights, at the scales that both kinds have.
    - `separate-duration-power`: the drop of merged key and query at scales that both kinds have. It
      comes with the logarithm of 1/w.
    - `lazy-training`: the kernel of the value weights alone, as in regression on random features.
    """
    half, drops = data["merged_half_time"], data["separate_drops"]
    scales = data["merged_scale"].values
    both = scales[np.isin(scales, data["theory_scale"].values)]
    power = data["theory_drops"].sel(theory_scale=both).isel(component=0).values
    shared = scales[np.isin(scales, data["separate_scale"].values)][:2]
    logarithm = half.sel(merged_scale=shared).values[..., None].repeat(drops.shape[-1], axis=-1)
    return {
        "init-shortens-merged": data.assign(merged_half_time=half.copy(data=half.values[::-1])),
        "init-shortens-separate": data.assign(separate_drops=drops.copy(data=drops.values[::-1])),
        "merged-duration-logarithm": data.sel(merged_scale=both).assign(
            merged_half_time=(half.dims, power)
        ),
        "separate-duration-power": data.sel(separate_scale=shared).assign(
            separate_drops=(drops.dims, logarithm)
        ),
        "lazy-training": data.assign(lazy_loss=data["random_features_loss"]),
    }
