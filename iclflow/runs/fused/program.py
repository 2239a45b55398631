"""What one run does, traced once: a step and a look, as functions of the leaves of its state."""

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


class Program(NamedTuple):
    """A step and a look of one run on its leaves: those of loss, dynamics and state, in order."""

    leaves: tuple[Leaf, ...]
    clock: int  # the leaf that counts the steps
    step: Any  # jaxpr: leaves -> leaves of the state
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

    def reason(self) -> str | None:
        """None, or why numbers cannot do it."""
        name = unsupported(self.step.jaxpr) or unsupported(self.look.jaxpr)
        return None if name is None else f"it has no rule for {name}"

    def after(self, values: list[Any], arithmetic: Arithmetic) -> list[Any]:
        """One step: all leaves after it, the clock untouched."""
        found = evaluate(self.step.jaxpr, self.step.consts, values, arithmetic)
        states = [i for i, leaf in enumerate(self.leaves) if leaf.state]
        new = list(values)
        for index, value in zip(states, found, strict=True):
            if self.leaves[index].changes and index != self.clock:
                new[index] = value
        return new

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
        return jax.tree.leaves(eqx.filter(dynamics.update(loss, state), eqx.is_array))

    def look(*flat: Any) -> Any:
        loss, dynamics, state = whole(flat)
        return dynamics.look(loss, state, dict(record))

    stepping = jax.make_jaxpr(step)(*one)
    looking, recorded = jax.make_jaxpr(look, return_shape=True)(*one)
    first = len(one) - len(stepping.jaxpr.outvars)  # the leaves of the state are the last
    changes = [False] * first
    for before, after in zip(stepping.jaxpr.invars[first:], stepping.jaxpr.outvars, strict=True):
        changes.append(before is not after)
    used = _used(stepping.jaxpr, changes[first:]) | _used(looking.jaxpr)
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
