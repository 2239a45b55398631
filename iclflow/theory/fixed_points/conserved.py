"""Quantities that gradient flow conserves, whatever the data (17)(79)(85), E7.

They follow from symmetries of the function (the scale of a head can move between its layers), so
they hold for every loss on a linear model, full blocks and several outputs included.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from iclflow.models import (
    MLP,
    AbstractModel,
    ConvNet,
    Merged,
    Separate,
    Softmax,
)


def conserved_quantities(model: AbstractModel) -> dict[str, Array]:
    """The conserved quantities of a model, by name; see the functions they come from."""
    match model:
        case Merged():
            rows, merged = model.value_rows(), model.key_query()
            return {"value_merged": _balance(rows, merged)}
        case MLP():
            return {"value_merged": _balance(model.second, model.first)}
        case Separate():
            rows, keys, queries = model.value_rows(), model.key_rows(), model.queries
        case ConvNet():
            rows, keys, queries = model.third, model.kernels, model.second
        case Softmax(attention=Separate() as inner):
            # Softmax breaks the exchange of scale with the values, not the one inside k·q.
            return {"key_query": key_query_balance(inner.key_rows(), inner.queries)}
        case _:
            raise ValueError(
                f"no conserved quantity is known for {type(model).__name__}; known for Merged, "
                f"Separate, MLP, ConvNet and softmax of Separate"
            )
    return {
        "key_query": key_query_balance(keys, queries),
        "key_value": jnp.sum(keys**2, axis=(1, 2)) - jnp.sum(rows**2, axis=(1, 2)),
    }


def _balance(values: Float[Array, "H ..."], layer: Float[Array, "H ..."]) -> Float[Array, "H H"]:
    """w₂w₂ᵀ - W₁W₁ᵀ (17), rows the heads; 0 makes all heads parallel."""
    second = values.reshape(values.shape[0], -1)
    first = layer.reshape(layer.shape[0], -1)
    return second @ second.T - first @ first.T


def key_query_balance(
    keys: Float[Array, "H R T"], queries: Float[Array, "H R D"]
) -> Float[Array, "H R R"]:
    """KᵢKᵢᵀ - QᵢQᵢᵀ of each head, rows the R pairs (E7).

    Its diagonal is ‖k_r‖² - ‖q_r‖² (79)(85); with Σ_r ‖k_r‖² - v² ("key_value") it is all that
    a head of rank R conserves.
    """
    return jnp.einsum("hrt,hst->hrs", keys, keys) - jnp.einsum("hrd,hsd->hrs", queries, queries)


def conservation_drift(series: dict[str, Array]) -> dict[str, Float[Array, " T"]]:
    """max |C(t) - C(0)| of each recorded quantity (time first): 0 under flow, O(η) in descent."""
    drift = {}
    for name, values in series.items():
        moved = jnp.abs(values - values[:1])
        drift[name] = jnp.max(moved.reshape(moved.shape[0], -1), axis=1)
    return drift
