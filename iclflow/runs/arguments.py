"""What `simulate` and `sweep` ask of their arguments, before anything is computed."""

import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from iclflow.dynamics import AbstractDynamics
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractInitialiser
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.checks import require_kind, shown


def require_dynamics(dynamics: Any) -> None:
    """Refuse what cannot train."""
    require_kind("dynamics", dynamics, AbstractDynamics, "a dynamics, such as icl.Descent(0.1)")


def require_initialiser(init: Any) -> None:
    """Refuse what draws no models; a model is one start, and seeds need many."""
    example = "an initialiser, such as icl.Merged.initialiser(task, heads=4, scale=0.1)"
    require_kind("init", init, AbstractInitialiser, example)


def require_source(source: Any) -> None:
    """Refuse what a sweep cannot train on: it is a task, a loss or a function, or some by name."""
    for one in source.values() if isinstance(source, Mapping) else (source,):
        if not isinstance(one, AbstractTask | AbstractLoss) and not callable(one):
            raise ValueError(
                f"source must be a task, a loss, a function key -> loss, or several of these by "
                f"name, got {shown(one)}"
            )
    if isinstance(source, Mapping) and not source:
        raise ValueError("source has no losses; give at least one by name")


def require_key(key: Any) -> None:
    """Refuse what is no key of JAX; a whole number is told to become one."""
    if key is None:
        return
    dtype = getattr(key, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and key.shape == ():
        return
    if dtype == jnp.uint32 and key.ndim == 1:  # the keys of jax.random.PRNGKey
        return
    raise ValueError(f"key must be one key, such as jax.random.key(0), got {shown(key)}")


def require_path(name: str, path: Any) -> None:
    """Refuse what names no file or folder; an empty name would be the current folder."""
    if path is not None and (not isinstance(path, str | os.PathLike) or not str(path)):
        raise ValueError(f"{name} must be the name of a file or folder, got {shown(path)}")
