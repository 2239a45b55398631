"""How often the loss of softmax attention drops, counted by the detector of stages."""

import numpy as np
import xarray as xr

from iclflow.experiments.base import Claim, at_least, near
from iclflow.experiments.runs import delayed
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
    """Two drops where there was one, and one where there were several."""
    time, merged, separate = (data[n] for n in ("merged_time", "merged", "separate"))
    late = merged.copy(data=delayed(time.values, merged.values, 2.0))
    single = np.interp(np.linspace(0, 1, separate.shape[1]), time / time[-1], merged[0])
    return {
        "v2-softmax-merged": data.assign(merged=(merged + late) / 2),
        "v2-softmax-separate": data.assign(separate=separate * 0 + single),
    }
