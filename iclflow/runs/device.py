"""The device: its cores, how loops are compiled for it, `vmap` on it, and arrays back from it."""

import functools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
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


class Advanced(NamedTuple):
    """A batch at its last mark: all that is left of a run's `Trajectory` here."""

    state: Any
    record: dict[str, Any]  # [run, mark, ...]


FEWEST = 64  # runs in a share: a program spends as long on fewer
ROW = 16  # runs: a share has whole rows of them, which XLA computes as vectors in one way


def vmapped(
    parts: tuple[Any, Any, Any],
    axes: tuple[Any, Any],
    marks: np.ndarray,
    record: dict[str, Callable],
    most: int | None = None,
    wanted: bool | None = None,
) -> Advanced:
    """Advance all runs to the last mark under `vmap`, with what they record at the marks.

    On a CPU the runs are cut into equal shares, at least one per core, and each core advances one
    share after the other. The last share begins early enough to be as long as the others, so that
    one compiled program serves all of them; the runs that it has in common with the share before
    are computed twice.

    - `parts`: loss, dynamics and state; where each run has its own, their arrays are stacked.
    - `axes`: of loss and dynamics, in the form that `eqx.filter_vmap` takes.
    - `marks`: the save points.
    - `record`: name -> function of (model, loss).
    - `most`: the runs of a share at most (`cost.share`); None for one share per core.
    - `wanted`: whether anything is recorded at the marks. One compiled program serves both, with
      zeros where nothing is; None for a program that always records.
    """
    _, dynamics, state = parts
    recorded = None if wanted is None else np.asarray(wanted)
    of_state = own_leaves(dynamics, state)
    own = (*(False if axis is None else eqx.is_array for axis in axes), of_state)
    runs, common = eqx.partition(parts, own)
    count = jax.tree.leaves(runs[2])[0].shape[0]

    def advance(first: int) -> Advanced:
        some = jax.tree.map(lambda a: a[first : first + size], runs)
        return jax.block_until_ready(
            _advanced(*eqx.combine(some, common), marks, record, axes, recorded)
        )

    size = share_size(count, most)
    if size == count:  # nothing to cut: no copies
        return jax.block_until_ready(_advanced(*parts, marks, record, axes, recorded))
    starts = [*range(0, count - size, size), count - size]
    with ThreadPoolExecutor(cores()) as pool:  # a compiled program holds no lock
        found = list(pool.map(advance, starts))
    apart = [(eqx.filter(share.state, of_state), share.record) for share in found]
    again = starts[-2] + size - starts[-1]  # runs of the last share that the one before has too
    apart[-1] = jax.tree.map(lambda a: a[again:], apart[-1])
    joined, recorded = jax.tree.map(lambda *a: jnp.concatenate(a), *apart)
    return Advanced(eqx.combine(joined, found[0].state), recorded)


def one_clock(dynamics: Any, state: Any) -> Any:
    """Give the whole batch one step counter, so that the inner loop has no test per run.

    - `dynamics`: says which fields of its state all runs share.
    - `state`: the stacked states.
    """
    for name in dynamics.shared:
        state = eqx.tree_at(lambda s, n=name: getattr(s, n), state, getattr(state, name)[0])
    return state


def share_size(runs: int, most: int | None = None) -> int:
    """How many runs a share has. Shares are equal, and every core has equally many of them.

    - `runs`: of the batch.
    - `most`: the runs of a share at most, unless they are fewer than `FEWEST`.
    """
    if jax.default_backend() != "cpu" or runs < 2 * FEWEST:
        return runs
    workers = min(cores(), runs // FEWEST)
    each = runs / workers
    rounds = 1 if most is None else math.ceil(each / max(most, FEWEST))
    return min(runs, ROW * math.ceil(each / rounds / ROW))


@in_plain_loops
def _advanced(loss, dynamics, state, marks, record, axes, wanted) -> Advanced:
    if wanted is not None and record:
        record = {WHOLE: _if_wanted(wanted, record)}

    def one(loss: Any, how: Any, state: Any) -> Any:
        return how.advance(loss, state, marks, record)

    own = jax.tree.map(lambda mine: 0 if mine else None, own_leaves(dynamics, state))
    run = eqx.filter_vmap(one, in_axes=(*axes, own))(loss, dynamics, state)
    return Advanced(one_clock(dynamics, run.state), run.record.get(WHOLE, run.record))


WHOLE = "iclflow: all that is recorded"


def _if_wanted(wanted: Any, record: dict[str, Callable]) -> Callable:
    """One recorder of everything, which computes nothing and records zeros where it is not wanted.

    - `wanted`: the same for all runs, so that `vmap` leaves the branch a branch.
    - `record`: name -> function of (model, loss).
    """

    def everything(model: Any, loss: Any) -> dict[str, Any]:
        return {name: function(model, loss) for name, function in record.items()}

    def recorder(model: Any, loss: Any) -> Any:
        shapes = eqx.filter_eval_shape(everything, model, loss)

        def nothing() -> Any:
            return jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), shapes)

        return jax.lax.cond(wanted, lambda: everything(model, loss), nothing)

    return recorder


def own_leaves(dynamics: Any, state: Any) -> Any:
    """For each leaf of a state, whether every run has its own or all of them share it.

    - `dynamics`: says which fields of its state all runs share.
    - `state`: the stacked states.
    """
    own = jax.tree.map(eqx.is_array, state)
    for name in dynamics.shared:
        own = eqx.tree_at(lambda s, n=name: getattr(s, n), own, False)
    return own
