"""What a sweep runs over: points along its axes, and seeds at every point.

A *cell* is one run: a place along the axes, and a seed. `sweep` crosses axes with seeds (`Grid`),
and a design in plain settings makes the same kind of thing. Planning, training, storing and
estimating ask nothing but what `AbstractCells` promises.
"""

import abc
import dataclasses
import enum
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import ArrayLike, PRNGKeyArray

from iclflow.dynamics import AbstractDynamics, AbstractOptimiser
from iclflow.dynamics.base import marks_until, require_dynamics
from iclflow.losses import AbstractLoss, Population
from iclflow.losses.base import jumps
from iclflow.models import AbstractInitialiser, AbstractModel, empty_model
from iclflow.models.base import require_initialiser
from iclflow.results.provenance import describe
from iclflow.runs.batch import Entry, program_of
from iclflow.runs.record import (
    INTERRUPTED,
    Record,
    Summary,
    axis_labels,
    by_name,
    in_axes,
    summaries_of,
)
from iclflow.runs.simulate import SAVES
from iclflow.runs.testing import TEST_LOSS, Tests
from iclflow.tasks.base import AbstractTask, Values
from iclflow.tasks.checks import (
    require_key,
    require_kind,
    require_memory,
    require_real,
    require_size,
    shown,
)

SEEDS = 2**32  # seeds are whole numbers below
SEED_BYTES = 64  # that every run takes at least: its number, place, result and end
KEPT = 512  # points that are not built again


class Vary(enum.Enum):
    """What the seeds change.

    >>> import iclflow as icl
    >>> [what.value for what in icl.Vary]
    ['weights', 'data', 'all']
    """

    WEIGHTS = "weights"  # many initialisations on one dataset
    DATA = "data"  # one initialisation on many datasets
    ALL = "all"


@dataclasses.dataclass(frozen=True)
class Axis:
    """One dimension of a sweep, and the values that fields have along it.

    - `name`: of the dimension.
    - `fields`: field -> its values, all of one length. None at a place leaves the field as it is.
    - `labels`: of the places, where they have names of their own.
    """

    name: str
    fields: Mapping[str, tuple[Any, ...]]  # all of one length; None leaves a field out there
    labels: tuple[str, ...] = ()  # of the places, where they have names

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    def rows(self) -> list[tuple[Any, ...]]:
        """The values of all fields, place by place."""
        return list(zip(*self.fields.values(), strict=True))

    def at(self, place: int) -> dict[str, Any]:
        """Field -> value at one place."""
        here = {name: values[place] for name, values in self.fields.items()}
        return {name: value for name, value in here.items() if value is not None}

    def take(self, places: Sequence[int]) -> "Axis":
        """The values at some places, in that order."""
        fields = {n: tuple(v[i] for i in places) for n, v in self.fields.items()}
        return Axis(self.name, fields, tuple(self.labels[i] for i in places if self.labels))


@dataclasses.dataclass(frozen=True)
class Point:
    """What the runs at one place along the axes have in common.

    - `loss`: seed -> loss. It is asked once for all seeds unless the seeds vary the data.
    - `init`, `dynamics`, `marks`, `record`, `final`: as in `sweep`; the marks are the save points.
    - `source`: seed -> the task or the loss that theory is asked about.
    - `vary`: what the seeds change.
    - `first`: the first seed of the sweep, which draws the weights where the data alone vary.
    - `starts`: seed -> an initialiser of its own, where runs go on from earlier ones.
    """

    loss: Callable[[int], AbstractLoss]
    init: AbstractInitialiser
    dynamics: AbstractDynamics
    marks: np.ndarray
    record: Record
    final: Record
    source: Callable[[int], Any]
    vary: Vary = Vary.WEIGHTS
    first: int = 0
    starts: Callable[[int], AbstractInitialiser] | None = None

    def entries(self, index: tuple[int, ...], seeds: np.ndarray, places: np.ndarray) -> list[Entry]:
        """The runs of some seeds: one entry, or one per seed where losses or starts differ.

        - `index`: the place along the axes.
        - `places`: the position of each seed among those of the sweep.
        """
        weights = seeds if self.vary is not Vary.DATA else np.full_like(seeds, self.first)
        if self.vary is Vary.WEIGHTS and self.starts is None:
            loss = self.loss(self.first)
            return [Entry(index, loss, self.init, self.dynamics, places, weights, self)]
        common = self.loss(self.first) if self.vary is Vary.WEIGHTS else None
        return [
            Entry(
                index,
                self.loss(int(seed)) if common is None else common,
                self.init if self.starts is None else self.starts(int(seed)),
                self.dynamics,
                places[[i]],
                weights[[i]],
                self,
            )
            for i, seed in enumerate(seeds)
        ]

    @cached_property
    def records(self) -> str:
        """What is recorded, as text: points of other tests are not trained together."""
        return json.dumps(describe(by_name(self.record)), sort_keys=True)

    @cached_property
    def levels(self) -> np.ndarray:
        """The losses of the plateaus that these runs visit; empty where theory knows none."""
        from iclflow.theory.fixed_points.modes import covered_levels, visited_levels

        source, model = self.source(self.first), empty_model(self.init)
        if isinstance(source, AbstractTask):
            return covered_levels(source, model)
        from iclflow.theory.predict import select  # SciPy's integrators: only when asked for

        return np.zeros(0) if select(source, model) is None else visited_levels(source, model)


@dataclasses.dataclass(frozen=True)
class Outline:
    """A point as the estimate needs it: of few prompts, with what the real one has more.

    - `more`: how many times the operations and the memory of a step the real point has.
    - `drawn`: numbers that the loss of one point (or of one run, where data vary) draws.
    """

    point: Point
    more: float = 1.0
    drawn: float = 0.0


class AbstractCells(abc.ABC):
    """Everything that a sweep runs: axes, seeds, and what each point is made of."""

    @property
    @abc.abstractmethod
    def dimensions(self) -> tuple[Axis, ...]:
        """The axes, in the order of the dimensions; the seeds come after them."""

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """The number of seeds at every point."""

    @abc.abstractmethod
    def seeds_in(self, first: int, last: int) -> np.ndarray:
        """The seeds from one place among all of them up to another, which is not included."""

    @property
    @abc.abstractmethod
    def about(self) -> Any:
        """What results are stamped with."""

    @property
    @abc.abstractmethod
    def common(self) -> str:
        """What all cells of one store must share, as JSON: all but the values along the axes."""

    @property
    @abc.abstractmethod
    def computed(self) -> Mapping[str, Summary]:
        """The summaries of every run, by name."""

    @abc.abstractmethod
    def keeps(self, name: str) -> bool:
        """Whether results have a record of this name, or summaries alone need it."""

    key: PRNGKeyArray | None = None  # that stochastic losses draw from

    @abc.abstractmethod
    def point(self, place: tuple[int, ...]) -> Point:
        """What the runs at a place along the axes share; `ValueError` if they cannot be."""

    @abc.abstractmethod
    def outline(self, place: tuple[int, ...]) -> Outline:
        """The point without what takes long to draw."""

    @abc.abstractmethod
    def text(self, place: tuple[int, ...]) -> str:
        """All that a point computes, as text: equal texts are equal runs."""

    @abc.abstractmethod
    def program(self, place: tuple[int, ...]) -> Hashable:
        """What points of one compiled program have in common."""

    @abc.abstractmethod
    def losses(self, place: tuple[int, ...]) -> Hashable:
        """What points that share their loss have in common."""

    @abc.abstractmethod
    def alone(self, axis: Axis) -> bool:
        """Whether values along an axis need compiled programs of their own."""

    @abc.abstractmethod
    def take(self, places: Sequence[Sequence[int]]) -> "AbstractCells":
        """The same with some of the values along each axis, in that order."""

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the dimensions, the seeds' last."""
        return (*(axis.name for axis in self.dimensions), "seed")

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of values along each dimension."""
        return (*(len(axis) for axis in self.dimensions), self.count)

    @property
    def cells(self) -> int:
        """The number of runs."""
        return int(np.prod(self.shape, dtype=object))

    @property
    def numbers(self) -> np.ndarray:
        """All seeds, for sweeps that fit in memory."""
        return self.seeds_in(0, self.count)

    def places(self) -> Iterator[tuple[int, ...]]:
        """All places along the axes."""
        return np.ndindex(*self.shape[:-1])


def seed_numbers(seeds: int | Sequence[int]) -> np.ndarray:
    """The seeds of a sweep as numbers; `ValueError` unless they differ.

    - `seeds`: how many, from 0 on, or a list of them.
    """
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


class Given(AbstractInitialiser):
    """An initialiser that draws nothing: the model it holds is the start, whatever the key."""

    model: AbstractModel

    def __call__(self, key: PRNGKeyArray) -> AbstractModel:
        del key
        return self.model


@dataclasses.dataclass(frozen=True, eq=False)
class Starts:
    """The last weights of an earlier sweep, for a sweep that goes on from them.

    - `axes`: the labels along each axis of that sweep.
    - `seeds`: its seeds.
    - `weights`: name -> [*axes, seed, ...].
    """

    axes: Mapping[str, np.ndarray]
    seeds: np.ndarray
    weights: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, runs: xr.Dataset, init: AbstractInitialiser) -> "Starts":
        """The starts in the Dataset of a sweep; `ValueError` if it does not have the weights."""
        if not isinstance(runs, xr.Dataset) or "seed" not in runs.dims or "result" not in runs:
            raise ValueError("start needs the Dataset of an earlier sweep, with its seeds")
        found, like = {}, empty_model(init)
        for name in like.weights():
            if f"final_{name}" in runs:
                found[name] = runs[f"final_{name}"]
            elif name in runs and "time" in runs[name].dims:
                found[name] = runs[name].isel(time=-1)
            else:
                raise ValueError(
                    f"start does not have the last weights ({name}); make the earlier sweep with "
                    f'final=["weights"]'
                )
        if np.any(runs["result"].values == INTERRUPTED):
            raise ValueError("start has runs that were interrupted; let them end first")
        lead = [str(dim) for dim in runs["result"].dims if dim != "seed"]
        # By the names of their axes: a file may have been transposed since it was written.
        axes = like.axes()
        arrays = {
            name: in_axes(one, axes.get(name, ()), (*lead, "seed")) for name, one in found.items()
        }
        labels = {name: runs[name].values for name in lead}
        return cls(labels, runs["seed"].values.astype(np.uint32), arrays)

    def at(self, place: tuple[int, ...], init: AbstractInitialiser) -> Callable[[int], Given]:
        """Seed -> its start, at a place along the axes; `init` says which model it is."""
        like = empty_model(init)
        rows = {int(seed): i for i, seed in enumerate(self.seeds)}
        here = {name: array[place] for name, array in self.weights.items()}

        def start(seed: int) -> Given:
            own = {}
            for name, wanted in like.weights().items():
                found = here[name][rows[seed]]
                # One output and one label have no dimensions of their own in a Dataset.
                found = found.reshape(*found.shape, *(1,) * (wanted.ndim - found.ndim))
                inside = tuple(slice(n) for n in wanted.shape)
                more = found.ndim != wanted.ndim or found[inside].shape != wanted.shape
                if more or np.isfinite(found).sum() > np.isfinite(found[inside]).sum():
                    raise ValueError(
                        f"start has {name} of the shape {found.shape}, and these runs need "
                        f"{wanted.shape}; give the initialiser, and the axes of its sizes, of the "
                        f"earlier sweep"
                    )
                own[name] = jnp.asarray(found[inside], wanted.dtype)
            return Given(like.with_weights(own))

        return start


@dataclasses.dataclass(frozen=True, eq=False)
class Grid(AbstractCells):
    """Axes of an experiment crossed with seeds: what `sweep` is called with."""

    source: Any
    init: AbstractInitialiser
    dynamics: AbstractDynamics
    values: Mapping[str, Sequence[Any]]  # of every axis
    fields: tuple[str, ...]  # axes that set a field; those of earlier runs alone set none
    axes: tuple[Axis, ...]  # with the labels of these values
    seeds: np.ndarray
    vary: Vary
    marks: np.ndarray
    record: Record
    final: Record
    key: PRNGKeyArray | None
    tests: Tests | None = None
    start: Starts | None = None
    settings: Any = None

    @classmethod
    def of(
        cls,
        source: Any,
        axes: Mapping[str, Sequence[Any] | Mapping[str, Any]] | None,
        *,
        until: ArrayLike | None,
        saveat: Values | None,
        start: xr.Dataset | None,
        seeds: int | Sequence[int] | None,
        init: AbstractInitialiser,
        **given: Any,
    ) -> "Grid":
        """The grid of `sweep`'s arguments; several sources by name are an axis `source`.

        Where a loss jumps is among the save points.
        """
        require_source(source)
        require_initialiser(init)
        require_dynamics(given["dynamics"])
        require_kind("vary", given["vary"], Vary, "")
        require_key(given["key"])
        stated = _stated(axes)
        fields = tuple(stated)
        starts = None if start is None else Starts.of(start, init)
        if starts is not None:
            _require_same(starts, stated)
            stated = {**{name: found.tolist() for name, found in starts.axes.items()}, **stated}
            seeds = starts.seeds.tolist() if seeds is None else seeds
        numbers = seed_numbers(1 if seeds is None else seeds)
        if starts is not None and not np.isin(numbers, starts.seeds).all():
            unknown = numbers[~np.isin(numbers, starts.seeds)][0]
            raise ValueError(f"start has no seed {unknown}; leave seeds out to go on from all")
        if isinstance(source, Mapping):
            stated = {"source": list(source), **stated}
        if not all(len(values) for values in stated.values()):
            raise ValueError("a sweep needs at least one value on every axis")
        labels = {name: axis_labels(name, values) for name, values in stated.items()}
        values = {
            name: list(values.values() if isinstance(values, Mapping) else values)
            for name, values in stated.items()
        }
        made = tuple(Axis(name, {name: tuple(found.tolist())}) for name, found in labels.items())
        sources = list(source.values()) if isinstance(source, Mapping) else [source]
        changes = jumps([_loss_of(one)(int(numbers[0])) for one in sources])
        marks = marks_until(given["dynamics"], until, saveat, SAVES, changes)
        given |= {"values": values, "axes": made, "marks": marks, "start": starts}
        given |= {"fields": fields, "seeds": numbers, "init": init}
        return cls(source=source, **given)

    @property
    def dimensions(self) -> tuple[Axis, ...]:
        """The axes."""
        return self.axes

    @property
    def count(self) -> int:
        """The number of seeds."""
        return len(self.seeds)

    def seeds_in(self, first: int, last: int) -> np.ndarray:
        """Some of the seeds."""
        return self.seeds[first:last]

    @cached_property
    def computed(self) -> Mapping[str, Summary]:
        """The summaries among what is recorded."""
        return summaries_of(self.record)[1]

    @cached_property
    def recorders(self) -> Record:
        """What is recorded at the save points: the loss too where summaries are made of it."""
        return summaries_of(self.record)[0]

    def keeps(self, name: str) -> bool:
        """All that was asked for; not a loss that only summaries need."""
        return not self.computed or name in (*by_name(self.record), TEST_LOSS)

    @property
    def about(self) -> Any:
        """The arguments, or the settings that were given for them."""
        if self.settings is not None:
            return self.settings
        return self.arguments | {"axes": dict(self.values), "seeds": self.seeds}

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments but the axes and the seeds."""
        found = {"source": self.source, "init": self.init, "dynamics": self.dynamics}
        found |= {"vary": self.vary, "marks": self.marks, "key": self.key}
        found |= {} if self.tests is None else {"test": self.tests}
        found |= {} if self.start is None else {"start": self.start}
        return found | {"record": self.record, "final": self.final}

    @cached_property
    def common(self) -> str:
        """What all cells of one store must share, as JSON."""
        arguments = self.arguments
        if isinstance(self.source, Mapping):  # its values are along an axis
            arguments = {name: value for name, value in arguments.items() if name != "source"}
        parts = arguments | {"axes": [axis.name for axis in self.axes], "first": self.seeds[0]}
        return json.dumps(describe(parts), sort_keys=True)

    def parts(self, place: tuple[int, ...]) -> tuple[Any, Any, Any]:
        """Source, initialiser and dynamics at a place along the axes."""
        point = {name: v[i] for (name, v), i in zip(self.values.items(), place, strict=True)}
        source, init, dynamics = self.source, self.init, self.dynamics
        if isinstance(source, Mapping):
            source = source[point["source"]]
        things = {"dynamics": dynamics, "init": init, "source": source}
        for name in self.fields:
            value = point[name]
            owners = [k for k, thing in things.items() if name in _fields(thing)]
            if len(owners) != 1:
                known = sorted({f for t in things.values() for f in _fields(t)})
                raise ValueError(f"no single axis is called {name!r}; there are {', '.join(known)}")
            things[owners[0]] = _replace(things[owners[0]], name, value)
        return things["source"], things["init"], things["dynamics"]

    def point(self, place: tuple[int, ...]) -> Point:
        """The point at a place along the axes."""
        return _points(self, tuple(map(int, place)))

    def _made(self, place: tuple[int, ...]) -> Point:
        source, init, dynamics = self.parts(place)
        task = isinstance(source, AbstractTask)
        if isinstance(source, AbstractTask | AbstractLoss) and self.vary is not Vary.WEIGHTS:
            raise ValueError(
                f"to vary {self.vary.value}, give a function key -> loss instead of one loss"
            )
        loss, record = _loss_of(source), self.recorders
        if self.tests is not None:
            record = self.tests.among(record, empty_model(init))
        return Point(
            loss=loss,
            init=init,
            dynamics=dynamics,
            marks=self.marks,
            record=record,
            final=self.final,
            source=(lambda seed: source) if task else loss,
            vary=self.vary,
            first=int(self.seeds[0]),
            starts=None if self.start is None else self.start.at(self._start_place(place), init),
        )

    def _start_place(self, place: tuple[int, ...]) -> tuple[int, ...]:
        """The place along the axes of the earlier sweep."""
        assert self.start is not None
        found = []
        for name, labels in self.start.axes.items():
            axis = self.axes[self.dims.index(name)]
            label = axis.fields[name][place[self.dims.index(name)]]
            found.append(labels.tolist().index(label))
        return tuple(found)

    def outline(self, place: tuple[int, ...]) -> Outline:
        """The point: its losses are there, or a function of the user's draws them."""
        return Outline(self.point(place))

    def text(self, place: tuple[int, ...]) -> str:
        """What a point computes, as JSON."""
        source, init, dynamics = self.parts(place)
        said = self.arguments | {"source": source, "init": init, "dynamics": dynamics}
        return json.dumps(describe(said | {"first": self.seeds[0]}), sort_keys=True)

    def program(self, place: tuple[int, ...]) -> Hashable:
        """The shapes of a point's arrays, and all that is not an array."""
        one = np.asarray([0])
        return program_of(self.point(place).entries(place, self.seeds[:1], one)[0])

    def losses(self, place: tuple[int, ...]) -> Hashable:
        """The values along the axes of the source."""
        source = self.source if not isinstance(self.source, Mapping) else None
        return tuple(
            i
            for axis, i in zip(self.axes, place, strict=True)
            if source is None or axis.name in _fields(source)
        )

    def alone(self, axis: Axis) -> bool:
        """Whether the shapes of arrays change along an axis."""
        number = self.dims.index(axis.name)
        origin = [0] * len(self.axes)
        places = [(*origin[:number], i, *origin[number + 1 :]) for i in range(len(axis))]
        return len({self.program(place) for place in places}) > 1

    def take(self, places: Sequence[Sequence[int]]) -> "Grid":
        """The same grid with some of the values along each axis."""
        pairs = list(zip(self.values.items(), places, strict=True))
        values = {name: [v[i] for i in chosen] for (name, v), chosen in pairs}
        axes = tuple(a.take(chosen) for a, chosen in zip(self.axes, places, strict=True))
        source = self.source
        if isinstance(source, Mapping):
            source = {name: source[name] for name in values["source"]}
        return dataclasses.replace(self, source=source, values=values, axes=axes)


def require_source(source: Any) -> None:
    """Refuse what a sweep cannot train on: it is a task, a loss or a function, or some by name."""
    for one in source.values() if isinstance(source, Mapping) else (source,):
        if not isinstance(one, AbstractTask | AbstractLoss) and not callable(one):
            raise ValueError(
                f"source must be a task, a loss, a function key -> loss, or several of these by "
                f"name, got {shown(one)}"
            )
    if isinstance(source, Mapping) and not source:
        raise ValueError("source has no losses; give at least one by name")


def _stated(axes: Any) -> dict[str, Any]:
    """The axes of a sweep by name; `ValueError` unless each has a list of values."""
    if not isinstance(axes, Mapping | None):
        raise ValueError(
            f"axes is a mapping of names to lists of values, such as {{'rate': [0.1, 0.2]}}, got "
            f"{shown(axes)}"
        )
    for name, values in (axes or {}).items():
        listed = isinstance(values, Mapping) or (np.iterable(values) and hasattr(values, "__len__"))
        if not isinstance(name, str) or isinstance(values, str | bytes) or not listed:
            raise ValueError(f"the axis {name} needs a list of values, got {shown(values)}")
    return dict(axes or {})


def _require_same(starts: Starts, stated: Mapping[str, Any]) -> None:
    """Refuse axes whose values differ from those of the runs to go on from.

    - `starts`: the last weights of the earlier sweep.
    - `stated`: the axes of this one.
    """
    for name, labels in starts.axes.items():
        if name in stated and axis_labels(name, stated[name]).tolist() != labels.tolist():
            raise ValueError(
                f"start has the axis {name} with the values {labels.tolist()}; give the same ones, "
                f"or none"
            )


def _loss_of(source: Any) -> Callable[[int], AbstractLoss]:
    """Seed -> loss.

    - `source`: a loss, which all seeds share; a task, for its population; or a function from a
      random key to a loss, which draws one per seed.
    """
    loss = Population(source) if isinstance(source, AbstractTask) else source
    if isinstance(loss, AbstractLoss):
        return lambda seed: loss
    if isinstance(loss, Hashable):
        return lambda seed: _drawn(loss, seed)
    return lambda seed: loss(jax.random.key(seed))


@lru_cache(maxsize=1)  # all points of a sweep share the loss of their first seed
def _drawn(function: Callable[[PRNGKeyArray], AbstractLoss], seed: int) -> AbstractLoss:
    return function(jax.random.key(seed))


@lru_cache(maxsize=KEPT)
def _points(grid: Grid, place: tuple[int, ...]) -> Point:
    return grid._made(place)


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
        new = require_real(name, value, ndim=old.ndim).astype(old.dtype)
        copy = eqx.tree_at(lambda t: getattr(t, name), thing, new)
        getattr(copy, "__check_init__", lambda: None)()
        return copy
    if isinstance(old, float) and isinstance(thing, AbstractOptimiser):
        # As an array, so that all values of the axis are one compiled program.
        value = require_real(name, value, ndim=0)
    return dataclasses.replace(thing, **{name: value})
