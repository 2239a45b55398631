"""Quantities a run can record, by name: the glue between dynamics and what there is to measure."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import xarray as xr
from jaxtyping import Array, Float

from iclflow.diagnostics.curvature import hessian_product, top_eigenvalues
from iclflow.dynamics import sharpness
from iclflow.dynamics.base import Recorder
from iclflow.losses import AbstractLoss
from iclflow.models import (
    MLP,
    AbstractAttention,
    AbstractLinearModel,
    AbstractModel,
    ConvNet,
    Merged,
    Separate,
    Softmax,
)
from iclflow.theory.conserved import conserved_quantities

TOP_EIGENVALUES = 3


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A function of (model, loss) with the labels its values travel under."""

    function: Recorder
    dims: tuple[str, ...] = ()
    long_name: str = ""
    units: str = "1"


def linear_part(model: AbstractModel) -> AbstractLinearModel:
    """The attention inside a softmax, or the linear model itself."""
    part = model.attention if isinstance(model, Softmax) else model
    if not isinstance(part, AbstractLinearModel):
        raise ValueError(f"{type(model).__name__} has no value weights or effective weights")
    return part


def _values(model: AbstractModel, loss: AbstractLoss | None = None) -> Float[Array, "..."]:
    part = linear_part(model)
    if isinstance(part, MLP | ConvNet):
        part = part.as_attention()
    assert isinstance(part, AbstractAttention)
    values = part.values
    return values[:, 0, 0] if values.shape[1] == 1 else values


def _effective(model: AbstractModel, loss: AbstractLoss | None = None) -> Float[Array, "..."]:
    weights = linear_part(model).reduced_weights()
    return weights[0, 0] if weights.shape[0] == 1 else weights


def _gradient_norm(model: AbstractModel, loss: AbstractLoss) -> Float[Array, ""]:
    leaves = jax.tree.leaves(eqx.filter_grad(lambda m: loss(m))(model))
    return jnp.sqrt(sum((jnp.sum(leaf**2) for leaf in leaves), jnp.zeros(())))


def _top_eigenvalues(model: AbstractModel, loss: AbstractLoss) -> Float[Array, " k"]:
    weights, static = eqx.partition(model, eqx.is_inexact_array)
    product = hessian_product(lambda w: loss(eqx.combine(w, static)), weights)
    size = sum(leaf.size for leaf in jax.tree.leaves(weights))
    count = min(TOP_EIGENVALUES, size)
    return top_eigenvalues(product, size, jax.random.key(0), count=count, steps=20)


def _conserved(model: AbstractModel, loss: AbstractLoss | None = None) -> Float[Array, " c"]:
    return jnp.concatenate([value.reshape(-1) for value in conserved_quantities(model).values()])


def _weights(model: AbstractModel, loss: AbstractLoss | None = None) -> dict[str, Array]:
    part = linear_part(model)
    fields = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    return {name: value for name, value in fields.items() if eqx.is_array(value)}


QUANTITIES: dict[str, Quantity] = {
    "loss": Quantity(lambda m, loss: loss(m), (), "training loss $L$", "1"),
    "values": Quantity(_values, ("head",), "value weights $v_i$"),
    "effective": Quantity(
        _effective, ("row", "column"), r"effective weights $\sum_i v_i U_i$ on $\beta x_q^\top$"
    ),
    "weights": Quantity(_weights, (), "all weights"),
    "gradient_norm": Quantity(_gradient_norm, (), r"gradient norm $\|\partial L/\partial W\|$"),
    "sharpness": Quantity(
        lambda m, loss: sharpness(loss, m, 20), (), "largest Hessian eigenvalue of $L$"
    ),
    "top_eigenvalues": Quantity(
        _top_eigenvalues, ("eigenvalue",), "largest Hessian eigenvalues of $L$"
    ),
    "conserved": Quantity(_conserved, ("conservation",), "what gradient flow conserves (17)(79)"),
}

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


def resolve(
    names: Sequence[str], also: Mapping[str, Callable[[AbstractModel], Any]] | None = None
) -> dict[str, Recorder]:
    """Names to functions; `also` adds functions of the model alone (a loss is one)."""
    if isinstance(names, str):
        raise ValueError(f"record must be a list of names, got the string {names!r}")
    record: dict[str, Recorder] = {}
    for name in names:
        if name not in QUANTITIES:
            near = difflib.get_close_matches(name, QUANTITIES, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(
                f"nothing called {name!r} can be recorded; there are {', '.join(QUANTITIES)}{hint}"
            )
        record[name] = QUANTITIES[name].function
    for name, function in (also or {}).items():
        record[name] = OfModel(function)
    return record


class OfModel(eqx.Module):
    """A recorder that ignores the training loss (a test loss, say)."""

    function: Callable[[AbstractModel], Any]

    def __call__(self, model: AbstractModel, loss: AbstractLoss) -> Any:
        del loss
        return self.function(model)
