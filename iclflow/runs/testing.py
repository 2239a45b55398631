"""What a model is tested on while it trains on something else, recorded as `test_loss`."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.dynamics.base import Labelled
from iclflow.losses import AbstractLoss, Draws, Population, Sequences, population_moments
from iclflow.losses.base import changes
from iclflow.losses.population import beyond_white
from iclflow.models import AbstractLinearModel, AbstractModel
from iclflow.models.layers import AbstractLayers
from iclflow.runs.record import Record, axis_labels, by_name
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.checks import require_size
from iclflow.tasks.task import Task

TEST_LOSS, TEST = "test_loss", "test"
Source: TypeAlias = AbstractTask | AbstractLoss
SAMPLED = 3  # seed of the prompts of a test that has no closed form


class Tests(eqx.Module):
    """Tasks or losses that a model is tested on while it trains on another one.

    At every save point a run then records `test_loss`: its dimensions are `test`, the names of
    several tests, and one dimension per field that takes several values, such as `test_context`.
    A task is tested by its population, which is exact.

    - `what`: a task, a loss, or several of these by name.
    - `sequences`: how many prompts are sampled for a task whose population has no closed form for
      the model (softmax, three layers). Without it such a pair is refused.
    - `axes`: fields of the tasks with the values that they take in turn.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.5, 0.3], context=15)
    >>> model = icl.Separate.initialiser(task, heads=3, scale=0.15)(jax.random.key(0))
    >>> tests = icl.Tests({"same": task, "noisy": task.replace(label_noise=1.0)}, context=[4, 64])
    >>> run = icl.simulate(icl.Population(task), model, icl.Descent(0.2), until=800, test=tests)
    >>> run["test_loss"].shape == (len(run.time), 2, 2)
    True
    """

    sources: tuple[Source, ...]
    dims: tuple[tuple[str, tuple[Any, ...]], ...] = eqx.field(static=True)
    sequences: int | None = eqx.field(static=True)

    def __init__(
        self,
        what: Any,
        *,
        sequences: int | None = None,
        **axes: Any,
    ) -> None:
        """State the tests: those of `what`, each of them at all values of the `axes`."""
        named = what if isinstance(what, Mapping) else {"": what}
        if not named:
            raise ValueError("test has no names; give a task, a loss, or {'name': task}")
        for name, one in named.items():
            if not isinstance(one, AbstractTask | AbstractLoss):
                raise ValueError(
                    f"a test is a task or a loss, got {type(one).__name__}"
                    f"{f' for {name!r}' if name else ''}; for example task.replace(context=100)"
                )
            if isinstance(one, AbstractLoss) and changes(one):
                raise ValueError(
                    f"a test stays the same during training, and {type(one).__name__} changes; "
                    f"give its losses by name"
                )
            if axes and not isinstance(one, Task):
                raise ValueError(
                    f"{', '.join(axes)} are fields of a Task, got {type(one).__name__}; give the "
                    f"task, or losses by name"
                )
        for name, values in axes.items():
            if isinstance(values, str) or np.ndim(values) == 0 or not len(values):
                raise ValueError(f"{name} of the tests needs a list of values, got {values!r}")
        found = [
            (f"test_{name}", tuple(axis_labels(name, values).tolist()))
            for name, values in axes.items()
        ]
        if isinstance(what, Mapping):
            found.insert(0, (TEST, tuple(what)))
        points = list(itertools.product(*axes.values()))
        if sequences is not None:
            sequences = require_size("sequences", sequences)
        self.dims, self.sequences = tuple(found), sequences
        self.sources = tuple(
            one.replace(**dict(zip(axes, point, strict=True))) if axes else one  # pyright: ignore
            for one in named.values()
            for point in points
        )

    @classmethod
    def of(cls, test: Any) -> "Tests":
        """What `simulate` and `sweep` are given as `test`, as tests."""
        return test if isinstance(test, Tests) else cls(test)

    def among(self, record: Record, model: AbstractModel) -> Record:
        """What a run of such models records, its tests among it.

        - `record`: what it records besides.
        - `model`: one of the models, with any weights.
        """
        return {**by_name(record), TEST_LOSS: self.recorder(model)}

    def recorder(self, model: AbstractModel) -> "TestLoss":
        """The recorder of `test_loss` for models of a kind; `ValueError` where one is refused.

        - `model`: one of them, with any weights.
        """
        losses = [
            population_of(one, model, self.sequences) if isinstance(one, AbstractTask) else one
            for one in self.sources
        ]
        for loss in losses:
            reason = loss.admits(model)
            if reason is not None:
                raise ValueError(
                    f"{type(model).__name__} cannot be tested on {type(loss).__name__}: {reason}"
                )
        return TestLoss.of(losses, self.dims)


# What `simulate` and `sweep` take as `test`.
Test: TypeAlias = Source | Mapping[str, Source] | Tests | None


class TestLoss(eqx.Module):
    """A recorder: the losses of a model on its tests, in the shape of their labels.

    Losses of one structure are stacked, and evaluated together.

    - `stacks`: the losses of each structure.
    - `order`: the place of every test among all of the stacks.
    - `dims`: the labels.
    """

    stacks: tuple[AbstractLoss, ...]
    counts: tuple[int, ...] = eqx.field(static=True)
    order: tuple[int, ...] = eqx.field(static=True)
    dims: tuple[tuple[str, tuple[Any, ...]], ...] = eqx.field(static=True)

    @classmethod
    def of(cls, losses: Sequence[AbstractLoss], dims: Any) -> "TestLoss":
        """The recorder of the losses, which lie along `dims`, the last the fastest."""
        kinds: list[tuple[Any, list[int]]] = []  # what losses of a structure share, their places
        for place, loss in enumerate(losses):
            arrays, static = eqx.partition(loss, eqx.is_array)
            shaped = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arrays)
            alike = (places for kind, places in kinds if eqx.tree_equal(kind, (shaped, static)))
            places = next(alike, None)
            if places is None:
                kinds.append(((shaped, static), places := []))
            places.append(place)
        stacks = [_stacked([losses[i] for i in places]) for _, places in kinds]
        order = np.argsort(np.concatenate([places for _, places in kinds]), kind="stable")
        counts = tuple(len(places) for _, places in kinds)
        return cls(tuple(stacks), counts, tuple(order.tolist()), dims)

    def __call__(self, model: AbstractModel, loss: AbstractLoss) -> Labelled:
        del loss
        found = jnp.concatenate(
            [
                _each(stack, model) if count > 1 else stack(model).reshape(1)
                for stack, count in zip(self.stacks, self.counts, strict=True)
            ]
        )
        if self.order != tuple(range(len(self.order))):
            found = jnp.concatenate([found[i : i + 1] for i in self.order])
        return Labelled(found.reshape([len(labels) for _, labels in self.dims]), self.dims)


def _stacked(losses: Sequence[AbstractLoss]) -> AbstractLoss:
    if len(losses) == 1:
        return losses[0]
    arrays = [eqx.filter(loss, eqx.is_array) for loss in losses]
    stacked = jax.tree.map(lambda *a: jax.device_put(np.stack(a)), *arrays)
    return eqx.combine(stacked, losses[0])


def _each(stack: AbstractLoss, model: AbstractModel) -> Float[Array, " n"]:
    return eqx.filter_vmap(lambda loss: loss(model), in_axes=(eqx.if_array(0),))(stack)


def population_of(
    task: AbstractTask, model: AbstractModel, sequences: int | None = None
) -> AbstractLoss:
    """The population loss of a task for a kind of model, exact where it has a closed form.

    - `model`: what is tested, with any weights.
    - `sequences`: how many prompts to sample where there is no closed form; None refuses that.
    """
    from iclflow.losses.select import select

    if sequences is None:
        return select(task, model, None).build(task, None, jax.random.key(SAMPLED))
    population = Population(task)
    if population.admits(model) is None:
        return population
    if isinstance(model, AbstractLinearModel):
        return population_moments(task)
    key = jax.random.key(SAMPLED)
    if isinstance(model, AbstractLayers) and beyond_white(task) is None:
        return Draws.sample(task, sequences, key)
    return Sequences.sample(task, sequences, key)
