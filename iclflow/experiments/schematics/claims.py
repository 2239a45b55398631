"""That one small prompt goes through attention and networks alike (Fig. 2)."""

import xarray as xr

from iclflow.experiments.base import Claim, below


def claims(data: xr.Dataset) -> list[Claim]:
    """The sum of three-layer networks is the attention layer."""
    return [
        below(
            "rank-one-is-convolution",
            "A rank-one layer predicts what the sum of its convolutional networks predicts",
            "Sec. 4.1, Fig. 2",
            abs(float(data["outputs"].sum() - data["attention"])),
            1e-12,
            "rounding; v qᵀ K z by matrices of kernels with stride D, attention by its definition",
            f"on the prompt that is drawn, where the prediction is {float(data['attention']):.3g}",
        )
    ]


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """One head of the two."""
    return {"rank-one-is-convolution": data.assign(outputs=data["outputs"].isel(head=[0]))}
