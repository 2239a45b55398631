"""Arrays from the device to the host."""

from typing import Any

import jax
import numpy as np

PINNED = "pinned_host"
MOST = 2**30  # bytes at a time by way of memory that the system cannot use for anything else


def to_host(tree: Any) -> Any:
    """Arrays as NumPy's, not to be written to; from a GPU through pinned memory.

    A GPU writes there directly, and the pages are there from the transfer before; into an array
    that is new the same numbers take ten times as long.
    """
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    if jax.default_backend() == "gpu" and size <= MOST:
        tree = jax.tree.map(_pinned, tree)
    return jax.tree.map(np.asarray, tree)


def _pinned(array: Any) -> Any:
    if not isinstance(array, jax.Array):
        return array
    return jax.device_put(array, array.sharding.with_memory_kind(PINNED))
