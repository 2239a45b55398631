"""A batch of runs under `vmap`, in equal shares on the cores of a CPU."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from iclflow.runs.device import cores, in_plain_loops
from iclflow.runs.fused.engine import Advanced

FEWEST = 64  # runs in a share: a program spends as long on fewer


def vmapped(
    parts: tuple[Any, Any, Any],
    axes: tuple[Any, Any],
    marks: np.ndarray,
    record: dict[str, Callable],
) -> Advanced:
    """Advance all runs to the last mark under `vmap`, with what they record at the marks.

    On a CPU the runs are cut into equal shares, one per core, which run at the same time.

    - `parts`: loss, dynamics and state; where each run has its own, their arrays are stacked.
    - `axes`: of loss and dynamics, in the form that `eqx.filter_vmap` takes.
    - `marks`: the save points.
    - `record`: name -> function of (model, loss).
    """
    _, dynamics, state = parts
    of_state = own_leaves(dynamics, state)
    own = (*(False if axis is None else eqx.is_array for axis in axes), of_state)
    runs, common = eqx.partition(parts, own)
    count = jax.tree.leaves(runs[2])[0].shape[0]

    def advance(share: slice) -> Advanced:
        some = eqx.combine(jax.tree.map(lambda a: a[share], runs), common)
        return jax.block_until_ready(_advanced(*some, marks, record, axes))

    shares = _shares(count)
    if shares == 1:  # nothing to cut: no copies
        return jax.block_until_ready(_advanced(*parts, marks, record, axes))
    ends = np.linspace(0, count, shares + 1).astype(int)
    with ThreadPoolExecutor() as pool:  # a compiled program holds no lock
        found = list(pool.map(advance, map(slice, ends[:-1], ends[1:])))
    apart = [(eqx.filter(share.state, of_state), share.record) for share in found]
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


def _shares(runs: int) -> int:
    """How many equal parts the runs are cut into: one program is compiled for all of them."""
    most = cores() if jax.default_backend() == "cpu" else 1
    return next(n for n in range(max(1, min(most, runs // FEWEST)), 0, -1) if runs % n == 0)


@in_plain_loops
def _advanced(loss, dynamics, state, marks, record, axes) -> Advanced:
    def one(loss: Any, how: Any, state: Any) -> Any:
        return how.advance(loss, state, marks, record)

    own = jax.tree.map(lambda mine: 0 if mine else None, own_leaves(dynamics, state))
    run = eqx.filter_vmap(one, in_axes=(*axes, own))(loss, dynamics, state)
    return Advanced(one_clock(dynamics, run.state), run.record)


def own_leaves(dynamics: Any, state: Any) -> Any:
    """For each leaf of a state, whether every run has its own or all of them share it.

    - `dynamics`: says which fields of its state all runs share.
    - `state`: the stacked states.
    """
    own = jax.tree.map(eqx.is_array, state)
    for name in dynamics.shared:
        own = eqx.tree_at(lambda s, n=name: getattr(s, n), own, False)
    return own
