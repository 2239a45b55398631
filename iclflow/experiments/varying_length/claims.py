"""What is said about contexts of varying length, measured."""

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, below, level_tolerance, near
from iclflow.experiments.four_inputs import SPECTRUM


def claims(data: xr.Dataset) -> list[Claim]:
    """Levels, one and several drops, the harmonic mean."""
    levels = data["levels"].values
    sequences = int(data.attrs["sequences"])
    error = np.abs(data["plateau_loss"].values - levels).max()
    # Task vectors are whitened, and a sequence has as many targets as lengths: Var y² = 2 (wᵀΛw)².
    targets = sequences * data.sizes["length"]
    deviation = np.sqrt(2 * (1 + 2 * sum(v**2 for v in SPECTRUM)) / targets)
    final = data["merged_loss"].isel(merged_mark=-1).values
    gap = np.abs(data["length_trained"] / data["length_best"] - 1).max()
    off = abs(float(data["mean_levels"][-1] / data["pairs_levels"][-1]) - 1)
    return [
        below(
            "varying-length-levels",
            "Averaged over lengths, the plateaus lie at the levels of the averaged moments",
            "(24), E3", float(error), level_tolerance(levels, deviation),
            "three standard errors of the mean of all squared labels, at most half the smallest "
            "step between levels", f"P = {sequences:,}, each at {data.sizes['length']} lengths",
        ),
        near(
            "varying-length-end", "Merged attention ends at the last of these levels", "(16), E3",
            float(levels[-1]), float(final.mean()), float(3 * deviation),
            "three standard errors of the mean of all squared labels",
        ),
        below(
            "varying-length-by-length",
            "The trained model has the closed form's loss at every length", "E3", float(gap),
            float(3 * 60 / sequences),
            "a regression on 60 features loses 60/P of the least loss; three times that",
            "largest relative difference over the lengths, population loss", beyond=True,
        ),
        below(
            "varying-length-harmonic-mean",
            "Divided by the number of pairs, N is the harmonic mean of the lengths", "E3",
            float(np.abs(data["harmonic_levels"] - data["pairs_levels"]).max()), 1e-12, "rounding",
            f"with the arithmetic mean the last level would be off by {off:.0%}", population=True,
            beyond=True,
        ),
    ]  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim data that turn its verdict round."""
    return {
        "varying-length-levels": data.assign(levels=data["mean_levels"]),
        "varying-length-end": data.assign(levels=data["mean_levels"]),
        "varying-length-by-length": data.assign(length_best=data["length_own"]),
        "varying-length-harmonic-mean": data.assign(harmonic_levels=data["mean_levels"]),
    }
