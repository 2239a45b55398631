"""The models back from the weights that a run recorded."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from iclflow.models import (
    MLP,
    AbstractInitialiser,
    AbstractModel,
    ConvNet,
    Merged,
    Separate,
    empty_model,
)

MISSING = (
    "the run did not record its weights; record them, for example "
    "iclflow simulate --record loss,weights --out run.nc"
)


LAYERS = (Merged, Separate, MLP, ConvNet)  # known by the names of their weights
AXES = ("head", "pair", "output", "label", "row", "column")  # of all of these, in their order


def recorded_models(run: xr.Dataset, init: AbstractInitialiser | None = None) -> AbstractModel:
    """The models of one run that recorded `weights`, stacked along time.

    `init` is what drew the first of them: it says which model it was. Without it, only single
    layers are known, and softmax attention counts as the attention inside.
    """
    if init is None:
        return _layers(run)
    like = empty_model(init)
    names = like.weights()
    if any(name not in run for name in names):
        raise ValueError(MISSING)
    count, axes = run.sizes["time"], like.axes()
    for name, like_it in names.items():
        if run[name].size != count * like_it.size or run[name].dtype.kind not in "fiu":
            raise ValueError(f"{name} is not what the run's settings say; the file is damaged")
    found = {n: in_axes(run[n], axes.get(n, ())) for n in names}
    arrays = {n: jnp.asarray(found[n]).reshape(count, *a.shape) for n, a in names.items()}
    return jax.vmap(like.with_weights)(arrays)


def in_axes(
    recorded: xr.DataArray, axes: tuple[str, ...], lead: tuple[str, ...] = ("time",)
) -> np.ndarray:
    """Recorded weights [*lead, ...], whatever the order of the dimensions in the Dataset.

    - `axes`: the names that the model gives. Axes without a name were numbered by the recorder.
    - `lead`: the dimensions that come first.
    """
    numbered = [str(d) for d in recorded.dims if re.fullmatch(r".+_\d+", str(d))]
    numbered = sorted(set(numbered) - {*lead, *axes}, key=lambda d: int(d.rpartition("_")[2]))
    dims = dict.fromkeys((*lead, *axes, *numbered))
    return recorded.transpose(*dims, ..., missing_dims="ignore").values


def _layers(run: xr.Dataset) -> AbstractModel:
    for kind in LAYERS:
        fields = dataclasses.fields(kind)
        needed = [field.name for field in fields if field.default is dataclasses.MISSING]
        if all(name in run for name in needed):
            arrays = {
                f.name: jnp.asarray(in_axes(run[f.name], AXES)) for f in fields if f.name in run
            }
            # One output: value weights were recorded as a number a head.
            wide = {n: a[:, :, None, None] if a.ndim == 2 else a for n, a in arrays.items()}
            return jax.vmap(lambda one, kind=kind: kind(**one))(wide)
    raise ValueError(MISSING)
