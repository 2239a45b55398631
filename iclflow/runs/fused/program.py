"""What one run does, traced once: a step, or a slope, and a look, as functions of its leaves."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from iclflow.runs.fused.rules import evaluate, live
from iclflow.runs.fused.values import (
    CannotFuse,
    Constant,
    Matrix,
    Multiplied,
    Name,
    Product,
    Statement,
    Text,
    is_float,
    names,
)

TERMS = 1024  # entries of a shared matrix, up to which each is a value of the program


class Leaf(NamedTuple):
    """An array among the parts of a run."""

    shape: tuple[int, ...]  # of one run
    dtype: Any
    own: bool  # one per run, not one for all
    state: bool  # a part of the run's state
    changes: bool  # in a step
    used: bool  # by the step or the look

    @property
    def size(self) -> int:
        """How many numbers each run has of it."""
        return math.prod(self.shape)

    @property
    def real(self) -> bool:
        """Whether its numbers are real."""
        return jnp.issubdtype(self.dtype, jnp.floating)

    @property
    def matrix(self) -> bool:
        """Whether it stays a matrix, which all runs share and whose entries are too many."""
        return not self.own and self.real and len(self.shape) == 2 and self.size > TERMS


@dataclasses.dataclass(frozen=True, eq=False)  # by identity: compiled loops are cached by program
class Program:
    """A step and a look of one run on its leaves: those of loss, dynamics and state, in order.

    The step of a flow is its slope: where a step has the new value of a leaf, it has the slope.
    """

    leaves: tuple[Leaf, ...]
    clock: int | None  # the leaf that counts the steps; None for a flow, which has no such leaf
    step: Any  # jaxpr: leaves -> whether the step succeeds, leaves of the state
    look: Any  # jaxpr: leaves -> what is recorded
    recorded: Any  # the tree of what is recorded, of shapes

    @property
    def counter(self) -> int:
        """The leaf that counts the steps, of a program that has one."""
        assert self.clock is not None, "a flow counts no steps"
        return self.clock

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
        return [*self.carried, *self.given, *([] if self.clock is None else [self.clock])]

    @property
    def dtype(self) -> Any:
        """The type in which recorded numbers travel: every one of them fits into it."""
        kinds = [f.dtype for f in self.leaves if f.changes and f.real]
        kinds += [f.dtype for f in jax.tree.leaves(self.recorded)]
        return np.result_type(*(kinds or [np.float64]))

    @property
    def seen_count(self) -> int:
        """How many numbers a look records."""
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.recorded))

    @property
    def width(self) -> int:
        """How many numbers a run holds."""
        own = [f for f in self.leaves if f.own and (f.used or f.changes)]
        return sum(leaf.size for leaf in own)

    @property
    def matrices(self) -> list[int]:
        """The leaves that stay matrices."""
        return [i for i in self.given if self.leaves[i].matrix]


def trace(
    step: Callable[..., Any],
    look: Callable[..., Any],
    shapes: tuple[Any, ...],
    own: tuple[bool, ...],
    first: int,
    flows: bool = False,
) -> Program:
    """The program of a run whose state is some of its leaves.

    - `step`: (*leaves) -> whether the step succeeds, then the leaves of the state after it.
    - `look`: (*leaves) -> a tree of what is recorded.
    - `shapes`: shape and type of each leaf, for one run.
    - `own`: whether every run has its own value of a leaf.
    - `first`: the leaves of the state are those from this one on; the one leaf of the state that
      changes and that all runs share counts the steps.
    - `flows`: whether `step` gives the slopes of the leaves; nothing counts steps then.
    """
    stepping = jax.make_jaxpr(step)(*shapes)
    looking, recorded = jax.make_jaxpr(look, return_shape=True)(*shapes)
    _, *states = stepping.jaxpr.outvars
    if len(states) != len(shapes) - first:
        raise CannotFuse("a step changes the structure of the state")
    changes = [False] * first
    for before, after in zip(stepping.jaxpr.invars[first:], states, strict=True):
        changes.append(before is not after)
        if (before.aval.shape, before.aval.dtype) != (after.aval.shape, after.aval.dtype):
            raise CannotFuse("a step changes the shape or the type of the state")
    used = _used(stepping.jaxpr, [True, *changes[first:]]) | _used(looking.jaxpr)
    clocks = [i for i, mine in enumerate(own) if changes[i] and not mine]
    if len(clocks) != (not flows):
        raise CannotFuse("all runs must share their counter of steps and nothing else")
    leaves = tuple(
        Leaf(tuple(a.shape), a.dtype, mine, i >= first, changes[i], i in used)
        for i, (a, mine) in enumerate(zip(shapes, own, strict=True))
    )
    return Program(leaves, None if flows else clocks[0], stepping, looking, recorded)


def _used(jaxpr: Any, outputs: list[bool] | None = None) -> set[int]:
    """Which arguments matter to the outputs."""
    chosen = jaxpr.outvars if outputs is None else np.extract(outputs, jaxpr.outvars)
    read = {v for e in live(jaxpr) for v in e.invars if not isinstance(v, core.Literal)}
    read |= {v for v in chosen if not isinstance(v, core.Literal)}
    return {i for i, variable in enumerate(jaxpr.invars) if variable in read}


class Output(NamedTuple):
    """A value as an expression, with the name that it reads, if it is no constant."""

    expression: str
    reads: tuple[str, ...]


class Written(NamedTuple):
    """A step and a look as statements.

    - `arrays`: leaf -> the name of its array; entry j of the array `w` is the value `w_j`.
    - `succeeds`: whether the step succeeds.
    - `after`: the new value of each entry that changes.
    - `checks`: values of the step that must be finite in every step.
    - `guarded`: values that must be finite wherever the run is looked at.
    - `seen`: what is recorded.
    - `look_checks`: values of the look that must be finite.
    """

    arrays: dict[int, str]
    kinds: dict[str, str]
    step: list[Statement | Multiplied]
    succeeds: Output
    after: dict[str, Output]
    checks: list[str]
    guarded: list[str]
    look: list[Statement | Multiplied]
    seen: list[Output]
    look_checks: list[str]


@functools.lru_cache(maxsize=64)
def write(program: Program, zeros: tuple[bytes, ...] | None) -> Written:
    """The program as statements.

    - `zeros`: of each shared leaf, which entries are zero and drop out of sums. None: no sum drops
      anything, and numbers that are not finite need no check.
    """
    arrays = {i: f"w{n}" for n, i in enumerate([*program.carried, *program.given])}
    leaves, drops = program.leaves, zeros is not None
    for i in arrays:
        if leaves[i].matrix and not jnp.issubdtype(leaves[i].dtype, jnp.floating):
            raise CannotFuse("it has no rule for a large shared matrix of integers")

    def values(text: Text) -> list[Any]:
        found: list[Any] = [None] * len(leaves)
        if program.clock is not None:
            clock = np.empty((), object)
            clock[()] = Name("clock", leaves[program.clock].dtype)
            found[program.clock] = clock
        for i, name in arrays.items():
            leaf = leaves[i]
            if leaf.matrix:
                found[i] = Matrix(i, leaf.shape, leaf.dtype)
                continue
            found[i] = names(name, leaf.shape, leaf.dtype)
            if zeros is not None and zeros[i]:
                empty = np.frombuffer(zeros[i], bool).reshape(leaf.shape)
                found[i][empty] = Constant(np.zeros((), leaf.dtype)[()])
        return found

    def output(text: Text, value: Any) -> Output:
        word = text.operand(value)
        return Output(word, () if isinstance(value, Constant) else (word,))

    stepping, looking = Text(drops), Text(drops)
    succeeds, *after = evaluate(program.step.jaxpr, program.step.consts, values(stepping), stepping)
    states = [i for i, leaf in enumerate(leaves) if leaf.state]
    new = dict(zip(states, after, strict=True))
    changed = {
        f"{arrays[i]}_{j}": output(stepping, value)
        for i in program.carried
        for j, value in enumerate(new[i].ravel())
    }
    well = output(stepping, succeeds.item())
    seen = [
        output(looking, value)
        for array in evaluate(program.look.jaxpr, program.look.consts, values(looking), looking)
        for value in array.ravel()
    ]
    own = [(i, name) for i, name in arrays.items() if leaves[i].own and is_float(leaves[i].dtype)]
    guarded = [f"{name}_{j}" for i, name in own for j in range(leaves[i].size)]
    shared = {
        f"{n}_{j}" for i, n in arrays.items() if not leaves[i].own for j in range(leaves[i].size)
    }
    flows = program.clock is None
    checks = _unseen(stepping, changed, guarded, shared, flows)
    look_checks = [_name(looking, value) for value in looking.dropped]
    kinds = {f"{n}_{j}": np.dtype(leaves[i].dtype).name for i, n in arrays.items()
             for j in range(leaves[i].size) if not leaves[i].matrix}  # fmt: skip
    if program.clock is not None:
        kinds["clock"] = np.dtype(leaves[program.clock].dtype).name
    return Written(
        arrays=arrays,
        kinds=kinds,
        step=stepping.lines,
        succeeds=well,
        after={n: value for n, value in changed.items() if flows or value.expression != n},
        checks=checks,
        guarded=guarded if stepping.dropped else [],
        look=looking.lines,
        seen=seen,
        look_checks=sorted(set(look_checks) - shared),
    )


def _name(text: Text, value: Name | Product) -> str:
    return text.operand(value)


def _unseen(
    text: Text, after: dict[str, Output], guarded: list[str], shared: set[str], flows: bool
) -> list[str]:
    """The dropped values of a step whose infinity or NaN no later look at the state would show.

    A value shows if it reaches an entry of the state that keeps an infinity or NaN from step to
    step. Most do: new weights are old weights plus something. The control of a flow sees all
    slopes, so that there a value shows if it reaches one of them.
    """
    if not text.dropped:
        return []
    for value in text.dropped:  # a product may be infinite where its factors are not
        if isinstance(value, Product) and not value.sums:
            text.operand(value)
    backwards: dict[str, set[str]] = {}
    for line in text.lines:
        many = isinstance(line, Multiplied)
        for name in line.outputs if many else [line.name]:
            backwards.setdefault(name, set()).update(line.reads if many else line.spreads)
    keeping = set(guarded)
    while True:
        shown = set[str]()
        queue = [n for name in keeping for n in after.get(name, Output(name, (name,))).reads]
        while queue:
            name = queue.pop()
            if name not in shown:
                shown.add(name)
                queue += backwards.get(name, ())
        fewer = keeping & shown
        if flows or fewer == keeping:
            break
        keeping = fewer
    hidden = []
    for value in text.dropped:
        ways = value.sums if isinstance(value, Product) and value.found is None else []
        if not (shown.intersection(ways) if ways else text.operand(value) in shown):
            hidden.append(text.operand(value))
    return sorted(set(hidden) - shared)
