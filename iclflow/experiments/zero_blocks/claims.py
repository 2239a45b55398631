"""How the blocks that the theory sets to zero scale with the number of sequences."""

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, near


def slope(data: xr.Dataset, name: str) -> tuple[float, float]:
    """Mean over datasets of d ln(quantity)/d ln P, and its standard error."""
    logs = np.log(data[name].values)
    x = np.log(data["count"].values.astype(float))
    x = x - x.mean()
    slopes = logs @ x / (x @ x)
    return float(slopes.mean()), float(slopes.std(ddof=1) / np.sqrt(len(slopes)))


def claims(data: xr.Dataset) -> list[Claim]:
    """The two powers of P."""
    found = []
    for name, power, id_, statement in (
        ("blocks", -0.5, "zero-blocks-size", "On P sequences the extra blocks grow to P^(-1/2)"),
        ("gap", -1.0, "zero-blocks-loss", "They lower the training loss by an amount ~ 1/P"),
    ):
        measured, error = slope(data, name)
        found.append(
            near(
                id_,
                f"{statement}: slope at convergence",
                "App. C.1, E.1",
                power,
                measured,
                3 * error,
                f"three standard errors over {data.sizes['dataset']} datasets",
                f"P from {int(data['count'][0]):,} to {int(data['count'][-1]):,}; loss gained "
                f"times P at the largest: "
                f"{float(data['gap'].isel(count=-1).mean() * data['count'][-1]):.3g}"
                if name == "gap"
                else "",
                beyond=True,
            )
        )
    return found


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim the power of the other one."""
    return {
        "zero-blocks-size": data.assign(blocks=data["gap"]),
        "zero-blocks-loss": data.assign(gap=data["blocks"]),
    }
