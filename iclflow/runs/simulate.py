"""`simulate`: one training run, as a pure function."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PRNGKeyArray

from iclflow.dynamics import AbstractDynamics, Descent
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractModel
from iclflow.results.trajectory import Trajectory
from iclflow.runs.record import measure_after, names_after, resolve
from iclflow.runs.record.quantities import MODELS
from iclflow.tasks.task import Values

SAVES = 200  # save points, unless they are chosen


def simulate(
    loss: AbstractLoss,
    model: AbstractModel,
    dynamics: AbstractDynamics,
    *,
    saveat: Values | None = None,
    record: Sequence[str] = ("loss",),
    also: Mapping[str, Callable[[AbstractModel], Any]] | None = None,
    key: PRNGKeyArray | None = None,
    state: Any = None,
) -> Trajectory:
    """Train `model` on `loss` and record along the way.

    Pure: one run, no I/O, safe under `jit`, `vmap` and `grad`. A numerical failure is in
    `Trajectory.result`, not an exception.

    - `dynamics`: `Descent` or `Flow`; `theory.predict` is the ladder's third rung.
    - `saveat`: steps (`Descent`) or times t/τ (`Flow`) to record at, increasing; about 200,
      evenly spaced in the logarithm, if omitted.
    - `record`: names of quantities (see `iclflow.runs.record.QUANTITIES`).
    - `also`: further ones, name -> function of the model; any loss is such a function.
    - `key`: randomness of stochastic losses.
    - `state`: `Trajectory.state` of an earlier run to go on from; `model` is then ignored.
    """
    reason = dynamics.admits(loss, model)
    if reason is not None:
        raise ValueError(f"{type(loss).__name__} cannot train {type(model).__name__}: {reason}")
    _warn_single_precision(loss)
    key = jax.random.key(0) if key is None else key
    marks = dynamics.marks(SAVES) if saveat is None else check_marks(saveat, dynamics)
    if saveat is None and state is not None:
        begun = state.step if isinstance(dynamics, Descent) else state.time
        if not isinstance(begun, Tracer):
            marks = marks[np.asarray(marks) >= np.asarray(begun)]
    functions = resolve(record, also, loss=loss, dynamics=dynamics)
    after = names_after(record)
    if state is None:
        return _simulate(loss, model, dynamics, marks, functions, key, after)
    return _resume(loss, state, dynamics, marks, functions, after)


@eqx.filter_jit
def _simulate(loss, model, dynamics, marks, record, key, after) -> Trajectory:
    return _resume(loss, dynamics.start(loss, model, key), dynamics, marks, record, after)


@eqx.filter_jit
def _resume(loss, state, dynamics, marks, record, after) -> Trajectory:
    run = dynamics.advance(loss, state, marks, record)
    if not after:
        return run
    kept = {name: values for name, values in run.record.items() if name != MODELS}
    rate = getattr(dynamics, "rate", None)
    measured = measure_after(after, run.record[MODELS], loss, rate)
    return eqx.tree_at(lambda r: r.record, run, kept | measured)


def check_marks(saveat: Values, dynamics: AbstractDynamics) -> Any:
    """Chosen save points as an array, refused unless increasing and not negative."""
    marks = jnp.asarray(saveat)
    if marks.ndim != 1 or marks.size == 0:
        raise ValueError(f"saveat must be a non-empty list, got shape {marks.shape}")
    if isinstance(marks, Tracer):
        return marks
    if np.any(np.diff(marks) < 0) or marks[0] < 0:
        raise ValueError("saveat must be increasing and not negative; sort it")
    if isinstance(dynamics, Descent):
        if np.any(np.asarray(marks) != np.round(np.asarray(marks))):
            raise ValueError("saveat of Descent counts whole steps; for times t/τ use Flow")
        return marks.astype(int)
    return marks.astype(float)


_warned = False


def _warn_single_precision(loss: AbstractLoss) -> None:
    global _warned
    single = any(
        leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(loss) if eqx.is_inexact_array(leaf)
    )
    if single and not _warned and not jax.config.read("jax_enable_x64"):
        _warned = True
        warnings.warn(
            "the loss is in single precision, which shows noise near 1e-4 on a plateau; add "
            'jax.config.update("jax_enable_x64", True) at the top of the program',
            stacklevel=3,
        )
