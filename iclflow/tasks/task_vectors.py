"""Laws of the task matrix W [O, D] in y = W x (O = 1: the task vector), with their moments.

A law may leave open what only the Task knows, its dimension and its eigenvectors; the Task
settles that with `bind`. Moments and draws are those of bound laws.
"""

import abc
from typing import Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float, Key, PRNGKeyArray

from iclflow.linalg import gaussian_moment, symmetric_power, with_eigenvectors
from iclflow.tasks.base import Place, Values
from iclflow.tasks.checks import require_kind, require_real, require_size, require_within

Known = TypeVar("Known")


class AbstractTaskVectors(eqx.Module):
    """A law of the task matrix.

    >>> import iclflow as icl
    >>> isinstance(icl.Normal(), icl.AbstractTaskVectors)
    True
    """

    mean: eqx.AbstractVar[Float[Array, "O _"]]  # E[W]

    @property
    @abc.abstractmethod
    def dims(self) -> tuple[int, int]:
        """(O, D), the shape of a task matrix."""

    @abc.abstractmethod
    def bind(self, basis: Float[Array, "D D"]) -> Self:
        """The law in the dimension and with the eigenvectors (columns) of a task's inputs."""

    @abc.abstractmethod
    def from_normals(
        self, normals: Float[Array, "O D"], keys: Key[Array, "2"], place: Place | None = None
    ) -> Float[Array, "O D"]:
        """Turn standard normal numbers (and keys, if more is needed) into one task.

        The first key chooses among tasks, the second between the parts of a mixture, where no
        `place` in a set decides that.
        """

    def mixed(self) -> bool:
        """Whether a share of the tasks is the fixed one of a `Mixture`."""
        return False

    def is_fixed(self, place: Place) -> Bool[Array, "*batch"]:
        """Whether the task at a place of a set is the fixed one of a `Mixture`."""
        return jnp.zeros(place.index.shape, bool)

    def in_context(self) -> "AbstractTaskVectors":
        """The law of the tasks that are drawn: of a `Mixture` its random part."""
        return self

    def in_weight(self) -> "AbstractTaskVectors":
        """The fixed task of a `Mixture` for certain; other laws have none."""
        raise ValueError(
            f"only a mixture has a fixed task, got {type(self).__name__}; give the Task "
            f"tasks=Mixture(fraction=0.5), for example"
        )

    def sample(self, key: PRNGKeyArray) -> Float[Array, "O D"]:
        """Draw one task."""
        keys = jax.random.split(key, 3)
        return self.from_normals(jax.random.normal(keys[0], self.dims), keys[1:])

    @abc.abstractmethod
    def second_moment(self) -> Float[Array, "O D O D"]:
        """`E[W_{oc} W_{pd}]`."""

    @abc.abstractmethod
    def fourth_moment(self) -> Float[Array, "U U U U"]:
        """`E[u ⊗ u ⊗ u ⊗ u]` of u = (1, vec W): all moments of W up to the fourth."""

    @abc.abstractmethod
    def symmetric(self) -> bool:
        """Whether W and -W have the same law (then the zero blocks stay zero, App. C.1, E.1)."""


class Normal(AbstractTaskVectors):
    """Rows of W independent, each N(mean row, covariance); (3) is mean 0 and the identity.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31, tasks=icl.Normal(covariance=[2.0, 1.0]))
    >>> round(float(icl.Population(task).power), 6)
    1.5
    """

    mean: Float[Array, "O _"]
    covariance: Float[Array, "..."]
    root: Float[Array, "D D"] | None  # of the covariance; None until bound

    def __init__(self, mean: Values = 0.0, covariance: Values = 1.0, outputs: int = 1) -> None:
        """State the law.

        - `mean`: a number, D of them, or one row an output.
        - `covariance`: of each row: a variance, D of them along the eigenvectors of the inputs,
          or a matrix.
        - `outputs`: the number of rows O.
        """
        rows, outputs = require_real("task mean", mean), require_size("outputs", outputs)
        if rows.ndim > 2 or (rows.ndim == 2 and len(rows) not in (1, outputs)):
            raise ValueError(
                f"the task mean needs a row for each of the {outputs} outputs, got {rows.shape}"
            )
        self.mean = _broadcast(rows, (outputs, *(rows.shape[-1:] or (1,))))
        self.covariance, self.root = require_real("task covariance", covariance), None

    def bind(self, basis: Float[Array, "D D"]) -> Self:
        size, matrix, root = basis.shape[0], self.covariance, self.root
        if self.mean.shape[1] not in (1, size):
            raise ValueError(f"the task mean must have {size} numbers, got {self.mean.shape[1]}")
        if matrix.shape == (size,):
            matrix = with_eigenvectors(basis, matrix)
        if matrix.shape not in ((), (size, size)):
            raise ValueError(f"the task covariance must be {size} x {size}, got {matrix.shape}")
        if matrix.ndim == 0:
            require_within("task covariance", matrix, lower=0.0)
            scale = matrix if isinstance(matrix, Tracer) else np.asarray(matrix)
            matrix, root = (jnp.asarray(s * np.eye(size), float) for s in (scale, scale**0.5))
        if root is None:
            eigenvalues = jnp.linalg.eigvalsh(matrix)
            require_within("eigenvalues of the task covariance", eigenvalues, lower=-1e-12)
            root = symmetric_power(matrix, 0.5)
        return eqx.tree_at(
            lambda law: (law.mean, law.covariance, law.root),
            self,
            (_broadcast(self.mean, (self.mean.shape[0], size)), matrix, root),
            is_leaf=lambda leaf: leaf is None,
        )

    @property
    def dims(self) -> tuple[int, int]:
        return self.mean.shape[0], self.mean.shape[1]

    def from_normals(
        self, normals: Float[Array, "O D"], keys: Key[Array, "2"], place: Place | None = None
    ) -> Float[Array, "O D"]:
        return self.mean + normals @ bound(self.root)

    def second_moment(self) -> Float[Array, "O D O D"]:
        outputs = self.mean.shape[0]
        spread = jnp.einsum("op,cd->ocpd", jnp.eye(outputs, dtype=self.mean.dtype), self.covariance)
        return spread + jnp.einsum("oc,pd->ocpd", self.mean, self.mean)

    def fourth_moment(self) -> Float[Array, "U U U U"]:
        spread = jnp.kron(jnp.eye(self.mean.shape[0]), self.covariance)
        return gaussian_fourth(self.mean.reshape(-1), spread)

    def symmetric(self) -> bool:
        return not bool(jnp.any(self.mean != 0))


class Pool(AbstractTaskVectors):
    """M given tasks, each equally likely (task diversity).

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31, tasks=icl.Pool([[1.0, 0.0], [0.0, 1.0]]))
    >>> task.tasks.members.shape
    (2, 1, 2)
    """

    members: Float[Array, "M O D"]

    def __init__(self, members: Values) -> None:
        """`members`: the tasks, [M, D], or [M, O, D] for O outputs."""
        found = require_real("task pool", members)
        if found.ndim not in (2, 3) or found.size == 0:
            raise ValueError(f"a task pool must be [M, D] or [M, O, D], M > 0, got {found.shape}")
        require_within("task pool", found)
        self.members = found[:, None, :] if found.ndim == 2 else found

    def bind(self, basis: Float[Array, "D D"]) -> Self:
        size, found = basis.shape[0], self.members.shape
        if found[2] != size:
            raise ValueError(f"a task pool must be [M, {size}] like the inputs, got {found}")
        return self

    def symmetrised(self) -> "Pool":
        """The 2M tasks {W, -W}, under which the zero blocks stay zero."""
        return Pool(jnp.concatenate([self.members, -self.members]))

    @property
    def dims(self) -> tuple[int, int]:
        return self.members.shape[1], self.members.shape[2]

    @property
    def mean(self) -> Float[Array, "O _"]:
        return self.members.mean(axis=0)

    def from_normals(
        self, normals: Float[Array, "O D"], keys: Key[Array, "2"], place: Place | None = None
    ) -> Float[Array, "O D"]:
        return self.members[jax.random.randint(keys[0], (), 0, self.members.shape[0])]

    def second_moment(self) -> Float[Array, "O D O D"]:
        return jnp.einsum("moc,mpd->ocpd", self.members, self.members) / self.members.shape[0]

    def fourth_moment(self) -> Float[Array, "U U U U"]:
        return jnp.mean(jax.vmap(_extended_fourth)(self.members), axis=0)

    def symmetric(self) -> bool:
        flat = self.members.reshape(self.members.shape[0], -1)
        return bool(jnp.array_equal(flat[jnp.lexsort(flat.T)], -flat[jnp.lexsort(-flat.T)]))


class Mixture(AbstractTaskVectors):
    """W = w* with probability `fraction`, else drawn from `random` (Sec. 7.1, App. F).

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31, tasks=icl.Mixture(fraction=0.2))
    >>> task.tasks.mixed()
    True
    """

    random: AbstractTaskVectors
    fixed: Float[Array, "O D"] | None  # None until bound
    fraction: Float[Array, ""]

    def __init__(
        self,
        random: AbstractTaskVectors | None = None,
        fixed: Values | None = None,
        *,
        fraction: ArrayLike,
    ) -> None:
        """State the law.

        - `random`: the law of the other tasks; `Normal()` if omitted.
        - `fixed`: w*, D numbers or one row an output; the sum of the eigenvectors of the inputs
          (|w*|² = D) if omitted.
        - `fraction`: the share of prompts with w*.
        """
        law = Normal() if random is None else random
        self.random = require_kind("random", law, AbstractTaskVectors, "a law such as Normal()")
        self.fixed = None if fixed is None else jnp.atleast_2d(require_real("fixed task", fixed))
        self.fraction = require_real("fixed fraction", fraction, ndim=0)
        require_within("fixed fraction", self.fraction, lower=0.0, upper=1.0)

    def bind(self, basis: Float[Array, "D D"]) -> Self:
        random = self.random.bind(basis)
        fixed = basis.sum(axis=1)[None] if self.fixed is None else self.fixed
        if fixed.shape[1] != random.dims[1] or len(fixed) not in (1, random.dims[0]):
            raise ValueError(f"the fixed task must be {random.dims}, got {fixed.shape}")
        return type(self)(random, _broadcast(fixed, random.dims), fraction=self.fraction)

    @property
    def dims(self) -> tuple[int, int]:
        return self.random.dims

    @property
    def mean(self) -> Float[Array, "O _"]:
        return (1 - self.fraction) * self.random.mean + self.fraction * bound(self.fixed)

    def mixed(self) -> bool:
        return float(self.fraction) > 0

    def is_fixed(self, place: Place) -> Bool[Array, "*batch"]:
        """Proportions in a set are exact: its first `round(fraction * count)` tasks are w*."""
        return place.index < jnp.round(self.fraction * place.count)

    def in_context(self) -> AbstractTaskVectors:
        return self.random

    def in_weight(self) -> "Mixture":
        return Mixture(self.random, self.fixed, fraction=1.0)

    def from_normals(
        self, normals: Float[Array, "O D"], keys: Key[Array, "2"], place: Place | None = None
    ) -> Float[Array, "O D"]:
        drawn = self.random.from_normals(normals, keys, place)
        by_chance = place is None
        fixed = jax.random.bernoulli(keys[1], self.fraction) if by_chance else self.is_fixed(place)
        return jnp.where(fixed, bound(self.fixed), drawn)

    def second_moment(self) -> Float[Array, "O D O D"]:
        fixed = jnp.einsum("oc,pd->ocpd", bound(self.fixed), bound(self.fixed))
        return (1 - self.fraction) * self.random.second_moment() + self.fraction * fixed

    def fourth_moment(self) -> Float[Array, "U U U U"]:
        fixed = _extended_fourth(bound(self.fixed))
        return (1 - self.fraction) * self.random.fourth_moment() + self.fraction * fixed

    def symmetric(self) -> bool:
        return self.random.symmetric() and not self.mixed()


def bound(value: Known | None) -> Known:
    """What a law has once it is bound; `ValueError` before."""
    if value is None:
        raise ValueError("this law of tasks has no eigenvectors yet; give it to a Task, or bind it")
    return value


def _broadcast(values: Array, shape: tuple[int, ...]) -> Array:
    """`jnp.broadcast_to`, without a compilation where the numbers are known."""
    if isinstance(values, Tracer):
        return jnp.broadcast_to(values, shape)
    return jax.device_put(np.broadcast_to(np.asarray(values), shape))


def _extended_fourth(task: Float[Array, "O D"]) -> Float[Array, "U U U U"]:
    """`u ⊗ u ⊗ u ⊗ u` of u = (1, vec W) for one task."""
    u = jnp.concatenate([jnp.ones(1), task.reshape(-1)])
    return jnp.einsum("i,j,k,l->ijkl", u, u, u, u)


def gaussian_fourth(
    mean: Float[Array, " K"], covariance: Float[Array, "K K"]
) -> Float[Array, "U U U U"]:
    """`E[u ⊗ u ⊗ u ⊗ u]` of u = (1, w), w ~ N(mean, covariance)."""
    index = jnp.ix_(*[jnp.arange(1 + mean.size)] * 4)
    extended = jnp.concatenate([jnp.ones(1), mean])
    return gaussian_moment(jnp.pad(covariance, ((1, 0), (1, 0))), extended, *index)
