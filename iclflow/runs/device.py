"""The device: its cores, how loops are compiled for it, and how arrays come back from it."""

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer

# On a CPU XLA hands sums along an axis to a library; for the short ones of a batch of small models
# that is up to seventy times slower than the loop it replaces (benchmarks/runs.py). Large matrix
# products stay with the library.
OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}


def cores() -> int:
    """The cores that this process may use: `NPROC`, which XLA goes by too, or those it is given."""
    said = os.environ.get("NPROC", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_plain_loops(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function so that a CPU adds along an axis in plain loops.

    JAX takes options of the compiler only in the outermost `jit`. A call inside a transformation,
    such as a gradient, is therefore compiled without them, and so is `simulate`, which others
    transform.

    - `function`: takes and returns pytrees of arrays.
    """

    def call(*args: Any) -> Any:
        inside = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(args))
        return _jitted(function, not inside)(*args)

    return call


@functools.cache
def _jitted(function: Callable[..., Any], outermost: bool) -> Callable[..., Any]:
    """The compiled function, one for each of its two uses.

    - `outermost`: whether nothing outside is traced, so that the options apply.
    """
    options: dict[str, Any] = {"compiler_options": _options()} if outermost else {}
    return eqx.filter_jit(function, **options)


def _options() -> dict[str, str]:
    """The options that this version of XLA knows; none on a GPU."""
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=OPTIONS).lower().compile()
    except jax.errors.JaxRuntimeError:  # a version of XLA without this option
        return {}
    return OPTIONS


MOST = 2**30  # bytes at a time by way of memory that the system cannot use for anything else
LARGE = 2**22  # bytes that several threads copy
THREADS = 4  # more find no more memory to write to


def to_host(tree: Any) -> Any:
    """Copy arrays to NumPy arrays that must not be written to.

    From a GPU the way goes through pinned memory. The GPU writes there directly, and the pages are
    still there from the transfer before. Writing the same numbers into a new array takes several
    times as long.

    - `tree`: a pytree with JAX or NumPy arrays.
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
    """A copy of an array that may be written to.

    Most of the time of a large copy is spent on new pages of memory, so several threads ask for
    them together.

    - `array`: of any order and shape.
    """
    threads = min(THREADS, cores() // 2)
    if threads < 2 or array.nbytes < LARGE:
        return np.array(array)
    whole = np.empty(array.shape, array.dtype)
    with ThreadPoolExecutor(threads) as pool:
        parts = (np.array_split(a, threads) for a in (whole, array))
        list(pool.map(np.copyto, *parts))
    return whole
