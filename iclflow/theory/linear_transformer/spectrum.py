"""What the mean training of the linear transformer depends on: s, N and the task variances."""

import dataclasses
from typing import Self

import numpy as np
from jaxtyping import Float

from iclflow.tasks.commuting import Commuting
from iclflow.tasks.inputs import Gaussian
from iclflow.tasks.prompt import Normaliser
from iclflow.tasks.task import ContextLabels, Task
from iclflow.tasks.task_vectors import Pool, bound


@dataclasses.dataclass(frozen=True)
class TransformerModes:
    """Eigenvalues s of the input covariance, N pairs, and v = E[λ²] of the tasks W = U diag(λ) Uᵀ.

    Only the variances of λ matter while p₂ and q₁ are diagonal in U, so a fixed (quenched) set of
    tasks enters by its mean squares.
    """

    spectrum: Float[np.ndarray, " D"]
    context: int
    variances: Float[np.ndarray, " D"]

    @classmethod
    def given(cls, spectrum: object, context: int, variances: object = None) -> Self:
        """From plain numbers, checked; variances 1 if omitted, as in the paper."""
        s = np.asarray(spectrum, dtype=float)
        if s.ndim != 1 or s.size == 0 or not np.all(np.isfinite(s) & (s > 0)):
            raise ValueError(
                f"the linear transformer needs a list of eigenvalues above 0, got "
                f"{np.asarray(spectrum).tolist()}; leave out directions without inputs"
            )
        v = np.ones_like(s) if variances is None else np.asarray(variances, dtype=float)
        if v.shape != s.shape or not np.all(np.isfinite(v) & (v > 0)):
            raise ValueError(
                f"the linear transformer needs {s.size} task variances above 0, got {v.tolist()}"
            )
        if context < 1:
            raise ValueError(f"the context needs at least one labelled pair, got {context}")
        return cls(s, int(context), v)

    @classmethod
    def of(cls, task: Task) -> Self:
        """Those of a task; raises `ValueError` where the theory does not cover it."""
        reason = _uncovered(task)
        if reason is not None:
            raise ValueError(f"the theory of the linear transformer does not cover {reason}")
        basis = np.asarray(task.basis)
        match task.tasks.in_context():
            case Commuting(variances=spread) as law if np.array_equal(bound(law.basis), basis):
                return cls.given(np.asarray(task.spectrum), task.context, np.asarray(spread))
            case Commuting(variances=spread) as law:
                other = np.asarray(bound(law.basis))
                members = np.einsum("oa,ca->aoc", other, other)
                members = members * np.sqrt(np.asarray(spread))[:, None, None]
                count = 1
            case Pool(members=pool):
                members, count = np.asarray(pool), len(pool)
            case _:
                members, count = np.ones((1, task.size, task.size)), 1  # not diagonal: refused
        inside = np.einsum("oa,moc,cb->mab", basis, members, basis)
        squares = np.sum(inside**2, axis=0) / count  # E[(UᵀWU)²], entry by entry
        variances = np.diagonal(squares)
        if np.abs(squares - np.diag(variances)).max() > 1e-20 + 1e-12 * variances.max():
            raise ValueError(
                "the theory of the linear transformer needs tasks W = U diag Uᵀ in the "
                "eigenvectors of the inputs; give tasks=Commuting()"
            )
        return cls.given(np.asarray(task.spectrum), task.context, variances)

    @property
    def size(self) -> int:
        """The number of modes d."""
        return self.spectrum.size


def _uncovered(task: Task) -> str | None:
    if task.outputs != task.size:
        return f"{task.outputs} outputs of {task.size} inputs; W must be square"
    if not isinstance(task.inputs, Gaussian):
        return f"{type(task.inputs).__name__} inputs; they must be Gaussian"
    if task.lengths != (task.context,) or task.normaliser is not Normaliser.PAIRS:
        return "varying context lengths or another normaliser than 1/N"
    if task.tasks.mixed() or task.context_labels is not ContextLabels.TASK:
        return "a fixed task"
    if float(task.label_noise) > 0 or float(task.target_noise) > 0:
        return "noise on the labels"
    return None
