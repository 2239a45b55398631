"""Quantities of a whole run, from its weights at the save points: curvature, conserved drift.

They are measured once at the end and all times together, which is cheaper than one by one in the
loop, and with the same code from saved weights after the fact.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Shaped

from iclflow.losses import AbstractLoss
from iclflow.measures.curvature import hessian_vector_product, operator_trace, spectrum_ends
from iclflow.measures.learning_coefficient import learning_coefficient
from iclflow.models import AbstractModel

TOP_EIGENVALUES = 3
CURVATURE_TIMES = 16  # save points at which a run measures its Hessian
LANCZOS_STEPS = 24
CURVATURE = (
    "sharpness", "top_eigenvalues", "rate_times_sharpness", "lowest_curvature", "hessian_trace",
    "learning_coefficient",
)  # fmt: skip
CHAINS, DRAWS = 8, 250  # for the learning coefficient at one time of a run


def measure_after(
    names: Sequence[str],
    models: AbstractModel,
    loss: AbstractLoss,
    rates: Float[Array, " T"] | None = None,
    marks: Shaped[Array, " T"] | None = None,
    *,
    times: int | None = CURVATURE_TIMES,
    products: int = LANCZOS_STEPS,
) -> dict[str, Any]:
    """Quantities by name of the models of one run, stacked along time, each [T, ...].

    `rates` are the learning rates at these times, for `rate_times_sharpness`. `marks` are the steps
    or times themselves, which a loss that changes needs.

    The Hessian is measured at `times` of the save points, evenly spread among them (all, if
    None); between them its quantities are NaN. One Lanczos process of so many Hessian-vector
    `products` serves `sharpness`, `top_eigenvalues`, `rate_times_sharpness` and
    `lowest_curvature`: exact for as many weights, and the ends of the spectrum converge first.
    `hessian_trace` is exact up to 256 weights. `learning_coefficient` is sampled at the same times,
    and comes with `learning_coefficient_error`.
    """
    found: dict[str, Any] = {}
    if any(name in CURVATURE for name in names):
        found = _curvature(names, models, loss, marks, times, products)
        if rates is not None:
            found["rate_times_sharpness"] = rates * found["sharpness"]
    if "conserved_drift" in names:
        from iclflow.theory.fixed_points.conserved import conservation_drift

        drift = conservation_drift({"all": jax.vmap(conserved)(models)})
        found["conserved_drift"] = drift["all"]
    return {name: found[name] for name in names}


def conserved(model: AbstractModel, loss: AbstractLoss | None = None) -> Float[Array, " c"]:
    """All that gradient flow conserves (17)(79), in a row."""
    from iclflow.theory.fixed_points.conserved import conserved_quantities

    return jnp.concatenate([value.reshape(-1) for value in conserved_quantities(model).values()])


def _curvature(
    names: Sequence[str],
    models: AbstractModel,
    loss: AbstractLoss,
    marks: Any,
    times: int | None,
    products: int,
) -> dict[str, Any]:
    """Quantities of the Hessian, and learning coefficients, at some times; NaN at the others."""
    total = jax.tree.leaves(models)[0].shape[0]
    count = total if times is None else min(times, total)
    chosen = np.unique(np.linspace(0, total - 1, count).round().astype(int))

    def measure(given: tuple[AbstractModel, Any]) -> dict[str, Any]:
        model, mark = given
        now = loss if mark is None else loss.at(mark)
        weights, static = eqx.partition(model, eqx.is_inexact_array)
        flat, unravel = ravel_pytree(weights)
        product = hessian_vector_product(lambda w: now(eqx.combine(unravel(w), static)), flat)
        count = min(TOP_EIGENVALUES, flat.size)
        top, lowest = spectrum_ends(
            product, flat.size, jax.random.key(0), count=count, steps=products
        )
        found: dict[str, Any] = {
            "sharpness": top[0], "top_eigenvalues": top, "lowest_curvature": lowest
        }  # fmt: skip
        if "hessian_trace" in names:
            found["hessian_trace"] = operator_trace(product, flat.size, jax.random.key(1))
        if "learning_coefficient" in names:
            name, sampled = (
                "learning_coefficient",
                learning_coefficient(now, model, chains=CHAINS, draws=DRAWS),
            )
            found[name] = {name: sampled.value, f"{name}_error": sampled.error}
        return found

    found = jax.lax.map(measure, jax.tree.map(lambda a: a[chosen], (models, marks)))
    if len(chosen) == total:
        return found

    def spread(values: Array) -> Array:
        return jnp.full((total, *values.shape[1:]), jnp.nan, values.dtype).at[chosen].set(values)

    return jax.tree.map(spread, found)
