"""Arrays from the device to the host, and into memory of their own."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from iclflow.runs.compiling import cores

MOST = 2**30  # bytes at a time by way of memory that the system cannot use for anything else
LARGE = 2**22  # bytes that several threads copy
THREADS = 4  # more find no more memory to write to


def to_host(tree: Any) -> Any:
    """Arrays as NumPy's, not to be written to; from a GPU through pinned memory.

    A GPU writes there directly, and the pages are there from the transfer before; into an array
    that is new the same numbers take several times as long.
    """
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    if jax.default_backend() == "gpu" and size <= MOST:
        tree = jax.tree.map(_pinned, tree)
    return jax.tree.map(np.asarray, tree)


def _pinned(array: Any) -> Any:
    if not isinstance(array, jax.Array):
        return array
    return jax.device_put(array, array.sharding.with_memory_kind("pinned_host"))


def copied(array: np.ndarray) -> np.ndarray:
    """A copy to write to; most of the time goes into new pages, which threads ask for together."""
    threads = min(THREADS, cores() // 2)
    if threads < 2 or array.nbytes < LARGE:
        return np.array(array)
    whole = np.empty(array.shape, array.dtype)
    with ThreadPoolExecutor(threads) as pool:
        parts = (np.array_split(a, threads) for a in (whole, array))
        list(pool.map(np.copyto, *parts))
    return whole
