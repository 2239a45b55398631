"""The in-context regression task: what a prompt is drawn from (Section 2 of the paper, (1)-(4))."""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from iclflow.linalg import is_concrete, random_rotation, with_eigenvectors
from iclflow.results.display import eigenvalues
from iclflow.tasks.base import AbstractTask, Normaliser, Place, Prompt, Values
from iclflow.tasks.checks import (
    require_kind,
    require_lengths,
    require_real,
    require_size,
    require_within,
)
from iclflow.tasks.laws import AbstractInputs, AbstractTaskVectors, Gaussian, Normal

CONTEXT = "the context, the number of labelled pairs,"
ORTHONORMAL = 1e-4  # of columns in single precision, with room
TASKS = "a law of task vectors, such as Normal() or Pool(members)"


class ContextLabels(enum.Enum):
    """What the labels in the context are.

    `TASK`: yₙ = W xₙ, the paper's convention everywhere. `NOISE`: pure N(0, 1) noise, with only
    the target made by the task; the published code does this in its in-weight test set and in
    its training at portion "all fixed".

    >>> import iclflow as icl
    >>> [what.value for what in icl.ContextLabels]
    ['task', 'noise']
    """

    TASK = "task"
    NOISE = "noise"


class Draw(eqx.Module):
    """The random numbers behind one prompt, before labels are made."""

    inputs: Float[Array, "n D"]
    task: Float[Array, "O D"]
    noise: Float[Array, "n O"]
    target_noise: Float[Array, "n O"]


def _same(one: Any, other: Any) -> bool:
    """Whether two trees have equal leaves; a traced one is like no other."""
    (here, kind), (there, other_kind) = jax.tree.flatten(one), jax.tree.flatten(other)
    pairs = zip(here, there, strict=True) if kind == other_kind else ()
    known = kind == other_kind and all(is_concrete(a) or not eqx.is_array(a) for a in here)
    return known and all(np.array_equal(a, b) for a, b in pairs)


class Task(AbstractTask):
    """In-context linear regression: x ~ (0, Λ), W afresh for each prompt, y = W x.

    `Λ = E diag(λ) Eᵀ` with eigenvalues `spectrum`, in the order in which they were given, and
    eigenvectors the columns of `basis`. N = `context` counts the labelled pairs; the query is not
    counted.

    The order of the eigenvalues is that of the coordinate axes: two tasks with the same
    eigenvalues in another order are two tasks, and a shifted covariance is one of them. What needs
    the eigenvalues in order takes those of `largest_first()`.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> task.size, task.context, task.sample(jax.random.key(0)).query.shape
    (2, 31, (2,))
    """

    spectrum: Float[Array, " D"]
    basis: Float[Array, "D D"]
    inputs: AbstractInputs
    tasks: AbstractTaskVectors
    label_noise: Float[Array, ""]
    target_noise: Float[Array, ""]
    context: int = eqx.field(static=True)
    lengths: tuple[int, ...] = eqx.field(static=True)
    normaliser: Normaliser = eqx.field(static=True)
    context_labels: ContextLabels = eqx.field(static=True)

    def __init__(
        self,
        spectrum: Values,
        context: int,
        *,
        rotation: Float[Array, "D D"] | PRNGKeyArray | None = None,
        inputs: AbstractInputs | None = None,
        tasks: AbstractTaskVectors | None = None,
        label_noise: ArrayLike = 0.0,
        target_noise: ArrayLike = 0.0,
        lengths: Sequence[int] | None = None,
        normaliser: Normaliser = Normaliser.PAIRS,
        context_labels: ContextLabels = ContextLabels.TASK,
    ) -> None:
        """State the task.

        - `spectrum`: the eigenvalues λ, one per axis and in any order; zeros and equal ones are
          allowed.
        - `context`: the number of labelled pairs N.
        - `rotation`: the eigenvectors, as a matrix of columns or a key to draw them with; the
          coordinate axes if omitted.
        - `inputs`: the standardised law of x, `Gaussian()` if omitted.
        - `tasks`: the law of W: `Normal`, `Pool`, `Commuting`, or a `Mixture` with a fixed task;
          `Normal()`, one output and N(0, I), if omitted.
        - `label_noise`, `target_noise`: standard deviations of the noise on context labels and
          on the target.
        - `lengths`: average the loss over prefixes of these many pairs; `(context,)` if omitted.
        - `normaliser`: what linear attention divides by.
        - `context_labels`: what the labels in the context are.
        """
        spectrum = require_real("spectrum", spectrum)
        if spectrum.ndim != 1 or spectrum.size == 0:
            raise ValueError(
                f"the spectrum must be a non-empty list of eigenvalues, got shape "
                f"{spectrum.shape}; for example [0.4, 0.3, 0.2, 0.1]"
            )
        size = spectrum.size
        self.spectrum, self.basis = spectrum, _basis(rotation, size)
        self.inputs = Gaussian() if inputs is None else inputs
        law = Normal() if tasks is None else tasks
        self.tasks = require_kind("tasks", law, AbstractTaskVectors, TASKS).bind(self.basis)
        self.label_noise = require_real("label noise", label_noise, ndim=0)
        self.target_noise = require_real("target noise", target_noise, ndim=0)
        self.context = require_size(CONTEXT, context)
        self.lengths = (self.context,) if lengths is None else require_lengths(lengths)
        self.normaliser = normaliser
        self.context_labels = context_labels

    def shown(self) -> dict[str, Any]:
        """The spectrum, the context, and whatever is not as it is if nothing is said."""
        axes = np.eye(self.basis.shape[-1])
        known: dict[str, tuple[Any, Any]] = {
            "rotation": (self.basis, axes),
            "inputs": (self.inputs, Gaussian()),
            "tasks": (self.tasks, Normal().bind(jnp.asarray(axes, self.basis.dtype))),
            "label_noise": (self.label_noise, 0.0),
            "target_noise": (self.target_noise, 0.0),
            "lengths": (self.lengths, (self.context,)),
            "normaliser": (self.normaliser, Normaliser.PAIRS),
            "context_labels": (self.context_labels, ContextLabels.TASK),
        }
        other = {name: here for name, (here, there) in known.items() if not _same(here, there)}
        return {"spectrum": eigenvalues(self.spectrum), "context": self.context, **other}

    def __check_init__(self) -> None:
        if self.spectrum.shape != self.basis.shape[1:]:
            raise ValueError(
                f"this task has {self.basis.shape[1]} axes, one eigenvalue per axis is needed, got "
                f"shape {self.spectrum.shape}; another dimension is another Task"
            )
        require_kind("inputs", self.inputs, AbstractInputs, "a law of inputs, such as Sphere()")
        require_kind("normaliser", self.normaliser, Normaliser, "")
        require_kind("context_labels", self.context_labels, ContextLabels, "")
        if not self.lengths or min(self.lengths) < 1 or max(self.lengths) > self.context:
            raise ValueError(
                f"context lengths must lie between 1 and the context {self.context}, "
                f"got {self.lengths}"
            )
        require_within("eigenvalues of the covariance", self.spectrum, lower=0.0)
        require_within("label noise (a standard deviation)", self.label_noise, lower=0.0)
        require_within("target noise (a standard deviation)", self.target_noise, lower=0.0)

    @classmethod
    def from_covariance(cls, covariance: Values, context: int, **options: Any) -> Self:
        """The task whose Λ is a given symmetric positive semidefinite matrix.

        A matrix has no order of its eigenvalues; the task has them largest first.
        """
        matrix = np.asarray(require_real("covariance", covariance))
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"a covariance must be a square matrix, got shape {matrix.shape}")
        if not np.allclose(matrix, matrix.T):
            raise ValueError("a covariance must be symmetric; use (C + C.T) / 2")
        values, vectors = np.linalg.eigh(matrix)
        if values[0] < -1e-10 * max(1.0, abs(values[-1])):
            raise ValueError(
                f"a covariance must be positive semidefinite, got eigenvalue {values[0]:.3g}"
            )
        values = values.clip(min=0.0)
        order = np.argsort(-values, kind="stable")
        rotation = jnp.asarray(vectors[:, order])
        return cls(values[order], context, rotation=rotation, **options)

    def largest_first(self) -> Self:
        """The same law of prompts, with eigenvalues and eigenvectors in descending order.

        >>> import iclflow as icl
        >>> icl.Task(spectrum=[0.1, 0.4, 0.2], context=31).largest_first().spectrum.tolist()
        [0.4, 0.2, 0.1]
        """
        order = np.argsort(-np.asarray(self.spectrum), kind="stable")
        return self.replace(spectrum=self.spectrum[order], basis=self.basis[:, order])

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed (checked again)."""
        names = [field.name for field in dataclasses.fields(self)]
        unknown = set(changes) - set(names)
        if unknown:
            raise ValueError(
                f"a Task has no field {', '.join(sorted(unknown))}; it has {', '.join(names)}"
            )
        if "context" in changes:
            changes["context"] = require_size(CONTEXT, changes["context"])
            if "lengths" not in changes and self.lengths == (self.context,):
                changes["lengths"] = (changes["context"],)
        if "lengths" in changes:
            changes["lengths"] = require_lengths(changes["lengths"])
        if "tasks" in changes:
            law = require_kind("tasks", changes["tasks"], AbstractTaskVectors, TASKS)
            changes["tasks"] = law.bind(changes.get("basis", self.basis))
        copy = object.__new__(type(self))
        for name in names:
            old = getattr(self, name)
            new = changes.get(name, old)
            if eqx.is_array(old) and name in changes:
                new = require_real(name.replace("_", " "), new, ndim=old.ndim)
            object.__setattr__(copy, name, new)
        copy.__check_init__()
        return copy

    @property
    def size(self) -> int:
        """The input dimension D."""
        return self.spectrum.shape[0]

    @property
    def outputs(self) -> int:
        """The number of outputs O."""
        return self.tasks.dims[0]

    @property
    def covariance(self) -> Float[Array, "D D"]:
        """Λ = E[x xᵀ]."""
        return with_eigenvectors(self.basis, self.spectrum)

    def second_moment(self) -> Float[Array, "O D O D"]:
        """`E[W ⊗ W]` of the task matrices."""
        return self.tasks.second_moment()

    def symmetric(self) -> bool:
        """Whether (W, noise) has an even law, so that the zero blocks stay zero (App. C.1, E.1)."""
        return self.tasks.symmetric()

    def in_context(self) -> Self:
        """The in-context test task: every prompt has a random task vector."""
        return self.replace(tasks=self.tasks.in_context(), context_labels=ContextLabels.TASK)

    def in_weight(self, context_labels: ContextLabels = ContextLabels.TASK) -> Self:
        """The in-weight test task: every target comes from the fixed task vector of a `Mixture`.

        With `ContextLabels.NOISE` the context carries no information (the published code).
        """
        return self.replace(tasks=self.tasks.in_weight(), context_labels=context_labels)

    def draw(self, key: PRNGKeyArray, place: Place | None = None) -> Draw:
        """Draw the numbers behind one prompt; `place` is that in a set with exact proportions."""
        points, outputs, size = self.context + 1, self.outputs, self.size
        # One block of normal numbers per prompt: random calls are what sampling costs to compile.
        normals = jax.random.normal(key, (points * (size + 2 * outputs) + outputs * size,))
        cuts = np.cumsum([points * size, points * outputs, points * outputs])
        inputs, noise, target_noise, task = jnp.split(normals, cuts)
        keys = jax.random.split(jax.random.fold_in(key, 1), 3)
        z = self.inputs.from_normals(inputs.reshape(points, size), keys[0])
        return Draw(
            inputs=(z * jnp.sqrt(self.spectrum)[None, :]) @ self.basis.T,
            task=self.tasks.from_normals(task.reshape(outputs, size), keys[1:], place),
            noise=noise.reshape(points, outputs),
            target_noise=target_noise.reshape(points, outputs),
        )

    def prompt(self, draw: Draw) -> Prompt:
        """Make the labels (4) and lay the prompt out."""
        clean = draw.inputs @ draw.task.T
        match self.context_labels:
            case ContextLabels.TASK:
                labels = clean + self.label_noise * draw.noise
            case ContextLabels.NOISE:
                labels = draw.noise
        targets = clean + self.target_noise * draw.target_noise
        return Prompt(draw.inputs, labels, targets, None, self.normaliser)

    def sample(self, key: PRNGKeyArray) -> Prompt:
        return self.prompt(self.draw(key))

    def sample_at(self, key: PRNGKeyArray, place: Place) -> Prompt:
        return self.prompt(self.draw(jax.random.fold_in(key, place.index), place))


def require_task(task: AbstractTask, what: str) -> Task:
    """The task, refused with `ValueError` unless it is a linear regression."""
    if not isinstance(task, Task):
        raise ValueError(
            f"{what} known in closed form for the linear regression of a Task, got "
            f"{type(task).__name__}; sample prompts instead, for example Moments.sample"
        )
    return task


def _basis(rotation: Any, size: int) -> Float[Array, "D D"]:
    if rotation is None:
        return jnp.asarray(np.eye(size), dtype=float)
    if isinstance(rotation, jax.Array) and jnp.issubdtype(rotation.dtype, jax.dtypes.prng_key):
        if rotation.shape != ():
            raise ValueError(f"the rotation is drawn with one key, got keys of {rotation.shape}")
        return random_rotation(rotation, size)
    found = require_real("rotation", rotation)
    if found.shape != (size, size):
        raise ValueError(f"the rotation must be {size} x {size}, got {found.shape}")
    if not isinstance(found, Tracer):
        # Eigenvectors that are not orthonormal would give Λ other eigenvalues than the spectrum.
        columns = np.asarray(found)
        error = np.abs(columns.T @ columns - np.eye(size)).max()
        if not error < ORTHONORMAL:
            raise ValueError(
                f"the columns of the rotation must be orthonormal, theirs differ from it by "
                f"{error:.2g}; np.linalg.qr(rotation)[0] makes them so"
            )
    return found
