"""What Fig. 6 says about the weights of attention and network."""

import numpy as np
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
    """For each claim other data or another theory that turns its verdict round.

    - `early-alignment` and `late-alignment`: the heads of the shown seed beside the statistic of
      the other moment, E[y zᵀ] E[z zᵀ]⁻¹ on the plateau and E[y zᵀ] at convergence.
    - `merged-mlp-weights`: every head of attention beside the next head of the MLP, shown seed.
    """
    heads, network = data["attention"].values, data["mlp"].values  # [moment, head, feature]
    other = data["statistics"].values[::-1]
    along = np.abs(np.einsum("mhf,mf->mh", heads, other))
    sizes = np.linalg.norm(heads, axis=-1) * np.linalg.norm(other, axis=-1)[:, None]
    apart = np.abs(heads - np.roll(network, 1, axis=1)).max() / np.abs(network[1]).max()
    cosine, gap = data["attention_cosine"].copy(), data["weight_gap"].copy()
    cosine[int(data.attrs["shown_seed"])] = along / sizes
    gap[int(data.attrs["shown_seed"])] = apart
    return {
        "early-alignment": data.assign(attention_cosine=cosine),
        "late-alignment": data.assign(attention_cosine=cosine),
        "merged-mlp-weights": data.assign(weight_gap=gap),
    }
