"""How the loop over many small runs is compiled."""

import functools
import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
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
    """`function` under `jit`, on a CPU with sums as plain loops.

    JAX admits options of the compiler in the outermost `jit` alone, so `simulate`, which others
    transform, goes without, and so does a call inside a transformation, such as a gradient.
    """

    def call(*args: Any) -> Any:
        inside = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(args))
        return _jitted(function, not inside)(*args)

    return call


@functools.cache
def _jitted(function: Callable[..., Any], outermost: bool) -> Callable[..., Any]:
    options: dict[str, Any] = {"compiler_options": _options()} if outermost else {}
    return eqx.filter_jit(function, **options)


def _options() -> dict[str, str]:
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda: 0, compiler_options=OPTIONS).lower().compile()
    except jax.errors.JaxRuntimeError:  # a version of XLA without this option
        return {}
    return OPTIONS
