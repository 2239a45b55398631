"""A finite set of prompts that can be generated in chunks, again and again, in bounded memory."""

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from iclflow.linalg import symmetric_power
from iclflow.tasks.prompt import Prompt
from iclflow.tasks.task import Draw, NormalTasks, Task


class Matching(eqx.Module):
    """Shifts and scalings that give a finite sample the population's first moments.

    The published code centres x at each token position over the sample and, where all task
    vectors are random, whitens them, which is why few sequences look like the population there.
    Without `task_mean` and `whitener` the task vectors stay as drawn.
    """

    input_mean: Float[Array, "n D"]
    task_mean: Float[Array, "O D"] | None = None
    whitener: Float[Array, "OD OD"] | None = None  # sample covariance of vec(W) to the task's

    def __call__(self, task: Task, draw: Draw) -> Draw:
        centred = eqx.tree_at(lambda d: d.inputs, draw, draw.inputs - self.input_mean)
        if self.task_mean is None or self.whitener is None:
            return centred
        assert isinstance(task.tasks, NormalTasks)
        white = (draw.task - self.task_mean).reshape(-1) @ self.whitener
        matched = task.tasks.mean + white.reshape(draw.task.shape)
        return eqx.tree_at(lambda d: d.task, centred, matched)


class PromptSet(eqx.Module):
    """`count` prompts of a task; prompt i depends on (key, i) only.

    The first `round(fixed_fraction * count)` prompts have the fixed task, so the mixture has
    exact proportions.
    """

    task: Task
    key: PRNGKeyArray
    count: int = eqx.field(static=True)
    matching: Matching | None = None

    def __check_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"the number of sequences must be at least 1, got {self.count}")

    @classmethod
    def sample(
        cls, task: Task, count: int, key: PRNGKeyArray, *, matched: bool = False
    ) -> "PromptSet":
        """State the set; `matched` whitens the task vectors and centres the inputs over it."""
        plain = cls(task, key, count)
        return cls(task, key, count, plain._measure()) if matched else plain

    @classmethod
    def centred(cls, task: Task, count: int, key: PRNGKeyArray) -> "PromptSet":
        """The set with its inputs centred over it, at each position, and nothing else changed."""
        inputs, _, _ = cls(task, key, count)._sums()
        return cls(task, key, count, Matching(inputs / count))

    def _draw(self, index: Int[Array, ""]) -> Draw:
        fixed = index < jnp.round(self.task.fixed_fraction * self.count)
        draw = self.task.draw(jax.random.fold_in(self.key, index), fixed)
        if self.matching is None:
            return draw
        matched = self.matching(self.task, draw)
        # Only random task vectors are whitened; the fixed one stays what it is.
        return eqx.tree_at(lambda d: d.task, matched, jnp.where(fixed, draw.task, matched.task))

    def prompt(self, index: Int[Array, ""]) -> Prompt:
        """Prompt number `index`."""
        return self.task.prompt(self._draw(index))

    def prompts(self) -> Prompt:
        """All prompts, stacked (a pytree with a leading axis)."""
        return eqx.filter_jit(lambda s: jax.vmap(s.prompt)(jnp.arange(s.count)))(self)

    def chunks(self, size: int) -> Iterator[tuple[Int[Array, " C"], Bool[Array, " C"]]]:
        """Indices in chunks of one size, with a mask for the last one."""
        for start in range(0, self.count, size):
            index = jnp.arange(start, start + size)
            yield index, index < self.count

    def _measure(self) -> Matching:
        if not isinstance(self.task.tasks, NormalTasks):
            raise ValueError(
                "moment matching whitens normally distributed task vectors; this task has a "
                "finite pool (drop the matching, or the pool)"
            )
        random = self.count - round(float(self.task.fixed_fraction) * self.count)
        size = self.task.outputs * self.task.size
        if random <= size:
            raise ValueError(
                f"moment matching needs more sequences with random task vectors than the "
                f"{size} numbers of a task, got {random}"
            )
        return _matching(self.task.tasks, self.count, random, self._sums())

    def _sums(self) -> tuple[Array, Array, Array]:
        """Sums of inputs, of random task vectors and of their squares, chunk by chunk."""
        sums = None
        for index, mask in self.chunks(min(self.count, 8192)):
            part = _moment_sums(self, index, mask)
            sums = part if sums is None else jax.tree.map(jnp.add, sums, part)
        assert sums is not None
        return sums


@eqx.filter_jit
def _matching(
    tasks: NormalTasks, count: int, random: int, sums: tuple[Array, Array, Array]
) -> Matching:
    inputs, total, squares = sums
    mean = total / random
    covariance = squares / random - jnp.outer(mean, mean)
    target = jnp.kron(jnp.eye(tasks.mean.shape[0]), tasks.covariance)
    whitener = symmetric_power(covariance, -0.5) @ symmetric_power(target, 0.5)
    return Matching(inputs / count, mean.reshape(tasks.mean.shape), whitener)


@eqx.filter_jit
def _moment_sums(
    prompts: PromptSet, index: Int[Array, " C"], mask: Bool[Array, " C"]
) -> tuple[Array, Array, Array]:
    draws = jax.vmap(prompts._draw)(index)
    fixed = index < jnp.round(prompts.task.fixed_fraction * prompts.count)
    tasks = draws.task.reshape(index.shape[0], -1) * (mask & ~fixed)[:, None]
    return jnp.tensordot(mask.astype(float), draws.inputs, 1), tasks.sum(0), tasks.T @ tasks
