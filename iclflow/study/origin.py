"""Where a run comes from: what it was trained on, started from and trained by.

A Dataset of runs says it in its attributes: plain settings where a command wrote it, and a
description of task, initialiser and dynamics where `sweep` did. Both are turned back into objects
here, so that whoever reads runs need not ask who made them.
"""

import dataclasses
import enum
import typing
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import xarray as xr
from jaxtyping import AbstractArray

from iclflow.dynamics import AbstractDynamics, Adam, Descent, GradientDescent, Momentum
from iclflow.losses import AbstractLoss, Population
from iclflow.losses.population import WhiteTask
from iclflow.models import (
    MLP,
    AbstractInitialiser,
    ConvNet,
    LayersInitialiser,
    LinearTransformerInitialiser,
    MergedInitialiser,
    NetworkInitialiser,
    SeparateInitialiser,
    SoftmaxInitialiser,
)
from iclflow.results.files import parse_json
from iclflow.study.fields import from_names
from iclflow.study.study import Settings, Study
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.laws import (
    Commuting,
    Gaussian,
    Mixture,
    Normal,
    Pool,
    Rademacher,
    Sphere,
    StudentT,
)
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.task import Task

# What a description can be turned back into.
KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        Task, Population, WhiteTask, Gaussian, Rademacher, Sphere, StudentT, Normal, Pool,
        Commuting, Mixture,
        MergedInitialiser, SeparateInitialiser, SoftmaxInitialiser, LayersInitialiser,
        LinearTransformerInitialiser, Descent, GradientDescent, Momentum, Adam,
    )
}  # fmt: skip
NETWORKS = {"MLP": MLP, "ConvNet": ConvNet}
Source = AbstractTask | AbstractLoss | Prompts


@dataclasses.dataclass(frozen=True)
class Origin:
    """What some runs were trained on, started from and trained by, as far as it is known.

    - `source`: the task or the loss; None where it cannot be rebuilt and was not given.
    - `init`: the initialiser, whose kind and sizes the recorded weights have.
    - `dynamics`: `Descent` or another one.
    - `settings`: those of the command that wrote the runs; None for runs of `sweep`.

    >>> import iclflow as icl
    >>> from iclflow.study.origin import Origin
    >>> task = icl.Task([0.6, 0.3], context=15)
    >>> init = icl.Separate.initialiser(task, heads=2, scale=0.1)
    >>> runs = icl.sweep(task, init, icl.Descent(0.2), until=5)
    >>> Origin.of(runs).source.spectrum.tolist()
    [0.6, 0.3]
    """

    source: Any
    init: AbstractInitialiser | None
    dynamics: AbstractDynamics | None
    settings: Settings | None = None

    @classmethod
    def of(
        cls, runs: xr.Dataset, source: Source | None = None, init: AbstractInitialiser | None = None
    ) -> "Origin":
        """Read it off the attributes of runs.

        - `runs`: of `simulate`, `sweep`, or one of their files.
        - `source`, `init`: what to take instead: for a task or model of your own, and for a loss of
          sampled prompts, which no attributes can hold.
        """
        try:
            said = parse_json(runs.attrs["settings"], "settings")
        except (KeyError, TypeError, ValueError):
            said = None
        if isinstance(said, dict) and said.get("kind") == Settings.__name__:
            settings = Settings.of_run(runs.attrs)
            known = settings.source() if source is None else source
            made = settings.initialiser(settings.source()) if init is None else init
            return cls(known, made, None, settings)
        said = said if isinstance(said, dict) else {}
        if isinstance(said.get("fixed"), dict):
            return _of_design(runs, said["fixed"], said.get("axes"), source, init)
        found = {name: _rebuilt(said.get(name)) for name in ("source", "init", "dynamics")}
        point = _point(runs, said.get("axes"))
        for name, value in point.items():
            for part, thing in found.items():
                if thing is not None and name in _fields(thing):
                    found[part] = _with(thing, name, value)
        return cls(
            found["source"] if source is None else source,
            found["init"] if init is None else init,
            found["dynamics"],
        )

    def task_of(self, run: xr.Dataset) -> Any:
        """The source of one run; where a command varies all with the seed, so does the task."""
        if self.settings is None or self.settings.vary != "all":
            return self.source
        offset = int(run["seed"]) - self.settings.seed if "seed" in run.coords else 0
        return self.settings.task(offset)

    def loss(self) -> AbstractLoss:
        """The loss that was descended; `ValueError` with what to give where it is not known."""
        if isinstance(self.source, AbstractLoss):
            return self.source
        if self.settings is not None and self.settings.vary == "weights":
            return Study.of(self.settings).loss
        if isinstance(self.source, Task) and self.settings is None:
            return Population(self.source)
        raise ValueError(
            "these runs do not say which loss they were trained on; give it, for example "
            "source=loss"
        )


def _of_design(
    runs: xr.Dataset, fixed: Mapping[str, Any], axes: Any, source: Any, init: Any
) -> Origin:
    """The origin of one point of a design, whose settings are its fixed words and its place."""
    names = [name for axis in axes or () for name in axis[1:]]  # behind the axis
    if any(name not in runs.coords or runs[name].dims for name in names):
        return Origin(source, init, None)  # a whole design, or an axis that is no number
    own = {name: runs[name].values.item() for name in dict.fromkeys(names)}
    settings = Settings.read(given=dict(from_names({**fixed, **own}, "this sweep")))
    known = settings.source() if source is None else source
    made = settings.initialiser(settings.source()) if init is None else init
    return Origin(known, made, None, settings)


def _rebuilt(said: Any) -> Any:
    """The object of a description; None where it is of a kind, or a size, that cannot be."""
    try:
        return _object(said)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _object(said: Mapping[str, Any]) -> Any:
    if said["kind"] in NETWORKS:  # the field of that name hides the kind of the initialiser
        return NetworkInitialiser(_object(said["inner"]), NETWORKS[said["kind"]])
    kind = KINDS[said["kind"]]
    found = object.__new__(kind)
    for field in dataclasses.fields(kind):
        object.__setattr__(found, field.name, _value(said[field.name], field.type))
    check = getattr(found, "__check_init__", None)
    if check is not None:
        check()
    return found


def _value(said: Any, hint: Any) -> Any:
    """One field: an object, an array, a word of an `Enum`, a tuple, or a plain value."""
    if isinstance(said, Mapping):
        if "kind" not in said:
            raise ValueError("an array that is known by its hash alone")
        return _object(said)
    hints = [one for one in (typing.get_args(hint) or (hint,)) if isinstance(one, type)]
    if said is None:
        return None
    enums = [one for one in hints if issubclass(one, enum.Enum)]
    if enums:
        return enums[0](said)
    if any(issubclass(one, AbstractArray) for one in hints):
        return jnp.asarray(said, float)
    return tuple(said) if isinstance(said, list) else said


def _point(runs: xr.Dataset, axes: Any) -> dict[str, Any]:
    """The place along the axes of a sweep at which runs were selected: name -> number."""
    names = axes if isinstance(axes, Mapping) else {}
    found = {n: runs.coords[n].values for n in names if n in runs.coords and not runs[n].dims}
    return {name: value.item() for name, value in found.items() if value.dtype.kind in "fiu"}


def _fields(thing: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(thing)]


def _with(thing: Any, name: str, value: Any) -> Any:
    if isinstance(thing, Task):
        return thing.replace(**{name: value})
    old = getattr(thing, name)
    return dataclasses.replace(
        thing, **{name: jnp.asarray(value, float) if hasattr(old, "dtype") else value}
    )
