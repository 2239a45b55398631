"""What one run does, traced once: a step and a look, as functions of the leaves of its state."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from iclflow.runs.fused.numbers import Arithmetic, Number
from iclflow.runs.fused.rules import evaluate, live, unsupported

TERMS = 1024  # numbers of a shared array, up to which each is a term of the program


class Leaf(NamedTuple):
    """An array among the parts of a run."""

    shape: tuple[int, ...]  # of one run
    dtype: Any
    own: bool  # one a run, not one for all
    state: bool  # a part of the run's state
    changes: bool  # in a step
    used: bool  # by the step or the look

    @property
    def size(self) -> int:
        """How many numbers a run has of it."""
        return math.prod(self.shape)

    @property
    def real(self) -> bool:
        """Whether its numbers are real."""
        return jnp.issubdtype(self.dtype, jnp.floating)

    @property
    def table(self) -> bool:
        """Whether it stays an array: a matrix that all runs share, of too many numbers."""
        return not self.own and self.real and len(self.shape) == 2 and self.size > TERMS


@dataclasses.dataclass(frozen=True, eq=False)  # one of its kind: what is made of it can be kept
class Program:
    """A step and a look of one run on its leaves: those of loss, dynamics and state, in order."""

    leaves: tuple[Leaf, ...]
    clock: int  # the leaf that counts the steps
    step: Any  # jaxpr: leaves -> whether the step went well, leaves of the state
    look: Any  # jaxpr: leaves -> what is recorded
    recorded: Any  # the tree of what is recorded, of shapes

    @property
    def carried(self) -> list[int]:
        """The leaves that a loop carries, the clock apart."""
        return [i for i, leaf in enumerate(self.leaves) if leaf.changes and i != self.clock]

    @property
    def given(self) -> list[int]:
        """The leaves that are read and stay."""
        return [i for i, f in enumerate(self.leaves) if f.used and not f.changes]

    @property
    def read(self) -> list[int]:
        """The leaves that a loop needs."""
        return [*self.carried, *self.given, self.clock]

    @property
    def dtype(self) -> Any:
        """Of the numbers."""
        return np.result_type(*(f.dtype for f in self.leaves if f.changes and f.real))

    @property
    def seen_count(self) -> int:
        """How many numbers a look records."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.recorded))

    @property
    def width(self) -> int:
        """How many numbers a lane holds."""
        own = [f for f in self.leaves if f.own and (f.used or f.changes)]
        return sum(leaf.size for leaf in own)

    @property
    def tables(self) -> list[int]:
        """The leaves that stay arrays."""
        return [i for i in self.given if self.leaves[i].table]

    def reason(self) -> str | None:
        """None, or why numbers cannot do it."""
        for traced in (self.step.jaxpr, self.look.jaxpr):
            name = unsupported(traced, {traced.invars[i] for i in self.tables})
            if name is not None:
                return f"it has no rule for {name}"
        return None

    def after(self, values: list[Any], arithmetic: Arithmetic) -> tuple[Number, list[Any]]:
        """Whether a step goes well, and all leaves after it, the clock untouched."""
        well, *found = evaluate(self.step.jaxpr, self.step.consts, values, arithmetic)
        states = [i for i, leaf in enumerate(self.leaves) if leaf.state]
        new = list(values)
        for index, value in zip(states, found, strict=True):
            if self.leaves[index].changes and index != self.clock:
                new[index] = value
        return well.item(), new

    def seen(self, values: list[Any], arithmetic: Arithmetic) -> list[Number]:
        """What is recorded, number by number."""
        found = evaluate(self.look.jaxpr, self.look.consts, values, arithmetic)
        return [number for array in found for number in array.ravel()]


def trace(parts: Any, own: Any, record: dict[str, Callable]) -> Program:
    """The program of (loss, dynamics, state), whose leaves are `own` by run, or one for all.

    Traced once for all parts of one structure.
    """
    arrays, static = eqx.partition(parts, eqx.is_array)
    leaves, tree = jax.tree.flatten(arrays)
    mine = tuple(jax.tree.leaves(own))
    shapes = [a.shape[1:] if m else a.shape for a, m in zip(leaves, mine, strict=True)]
    one = tuple(jax.ShapeDtypeStruct(s, a.dtype) for s, a in zip(shapes, leaves, strict=True))
    rest, shape = jax.tree.flatten(static)
    known = (tree, one, mine, shape, tuple(rest), tuple(record.items()))
    try:
        return _traced(*known)
    except TypeError:  # something that cannot be a key
        return _traced.__wrapped__(*known)


@functools.lru_cache(maxsize=64)
def _traced(tree: Any, one: Any, mine: Any, shape: Any, rest: Any, record: Any) -> Program:
    static = jax.tree.unflatten(shape, rest)

    def whole(flat: tuple[Any, ...]) -> Any:
        return eqx.combine(jax.tree.unflatten(tree, flat), static)

    def step(*flat: Any) -> list[Any]:
        loss, dynamics, state = whole(flat)
        return jax.tree.leaves(eqx.filter(dynamics.attempt(loss, state), eqx.is_array))

    def look(*flat: Any) -> Any:
        loss, _, state = whole(flat)
        return {name: function(state.model, loss) for name, function in record}

    stepping = jax.make_jaxpr(step)(*one)
    looking, recorded = jax.make_jaxpr(look, return_shape=True)(*one)
    _, *states = stepping.jaxpr.outvars
    first = len(one) - len(states)  # the leaves of the state are the last
    changes = [False] * first
    for before, after in zip(stepping.jaxpr.invars[first:], states, strict=True):
        changes.append(before is not after)
    used = _used(stepping.jaxpr, [True, *changes[first:]]) | _used(looking.jaxpr)
    clock = [i for i, m in enumerate(mine) if changes[i] and not m]
    return Program(
        leaves=tuple(
            Leaf(tuple(a.shape), a.dtype, m, i >= first, changes[i], i in used)
            for i, (a, m) in enumerate(zip(one, mine, strict=True))
        ),
        clock=clock[0],
        step=stepping,
        look=looking,
        recorded=recorded,
    )


def numbers_of(values: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    """A backend's numbers as the array they are the entries of."""
    found = np.empty(len(values), object)
    found[:] = [Number(value) for value in values]
    return found.reshape(shape)


def _used(jaxpr: Any, outputs: list[bool] | None = None) -> set[int]:
    """Which arguments matter to the outputs."""
    chosen = jaxpr.outvars if outputs is None else np.extract(outputs, jaxpr.outvars)
    read = {v for e in live(jaxpr) for v in e.invars if not isinstance(v, core.Literal)}
    read |= {v for v in chosen if not isinstance(v, core.Literal)}
    return {i for i, variable in enumerate(jaxpr.invars) if variable in read}
