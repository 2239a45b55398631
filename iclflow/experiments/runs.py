"""Save points, sweeps that are whole, and labelled results: what the experiments have in common.

Most runs here are short, so that compiling costs more than running: equal shapes (the number of
marks above all) share one compilation.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from iclflow.measures import find_stages
from iclflow.results.provenance import stamp
from iclflow.runs.folder import Snapshots
from iclflow.runs.record import INTERRUPTED
from iclflow.runs.sweep import sweep

MARKS = 600  # save points of every run
Variable = tuple[tuple[str, ...], Any, str]  # dims, values, long name


def spread(last: int, first: float = 1 / 100) -> np.ndarray:
    """`MARKS` distinct steps: 0, then evenly in the logarithm from `first` times `last` on."""
    steps = np.round(np.geomspace(first * last, last, MARKS - 1)).astype(int)
    marks = np.concatenate([[0], steps])
    if np.any(np.diff(marks) < 1):
        raise ValueError(f"{last} steps are too few for {MARKS} marks from {first:g} of them on")
    return marks


def at(models: Any, index: int) -> Any:
    """One of the stacked models."""
    take = lambda a: jnp.asarray(np.asarray(a)[index])  # noqa: E731, in NumPy: nothing to compile
    return jax.tree.map(lambda a: take(a) if eqx.is_array(a) else a, models)


def train(*problem: Any, **options: Any) -> xr.Dataset:
    """What `sweep` returns, labels and all; Ctrl-C is raised, as half a run settles no claim."""
    runs = sweep(*problem, **options)
    if np.any(runs["result"] == INTERRUPTED):
        raise KeyboardInterrupt
    return runs


def named(variables: Mapping[str, Variable]) -> dict[str, xr.Variable]:
    """Arrays of theory or of measurement for `Dataset.assign`: name -> (dims, values, in words)."""
    return {
        name: xr.Variable(dims, np.asarray(values), {"long_name": about, "units": "1"})
        for name, (dims, values, about) in variables.items()
    }


def called(values: xr.DataArray, about: str) -> xr.DataArray:
    """The same values with another long name, as arithmetic takes theirs away."""
    return values.assign_attrs(long_name=about, units="1")


def finished(data: xr.Dataset, settings: Mapping[str, Any]) -> xr.Dataset:
    """The data with their provenance; the settings are attributes too."""
    plain = {k: v for k, v in settings.items() if isinstance(v, str | int | float)}
    plain = {k: int(v) if isinstance(v, bool) else v for k, v in plain.items()}
    return data.drop_attrs(deep=False).assign_attrs({**stamp(settings), **plain})


def checkpointed(folder: Path | None, tensors: Callable[[Any], Any]) -> dict[str, Any]:
    """Options of a sweep that leaves checkpoints in a folder and goes on from it."""
    if folder is None:
        return {}
    return {"store": folder, "observers": [Snapshots(folder, tensors)]}


def drop_counts(time: np.ndarray, losses: np.ndarray) -> list[int]:
    """How many drops the detector of stages finds in each curve."""
    return [len(find_stages(time, loss, resamples=0).drops) for loss in losses]


def largest_blocks(runs: xr.Dataset) -> xr.DataArray:
    """The largest entry of the blocks that the theory sets to zero, [seed, mark]."""
    blocks = [abs(runs[name]) for name in ("value_inputs", "key_labels")]
    inside = [[dim for dim in block.dims if dim not in ("seed", "time")] for block in blocks]
    largest = [block.max(dims) for block, dims in zip(blocks, inside, strict=True)]
    return xr.concat(largest, "block").max("block")
