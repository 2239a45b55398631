"""Quantities that gradient flow conserves, whatever the data (17)(79)(85), E7.

They follow from symmetries of the function (the scale of a head can move between its layers), so
they hold for every loss on a linear model, full blocks and several outputs included. Which they
are, a model says itself.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from iclflow.models import AbstractModel


def conserved_quantities(model: AbstractModel) -> dict[str, Array]:
    """The conserved quantities of a model, by name; see `conserved` of its class.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> start = icl.Separate.initialiser(task, heads=3, scale=0.01)(jax.random.key(0))
    >>> sorted(icl.theory.conserved_quantities(start))
    ['key_query', 'key_value']
    """
    found = model.conserved()
    if not found:
        raise ValueError(
            f"no conserved quantity is known for {type(model).__name__}; known for Merged, "
            f"Separate, MLP, ConvNet and softmax of Separate"
        )
    return found


def conservation_drift(series: dict[str, Array]) -> dict[str, Float[Array, " T"]]:
    """max |C(t) - C(0)| of each recorded quantity (time first): 0 under flow, O(η) in descent.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> found = icl.theory.conservation_drift({"C": jnp.asarray([1.0, 1.5, 1.25])})
    >>> found["C"].tolist()
    [0.0, 0.5, 0.25]
    """
    drift = {}
    for name, values in series.items():
        moved = jnp.abs(values - values[:1])
        drift[name] = jnp.max(moved.reshape(moved.shape[0], -1), axis=1)
    return drift
