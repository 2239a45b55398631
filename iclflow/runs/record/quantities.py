"""The quantities by name, what each is a function of, and the labels its values travel under."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from iclflow.dynamics import AbstractDynamics
from iclflow.dynamics.base import Recorder
from iclflow.dynamics.gradient_noise import gradient_noise
from iclflow.losses import (
    AbstractLoss,
    AbstractPromptLoss,
    LargeContext,
    Minibatch,
    Population,
)
from iclflow.losses.changing import changes
from iclflow.models import AbstractAttention, AbstractModel
from iclflow.results.choices import require_choice
from iclflow.runs.record.after import CURVATURE, conserved
from iclflow.runs.record.fixed_points import FixedPointDistance, PlateauDistance

# What a run may be asked to record: names, functions (model, loss) -> arrays, or a mapping of
# names to either, or to a loss (a test loss, evaluated on the model).
Record = Sequence[Any] | Mapping[str, Any]  # names, functions, and summaries of whole runs


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A function of (model, loss) with the labels its values travel under.

    Without a function it is measured after the run (`measure_after`), or made for the task.
    """

    function: Recorder | None
    dims: tuple[str, ...] = ()
    long_name: str = ""
    units: str = "1"


def attention_of(model: AbstractModel) -> AbstractAttention:
    """The attention layer with a model's weights, or `ValueError` where there is none."""
    found = model.as_attention()
    if found is None:
        raise ValueError(
            f"{type(model).__name__} has no value weights and no effective weights to record: it "
            f"is not a single attention layer; record weights, or a function of your own"
        )
    return found


def _values(model: AbstractModel, loss: AbstractLoss | None = None) -> Float[Array, "..."]:
    values = attention_of(model).values
    return values[:, 0, 0] if values.shape[1] == 1 else values


def _effective(model: AbstractModel, loss: AbstractLoss | None = None) -> Float[Array, "..."]:
    weights = attention_of(model).reduced_weights()
    return weights[0, 0] if weights.shape[0] == 1 else weights


def _gradient_norm(model: AbstractModel, loss: AbstractLoss) -> Float[Array, ""]:
    leaves = jax.tree.leaves(eqx.filter_grad(lambda m: loss(m))(model))
    return jnp.sqrt(sum((jnp.sum(leaf**2) for leaf in leaves), jnp.zeros(())))


def _gradient_noise(model: AbstractModel, loss: AbstractLoss) -> Float[Array, ""]:
    return gradient_noise(loss, model).trace


def _weights(model: AbstractModel, loss: AbstractLoss | None = None) -> dict[str, Array]:
    return model.weights()


def _rho(model: AbstractModel, loss: AbstractLoss) -> Float[Array, ""]:
    if not isinstance(loss, LargeContext):
        raise ValueError(
            f"rho says how near a run is to the end of LargeContext, this one trains on "
            f"{type(loss).__name__}; leave rho out"
        )
    return loss.rho(model)


QUANTITIES: dict[str, Quantity] = {
    "loss": Quantity(lambda m, loss: loss(m), (), "training loss $L$", "1"),
    "values": Quantity(_values, ("head", "output", "label"), "value weights $v_i$"),
    "effective": Quantity(
        _effective,
        ("output", "label", "row", "column"),
        r"effective weights $\sum_i v_i U_i$ on $\beta x_q^\top$",
    ),
    "weights": Quantity(_weights, (), "all weights"),
    "gradient_norm": Quantity(_gradient_norm, (), r"gradient norm $\|\partial L/\partial W\|$"),
    "sharpness": Quantity(None, (), "largest Hessian eigenvalue of $L$"),
    "top_eigenvalues": Quantity(None, ("eigenvalue",), "largest Hessian eigenvalues of $L$"),
    "lowest_curvature": Quantity(
        None, (), "lowest Hessian eigenvalue of $L$ (negative at a saddle)"
    ),
    "hessian_trace": Quantity(None, (), "trace of the Hessian of $L$"),
    "learning_coefficient": Quantity(None, (), r"local learning coefficient $\hat\lambda$"),
    "gradient_noise": Quantity(
        _gradient_noise, (), "trace of the covariance of a minibatch's gradient"
    ),
    "rho": Quantity(_rho, (), r"$\rho$ (the formula of long contexts holds below 1)"),
    "rate_times_sharpness": Quantity(
        None, (), r"$\eta\,\times$ largest Hessian eigenvalue (stable below 2)"
    ),
    "conserved": Quantity(conserved, ("conservation",), "what gradient flow conserves (17)(79)"),
    "conserved_drift": Quantity(
        None, (), r"$\max|C(t)-C(0)|$ of what gradient flow conserves (17)(79)"
    ),
    "fixed_point_distance": Quantity(
        None, (), r"distance $(E(\hat y-\hat y_S)^2)^{1/2}$ to the nearest fixed point"
    ),
}
AFTER = (*CURVATURE, "conserved_drift")
MODELS = "models"  # what a run keeps for `measure_after`; not among its results


class Recording(NamedTuple):
    """What a run records at its marks, and what is measured after it from the kept models."""

    functions: dict[str, Recorder]
    after: tuple[str, ...] = ()


def resolve(
    record: Record, *, loss: AbstractLoss | None = None, dynamics: AbstractDynamics | None = None
) -> Recording:
    """Names and functions as recorders; `ValueError` for what cannot be recorded.

    `loss` is the one loss of all runs (None: they differ).
    """
    functions: dict[str, Recorder] = {}
    after: list[str] = []
    for name, item in by_name(record).items():
        if not isinstance(item, str):
            if isinstance(item, AbstractLoss) and changes(item):
                raise ValueError(
                    f"what is recorded as {name} stays the same during training, and "
                    f"{type(item).__name__} changes; record its losses by name"
                )
            if not callable(item):
                raise ValueError(
                    f"record takes names, functions (model, loss) and losses, got {item!r} as "
                    f"{name}"
                )
            functions[name] = OfModel(item) if isinstance(item, AbstractLoss) else item
            continue
        require_choice("quantity to record", item, QUANTITIES)
        quantity = QUANTITIES[item]
        if item in AFTER:
            after.append(item)
            functions[MODELS] = _itself
        elif quantity.function is not None:
            functions[name] = quantity.function
        else:
            functions[name] = OfModel(_fixed_point_distance(loss))
    if "rate_times_sharpness" in after and not hasattr(dynamics, "rate"):
        raise ValueError(
            "rate_times_sharpness needs the rate of Descent, this run has none; record sharpness"
        )
    return Recording(functions, tuple(after))


def by_name(record: Record) -> Mapping[str, Any]:
    """What is to be recorded, by the names of the results."""
    if isinstance(record, str):
        raise ValueError(f"record must be a list of names, got the string {record!r}")
    if not np.iterable(record):
        raise ValueError(f"record must be a list of names, got {record!r}")
    return record if isinstance(record, Mapping) else {_name(item): item for item in record}


def _name(item: Any) -> str:
    if isinstance(item, str):
        return item
    name = getattr(item, "__name__", "<lambda>")
    if not callable(item) or not name.isidentifier():
        raise ValueError(
            f"record takes names and named functions (model, loss), got {item!r}; give a function "
            f'without a name as {{"name": function}}'
        )
    return name


def _itself(model: AbstractModel, loss: AbstractLoss) -> AbstractModel:
    del loss
    return model


def _fixed_point_distance(loss: AbstractLoss | None) -> FixedPointDistance | PlateauDistance:
    whole = loss.whole if isinstance(loss, Minibatch) else loss
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(whole))
    if isinstance(whole, AbstractPromptLoss) and not traced:
        return PlateauDistance.of(whole)
    if not isinstance(loss, Population) or traced:
        raise ValueError(
            "fixed_point_distance needs the population of a task, or one set of prompts for all "
            "runs; train on Population(task), or "
            'record {"fixed_point_distance": OfModel(FixedPointDistance.of(task))}'
        )
    return FixedPointDistance.of(loss)


class OfModel(eqx.Module):
    """A recorder that ignores the training loss (a test loss, say)."""

    function: Callable[[AbstractModel], Any]

    def __call__(self, model: AbstractModel, loss: AbstractLoss) -> Any:
        del loss
        return self.function(model)
