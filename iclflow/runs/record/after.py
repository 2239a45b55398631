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
from iclflow.measures.curvature import hessian_vector_product, top_eigenvalues
from iclflow.models import AbstractModel

TOP_EIGENVALUES = 3
CURVATURE_TIMES = 16  # save points at which a run measures its Hessian
LANCZOS_STEPS = 24
CURVATURE = ("sharpness", "top_eigenvalues", "rate_times_sharpness")


def measure_after(
    names: Sequence[str],
    models: AbstractModel,
    loss: AbstractLoss,
    rates: Float[Array, " T"] | None = None,
    marks: Shaped[Array, " T"] | None = None,
    *,
    times: int | None = CURVATURE_TIMES,
    products: int = LANCZOS_STEPS,
) -> dict[str, Array]:
    """Quantities by name of the models of one run, stacked along time, each [T, ...].

    `rates` are the learning rates at these times, for `rate_times_sharpness`. `marks` are the steps
    or times themselves, which a loss that changes needs.

    The Hessian is measured at `times` of the save points, evenly spread among them (all, if
    None); between them its quantities are NaN. One Lanczos process of so many Hessian-vector
    `products` serves `sharpness`, `top_eigenvalues` and `rate_times_sharpness`: exact for as many
    weights, and the largest eigenvalue converges first.
    """
    found: dict[str, Array] = {}
    if any(name in CURVATURE for name in names):
        top = _spectra(models, loss, marks, times, products)
        found["sharpness"] = top[:, 0]
        found["top_eigenvalues"] = top
        if rates is not None:
            found["rate_times_sharpness"] = rates * top[:, 0]
    if "conserved_drift" in names:
        from iclflow.theory.fixed_points.conserved import conservation_drift

        drift = conservation_drift({"all": jax.vmap(conserved)(models)})
        found["conserved_drift"] = drift["all"]
    return {name: found[name] for name in names}


def conserved(model: AbstractModel, loss: AbstractLoss | None = None) -> Float[Array, " c"]:
    """All that gradient flow conserves (17)(79), in a row."""
    from iclflow.theory.fixed_points.conserved import conserved_quantities

    return jnp.concatenate([value.reshape(-1) for value in conserved_quantities(model).values()])


def _spectra(
    models: AbstractModel, loss: AbstractLoss, marks: Any, times: int | None, products: int
) -> Float[Array, "T k"]:
    """The largest Hessian eigenvalues at some of the times; NaN at the others."""
    total = jax.tree.leaves(models)[0].shape[0]
    count = total if times is None else min(times, total)
    chosen = np.unique(np.linspace(0, total - 1, count).round().astype(int))

    def spectrum(given: tuple[AbstractModel, Any]) -> Float[Array, " k"]:
        model, mark = given
        now = loss if mark is None else loss.at(mark)
        weights, static = eqx.partition(model, eqx.is_inexact_array)
        flat, unravel = ravel_pytree(weights)
        product = hessian_vector_product(lambda w: now(eqx.combine(unravel(w), static)), flat)
        top = min(TOP_EIGENVALUES, flat.size)
        return top_eigenvalues(product, flat.size, jax.random.key(0), count=top, steps=products)

    found = jax.lax.map(spectrum, jax.tree.map(lambda a: a[chosen], (models, marks)))
    if len(chosen) == total:
        return found
    return jnp.full((total, found.shape[1]), jnp.nan, found.dtype).at[chosen].set(found)
