"""Finite sets of prompts: given ones, or drawn from a task in chunks, in bounded memory."""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from iclflow.linalg import symmetric_power
from iclflow.tasks.base import AbstractTask, Place, Prompt, map_prefixes
from iclflow.tasks.checks import require_lengths, require_size
from iclflow.tasks.laws import Normal
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.task import Draw, require_task

MOST = 2**31 - 1  # prompts of a set: their numbers are 32-bit integers where JAX has no others


class AbstractPromptSet(eqx.Module):
    """`count` prompts of one shape, each to be had by its number.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> isinstance(icl.PromptSet.sample(task, 10, jax.random.key(0)), icl.AbstractPromptSet)
    True
    """

    count: eqx.AbstractVar[int]
    size: eqx.AbstractVar[int]
    outputs: eqx.AbstractVar[int]
    context: eqx.AbstractVar[int]
    lengths: eqx.AbstractVar[tuple[int, ...]]

    @abc.abstractmethod
    def prompt(self, index: Int[Array, ""]) -> Prompt:
        """Prompt number `index`."""

    def prompts(self) -> Prompt:
        """All prompts, stacked (a pytree with a leading axis)."""
        return _stacked(self)

    def chunks(self, size: int) -> Iterator[tuple[Int[Array, " C"], Bool[Array, " C"], int]]:
        """Indices in chunks of one size, a mask for the last one, and how many come so far."""
        for start in range(0, self.count, size):
            index = np.arange(start, start + size)  # known already: nothing to compile
            inside = jax.device_put(index < self.count)
            yield jax.device_put(index), inside, min(start + size, self.count)

    def prefixes(self, function: Callable[[Prompt], Any], index: Int[Array, " C"]) -> Any:
        """A function of every prefix of some prompts, stacked: leading axes [prompt, length]."""
        return jax.vmap(lambda i: map_prefixes(function, self.prompt(i), self.lengths))(index)


@eqx.filter_jit
def _stacked(prompts: AbstractPromptSet) -> Prompt:
    return jax.vmap(prompts.prompt)(jnp.arange(prompts.count))


class StackedPrompts(AbstractPromptSet):
    """Given prompts, stacked along a leading axis and each cut to `lengths`.

    - `prompts`: inputs [P, N+1, D], labels and targets [P, N+1, O], the query last.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> stacked = jax.vmap(task.sample)(jax.random.split(jax.random.key(0), 5))
    >>> prompts = icl.StackedPrompts(stacked, lengths=(7, 31))
    >>> prompts.count, prompts.context
    (5, 31)
    """

    stacked: Prompt
    count: int = eqx.field(static=True)
    lengths: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, prompts: Prompt, lengths: tuple[int, ...] | None = None) -> None:
        """`lengths`: pairs in the prefixes to average over; whole prompts if omitted."""
        arrays = (prompts.inputs, prompts.labels, prompts.targets)
        shapes = [a.shape for a in arrays]
        if shapes[0][:-1] != shapes[1][:-1] or shapes[1] != shapes[2] or len(shapes[0]) != 3:
            raise ValueError(
                f"prompts must be stacked: inputs [P, N+1, D], labels and targets [P, N+1, O], "
                f"got {', '.join(map(str, shapes))}; a single prompt needs a leading axis"
            )
        if 0 in shapes[0] or 0 in shapes[1] or shapes[0][1] < 2:
            raise ValueError(f"prompts need at least one pair and a query, got inputs {shapes[0]}")
        if not any(isinstance(a, Tracer) for a in arrays):
            bad = ~np.all([np.isfinite(a).all(axis=(1, 2)) for a in arrays], axis=0)
            if bad.any():
                raise ValueError(
                    f"prompts must be finite numbers, {bad.sum()} of {len(bad)} are not, the "
                    f"first is number {bad.argmax()}"
                )
        whole = (prompts.inputs.shape[1] - 1,)
        self.stacked, self.count = prompts, shapes[0][0]
        self.lengths = whole if lengths is None else require_lengths(lengths)
        if not self.lengths or min(self.lengths) < 1 or max(self.lengths) > whole[0]:
            raise ValueError(
                f"context lengths must lie between 1 and the context {whole[0]}, got {lengths}"
            )

    @property
    def size(self) -> int:
        return self.stacked.inputs.shape[2]

    @property
    def outputs(self) -> int:
        return self.stacked.labels.shape[2]

    @property
    def context(self) -> int:
        return self.stacked.inputs.shape[1] - 1

    def prompt(self, index: Int[Array, ""]) -> Prompt:
        return jax.tree.map(lambda a: a[index], self.stacked)

    def prompts(self) -> Prompt:
        return self.stacked


# What a loss can be made of.
PromptSource = Prompt | AbstractPromptSet | Prompts | Iterable[Prompt]


def as_sets(
    prompts: PromptSource, lengths: tuple[int, ...] | None = None
) -> Iterator[AbstractPromptSet]:
    """One set for stacked prompts, one per batch of an iterable of them; `ValueError` if unfit."""
    if isinstance(prompts, AbstractPromptSet | Prompts) and lengths is not None:
        raise ValueError(f"these prompts have their own lengths {prompts.lengths}, got {lengths}")
    if isinstance(prompts, AbstractPromptSet):
        yield prompts
        return
    if isinstance(prompts, Prompts):
        lengths = prompts.lengths
    first = None
    for batch in [prompts] if isinstance(prompts, Prompt) else prompts:
        if not isinstance(batch, Prompt):
            raise ValueError(f"prompts come as Prompt batches, got {type(batch).__name__}")
        found = StackedPrompts(batch, lengths)
        shape = (found.context, found.size, found.outputs, batch.normaliser)
        first = shape if first is None else first
        if shape != first:
            raise ValueError(f"all batches need one (N, D, O, normaliser): {first}, then {shape}")
        yield found
    if first is None:
        raise ValueError("there are no prompts: the iterable is empty (a generator used twice?)")


class Matching(eqx.Module):
    """Shifts and scalings that give a finite sample the population's first moments.

    The published code centres x at each token position over the sample and, where all task
    vectors are random, whitens them, which is why few sequences look like the population there.
    Without `task_mean` and `whitener` the task vectors stay as drawn.
    """

    input_mean: Float[Array, "n D"]
    task_mean: Float[Array, "O D"] | None = None
    whitener: Float[Array, "OD OD"] | None = None  # sample covariance of vec(W) to the task's

    def __call__(self, draw: Draw, mean: Float[Array, "O D"], keep: Bool[Array, ""]) -> Draw:
        """The matched draw, with E[W] = `mean`; `keep` leaves the task as it is drawn."""
        centred = eqx.tree_at(lambda d: d.inputs, draw, draw.inputs - self.input_mean)
        if self.task_mean is None or self.whitener is None:
            return centred
        white = (draw.task - self.task_mean).reshape(-1) @ self.whitener
        matched = mean + white.reshape(draw.task.shape)
        return eqx.tree_at(lambda d: d.task, centred, jnp.where(keep, draw.task, matched))


def _unchanged(prompt: Prompt) -> Prompt:
    return prompt


class PromptSet(AbstractPromptSet):
    """`count` prompts of a task; prompt i depends on (key, i) only.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> icl.PromptSet.sample(task, 10, jax.random.key(0)).count
    10
    """

    task: AbstractTask
    key: PRNGKeyArray
    matching: Matching | None
    count: int = eqx.field(static=True)
    exact: bool = eqx.field(static=True)
    finish: Callable[[Prompt], Prompt] = eqx.field(static=True)

    def __init__(
        self,
        task: AbstractTask,
        key: PRNGKeyArray,
        count: int,
        *,
        matching: Matching | None = None,
        exact: bool = True,
        finish: Callable[[Prompt], Prompt] = _unchanged,
    ) -> None:
        """State the set.

        - `task`: any law of prompts.
        - `key`: what they are drawn with.
        - `count`: how many.
        - `matching`: what the draws are shifted and scaled by, of a linear regression.
        - `exact`: a mixture's proportions are exact over the set (the first prompts have the
          fixed task); else every prompt is an independent draw.
        - `finish`: a last change of every prompt.
        """
        count = require_size("the number of sequences", count)
        if count > MOST:
            raise ValueError(
                f"prompts are numbered with 31 bits, so that {count:,} sequences would repeat "
                f"themselves; give at most {MOST:,}, or use Population(task), the limit of many"
            )
        self.task, self.key, self.matching, self.count = task, key, matching, count
        self.exact, self.finish = exact, finish

    @property
    def size(self) -> int:
        return self.task.size

    @property
    def outputs(self) -> int:
        return self.task.outputs

    @property
    def context(self) -> int:
        return self.task.context

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.task.lengths

    def prompt(self, index: Int[Array, ""]) -> Prompt:
        if self.matching is not None:
            task = require_task(self.task, "matching is")
            return self.finish(task.prompt(self._draw(index)))
        if not self.exact:
            return self.finish(self.task.sample(jax.random.fold_in(self.key, index)))
        return self.finish(self.task.sample_at(self.key, Place(index, self.count)))

    @classmethod
    def sample(
        cls, task: AbstractTask, count: int, key: PRNGKeyArray, *, matched: bool = False
    ) -> Self:
        """State the set; `matched` whitens the task vectors and centres the inputs over it."""
        plain = cls(task, key, count)
        return plain.matched() if matched else plain

    def matched(self) -> Self:
        """The set, of exact proportions, with task vectors whitened and inputs centred over it."""
        task = require_task(self.task, "moments to match are")
        law = task.tasks.in_context()
        if not isinstance(law, Normal):
            raise ValueError(
                f"moment matching whitens normally distributed task vectors, this task has a "
                f"{type(law).__name__} of them (drop the matching, or the pool)"
            )
        random = int(jnp.sum(~task.tasks.is_fixed(Place(jnp.arange(self.count), self.count))))
        if random <= task.outputs * task.size:
            raise ValueError(
                f"moment matching needs more sequences with random task vectors than the "
                f"{task.outputs * task.size} numbers of a task, got {random}"
            )
        found = _matching(law, self.count, random, self._sums())
        return dataclasses.replace(self, matching=found, exact=True)

    def centred(self) -> Self:
        """The set, of exact proportions, with its inputs centred over it at each position."""
        found = Matching(self._sums()[0] / self.count)
        return dataclasses.replace(self, matching=found, exact=True)

    def _draw(self, index: Int[Array, ""]) -> Draw:
        task, place = require_task(self.task, "draws are"), Place(index, self.count)
        draw = task.draw(jax.random.fold_in(self.key, index), place)
        if self.matching is None:
            return draw
        # Only random task vectors are whitened; the fixed one stays what it is.
        return self.matching(draw, task.tasks.in_context().mean, task.tasks.is_fixed(place))

    def _sums(self) -> tuple[Array, Array, Array]:
        """Sums of inputs, of random task vectors and of their squares, chunk by chunk."""
        sums = None
        for index, mask, _ in self.chunks(min(self.count, 8192)):
            part = _moment_sums(self, index, mask)
            sums = part if sums is None else jax.tree.map(jnp.add, sums, part)
        assert sums is not None
        return sums


@eqx.filter_jit
def _matching(law: Normal, count: int, random: int, sums: tuple[Array, Array, Array]) -> Matching:
    inputs, total, squares = sums
    mean = total / random
    covariance = squares / random - jnp.outer(mean, mean)
    target = jnp.kron(jnp.eye(law.mean.shape[0]), law.covariance)
    whitener = symmetric_power(covariance, -0.5) @ symmetric_power(target, 0.5)
    return Matching(inputs / count, mean.reshape(law.mean.shape), whitener)


@eqx.filter_jit
def _moment_sums(
    prompts: PromptSet, index: Int[Array, " C"], mask: Bool[Array, " C"]
) -> tuple[Array, Array, Array]:
    draws = jax.vmap(prompts._draw)(index)
    law = require_task(prompts.task, "draws are").tasks
    random = mask & ~law.is_fixed(Place(index, prompts.count))
    tasks = draws.task.reshape(index.shape[0], -1) * random[:, None]
    return jnp.tensordot(mask.astype(float), draws.inputs, 1), tasks.sum(0), tasks.T @ tasks
