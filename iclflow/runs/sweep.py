"""`sweep`: many runs, the one loop on the host: seeds and axes, batches, pieces, observers."""

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import ArrayLike, PRNGKeyArray

from iclflow.dynamics import AbstractDynamics, AbstractOptimiser
from iclflow.dynamics.base import marks_until
from iclflow.losses import AbstractLoss, Population
from iclflow.losses.changing import jumps
from iclflow.losses.memory import require_memory
from iclflow.models import AbstractInitialiser, AbstractModel
from iclflow.models.kinds import once_a_kind
from iclflow.results.progress import Progress, progress_bar
from iclflow.results.provenance import code_key
from iclflow.runs.batch import AbstractObserver, BatchResult, Piece, run_batch
from iclflow.runs.dataset import assemble
from iclflow.runs.labels import axis_labels
from iclflow.runs.plan import Batch, Entry, batches
from iclflow.runs.record import Record, Recording, resolve
from iclflow.runs.simulate import SAVES, warn_single_precision
from iclflow.runs.store import Store
from iclflow.runs.testing import Test, Tests, with_tests
from iclflow.tasks.base import AbstractTask, Values
from iclflow.tasks.checks import require_size

One = AbstractLoss | AbstractTask | Callable[[PRNGKeyArray], AbstractLoss]
Source = One | Mapping[Any, One]
SEEDS = 2**32  # seeds are whole numbers below
SEED_BYTES = 64  # that every run takes at least: its number, place, result and end


class Vary(enum.Enum):
    """What the seeds change."""

    WEIGHTS = "weights"  # many initialisations on one dataset
    DATA = "data"  # one initialisation on many datasets
    ALL = "all"


def sweep(
    source: Source,
    init: AbstractInitialiser,
    dynamics: AbstractDynamics,
    *,
    until: ArrayLike | None = None,
    saveat: Values | None = None,
    seeds: int | Sequence[int] = 1,
    axes: Mapping[str, Sequence[Any] | Mapping[str, Any]] | None = None,
    vary: Vary = Vary.WEIGHTS,
    record: Record = ("loss",),
    final: Record = (),
    test: Test = None,
    key: PRNGKeyArray | None = None,
    store: Path | str | None = None,
    observers: Sequence[AbstractObserver] = (),
    progress: bool | Progress | None = None,
    settings: Any = None,
) -> xr.Dataset:
    """Train over seeds and axes; runs of one shape are trained together.

    - `source`: a loss; a `Task` (its population); a function key -> loss, for `vary` data; or
      several of these by name, which are then an axis `source`.
    - `until`, `saveat`, `record`: as in `simulate`.
    - `seeds`: how many, or which; seed s starts from `init(jax.random.key(s))`.
    - `axes`: field name -> values, of the dynamics (`rate`), its optimiser (`weight_decay`,
      `decay`), the initialiser (`scale`, `rank`, `heads`) or, if `source` is a Task, the task
      (`context`, `label_noise`, `spectrum`). A list of numbers or an object is labelled by its
      text; a mapping instead of a list names the values, `{"rate": {"cosine": schedule}}`.
    - `final`: what is recorded of the last weights only, as `record` says it; the variables are
      called `final_…`.
    - `test`: what else the models are tested on at every save point, as in `simulate`: the variable
      `test_loss`.
    - `key`: seed s draws the batches of a stochastic loss from `fold_in(key, s)`; if omitted, from
      `jax.random.key(s)`.
    - `store`: a folder with everything needed to go on; the same call goes on from it, and the
      result is the same in every bit. A folder with another sweep is refused.
    - `observers`: objects that look on between the pieces of a run, as `Snapshots`.
    - `progress`: None shows a progress bar on a terminal or in a notebook if the sweep lasts
      longer than two seconds; True shows it always, False never. A function is called instead
      of a bar, with (done, total) in training steps or time, between the pieces of the runs.
    - `settings`: what the Dataset is stamped with, instead of these arguments.

    Ctrl-C returns what was computed: later points are NaN and `result` says `interrupted`; it is
    raised where there is nothing yet.
    """
    numbers, tests = _seeds(seeds), Tests.of(test)
    given: dict[str, Any] = dict(axes or {})
    if isinstance(source, Mapping):
        given = {"source": list(source), **given}
    if not all(len(values) for values in given.values()):
        raise ValueError("a sweep needs at least one value on every axis")
    labels = {name: axis_labels(name, values) for name, values in given.items()}
    axes = {
        name: list(values.values() if isinstance(values, Mapping) else values)
        for name, values in given.items()
    }
    entries = []
    for index in np.ndindex(*(len(values) for values in axes.values())):
        point = {name: axes[name][i] for name, i in zip(axes, index, strict=True)}
        entries += _entries(index, *_at(point, source, init, dynamics), numbers, vary)
    changes = jumps([entry.loss for entry in entries])
    marks = marks_until(dynamics, until, saveat, SAVES, changes)
    about = {"source": source, "init": init, "dynamics": dynamics, "vary": vary, "marks": marks}
    about |= {"seeds": numbers, "axes": axes, "record": record, "final": final, "key": key}
    about |= {} if tests is None else {"test": tests}
    disk = None
    if store is not None:
        disk = Store(store, {**about, "settings": settings, "code": code_key(__name__)})
    sizes = None if disk is None else disk.sizes
    size = partial(_recorded_bytes, record=record, tests=tests, saves=len(marks))
    plan = list(batches(entries, numbers, size, sizes))
    recordings = [_check(batch, with_tests(record, tests, batch.like), final) for batch in plan]
    if disk is not None and sizes is None:
        disk.begin([len(batch.seeds) for batch in plan])
    results: list[BatchResult] = []
    with progress_bar("training", progress) as report:
        watching = [*observers, _Progress(report, marks, len(plan))]
        for number, (batch, (recording, last)) in enumerate(zip(plan, recordings, strict=True)):
            try:
                found = run_batch(batch, number, marks, recording, last, key, watching, disk)
            except KeyboardInterrupt:
                if not results:
                    raise
                break
            results.append(found)
            if found.interrupted:
                break
    coordinates = {**labels, "seed": numbers.astype(int)}
    runs = assemble(results, coordinates, marks, about if settings is None else settings)
    rate = getattr(dynamics, "rate", None)
    if rate is None or callable(rate) or "rate" in coordinates:
        return runs
    return runs.assign_attrs(rate=float(rate))  # also where the settings leave it to be chosen


def _seeds(seeds: int | Sequence[int]) -> np.ndarray:
    listed = not isinstance(seeds, str | bytes) and np.iterable(seeds)
    count = len(seeds) if listed else require_size("the number of seeds", seeds, least=0)  # pyright: ignore
    require_memory(SEED_BYTES * count, f"{count:,} seeds", "give fewer, or sweep them in parts")
    if not listed and 0 < count < SEEDS:
        return np.arange(count, dtype=np.uint32)
    # Too many seeds: report the largest one as invalid. Zero: an empty list.
    found = [require_size("a seed", s, least=0) for s in seeds] if listed else [count] * (count > 0)  # pyright: ignore
    if not found:
        raise ValueError("a sweep needs at least one seed")
    bad = [seed for seed in found if not 0 <= seed < SEEDS]
    if bad or len(set(found)) < len(found):
        raise ValueError(
            f"seeds must be different whole numbers from 0 to 2^32 - 1, got "
            f"{bad[0] if bad else 'one twice'}"
        )
    return np.asarray(found, np.uint32)


def _recorded_bytes(
    entry: Entry, model: AbstractModel, *, record: Record, tests: Tests | None, saves: int
) -> int:
    """What one run records; `ValueError` if it cannot be trained, or has nothing to record."""
    reason = entry.dynamics.admits(entry.loss, model)
    if reason is not None:
        names = type(entry.loss).__name__, type(model).__name__
        raise ValueError(f"{names[0]} cannot train {names[1]}: {reason}")
    record = with_tests(record, tests, model)
    functions = resolve(record, loss=entry.loss, dynamics=entry.dynamics).functions
    return saves * _measured_bytes(functions, model, entry.loss)


@once_a_kind
def _measured_bytes(*parts: Any) -> int:
    leaves = jax.tree.leaves(eqx.filter_eval_shape(_measured, *parts))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def _measured(
    functions: dict[str, Callable], model: AbstractModel, loss: AbstractLoss
) -> dict[str, Any]:
    return {name: function(model, loss) for name, function in functions.items()}


def _check(batch: Batch, record: Record, final: Record) -> tuple[Recording, Recording]:
    """What a batch records."""
    loss, _, dynamics = batch.one
    warn_single_precision(loss)
    common = loss if batch.axes[0] is None else None
    during, last = (resolve(what, loss=common, dynamics=dynamics) for what in (record, final))
    if "conserved_drift" in last.after:
        raise ValueError("conserved_drift is a change since the start; put it into record")
    return during, last


@dataclasses.dataclass(frozen=True)
class _Progress:
    """Reports how far all batches have come together."""

    report: Progress
    marks: np.ndarray
    batches: int

    def stops(self, marks: np.ndarray) -> Sequence[float]:
        return ()

    def __call__(self, piece: Piece) -> None:
        end = float(self.marks[-1])
        self.report(piece.number * end + piece.mark, self.batches * end)


def _at(point: Mapping[str, Any], source: Any, init: Any, dynamics: Any) -> tuple[Any, Any, Any]:
    """Source, initialiser and dynamics with the fields of one grid point set."""
    if isinstance(source, Mapping):
        source = source[point["source"]]
    things = {"dynamics": dynamics, "init": init, "source": source}
    for name, value in point.items():
        if name == "source":
            continue
        owners = [k for k, thing in things.items() if name in _fields(thing)]
        if len(owners) != 1:
            known = sorted({f for t in things.values() for f in _fields(t)})
            raise ValueError(f"no single axis is called {name!r}; there are {', '.join(known)}")
        things[owners[0]] = _replace(things[owners[0]], name, value)
    return things["source"], things["init"], things["dynamics"]


NESTED = ("inner", "optimiser")  # parts of an object whose fields are axes too


def _fields(thing: Any) -> list[str]:
    if isinstance(thing, AbstractLoss) or not dataclasses.is_dataclass(thing):
        return []
    own = [f.name for f in dataclasses.fields(thing) if f.name != "inner"]
    return own + [name for part in NESTED for name in _fields(getattr(thing, part, None))]


def _replace(thing: Any, name: str, value: Any) -> Any:
    if hasattr(thing, "replace"):
        return thing.replace(**{name: value})
    if name not in [f.name for f in dataclasses.fields(thing)]:
        part = next(p for p in NESTED if name in _fields(getattr(thing, p, None)))
        inside = _replace(getattr(thing, part), name, value)
        return dataclasses.replace(thing, **{part: inside})
    old = getattr(thing, name)
    if eqx.is_array(old) and not callable(value):
        return eqx.tree_at(lambda t: getattr(t, name), thing, jnp.asarray(value, old.dtype))
    if isinstance(old, float) and isinstance(thing, AbstractOptimiser):
        # As an array, so that all values of the axis are one compiled program.
        value = jnp.asarray(value, float)
    return dataclasses.replace(thing, **{name: value})


def _entries(
    index: tuple[int, ...], source: Any, init: Any, dynamics: Any, seeds: np.ndarray, vary: Vary
) -> list[Entry]:
    """The runs at one point of the grid: one entry, or one a seed where the data vary."""
    loss = Population(source) if isinstance(source, AbstractTask) else source
    places = np.arange(len(seeds))
    weights = seeds if vary is not Vary.DATA else np.full_like(seeds, seeds[0])
    if vary is Vary.WEIGHTS:
        one = loss if isinstance(loss, AbstractLoss) else loss(jax.random.key(int(seeds[0])))
        return [Entry(index, one, init, dynamics, places, weights)]
    if isinstance(loss, AbstractLoss):
        raise ValueError(f"to vary {vary.value}, give a function key -> loss instead of one loss")
    return [
        Entry(index, loss(jax.random.key(int(s))), init, dynamics, places[[i]], weights[[i]])
        for i, s in enumerate(seeds)
    ]
