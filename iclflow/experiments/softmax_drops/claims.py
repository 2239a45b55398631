"""How often the loss of softmax attention drops, counted by the detector of stages."""

import xarray as xr

from iclflow.experiments.base import Claim, at_least, near
from iclflow.measures import find_stages


def claims(data: xr.Dataset) -> list[Claim]:
    """One drop against several, counted by the detector of plateaus."""
    merged = _drops(data, "merged")
    separate = _drops(data, "separate")
    fewest = min(separate)
    return [
        near(
            "v2-softmax-merged", "softmax attention with merged key and query drops once",
            "Fig. 1, v2", 1.0, float(max(merged, key=lambda n: abs(n - 1))), 0.0, "a count",
            f"drops found on a logarithmic clock{_linear(data, 'merged')}",
        ),
        at_least(
            "v2-softmax-separate", "softmax attention with separate key and query drops several "
            "times", "Fig. 3, v2", float(fewest), 2.0, "a count",
            f"drops of each seed {_listed(separate)}{_linear(data, 'separate')}; drops that "
            f"overlap count as one, so with a quarter of the time resolution "
            f"{_listed(_drops(data, 'separate', coarser=4))}",
        ),
    ]  # fmt: skip


def _drops(data: xr.Dataset, name: str, coarser: int = 1) -> list[int]:
    time = data[f"{name.removesuffix('_linear')}_time"].values
    return [
        # Drops are close to one another here, so every save point counts.
        len(find_stages(time, loss, resamples=0, resolution=time.size // coarser).drops)
        for loss in data[name].values
    ]


def _linear(data: xr.Dataset, name: str) -> str:
    """The drops of linear attention in the same time, where it was trained too."""
    if f"{name}_linear" not in data:
        return ""
    return f"; linear attention in the same time {_listed(_drops(data, f'{name}_linear'))}"


def _listed(counts: list[int]) -> str:
    return ", ".join(str(count) for count in counts)


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """Merged and separate key and query under each other's name, for both claims."""
    names = {f"{kind}{part}" for kind in ("merged", "separate") for part in ("", "_time", "_seed")}
    names |= {f"{kind}_linear" for kind in ("merged", "separate") if f"{kind}_linear" in data}
    other = {"merged": "separate", "separate": "merged"}
    exchanged = {name: name.replace(kind := name.split("_")[0], other[kind]) for name in names}
    swapped = data.rename(exchanged)
    return {"v2-softmax-merged": swapped, "v2-softmax-separate": swapped}
