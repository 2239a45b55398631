"""Diagnoses of many runs side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr


def pad_seeds(singles: Sequence[xr.Dataset], seeds: Sequence[int]) -> xr.Dataset:
    """Datasets of single runs along a new dimension `seed`, each dimension as long as the longest.

    Numbers are padded with NaN, names with ""; counts [seed] say how many are real. A dimension
    with labels (time, candidate) keeps the longest list of them.
    """
    sizes = {
        str(dim): max(single.sizes.get(dim, 0) for single in singles)
        for dim in dict.fromkeys(d for single in singles for d in single.dims)
    }
    found: dict[str, Any] = {}
    for name in dict.fromkeys(str(n) for single in singles for n in single.data_vars):
        arrays = [single[name] for single in singles if name in single]
        dims = tuple(str(d) for d in arrays[0].dims)
        if name == "level_theory" or dims == ("candidate",):
            found[name] = arrays[0]
            continue
        words = arrays[0].dtype.kind in "UO"
        shape = (len(singles), *(sizes[d] for d in dims))
        whole = np.full(shape, "", object) if words else np.full(shape, np.nan)
        for i, single in enumerate(singles):
            if name in single:
                values = single[name].values
                whole[(i, *(slice(n) for n in values.shape))] = values
        counts = not dims and arrays[0].dtype.kind == "i"
        values = whole.astype(str if words else int) if words or counts else whole
        found[name] = (("seed", *dims), values, arrays[0].attrs)
    longest = max(singles, key=lambda single: single.sizes["time"])
    coords = {str(name): longest[name] for name in longest.coords if name in longest.dims}
    data = xr.Dataset(found, attrs=singles[0].attrs)
    return data.assign_coords(coords).assign_coords(seed=list(seeds))
