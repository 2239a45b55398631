"""The claims about null blocks and escape times of the linear transformer (second paper)."""

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, below

LEFT = 1e-3  # of its start: driven to zero


def claims(data: xr.Dataset) -> list[Claim]:
    """Blocks that stay zero, blocks that are driven to zero, escape times."""
    norms = data["norms"]
    start, end = norms.isel(time=0), norms.isel(time=-1)
    extra, own = (end.sel(block=list(names)) for names in (("p1", "q2"), ("p2", "q1")))
    began = start.sel(block=["p1", "q2"])
    shares = (extra / began.where(began > 0)).max(("seed", "block"))
    small, large = data["extra"].values[1:]
    still = float(norms.sel(extra=0.0, block=["p1", "q2"]).max())
    pool = float(data["pool_norms"].sel(extra=0.0, block=["p1", "q2"]).isel(time=-1).max())
    other = (own / start.sel(block=["p2", "q1"])).sel(extra=large)
    after = f"at t/τ = {float(data['time'][-1]):g}, largest of {data.sizes['seed']} seeds"
    return [
        below(
            "lt-null-blocks", "p₁ and q₂ stay zero if they start there", "2nd paper, (8)", still,
            1e-12, "rounding", f"largest norm over training; on a fixed set of "
            f"{int(data.attrs['tasks'])} tasks they grow to {pool:.2g}", population=True,
        ),
        below(
            "lt-null-blocks-driven", f"p₁ and q₂ that start at {small:g} times p₂ and q₁ are "
            "driven to zero", "2nd paper, (8)", float(shares.sel(extra=small)), LEFT,
            "a thousandth of where they start; they decay exponentially once p₂q₁ is learned",
            f"norm over that of the start, {after}", population=True,
        ),
        below(
            "lt-null-blocks-any-start", f"and those that start at {large:g} times p₂ and q₁ too",
            "2nd paper, (8)", float(shares.sel(extra=large)), LEFT, "as from a smaller start",
            f"they grow by this factor, and p₂ and q₁ shrink to {float(other.max()):.1g} of their "
            "start: p₁ Σ̂W q₂ predicts as well as p₂ WΣ̂ q₁, and the larger pair wins",
            population=True,
        ),
        _escape(data),
    ]  # fmt: skip


def _escape(data: xr.Dataset) -> Claim:
    logs = np.log(1 / data["begin"].values)
    slopes = np.polyfit(logs, data["half_time"].values, 1)[0]
    s, context = data["eigenvalue"].values, int(data.attrs["escape_context"])
    error = np.abs(slopes / (data["timescale"].values / 2) - 1)
    whole = abs(data["escape"] / data["half_time"] - 1).max("mode").values
    return below(
        "lt-escape-times", "The time to leave the plateau grows by τ_α/2 for each factor e in 1/a₀",
        "2nd paper, t* after (13)", float(error.max()), float(s.sum() / (s.min() * context)),
        "tr S/(s N): the others slow the growth of a mode by (T_q/s + T_p)/2N",
        f"largest relative error over the modes, N = {context}, half-times of the exact mean flow; "
        f"of t* itself {whole[0]:.2g} at a₀ = {float(data['begin'][0]):g} and {whole[-1]:.2g} at "
        f"{float(data['begin'][-1]):g}", population=True,
    )  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """A lopsided set of tasks, larger and smaller starts, and a clock of ln(1/p₀)."""
    norms, (small, large) = data["norms"], data["extra"].values[1:]
    exchanged = norms.assign_coords(extra=[0.0, large, small]).sel(extra=data["extra"])
    return {
        "lt-null-blocks": data.assign(norms=data["pool_norms"]),
        "lt-null-blocks-driven": data.assign(norms=exchanged),
        "lt-null-blocks-any-start": data.assign(norms=exchanged),
        "lt-escape-times": data.assign_coords(begin=np.sqrt(data["begin"])),
    }
