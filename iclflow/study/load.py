"""Saved runs back from disk, checked: a file may be anybody's, or damaged."""

from pathlib import Path

import numpy as np
import xarray as xr

from iclflow.losses.memory import require_memory
from iclflow.results.netcdf import opened

VARIABLES = 500  # a file of runs has some dozens


def load_runs(path: Path | str) -> xr.Dataset:
    """The runs of a NetCDF file, or `ValueError` in one line that names the file."""
    with opened(path) as lazy:
        if len(lazy.variables) > VARIABLES:
            raise ValueError(f"{path} has {len(lazy.variables)} variables; it holds no runs")
        require_memory(2 * lazy.nbytes, f"the runs in {path}", "save fewer times or seeds")
        runs = lazy.load()
    for name in runs.variables:
        kind = runs[name].dtype.kind
        if name in ("loss", "time", "step") and kind not in "fiu":
            raise ValueError(f"{path}: {name} must be numbers, got {runs[name].dtype}")
    if "loss" in runs and "time" not in runs["loss"].dims:
        raise ValueError(f"{path}: the loss must be over time, got {runs['loss'].dims}")
    empty = [str(name) for name, size in runs.sizes.items() if size == 0]
    if empty:
        raise ValueError(f"{path}: the dimension {empty[0]} is empty; it holds no runs")
    if "seed" in runs.dims:
        seeds = runs["seed"].values
        if seeds.dtype.kind not in "iu" or len(np.unique(seeds)) < len(seeds):
            raise ValueError(f"{path}: seeds must be different whole numbers")
    return runs
