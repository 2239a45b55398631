"""The models back from the weights that a run recorded."""

import jax
import jax.numpy as jnp
import xarray as xr

from iclflow.models import AbstractInitialiser, AbstractModel, empty_model


def recorded_models(run: xr.Dataset, init: AbstractInitialiser) -> AbstractModel:
    """The models of one run that recorded `weights`, stacked along time.

    `init` is what drew the first of them: it says which model it was.
    """
    like = empty_model(init)
    names = like.weights()
    missing = [name for name in names if name not in run]
    if missing:
        raise ValueError(
            f"the run did not record its weights ({missing[0]} is not there); record them, for "
            f"example iclflow simulate --record loss,weights --out run.nc"
        )
    count = run.sizes["time"]
    arrays = {n: jnp.asarray(run[n].values).reshape(count, *a.shape) for n, a in names.items()}
    return jax.vmap(like.with_weights)(arrays)
