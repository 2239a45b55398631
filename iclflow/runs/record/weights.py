"""Weights in a labelled Dataset: the names of their axes, and the models back from them."""

import dataclasses

import jax
import jax.numpy as jnp
import xarray as xr

from iclflow.models import MLP, AbstractModel, ConvNet, Merged, Separate, Softmax

WEIGHT_DIMS: dict[str, tuple[str, ...]] = {
    "values": ("head", "output", "label"),
    "merged": ("head", "row", "column"),
    "keys": ("head", "pair", "row"),
    "queries": ("head", "pair", "column"),
    "value_inputs": ("head", "output", "row"),
    "key_labels": ("head", "label", "column"),
    "first": ("head", "feature"),
    "kernels": ("head", "pair", "row"),
    "second": ("head", "output", "label"),
    "third": ("head", "output", "label"),
}


def recorded_models(run: xr.Dataset, kind: str = "") -> AbstractModel:
    """The models of one run that recorded `weights`, stacked along time.

    `kind` is the name of the model in the settings; it is needed for softmax attention only.
    """
    arrays = {str(name): jnp.asarray(v.values) for name, v in run.items() if "time" in v.dims}
    kinds = {"merged": Merged, "keys": Separate, "first": MLP, "kernels": ConvNet}
    cls = next((kinds[name] for name in kinds if name in arrays), None)
    if cls is None:
        raise ValueError(
            "the run did not record its weights; record them, for example "
            "iclflow simulate --record loss,weights --out run.nc"
        )
    names = [field.name for field in dataclasses.fields(cls)]
    fields = {name: arrays[name] for name in names if name in arrays}
    for name, values in fields.items():
        if values.ndim == 2:  # a number a head: labels in and out are one
            fields[name] = values[:, :, None, None]
    wrap = Softmax if kind.startswith("softmax") else lambda model: model
    return jax.vmap(lambda one: wrap(cls(**one)))(fields)
