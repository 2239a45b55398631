"""What a run records: quantities by name, their labels, and the models back from recorded weights.

Some are functions of one model and its loss, and are recorded inside the loop. The curvature and
the drift of what is conserved are measured once at the end, at all save points together
(`measure_after`): this is cheaper, and the same code measures them from saved weights after the
fact. The distance to the nearest fixed point is made for a task.

Others are numbers of a whole run, computed when it has ended, from its curve and its start: when it
drops, how long it waits. Such a `Summary` is asked for by its name beside the quantities,
`sweep(…, record=["loss", "drop_times"])`; one of your own goes in by a name of its own,
`record={"least": Summary(lambda runs: runs.loss.min(axis=1))}`.

Recorded arrays become a labelled `xarray.Dataset`: every quantity knows its dimensions and units.
"""

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Shaped

from iclflow.dynamics import AbstractDynamics
from iclflow.dynamics.base import RESULTS, Labelled, Recorder
from iclflow.dynamics.gradient_noise import gradient_noise
from iclflow.losses import (
    AbstractLoss,
    AbstractPromptLoss,
    LargeContext,
    Population,
)
from iclflow.losses.base import changes
from iclflow.measures import first_crossings
from iclflow.measures.curvature import hessian_vector_product, operator_trace, spectrum_ends
from iclflow.measures.learning_coefficient import learning_coefficient
from iclflow.measures.stages import find_stages
from iclflow.models import (
    MLP,
    AbstractAttention,
    AbstractInitialiser,
    AbstractLinearModel,
    AbstractModel,
    ConvNet,
    Merged,
    Separate,
    draw_model,
    empty_model,
)
from iclflow.results.display import short
from iclflow.results.messages import require_choice
from iclflow.tasks.task import Task

TOP_EIGENVALUES = 3
CURVATURE_TIMES = 16  # save points at which a run measures its Hessian
LANCZOS_STEPS = 24
CURVATURE = (
    "sharpness", "top_eigenvalues", "rate_times_sharpness", "lowest_curvature", "hessian_trace",
    "learning_coefficient",
)  # fmt: skip
CHAINS, DRAWS = 8, 250  # for the learning coefficient at one time of a run


def measure_after(
    names: Sequence[str],
    models: AbstractModel,
    loss: AbstractLoss,
    rates: Float[Array, " T"] | None = None,
    marks: Shaped[Array, " T"] | None = None,
    *,
    times: int | None = CURVATURE_TIMES,
    products: int = LANCZOS_STEPS,
) -> dict[str, Any]:
    """Quantities by name of the models of one run, stacked along time, each [T, ...].

    `rates` are the learning rates at these times, for `rate_times_sharpness`. `marks` are the steps
    or times themselves, which a loss that changes needs.

    The Hessian is measured at `times` of the save points, evenly spread among them (all, if
    None); between them its quantities are NaN. One Lanczos process of so many Hessian-vector
    `products` serves `sharpness`, `top_eigenvalues`, `rate_times_sharpness` and
    `lowest_curvature`: exact for as many weights, and the ends of the spectrum converge first.
    `hessian_trace` is exact up to 256 weights. `learning_coefficient` is sampled at the same times,
    and comes with `learning_coefficient_error`.
    """
    found: dict[str, Any] = {}
    if any(name in CURVATURE for name in names):
        found = _curvature(names, models, loss, marks, times, products)
        if rates is not None:
            found["rate_times_sharpness"] = rates * found["sharpness"]
    if "conserved_drift" in names:
        from iclflow.theory.fixed_points.stationarity import conservation_drift

        drift = conservation_drift({"all": jax.vmap(conserved)(models)})
        found["conserved_drift"] = drift["all"]
    return {name: found[name] for name in names}


def conserved(model: AbstractModel, loss: AbstractLoss | None = None) -> Float[Array, " c"]:
    """All that gradient flow conserves (17)(79), in a row."""
    from iclflow.theory.fixed_points.stationarity import conserved_quantities

    return jnp.concatenate([value.reshape(-1) for value in conserved_quantities(model).values()])


def _curvature(
    names: Sequence[str],
    models: AbstractModel,
    loss: AbstractLoss,
    marks: Any,
    times: int | None,
    products: int,
) -> dict[str, Any]:
    """Quantities of the Hessian, and learning coefficients, at some times; NaN at the others."""
    total = jax.tree.leaves(models)[0].shape[0]
    count = total if times is None else min(times, total)
    chosen = np.unique(np.linspace(0, total - 1, count).round().astype(int))

    def measure(given: tuple[AbstractModel, Any]) -> dict[str, Any]:
        model, mark = given
        now = loss if mark is None else loss.at(mark)
        weights, static = eqx.partition(model, eqx.is_inexact_array)
        flat, unravel = ravel_pytree(weights)
        product = hessian_vector_product(lambda w: now(eqx.combine(unravel(w), static)), flat)
        count = min(TOP_EIGENVALUES, flat.size)
        top, lowest = spectrum_ends(
            product, flat.size, jax.random.key(0), count=count, steps=products
        )
        found: dict[str, Any] = {
            "sharpness": top[0], "top_eigenvalues": top, "lowest_curvature": lowest
        }  # fmt: skip
        if "hessian_trace" in names:
            found["hessian_trace"] = operator_trace(product, flat.size, jax.random.key(1))
        if "learning_coefficient" in names:
            name, sampled = (
                "learning_coefficient",
                learning_coefficient(now, model, chains=CHAINS, draws=DRAWS),
            )
            found[name] = {name: sampled.value, f"{name}_error": sampled.error}
        return found

    found = jax.lax.map(measure, jax.tree.map(lambda a: a[chosen], (models, marks)))
    if len(chosen) == total:
        return found

    def spread(values: Array) -> Array:
        return jnp.full((total, *values.shape[1:]), jnp.nan, values.dtype).at[chosen].set(values)

    return jax.tree.map(spread, found)


class FixedPointDistance(eqx.Module):
    """model ↦ (E(ŷ - ŷ_S)²)^(1/2) for the nearest M(S): `nearest_fixed_point`, compiled in a run.

    Of a model with trained zero blocks only the reduced weights count; the others, of the size
    P^(-1/2), belong to no fixed point of the population.
    """

    modes: Any  # `theory.Modes`: theory is loaded when it is asked
    groups: tuple[tuple[int, ...], ...] = eqx.field(static=True)  # modes of equal σ

    @classmethod
    def of(cls, source: Task | Population | Any) -> "FixedPointDistance":
        """The distance to the fixed points of a task, its population or its `theory.Modes`.

        The numbers of the source are concrete: groups of equal σ are part of the program.
        """
        from iclflow.theory import Modes

        if isinstance(source, Task) and source.tasks.mixed():
            raise ValueError(
                "the fixed points are those of a task without w*, this one has a mixture with it; "
                "leave fixed_point_distance out"
            )
        modes = Modes.of(source)
        return cls(modes, modes.groups())

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        if not isinstance(model, AbstractLinearModel):
            raise ValueError(
                f"the fixed points are those of linear models, not {type(model).__name__}"
            )
        modes, weights = self.modes, model.reduced_weights()[0, 0]
        keys, queries, sigma = modes.key_vectors, modes.query_vectors, modes.singular
        seen = (modes.second @ keys).T @ weights @ (modes.covariance @ queries)
        for group in self.groups:
            if len(group) > 1:  # equal σ leave a basis open: the one that fits the model best
                index = jnp.asarray(group)
                block = seen[index[:, None], index[None, :]]
                rotation = jnp.linalg.eigh((block + block.T) / 2)[1][:, ::-1]
                keys = keys.at[:, index].set(keys[:, index] @ rotation)
                queries = queries.at[:, index].set(queries[:, index] @ rotation)
                seen = seen.at[:, index].set(seen[:, index] @ rotation)
                seen = seen.at[index, :].set(rotation.T @ seen[index, :])
        benefit = sigma * (2 * jnp.diagonal(seen) - sigma)
        counts = model.visits(modes.rank) or range(modes.rank + 1)
        if tuple(counts) == (0, modes.rank):  # all modes or none
            chosen = jnp.broadcast_to(jnp.sum(benefit) > 0, benefit.shape)
        else:
            rank = jnp.argsort(jnp.argsort(-benefit))
            chosen = (benefit > 0) & (rank < counts[-1])
        point = (keys * jnp.where(chosen, sigma, 0.0)[None, :]) @ queries.T
        change = weights - point
        squared = jnp.sum(change * (modes.second @ change @ modes.covariance))
        return jnp.sqrt(jnp.maximum(squared, 0.0))


class PlateauDistance(eqx.Module):
    """model ↦ (E(ŷ - ŷ_m)²)^(1/2) for the nearest plateau of given prompts, their mean for E.

    Prompts have no index sets of modes. The plateaus are those of heads that come one by one from
    vanishing weights (Q4), the last of them least squares; a model is compared with those that it
    visits. Of a model with trained zero blocks only the reduced weights count.

    - `plateaus`: their effective weights, vec M.
    - `operator`: 𝓗 on vec M.

    >>> import jax, iclflow as icl
    >>> from iclflow.runs.record import PlateauDistance
    >>> loss = icl.Moments.sample(icl.Task([0.6, 0.3], context=31), 500, jax.random.key(0))
    >>> start = icl.Separate.initialiser(loss, heads=3, scale=1e-3)(jax.random.key(0))
    >>> bool(PlateauDistance.of(loss)(start) < 1e-8)  # the first plateau is M = 0
    True
    """

    plateaus: Float[Array, "n E"]
    operator: Float[Array, "E E"]

    @classmethod
    def of(cls, loss: AbstractLoss) -> "PlateauDistance":
        """The distance to the plateaus of a loss of prompts with one output."""
        from iclflow.theory.drops.quadratic import Quadratic
        from iclflow.theory.drops.staircase import saddle_weights

        quadratic = Quadratic.of(loss).dense()
        found = saddle_weights(quadratic)
        if len(found) <= quadratic.size:
            found = np.concatenate([found, quadratic.least_squares[None]])
        assert quadratic.operator is not None
        return cls(jnp.asarray(found.reshape(len(found), -1)), jnp.asarray(quadratic.operator))

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        if not isinstance(model, AbstractLinearModel):
            raise ValueError(f"the plateaus are those of linear models, not {type(model).__name__}")
        last = len(self.plateaus) - 1
        visited = jnp.asarray(model.visits(last) or range(last + 1))
        change = model.reduced_weights()[0, 0].reshape(1, -1) - self.plateaus[visited]
        squares = jnp.sum(change * (change @ self.operator), axis=1)
        return jnp.sqrt(jnp.maximum(jnp.min(squares), 0.0))


# What a run may be asked to record: names, functions (model, loss) -> arrays, or a mapping of
# names to either, or to a loss (a test loss, evaluated on the model).
Record = Sequence[Any] | Mapping[str, Any]  # names, functions, and summaries of whole runs


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A function of (model, loss) with the labels its values travel under.

    Without a function it is measured after the run (`measure_after`), or made for the task.
    """

    function: Recorder | None
    dims: tuple[str, ...] = ()
    long_name: str = ""
    units: str = "1"


def attention_of(model: AbstractModel) -> AbstractAttention:
    """The attention layer with a model's weights, or `ValueError` where there is none."""
    found = model.as_attention()
    if found is None:
        raise ValueError(
            f"{type(model).__name__} has no value weights and no effective weights to record: it "
            f"is not a single attention layer; record weights, or a function of your own"
        )
    return found


def _values(model: AbstractModel, loss: AbstractLoss | None = None) -> Float[Array, "..."]:
    values = attention_of(model).values
    return values[:, 0, 0] if values.shape[1] == 1 else values


def _effective(model: AbstractModel, loss: AbstractLoss | None = None) -> Float[Array, "..."]:
    weights = attention_of(model).reduced_weights()
    return weights[0, 0] if weights.shape[0] == 1 else weights


def _gradient_norm(model: AbstractModel, loss: AbstractLoss) -> Float[Array, ""]:
    leaves = jax.tree.leaves(eqx.filter_grad(lambda m: loss(m))(model))
    return jnp.sqrt(sum((jnp.sum(leaf**2) for leaf in leaves), jnp.zeros(())))


def _gradient_noise(model: AbstractModel, loss: AbstractLoss) -> Float[Array, ""]:
    return gradient_noise(loss, model).trace


def _weights(model: AbstractModel, loss: AbstractLoss | None = None) -> dict[str, Array]:
    return model.weights()


def _rho(model: AbstractModel, loss: AbstractLoss) -> Float[Array, ""]:
    if not isinstance(loss, LargeContext):
        raise ValueError(
            f"rho says how near a run is to the end of LargeContext, this one trains on "
            f"{type(loss).__name__}; leave rho out"
        )
    return loss.rho(model)


QUANTITIES: dict[str, Quantity] = {
    "loss": Quantity(lambda m, loss: loss(m), (), "training loss $L$", "1"),
    "values": Quantity(_values, ("head", "output", "label"), "value weights $v_i$"),
    "effective": Quantity(
        _effective,
        ("output", "label", "row", "column"),
        r"effective weights $\sum_i v_i U_i$ on $\beta x_q^\top$",
    ),
    "weights": Quantity(_weights, (), "all weights"),
    "gradient_norm": Quantity(_gradient_norm, (), r"gradient norm $\|\partial L/\partial W\|$"),
    "sharpness": Quantity(None, (), "largest Hessian eigenvalue of $L$"),
    "top_eigenvalues": Quantity(None, ("eigenvalue",), "largest Hessian eigenvalues of $L$"),
    "lowest_curvature": Quantity(
        None, (), "lowest Hessian eigenvalue of $L$ (negative at a saddle)"
    ),
    "hessian_trace": Quantity(None, (), "trace of the Hessian of $L$"),
    "learning_coefficient": Quantity(None, (), r"local learning coefficient $\hat\lambda$"),
    "gradient_noise": Quantity(
        _gradient_noise, (), "trace of the covariance of a minibatch's gradient"
    ),
    "rho": Quantity(_rho, (), r"$\rho$ (the formula of long contexts holds below 1)"),
    "rate_times_sharpness": Quantity(
        None, (), r"$\eta\,\times$ largest Hessian eigenvalue (stable below 2)"
    ),
    "conserved": Quantity(conserved, ("conservation",), "what gradient flow conserves (17)(79)"),
    "conserved_drift": Quantity(
        None, (), r"$\max|C(t)-C(0)|$ of what gradient flow conserves (17)(79)"
    ),
    "fixed_point_distance": Quantity(
        None, (), r"distance $(E(\hat y-\hat y_S)^2)^{1/2}$ to the nearest fixed point"
    ),
}
AFTER = (*CURVATURE, "conserved_drift")
MODELS = "models"  # what a run keeps for `measure_after`; not among its results


class Recording(NamedTuple):
    """What a run records at its marks, and what is measured after it from the kept models."""

    functions: dict[str, Recorder]
    after: tuple[str, ...] = ()


def resolve(
    record: Record, *, loss: AbstractLoss | None = None, dynamics: AbstractDynamics | None = None
) -> Recording:
    """Names and functions as recorders; `ValueError` for what cannot be recorded.

    `loss` is the one loss of all runs (None: they differ).
    """
    functions: dict[str, Recorder] = {}
    after: list[str] = []
    for name, item in by_name(record).items():
        if not isinstance(item, str):
            if isinstance(item, AbstractLoss) and changes(item):
                raise ValueError(
                    f"what is recorded as {name} stays the same during training, and "
                    f"{type(item).__name__} changes; record its losses by name"
                )
            if not callable(item):
                raise ValueError(
                    f"record takes names, functions (model, loss) and losses, got {item!r} as "
                    f"{name}"
                )
            functions[name] = OfModel(item) if isinstance(item, AbstractLoss) else item
            continue
        require_choice("quantity to record", item, QUANTITIES)
        quantity = QUANTITIES[item]
        if item in AFTER:
            after.append(item)
            functions[MODELS] = _itself
        elif quantity.function is not None:
            functions[name] = quantity.function
        else:
            functions[name] = OfModel(_fixed_point_distance(loss))
    if "rate_times_sharpness" in after and not hasattr(dynamics, "rate"):
        raise ValueError(
            "rate_times_sharpness needs the rate of Descent, this run has none; record sharpness"
        )
    return Recording(functions, tuple(after))


def by_name(record: Record) -> Mapping[str, Any]:
    """What is to be recorded, by the names of the results."""
    if isinstance(record, str):
        raise ValueError(f"record must be a list of names, got the string {record!r}")
    if not np.iterable(record):
        raise ValueError(f"record must be a list of names, got {record!r}")
    return record if isinstance(record, Mapping) else {_name(item): item for item in record}


def _name(item: Any) -> str:
    if isinstance(item, str):
        return item
    name = getattr(item, "__name__", "<lambda>")
    if not callable(item) or not name.isidentifier():
        raise ValueError(
            f"record takes names and named functions (model, loss), got {item!r}; give a function "
            f'without a name as {{"name": function}}'
        )
    return name


def _itself(model: AbstractModel, loss: AbstractLoss) -> AbstractModel:
    del loss
    return model


def _fixed_point_distance(loss: AbstractLoss | None) -> FixedPointDistance | PlateauDistance:
    whole = None if loss is None else loss.reported
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(whole))
    if isinstance(whole, AbstractPromptLoss) and not traced:
        return PlateauDistance.of(whole)
    if not isinstance(loss, Population) or traced:
        raise ValueError(
            "fixed_point_distance needs the population of a task, or one set of prompts for all "
            "runs; train on Population(task), or "
            'record {"fixed_point_distance": OfModel(FixedPointDistance.of(task))}'
        )
    return FixedPointDistance.of(loss)


class OfModel(eqx.Module):
    """A recorder that ignores the training loss (a test loss, say)."""

    function: Callable[[AbstractModel], Any]

    def __call__(self, model: AbstractModel, loss: AbstractLoss) -> Any:
        del loss
        return self.function(model)


MISSING = (
    'the run did not record its weights; record them: record=["loss", "weights"], on the shell '
    "iclflow simulate --record loss,weights --out run.nc"
)


LAYERS = (Merged, Separate, MLP, ConvNet)  # known by the names of their weights
AXES = ("head", "pair", "output", "label", "row", "column")  # of all of these, in their order


def recorded_models(run: xr.Dataset, init: AbstractInitialiser | None = None) -> AbstractModel:
    """The models of one run that recorded `weights`, stacked along time.

    `init` is what drew the first of them: it says which model it was. Without it, only single
    layers are known, and softmax attention counts as the attention inside.
    """
    if init is None:
        return _layers(run)
    like = empty_model(init)
    names = like.weights()
    if any(name not in run for name in names):
        raise ValueError(MISSING)
    count, axes = run.sizes["time"], like.axes()
    for name, like_it in names.items():
        if run[name].size != count * like_it.size or run[name].dtype.kind not in "fiu":
            raise ValueError(f"{name} is not what the run's settings say; the file is damaged")
    found = {n: in_axes(run[n], axes.get(n, ())) for n in names}
    arrays = {n: jnp.asarray(found[n]).reshape(count, *a.shape) for n, a in names.items()}
    return jax.vmap(like.with_weights)(arrays)


def in_axes(
    recorded: xr.DataArray, axes: tuple[str, ...], lead: tuple[str, ...] = ("time",)
) -> np.ndarray:
    """Recorded weights [*lead, ...], whatever the order of the dimensions in the Dataset.

    - `axes`: the names that the model gives. Axes without a name were numbered by the recorder.
    - `lead`: the dimensions that come first.
    """
    numbered = [str(d) for d in recorded.dims if re.fullmatch(r".+_\d+", str(d))]
    numbered = sorted(set(numbered) - {*lead, *axes}, key=lambda d: int(d.rpartition("_")[2]))
    dims = dict.fromkeys((*lead, *axes, *numbered))
    return recorded.transpose(*dims, ..., missing_dims="ignore").values


def _layers(run: xr.Dataset) -> AbstractModel:
    for kind in LAYERS:
        fields = dataclasses.fields(kind)
        needed = [field.name for field in fields if field.default is dataclasses.MISSING]
        if all(name in run for name in needed):
            arrays = {
                f.name: jnp.asarray(in_axes(run[f.name], AXES)) for f in fields if f.name in run
            }
            # One output: value weights were recorded as a number a head.
            wide = {n: a[:, :, None, None] if a.ndim == 2 else a for n, a in arrays.items()}
            return jax.vmap(lambda one, kind=kind: kind(**one))(wide)
    raise ValueError(MISSING)


OUTCOMES = ("finished", "diverged", "not_a_number", "step_limit", "interrupted")
INTERRUPTED = OUTCOMES.index("interrupted")
FAILED = ("diverged", "not_a_number")
TIME, STEPS = r"training time $t/\tau$", "training steps"
COUNTED = "time is the number of steps: this rule keeps no t/tau; the loss has no factor 1/2"


def outcome(result: RESULTS) -> np.ndarray:
    """The result of a run (or a batch of runs) as an index into `OUTCOMES`."""
    values, names = np.asarray(result._value), enumerate(OUTCOMES)
    known = [(i, getattr(RESULTS, name)._value) for i, name in names if name != "interrupted"]
    found = np.select([values == value for _, value in known], [i for i, _ in known])
    return found.astype(np.int8)


def axis_labels(name: str, values: Sequence[Any] | Mapping[str, Any]) -> np.ndarray:
    """The labels of the values along one axis of a sweep; `ValueError` unless they differ.

    Numbers and words are their own labels, a list of numbers is `"0.5,0.3,0.2"`, and an object is
    the text that it shows, as `"Adam(b1=0.9, b2=0.999, eps=1e-08, weight_decay=0.0)"`. A mapping
    gives the labels itself.
    """
    if isinstance(values, Mapping):
        return np.asarray([str(key) for key in values])
    plain = [value.item() if np.ndim(value) == 0 and hasattr(value, "item") else value
             for value in values]  # fmt: skip
    numbers = all(isinstance(value, bool | int | float | np.number) for value in plain)
    found = np.asarray(plain) if numbers else np.asarray([_label(value) for value in plain])
    if len(np.unique(found)) < len(found):
        twice = next(label for label in found if np.count_nonzero(found == label) > 1)
        raise ValueError(
            f"two values of the axis {name} are both called {twice}; name them yourself: "
            f'axes={{"{name}": {{"first": …, "second": …}}}}'
        )
    return found


def _label(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, Sequence) or (eqx.is_array(value) and np.ndim(value) > 0):
        if np.asarray(value).dtype.kind not in "biuf":  # no list of numbers: its owner says why
            return repr(value)
        return ",".join(f"{number:g}" for number in np.asarray(value, float).ravel())
    if isinstance(value, eqx.Module):
        return short(value)
    return getattr(value, "__qualname__", repr(value)) if callable(value) else repr(value)


Axes = Mapping[str, tuple[str, ...]]  # of the weights, as the model names them
NARROW = ("output", "label")  # axes that one output does without
# The order in which all variables of a run have their dimensions; others follow in their own.
ORDER = ("seed", "time", *AXES)


def in_order(runs: xr.Dataset) -> xr.Dataset:
    """The same runs with the dimensions of every variable in the order that `sweep` gives them.

    A file may have been transposed by xarray or by another program: dimensions mean what their
    names say, wherever they stand. Whoever takes plain arrays out of runs orders them first.

    >>> import numpy as np, xarray as xr
    >>> from iclflow.runs.record import in_order
    >>> in_order(xr.Dataset({"loss": (("time", "seed"), np.ones((5, 2)))})).loss.dims
    ('seed', 'time')
    """
    return runs.transpose(*ORDER, ..., missing_dims="ignore")


def variables(
    record: Mapping[str, Any], lead: int, axes: Axes | None = None
) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Recorded arrays as name -> (dims after the first `lead`, array).

    A record of several arrays is a variable for each, by the names inside it. One that has labels
    has its dims from them; `coordinates_of` has the labels.
    """
    found: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for name, value in record.items():
        if isinstance(value, Labelled):
            found[name] = (tuple(dim for dim, _ in value.dims), np.asarray(value.values))
            continue
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            inner = jax.tree_util.keystr(path, simple=True, separator=".")
            known = (axes or {}).get(inner) if name == "weights" else None
            known = QUANTITIES[name].dims if known is None and name in QUANTITIES else known
            found.setdefault(inner or name, _labelled(inner or name, np.asarray(leaf), lead, known))
    return found


def coordinates_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The labels that recorded arrays bring along: dimension -> its coordinate."""
    found = [value.dims for value in record.values() if isinstance(value, Labelled)]
    return {
        dim: ((dim,), np.asarray(labels), {"long_name": dim.replace("_", " ")})
        for dims in found
        for dim, labels in dims
    }


def _labelled(
    name: str, array: np.ndarray, lead: int, known: tuple[str, ...] | None
) -> tuple[tuple[str, ...], np.ndarray]:
    """The dims of one array; where they are not known they are numbered."""
    if known is not None and known[1:] == NARROW and array.shape[-2:] == (1, 1):
        array = array[..., 0, 0]
    rest = array.ndim - lead
    narrow = tuple(dim for dim in known or () if dim not in NARROW)
    for dims in (known, narrow):
        if dims is not None and len(dims) == rest:
            return dims, array
    return tuple(f"{name}_{i}" for i in range(rest)), array


def attributes(name: str) -> dict[str, str]:
    """Long name and units of a variable."""
    if name in QUANTITIES:
        quantity = QUANTITIES[name]
        return {"long_name": quantity.long_name, "units": quantity.units}
    return {"long_name": name.replace("_", " "), "units": "1"}


def is_timed(runs: xr.Dataset) -> bool:
    """Whether the coordinate `time` of a run is t/τ, and not the number of steps."""
    if "time" not in runs.coords or not np.isfinite(runs["time"].values).all():
        return False
    return runs["time"].attrs.get("long_name") != STEPS


def clock_and_ends(
    *, time: np.ndarray, step: np.ndarray, result: tuple, stopped: tuple, timed: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The coordinates of a run's clock, and the variables that say how it ended.

    - `timed`: whether `time` is t/τ; else it is the number of steps, and labelled so.
    """
    codes = np.arange(len(OUTCOMES), dtype=np.int8)
    flags = {
        "long_name": "how the run ended",
        "flag_values": codes,
        "flag_meanings": " ".join(OUTCOMES),
    }
    coordinates = {
        "time": ("time", time, {"long_name": TIME if timed else STEPS, "units": "1"}),
        "step": ("time", step, {"long_name": STEPS, "units": "1"}),
    }
    return coordinates, {
        "result": (*result, flags),
        "stopped": (*stopped, {"long_name": "last step (flow: time) computed", "units": "1"}),
    }


EARLY, LATE = 0.1, 0.9  # of a drop: where the plateau before it ends, the one after it begins
CLOCK = "t/τ (training steps of Adam and momentum, which keep no time)"


@dataclasses.dataclass(frozen=True)
class Finished:
    """The runs of one point of a sweep that have come to their end.

    - `point`: what they share: `point.init`, `point.dynamics`, `point.loss(seed)`.
    - `seeds`: the seed of each run.
    - `time`: t/τ at the save points, [run, T]; steps where the rule keeps no such time.
    - `loss`: [run, T].
    - `record`: all that was recorded, name -> [run, T, ...].
    - `weights`: name -> [run, ...] of the last weights, where the summary asks for them.
    """

    point: Any
    seeds: np.ndarray
    time: np.ndarray
    loss: np.ndarray
    record: Mapping[str, Any]
    weights: Mapping[str, np.ndarray] | None = None

    @property
    def levels(self) -> np.ndarray:
        """The plateau losses that these runs visit; empty where theory knows none."""
        return self.point.levels

    def models(self) -> AbstractModel:
        """The last models, stacked; only for summaries with `weights=True`."""
        assert self.weights is not None
        like = empty_model(self.point.init)
        arrays = {
            name: jnp.asarray(self.weights[name]).reshape(-1, *array.shape)
            for name, array in like.weights().items()
        }
        return jax.vmap(like.with_weights)(arrays)


@dataclasses.dataclass(frozen=True)
class Summary:
    """A number (or several) of every run, computed when it has ended.

    - `function`: from the `Finished` runs of a point to an array [run, ...].
    - `dims`: the names of the dimensions after the run; numbered if omitted.
    - `long_name`, `units`: the label of the variable.
    - `weights`: whether it needs the last weights, `runs.models()`.
    - `seconds`, `steps`: what it costs per run, in seconds and in training steps, for dry runs.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=15)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> least = icl.Summary(lambda runs: runs.loss.min(axis=1), long_name="smallest loss")
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), until=9, seeds=3, record={"least": least})
    >>> runs.least.dims
    ('seed',)
    """

    function: Callable[[Finished], np.ndarray]
    dims: tuple[str, ...] = ()
    long_name: str = ""
    units: str = "1"
    weights: bool = False
    seconds: float = 0.0
    steps: float = 0.0


def final_loss(runs: Finished) -> np.ndarray:
    """The last loss that was finite."""
    finite = np.isfinite(runs.loss)
    last = runs.loss.shape[1] - 1 - np.argmax(finite[:, ::-1], axis=1)
    return np.where(finite.any(axis=1), runs.loss[np.arange(len(last)), last], np.nan)


def measured_times(runs: Finished) -> np.ndarray:
    """When the loss is halfway from each level L(M_m) to the next."""
    return _down(runs, 0.5)


def plateau_lengths(runs: Finished) -> np.ndarray:
    """How long each plateau lasts, on the clock of the runs.

    A plateau begins when the drop before it is 90% done (the first begins at the start) and ends
    when the next drop is 10% done.
    """
    begin = _down(runs, LATE)[:, :-1] if len(runs.levels) > 1 else np.zeros((len(runs.loss), 0))
    end = _down(runs, EARLY)
    first = np.zeros((len(end), min(1, end.shape[1])))
    return end - np.concatenate([first, begin], axis=1)


def _down(runs: Finished, share: float) -> np.ndarray:
    levels = runs.levels
    return first_crossings(runs.time, runs.loss, levels[:-1] + share * np.diff(levels))


def detected_times(runs: Finished) -> np.ndarray:
    """The times of the drops that the stage detector finds in each loss curve.

    The detector knows no theory, so its drops can be compared with those that theory predicts.
    """
    found = []
    for time, loss in zip(runs.time, runs.loss, strict=True):
        if not np.isfinite(time).any():
            found.append([])
            continue
        found.append([drop.time for drop in find_stages(time, loss, resamples=0).drops])
    whole = np.full((len(found), max(map(len, found), default=0)), np.nan)
    for row, times in zip(whole, found, strict=True):
        row[: len(times)] = times
    return whole


def predicted_times(runs: Finished) -> np.ndarray:
    """When theory has the drops from the same initial weights.

    The entries are NaN where no theory covers the model, or where it would take longer than a
    second per run.
    """
    found = np.full((len(runs.seeds), max(0, len(runs.levels) - 1)), np.nan)
    if not found.shape[1]:
        return found
    place = np.asarray([0])
    for row, seed in zip(found, runs.seeds, strict=True):
        [entry] = runs.point.entries((), np.asarray([seed]), place)
        model = draw_model(entry.init, jax.random.key(int(entry.weights[0])))
        # Of the prompts that were trained on, where these are finitely many.
        whole = entry.loss.reported
        sampled = isinstance(whole, AbstractPromptLoss)
        times = theory_times(whole if sampled else runs.point.source(int(seed)), model)
        row[: len(times)] = times[: len(row)]
    return found


def theory_times(source: Any, model: AbstractModel) -> np.ndarray:
    """When the drops of one start come by theory; empty where none covers it in a second.

    - `source`: what is trained on, a task for its population or the loss of a sample.
    - `model`: the initial weights; from zeros nothing is ever learned.
    """
    from iclflow.theory.predict import select

    engine = select(source, model)
    if engine is None or not engine.quick:
        return np.zeros(0)
    if not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(model)):
        return np.zeros(0)
    times = engine(source, model).times
    return times[np.isfinite(times)]


def prediction_error(runs: Finished) -> np.ndarray:
    """(Predicted - measured)/measured time of each drop."""
    return predicted_times(runs) / measured_times(runs) - 1


DROPS = ("drop_number",)
SUMMARIES: dict[str, Summary] = {
    "final_loss": Summary(final_loss, (), "last loss $L$"),
    "drop_times": Summary(measured_times, DROPS, "drop times, halfway down", CLOCK),
    "plateau_lengths": Summary(
        plateau_lengths, DROPS, "length of the plateau before a drop", CLOCK
    ),
    "detected_times": Summary(
        detected_times, ("detected",), "drops found by the stage detector", CLOCK, seconds=4e-3
    ),
    "predicted_times": Summary(predicted_times, DROPS, "drop times by theory", CLOCK, seconds=2e-2),
    "prediction_error": Summary(
        prediction_error, DROPS, "relative error of the theory", seconds=2e-2
    ),
}


def summaries_of(record: Record) -> tuple[Record, dict[str, Summary]]:
    """Separate what is recorded at the save points from the summaries asked for beside it.

    - `record`: as in `sweep`: names, functions, and summaries.
    """
    items = by_name(record)
    for item in items.values():
        if isinstance(item, str):
            require_choice("quantity to record", item, [*QUANTITIES, *SUMMARIES])
    found = {
        name: SUMMARIES[item] if isinstance(item, str) else item
        for name, item in items.items()
        if isinstance(item, Summary) or (isinstance(item, str) and item in SUMMARIES)
    }
    if not found:
        return record, {}
    rest = {name: item for name, item in items.items() if name not in found}
    return {"loss": "loss", **rest}, found


def summarise(wanted: Mapping[str, Summary], runs: Finished) -> dict[str, np.ndarray]:
    """Compute summaries of the runs of one point, by name, each [run, ...].

    - `wanted`: the summaries by name.
    - `runs`: the runs that have ended.
    """
    found: dict[str, np.ndarray] = {}
    for name, summary in wanted.items():
        if name == "prediction_error" and {"predicted_times", "drop_times"} <= found.keys():
            found[name] = found["predicted_times"] / found["drop_times"] - 1
        else:
            found[name] = np.asarray(summary.function(runs))
        if found[name].shape[:1] != (len(runs.seeds),):
            raise ValueError(
                f"the summary {name} has the shape {found[name].shape}, and needs one row for each "
                f"of {len(runs.seeds)} runs"
            )
    return found
