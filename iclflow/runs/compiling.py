"""How the loop over many small runs is compiled."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax

# XLA's library of CPU kernels takes over sums along an axis; for the short ones of a batch of
# small models it is up to fifty times slower than the loop it replaces (benchmarks/runs.py).
WITHOUT_KERNELS = {"xla_cpu_experimental_ynn_fusion_type": ""}


def in_plain_loops(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` under `jit`, on a CPU without the library of kernels; not to be nested in a jit.

    JAX admits options of the compiler in the outermost `jit` alone, so `simulate`, which others
    transform, goes without.
    """
    return lambda *args: _jitted(function)(*args)


@functools.cache
def _jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    return eqx.filter_jit(function, compiler_options=_options())


def _options() -> dict[str, str]:
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=WITHOUT_KERNELS).lower().compile()
    except jax.errors.JaxRuntimeError:  # a version of XLA without this option
        return {}
    return WITHOUT_KERNELS
