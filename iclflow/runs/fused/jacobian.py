"""The Jacobian of a flow's slope, written on single values.

The slope of a flow is a gradient, so that its Jacobian is symmetric and half of it is enough. JAX
takes the derivative forwards along all directions at once. The directions are known numbers, zeros
but for a one each, and most products with them drop out while the text is written.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from iclflow.runs.fused.program import Program, Written
from iclflow.runs.fused.rules import evaluate
from iclflow.runs.fused.values import (
    CannotFuse,
    Constant,
    Name,
    Statement,
    Text,
    names,
)


class Jacobian(NamedTuple):
    """The lower triangle of the Jacobian.

    - `text`: the statements, in the order of the columns that need them.
    - `entries`: (row, column) -> a name or a number; entries that are always zero are left out.
    """

    text: list[Statement]
    entries: dict[tuple[int, int], str]


class _Once(Text):
    """A text that computes nothing twice: the columns of a Jacobian share many products."""

    def __init__(self) -> None:
        super().__init__(drops=True)
        self.known: dict[Any, Name] = {}

    def write(
        self, dtype: Any, form: str, *values: Any, spreads: int = 0, operations: int = 0
    ) -> Name:
        words = tuple(self.operand(value) for value in values)
        if form == "{} * {}":
            words = tuple(sorted(words))
        key = (np.dtype(dtype).name, form, words)
        if key not in self.known:
            self.known[key] = super().write(
                dtype, form, *values, spreads=spreads, operations=operations
            )
        return self.known[key]


def jacobian(program: Program, written: Written, zeros: tuple[bytes, ...] | None) -> Jacobian:
    """The Jacobian of the slopes of all weights by all weights; `CannotFuse` if it has no text.

    An entry that is not finite needs no check: the slope there is not finite either.
    """
    if program.matrices:
        raise CannotFuse("the Jacobian of a loss with large shared matrices is not written out")
    leaves, carried = program.leaves, program.carried
    states = [i for i, leaf in enumerate(leaves) if leaf.state]
    step = core.jaxpr_as_fun(program.step)

    def columns(*values: Any) -> list[Any]:
        def slopes(weights: list[Any]) -> list[Any]:
            whole = list(values)
            for i, new in zip(carried, weights, strict=True):
                whole[i] = new
            found = dict(zip(states, step(*whole)[1:], strict=True))
            return [found[i] for i in carried]

        weights = [values[i] for i in carried]
        sizes = np.cumsum([leaves[i].size for i in carried])
        units = jnp.split(jnp.eye(int(sizes[-1]), dtype=weights[0].dtype), sizes[:-1], axis=1)
        units = [u.reshape(-1, *w.shape) for u, w in zip(units, weights, strict=True)]
        along = jax.vmap(lambda unit: jax.jvp(slopes, (weights,), (unit,))[1])(units)
        return [a.reshape(len(a), -1) for a in along]

    traced = jax.make_jaxpr(columns)(*(jax.ShapeDtypeStruct(f.shape, f.dtype) for f in leaves))
    text = _Once()
    values: list[Any] = [None] * len(leaves)
    for i, name in written.arrays.items():
        values[i] = names(name, leaves[i].shape, leaves[i].dtype)
        if zeros is not None and zeros[i]:
            empty = np.frombuffer(zeros[i], bool).reshape(leaves[i].shape)
            values[i][empty] = Constant(np.zeros((), leaves[i].dtype)[()])
    found = np.concatenate(evaluate(traced.jaxpr, traced.consts, values, text), axis=1)
    entries = {}
    for column in range(len(found)):
        for row in range(column, len(found)):
            value = text._left(found[column, row])
            if not (isinstance(value, Constant) and value.value == 0):
                entries[row, column] = text.operand(value)
    needed, live = set(entries.values()), []
    for line in reversed(text.lines):
        assert isinstance(line, Statement)
        if line.name in needed:
            live.append(line)
            needed.update(line.reads)
    return Jacobian(live[::-1], entries)
