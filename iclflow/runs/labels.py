"""Labelled results: runs laid out as an xarray.Dataset with names and units."""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from iclflow.results.display import short
from iclflow.results.provenance import stamp
from iclflow.results.trajectory import RESULTS, Labelled, Trajectory
from iclflow.runs.record import AXES, QUANTITIES
from iclflow.tasks.checks import require_kind

OUTCOMES = ("finished", "diverged", "not_a_number", "step_limit", "interrupted")
INTERRUPTED = OUTCOMES.index("interrupted")
FAILED = ("diverged", "not_a_number")
TIME, STEPS = r"training time $t/\tau$", "training steps"
COUNTED = "time is the number of steps: this rule keeps no t/tau; the loss has no factor 1/2"


def outcome(result: RESULTS) -> np.ndarray:
    """The result of a run (or a batch of runs) as an index into `OUTCOMES`."""
    values, names = np.asarray(result._value), enumerate(OUTCOMES)
    known = [(i, getattr(RESULTS, name)._value) for i, name in names if name != "interrupted"]
    found = np.select([values == value for _, value in known], [i for i, _ in known])
    return found.astype(np.int8)


def axis_labels(name: str, values: Sequence[Any] | Mapping[str, Any]) -> np.ndarray:
    """The labels of the values along one axis of a sweep; `ValueError` unless they differ.

    Numbers and words are their own labels, a list of numbers is `"0.5,0.3,0.2"`, and an object is
    the text that it shows, as `"Adam(b1=0.9, b2=0.999, eps=1e-08, weight_decay=0.0)"`. A mapping
    gives the labels itself.
    """
    if isinstance(values, Mapping):
        return np.asarray([str(key) for key in values])
    plain = [value.item() if np.ndim(value) == 0 and hasattr(value, "item") else value
             for value in values]  # fmt: skip
    numbers = all(isinstance(value, bool | int | float | np.number) for value in plain)
    found = np.asarray(plain) if numbers else np.asarray([_label(value) for value in plain])
    if len(np.unique(found)) < len(found):
        twice = next(label for label in found if np.count_nonzero(found == label) > 1)
        raise ValueError(
            f"two values of the axis {name} are both called {twice}; name them yourself: "
            f'axes={{"{name}": {{"first": …, "second": …}}}}'
        )
    return found


def _label(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, Sequence) or (eqx.is_array(value) and np.ndim(value) > 0):
        if np.asarray(value).dtype.kind not in "biuf":  # no list of numbers: its owner says why
            return repr(value)
        return ",".join(f"{number:g}" for number in np.asarray(value, float).ravel())
    if isinstance(value, eqx.Module):
        return short(value)
    return getattr(value, "__qualname__", repr(value)) if callable(value) else repr(value)


Axes = Mapping[str, tuple[str, ...]]  # of the weights, as the model names them
NARROW = ("output", "label")  # axes that one output does without
# The order in which all variables of a run have their dimensions; others follow in their own.
ORDER = ("seed", "time", *AXES)


def in_order(runs: xr.Dataset) -> xr.Dataset:
    """The same runs with the dimensions of every variable in the order that `sweep` gives them.

    A file may have been transposed by xarray or by another program: dimensions mean what their
    names say, wherever they stand. Whoever takes plain arrays out of runs orders them first.

    >>> import numpy as np, xarray as xr
    >>> from iclflow.runs.labels import in_order
    >>> in_order(xr.Dataset({"loss": (("time", "seed"), np.ones((5, 2)))})).loss.dims
    ('seed', 'time')
    """
    return runs.transpose(*ORDER, ..., missing_dims="ignore")


def variables(
    record: Mapping[str, Any], lead: int, axes: Axes | None = None
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Recorded arrays as name -> (dims after the first `lead`, array).

    A record of several arrays is a variable for each, by the names inside it. One that has labels
    has its dims from them; `coordinates_of` has the labels.
    """
    found: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for name, value in record.items():
        if isinstance(value, Labelled):
            found[name] = (tuple(dim for dim, _ in value.dims), np.asarray(value.values))
            continue
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            inner = jax.tree_util.keystr(path, simple=True, separator=".")
            known = (axes or {}).get(inner) if name == "weights" else None
            known = QUANTITIES[name].dims if known is None and name in QUANTITIES else known
            found.setdefault(inner or name, _labelled(inner or name, np.asarray(leaf), lead, known))
    return found


def coordinates_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The labels that recorded arrays bring along: dimension -> its coordinate."""
    found = [value.dims for value in record.values() if isinstance(value, Labelled)]
    return {
        dim: ((dim,), np.asarray(labels), {"long_name": dim.replace("_", " ")})
        for dims in found
        for dim, labels in dims
    }


def _labelled(
    name: str, array: np.ndarray, lead: int, known: tuple[str, ...] | None
) -> tuple[tuple[str, ...], np.ndarray]:
    """The dims of one array; where they are not known they are numbered."""
    if known is not None and known[1:] == NARROW and array.shape[-2:] == (1, 1):
        array = array[..., 0, 0]
    rest = array.ndim - lead
    narrow = tuple(dim for dim in known or () if dim not in NARROW)
    for dims in (known, narrow):
        if dims is not None and len(dims) == rest:
            return dims, array
    return tuple(f"{name}_{i}" for i in range(rest)), array


def attributes(name: str) -> dict[str, str]:
    """Long name and units of a variable."""
    if name in QUANTITIES:
        quantity = QUANTITIES[name]
        return {"long_name": quantity.long_name, "units": quantity.units}
    return {"long_name": name.replace("_", " "), "units": "1"}


def to_dataset(trajectory: Trajectory, settings: Any = None) -> xr.Dataset:
    """One run as a labelled Dataset."""
    axes = None if trajectory.state is None else trajectory.state.model.axes()
    data = {
        name: (("time", *dims), array, attributes(name))
        for name, (dims, array) in variables(trajectory.record, 1, axes).items()
    }
    coordinates, ends = clock_and_ends(
        time=np.asarray(trajectory.time),
        step=np.asarray(trajectory.step),
        result=((), outcome(trajectory.result)),
        stopped=((), np.asarray(trajectory.stopped)),
        timed=trajectory.timed,
    )
    about = {} if trajectory.timed else {"clock": COUNTED}
    coordinates |= coordinates_of(trajectory.record)
    return xr.Dataset(data | ends, coordinates, stamp(settings) | about)


def as_dataset(runs: Any) -> xr.Dataset:
    """Runs as a Dataset, of `sweep` or of one `Trajectory`; `ValueError` for anything else."""
    if isinstance(runs, Trajectory):
        return to_dataset(runs)
    needed = "a Dataset of sweep or of a file of runs, or the Trajectory of simulate"
    return require_kind("runs", runs, xr.Dataset, needed)


def is_timed(runs: xr.Dataset) -> bool:
    """Whether the coordinate `time` of a run is t/τ, and not the number of steps."""
    if "time" not in runs.coords or not np.isfinite(runs["time"].values).all():
        return False
    return runs["time"].attrs.get("long_name") != STEPS


def clock_and_ends(
    *, time: np.ndarray, step: np.ndarray, result: tuple, stopped: tuple, timed: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The coordinates of a run's clock, and the variables that say how it ended.

    - `timed`: whether `time` is t/τ; else it is the number of steps, and labelled so.
    """
    codes = np.arange(len(OUTCOMES), dtype=np.int8)
    flags = {
        "long_name": "how the run ended",
        "flag_values": codes,
        "flag_meanings": " ".join(OUTCOMES),
    }
    coordinates = {
        "time": ("time", time, {"long_name": TIME if timed else STEPS, "units": "1"}),
        "step": ("time", step, {"long_name": STEPS, "units": "1"}),
    }
    return coordinates, {
        "result": (*result, flags),
        "stopped": (*stopped, {"long_name": "last step (flow: time) computed", "units": "1"}),
    }


def from_dataset(dataset: xr.Dataset) -> Trajectory:
    """One run back from its Dataset (without the state that resumes it)."""
    dataset = in_order(dataset)
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
        timed=is_timed(dataset),
    )
