"""Seeds trained together, and results labelled: what the experiments have in common.

`simulate` under `vmap`, in one compiled call; every run here is short, so that compiling costs
more than running, and equal shapes (the number of marks above all) share one compilation.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Key

from iclflow.diagnostics import find_stages
from iclflow.dynamics import Descent
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractInitialiser, AbstractModel
from iclflow.runs.labels import stamp
from iclflow.runs.simulate import simulate

MARKS = 600  # save points of every run
Variable = tuple[tuple[str, ...], Any, str]  # dims, values, long name


def long_running(function: Callable[..., Any]) -> Callable[..., Any]:
    """`filter_jit` of what runs for seconds: optimised also where a process compiles sparingly."""
    options = {"compiler_options": {"xla_backend_optimization_level": 2}}
    return eqx.filter_jit(function, **options)  # pyright: ignore


def spread(last: int, first: float = 1 / 100) -> np.ndarray:
    """`MARKS` distinct steps: 0, then evenly in the logarithm from `first` times `last` on."""
    steps = np.round(np.geomspace(first * last, last, MARKS - 1)).astype(int)
    marks = np.concatenate([[0], steps])
    if np.any(np.diff(marks) < 1):
        raise ValueError(f"{last} steps are too few for {MARKS} marks from {first:g} of them on")
    return marks


def draw(init: AbstractInitialiser, seeds: Sequence[int]) -> AbstractModel:
    """The models of the seeds, stacked; seed s is `init(jax.random.key(s))`, as in a sweep."""
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))
    return _draw(init, keys)


@eqx.filter_jit
def _draw(init: AbstractInitialiser, keys: Key[Array, " S"]) -> AbstractModel:
    return eqx.filter_vmap(init)(keys)


def at(models: Any, index: int) -> Any:
    """One of the stacked models."""
    take = lambda a: jnp.asarray(np.asarray(a)[index])  # noqa: E731, in NumPy: nothing to compile
    return jax.tree.map(lambda a: take(a) if eqx.is_array(a) else a, models)


def train(
    loss: AbstractLoss, models: AbstractModel, rate: float, marks: np.ndarray
) -> dict[str, np.ndarray]:
    """Descend from stacked models; `loss` and all weights at the marks, [seed, time, ...]."""
    record = _train(loss, models, jnp.asarray(rate, float), jnp.asarray(marks))
    found = {"loss": record["loss"], **record["weights"]}
    return {name: np.asarray(values) for name, values in found.items()}


@long_running
def _train(loss: Any, models: Any, rate: Any, marks: Any) -> Any:
    # The marks say when to stop, so that runs of different lengths share one compilation.
    dynamics = Descent(rate, 0)

    def one(model: Any) -> Any:
        return simulate(loss, model, dynamics, saveat=marks, record=["loss", "weights"]).record

    return eqx.filter_vmap(one)(models)


def labelled(
    variables: Mapping[str, Variable], coordinates: Mapping[str, Any], settings: Mapping[str, Any]
) -> xr.Dataset:
    """A Dataset with long names and provenance; the settings are attributes too."""
    data = {
        name: (dims, np.asarray(values), {"long_name": about, "units": "1"})
        for name, (dims, values, about) in variables.items()
    }
    plain = {k: v for k, v in settings.items() if isinstance(v, str | int | float)}
    plain = {k: int(v) if isinstance(v, bool) else v for k, v in plain.items()}
    return xr.Dataset(data, dict(coordinates), attrs={**stamp(settings), **plain})


def clock(marks: np.ndarray, rate: float) -> dict[str, Any]:
    """The coordinates `time` (t/τ = 2η a step) and `step`."""
    time = 2 * rate * np.asarray(marks, float)
    return {
        "time": ("time", time, {"long_name": r"training time $t/\tau$", "units": "1"}),
        "step": ("time", marks, {"long_name": "training steps", "units": "1"}),
    }


def drop_counts(time: np.ndarray, losses: np.ndarray) -> list[int]:
    """How many drops the detector of stages finds in each curve."""
    return [len(find_stages(time, loss, resamples=0).drops) for loss in losses]


def delayed(time: np.ndarray, curves: np.ndarray, factor: float) -> np.ndarray:
    """Curves that come to every value `factor` times as late: for controls of claims."""
    late = np.asarray(time) / factor
    return np.apply_along_axis(lambda row: np.interp(late, time, row), -1, np.asarray(curves))


def first_crossing(time: np.ndarray, loss: np.ndarray, level: float) -> float:
    """When a falling curve first goes below a level, by linear interpolation; NaN if never."""
    below = np.flatnonzero(np.asarray(loss) < level)
    if below.size == 0 or below[0] == 0:
        return float("nan")
    i = int(below[0])
    share = (loss[i - 1] - level) / (loss[i - 1] - loss[i])
    return float(time[i - 1] + share * (time[i] - time[i - 1]))
