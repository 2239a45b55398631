"""Inputs with memory: tokens of a prompt that are correlated along the context."""

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.tasks.base import AbstractTask, Place, Prompt, Values
from iclflow.tasks.checks import require_kind, require_real, require_within
from iclflow.tasks.laws import Gaussian
from iclflow.tasks.task import Draw, Task


class Memory(AbstractTask):
    """A `Task` whose inputs have a covariance K along the context: E[xₙ xₘᵀ] = K[n, m] Λ.

    Token n = 0 … N-1 is the n-th labelled pair, and token N is the query. The labels' noise stays
    independent. For an independent query all that K does to the loss of the model (M) is to
    replace 1/N by tr(K²)/N², where the diagonal of K is 1: a context with memory is a shorter one.

    - `task`: the same without memory; its inputs must be `Gaussian()`.
    - `covariance`: K, [N + 1, N + 1]; or [N, N], and then the query is independent with K = 1.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> slow = icl.Memory.autoregressive(task, length=4.0)
    >>> slow.sample(jax.random.key(0)).inputs.shape, round(slow.effective_context, 2)
    ((32, 2), 8.09)
    """

    task: Task
    covariance: Float[Array, "n n"]
    root: Float[Array, "n n"]  # symmetric, root @ root = K

    def __init__(self, task: Task, covariance: Values) -> None:
        task = require_kind("task", task, Task, "a Task")
        if not isinstance(task.inputs, Gaussian):
            raise ValueError(
                f"inputs with memory are Gaussian, got {type(task.inputs).__name__}; leave out "
                f"inputs= of the Task"
            )
        if task.lengths != (task.context,):
            raise ValueError(
                f"inputs with memory have one context length, got {task.lengths}; leave out "
                f"lengths= of the Task"
            )
        found = require_real("covariance along the context", covariance, ndim=2)
        require_within("covariance along the context", found)
        given, points = np.asarray(found, float), task.context + 1
        if given.shape == (points - 1, points - 1):
            given = np.pad(given, (0, 1))
            given[-1, -1] = 1.0
        if given.shape != (points, points):
            raise ValueError(
                f"the covariance along the context must be {points} x {points}, the query last, "
                f"or {points - 1} x {points - 1} for an independent query, got {given.shape}"
            )
        if not np.allclose(given, given.T):
            raise ValueError("a covariance must be symmetric; use (K + K.T) / 2")
        values, vectors = np.linalg.eigh(given)
        if values[0] < -1e-10 * max(1.0, values[-1]):
            raise ValueError(
                f"a covariance must be positive semidefinite, got eigenvalue {values[0]:.3g}"
            )
        root = (vectors * np.sqrt(values.clip(min=0.0))) @ vectors.T
        self.task = task
        self.covariance, self.root = jnp.asarray(given), jnp.asarray(root)

    @classmethod
    def autoregressive(cls, task: Task, *, length: float, query: bool = True) -> Self:
        """Tokens of a stationary process xₙ₊₁ = φ xₙ + √(1 - φ²) z with φ = exp(-1/`length`).

        - `length`: the correlation length in tokens; 0 for independent ones.
        - `query`: whether the query is the next token of the process, or independent of it.
        """
        if not (np.isfinite(length) and length >= 0):
            raise ValueError(f"a correlation length must be finite and at least 0, got {length}")
        phi = float(np.exp(-1 / length)) if length > 0 else 0.0
        index = np.arange(task.context + 1 if query else task.context)
        gaps = np.abs(index[:, None] - index[None, :])
        return cls(task, np.where(gaps == 0, 1.0, phi**gaps))

    @property
    def size(self) -> int:
        """The input dimension D."""
        return self.task.size

    @property
    def outputs(self) -> int:
        """The number of outputs O."""
        return self.task.outputs

    @property
    def context(self) -> int:
        """The number of labelled pairs N."""
        return self.task.context

    @property
    def lengths(self) -> tuple[int, ...]:
        """The one context length."""
        return self.task.lengths

    @property
    def effective_context(self) -> float:
        """(tr K)²/tr(K²) over the context: how many independent pairs have the same 1/N."""
        inside = np.asarray(self.covariance)[:-1, :-1]
        return float(np.trace(inside) ** 2 / np.sum(inside**2))

    def shown(self) -> dict[str, Any]:
        return {**self.task.shown(), "effective_context": round(self.effective_context, 3)}

    def prompt(self, draw: Draw) -> Prompt:
        """The prompt of the numbers behind one without memory."""
        mixed = self.root @ draw.inputs
        return self.task.prompt(Draw(mixed, draw.task, draw.noise, draw.target_noise))

    def sample(self, key: PRNGKeyArray) -> Prompt:
        return self.prompt(self.task.draw(key))

    def sample_at(self, key: PRNGKeyArray, place: Place) -> Prompt:
        return self.prompt(self.task.draw(jax.random.fold_in(key, place.index), place))
