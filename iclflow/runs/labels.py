"""Labelled results: runs laid out as an xarray.Dataset with names and units."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr

from iclflow.results.provenance import stamp
from iclflow.results.trajectory import RESULTS, Trajectory
from iclflow.runs.record import QUANTITIES, WEIGHT_DIMS

OUTCOMES = ("finished", "diverged", "not_a_number", "step_limit", "interrupted")
INTERRUPTED = OUTCOMES.index("interrupted")
_EXTRA_DIMS = ("output", "label", "row", "column", "feature")


def outcome(result: RESULTS) -> np.ndarray:
    """The result of a run (or a batch of runs) as an index into `OUTCOMES`."""
    code = np.zeros(np.shape(result._value), np.int8)
    for index, name in enumerate(OUTCOMES):
        if name != "interrupted":
            code = np.where(np.asarray(result == getattr(RESULTS, name)), index, code)
    return code.astype(np.int8)


def variables(record: Mapping[str, Any], lead: int) -> dict[str, tuple[tuple[str, ...], Any]]:
    """Recorded arrays as name -> (dims after the first `lead`, array)."""
    found: dict[str, tuple[tuple[str, ...], Any]] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            separate = "keys" in value
            for part, array in value.items():
                dims = ("head", "pair", "label") if separate and part == "key_labels" else None
                dims = dims or WEIGHT_DIMS[part]
                array = np.asarray(array)
                if dims[1:] == ("output", "label") and array.shape[-2:] == (1, 1):
                    array, dims = array[..., 0, 0], dims[:1]
                found.setdefault(part, (dims, array))
            continue
        array = np.asarray(value)
        dims = QUANTITIES[name].dims if name in QUANTITIES else ()
        if len(dims) != array.ndim - lead:
            free = [d for d in _EXTRA_DIMS if d not in dims]
            dims = (dims + tuple(free))[: array.ndim - lead]
        found[name] = (dims, array)
    return found


def attributes(name: str) -> dict[str, str]:
    """Long name and units of a variable."""
    if name in QUANTITIES:
        quantity = QUANTITIES[name]
        return {"long_name": quantity.long_name, "units": quantity.units}
    return {"long_name": name.replace("_", " "), "units": "1"}


def to_dataset(trajectory: Trajectory, settings: Any = None) -> xr.Dataset:
    """One run as a labelled Dataset."""
    data = {
        name: (("time", *dims), array, attributes(name))
        for name, (dims, array) in variables(trajectory.record, 1).items()
    }
    dataset = xr.Dataset(data, attrs=stamp(settings))
    return finish(
        dataset,
        time=np.asarray(trajectory.time),
        step=np.asarray(trajectory.step),
        result=((), outcome(trajectory.result)),
        stopped=((), np.asarray(trajectory.stopped)),
    )


def finish(
    dataset: xr.Dataset, *, time: np.ndarray, step: np.ndarray, result: Any, stopped: Any
) -> xr.Dataset:
    """Add the clock and the outcome of the runs."""
    codes = np.arange(len(OUTCOMES), dtype=np.int8)
    flags = {
        "long_name": "how the run ended",
        "flag_values": codes,
        "flag_meanings": " ".join(OUTCOMES),
    }
    return dataset.assign_coords(
        time=("time", time, {"long_name": r"training time $t/\tau$", "units": "1"}),
        step=("time", step, {"long_name": "training steps", "units": "1"}),
    ).assign(
        result=(*result, flags),
        stopped=(*stopped, {"long_name": "last step (flow: time) computed", "units": "1"}),
    )


def from_dataset(dataset: xr.Dataset) -> Trajectory:
    """One run back from its Dataset (without the state that resumes it)."""
    if "seed" in dataset.dims:
        raise ValueError("this Dataset has many runs; select one, for example .isel(seed=0)")
    skip = ("result", "stopped")
    code = OUTCOMES[int(dataset["result"])]
    result = RESULTS.finished if code == "interrupted" else getattr(RESULTS, code)
    to_array: Callable[[Any], Any] = jnp.asarray
    return Trajectory(
        time=to_array(dataset["time"].values),
        step=to_array(dataset["step"].values),
        record={str(n): to_array(v.values) for n, v in dataset.items() if n not in skip},
        result=result,
        stopped=to_array(dataset["stopped"].values),
    )
