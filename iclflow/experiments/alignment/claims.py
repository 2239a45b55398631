"""What Fig. 6 says about the weights of attention and network."""

import xarray as xr

from iclflow.experiments.alignment.data import PLATEAU
from iclflow.experiments.base import Claim, below, near


def claims(data: xr.Dataset) -> list[Claim]:
    """Early and late alignment of the heads; weights of attention and MLP."""
    sequences = int(data.attrs["sequences"])
    early, late = (
        {name: float(data[f"{name}_cosine"].isel(moment=i).min()) for name in ("attention", "mlp")}
        for i in (0, 1)
    )
    return [
        near(
            "early-alignment", "On the plateau every head is parallel to E[y zᵀ]: smallest |cos|",
            "App. C.6.2, Fig. 6", 1.0, early["attention"], float(PLATEAU + 5 * sequences**-0.5),
            "read when 1% of the drop is done and the weights have begun to turn by as much; the "
            "extra blocks turn the weakest head by some P^(-1/2)",
            f"over heads and seeds; MLP {early['mlp']:.6f}",
        ),
        near(
            "late-alignment",
            "At convergence every head is parallel to E[y zᵀ] E[z zᵀ]⁻¹: smallest |cos|",
            "App. C.6.2, Fig. 6", 1.0, late["attention"], 0.01,
            "the slowest mode is still e^(-2) from its end after the published number of steps",
            f"after {int(data.attrs['window']):,} steps, over heads and seeds; "
            f"MLP {late['mlp']:.6f}",
        ),
        below(
            "merged-mlp-weights",
            "The weights of attention stay close to those of the MLP throughout training", "Fig. 6",
            float(data["weight_gap"].max()), float(10 * sequences**-0.5),
            "the extra blocks grow as P^(-1/2) and move the drop by as much; ten times that",
        ),
    ]  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim data that turn its verdict round: the cosines of the other moment, a gap."""
    cosine = data["attention_cosine"]
    return {
        "early-alignment": data.assign(attention_cosine=0.9 * cosine),
        "late-alignment": data.assign(attention_cosine=0.98 * cosine),
        "merged-mlp-weights": data.assign(weight_gap=10 * data["weight_gap"]),
    }
