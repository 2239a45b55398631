"""The batches of a sweep as one labelled Dataset."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import ArrayLike

from iclflow.dynamics import AbstractDynamics
from iclflow.models import AbstractInitialiser, AbstractModel, empty_model
from iclflow.results.provenance import stamp
from iclflow.runs.batch import BatchResult
from iclflow.runs.labels import (
    COUNTED,
    INTERRUPTED,
    attributes,
    clock_and_ends,
    coordinates_of,
    in_order,
    variables,
)
from iclflow.runs.transfer import copied

FINAL = "final_"  # begins the names of what is recorded of the last weights only


def assemble(
    results: Sequence[BatchResult],
    coordinates: Mapping[str, Sequence[Any] | np.ndarray],
    marks: np.ndarray,
    settings: Any,
) -> xr.Dataset:
    """All runs on their grid; runs that were not reached are NaN and `interrupted`."""
    lead = tuple(coordinates)
    shape = tuple(len(values) for values in coordinates.values())
    ended = np.full(shape, INTERRUPTED, np.int8)
    stopped = np.zeros(shape)
    blocks: dict[tuple[str, bool], list[tuple[tuple, tuple[str, ...], np.ndarray]]] = {}
    for result in results:
        place = tuple(result.batch.cells.T)
        ended[place], stopped[place] = result.result, result.stopped
        axes = result.batch.like.axes()
        for record, timed in ((result.record, True), (result.final, False)):
            for name, (dims, array) in variables(record, 1 + timed, axes).items():
                blocks.setdefault((name, timed), []).append((place, dims, array))
    data = {}
    for (name, timed), parts in blocks.items():
        whole = on_grid([(place, array) for place, _, array in parts], shape)
        dims = (*lead, *(("time",) if timed else ()), *parts[0][1])
        data[name if timed else FINAL + name] = (dims, whole, attributes(name))
    engines = {"engine": "; ".join(dict.fromkeys(result.engine for result in results))}
    clocks = [clock_of(result, marks) for result in results]
    timed = any(result.batch.parts[2].keeps_time for result in results)
    about = {} if timed else {"clock": COUNTED}
    same = all(np.array_equal(clock, clocks[0]) for clock in clocks)
    same = same and clocks[0].ndim == 1
    times, ends = clock_and_ends(
        time=clocks[0] if same else marks.astype(float),
        step=marks,
        result=(lead, ended),
        stopped=(lead, stopped),
        timed=timed,
    )
    if not same:
        rows = [
            (tuple(r.batch.cells.T), np.broadcast_to(c, (r.batch.count, len(marks))))
            for r, c in zip(results, clocks, strict=True)
        ]
        ends["clock"] = ((*lead, "time"), on_grid(rows, shape), times.pop("time")[2])
    named = {name: (name, np.asarray(values)) for name, values in coordinates.items()}
    for result in results:
        named |= coordinates_of(result.record) | coordinates_of(result.final)
    return xr.Dataset(data | ends, times | named, {**stamp(settings), **engines, **about})


def on_grid(parts: Sequence[tuple[tuple, np.ndarray]], shape: tuple[int, ...]) -> np.ndarray:
    """Rows of runs at their places; runs of other shapes (fewer heads) leave NaN elsewhere."""
    place, array = parts[0]
    in_order = np.arange(len(array))
    if len(array) == np.prod(shape) and np.all(np.ravel_multi_index(place, shape) == in_order):
        return copied(array).reshape(*shape, *array.shape[1:])  # one batch of all runs
    largest = np.max([array.shape[1:] for _, array in parts], axis=0).astype(int)
    kind = np.result_type(*(array for _, array in parts), np.float32)
    whole = np.full((*shape, *largest), np.nan, kind)
    for place, array in parts:
        whole[(*place, *(slice(n) for n in array.shape[1:]))] = array
    return whole


def clock_of(result: BatchResult, marks: np.ndarray) -> np.ndarray:
    """t/τ of every run at the marks, [mark] or [run, mark]."""
    dynamics, axis = result.batch.parts[2], result.batch.axes[2]
    clocks = np.asarray(_clocks(dynamics, axis, marks))
    return clocks if axis is None else clocks[: result.batch.count]


@eqx.filter_jit
def _clocks(dynamics: AbstractDynamics, axis: Any, marks: ArrayLike) -> Any:
    if axis is None:
        return dynamics.time(marks)
    return eqx.filter_vmap(lambda one: one.time(marks), in_axes=(axis,))(dynamics)


def final_models(runs: Mapping[str, Any], init: AbstractInitialiser) -> AbstractModel:
    """The last models of a sweep with `final=["weights"]`, stacked along its seeds."""
    like = empty_model(init)
    ordered = in_order(runs) if isinstance(runs, xr.Dataset) else runs
    arrays = {
        name: jnp.asarray(np.asarray(ordered[FINAL + name]), a.dtype).reshape(-1, *a.shape)
        for name, a in like.weights().items()
    }
    return jax.vmap(like.with_weights)(arrays)
