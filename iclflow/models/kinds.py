"""Answers that depend on the shapes and types of arrays alone, found once."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ARRAYS = (jax.Array, np.ndarray, np.generic)


def once_a_kind(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, called once for all arguments of the same structure, shapes and types.

    It is given `jax.ShapeDtypeStruct` for arrays, as `eqx.filter_eval_shape` takes them.
    """

    @functools.lru_cache(maxsize=64)
    def found(tree: Any, leaves: tuple[Any, ...], *_: Any) -> Any:
        return function(*jax.tree.unflatten(tree, leaves))

    @functools.wraps(function)
    def answer(*arguments: Any) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        kinds = tuple(
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, ARRAYS) else leaf
            for leaf in leaves
        )
        # 1, 1.0 and True are equal, and different things; the precision can be another later.
        return found(tree, kinds, tuple(map(type, kinds)), jnp.result_type(float))

    return answer
