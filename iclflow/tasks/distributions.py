"""Distributions of the inputs and of the task vectors, each with the moments the theory needs.

Input distributions are *standardised*: mean 0, covariance the identity. A `Task` turns them into
tokens with `x = E diag(sqrt(lambda)) z`, so non-rotation-invariant ones (Rademacher) live in the
eigenbasis of the covariance.
"""

import abc
from collections.abc import Sequence
from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.linalg import gaussian_moment


class AbstractInputs(eqx.Module):
    """A standardised distribution on R^D."""

    @abc.abstractmethod
    def from_normals(self, normals: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, "n D"]:
        """Turn rows of standard normal numbers (and a key, if more is needed) into draws."""

    @abc.abstractmethod
    def quartic(self, a: Float[Array, "D D"]) -> Float[Array, "D D"]:
        """`E[z zᵀ A z zᵀ]` for symmetric A; raises `ValueError` where it does not exist."""


def _gaussian_quartic(a: Float[Array, "D D"]) -> Float[Array, "D D"]:
    return 2 * a + jnp.trace(a) * jnp.eye(a.shape[0], dtype=a.dtype)


class Gaussian(AbstractInputs):
    """Independent standard normal components (2)."""

    def from_normals(self, normals: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, "n D"]:
        return normals

    def quartic(self, a: Float[Array, "D D"]) -> Float[Array, "D D"]:
        return _gaussian_quartic(a)


class Sphere(AbstractInputs):
    """Uniform on the sphere of radius sqrt(D)."""

    def from_normals(self, normals: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, "n D"]:
        length = jnp.linalg.norm(normals, axis=-1, keepdims=True)
        return normals * jnp.sqrt(normals.shape[1]) / length

    def quartic(self, a: Float[Array, "D D"]) -> Float[Array, "D D"]:
        size = a.shape[0]
        return _gaussian_quartic(a) * size / (size + 2)


class Rademacher(AbstractInputs):
    """Independent signs (fourth moment 1: the lightest tails there are)."""

    def from_normals(self, normals: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, "n D"]:
        return jnp.where(normals < 0, -1.0, 1.0)

    def quartic(self, a: Float[Array, "D D"]) -> Float[Array, "D D"]:
        return _gaussian_quartic(a) - 2 * jnp.diag(jnp.diagonal(a))


class StudentT(AbstractInputs):
    """Multivariate Student t with `degrees` of freedom, scaled to unit covariance (heavy tails)."""

    degrees: float = eqx.field(static=True, default=8.0)

    def __check_init__(self) -> None:
        if not self.degrees > 2:
            raise ValueError(
                f"Student-t inputs need more than 2 degrees of freedom for a finite covariance, "
                f"got {self.degrees}; 8 is a usual heavy-tailed choice"
            )

    def from_normals(self, normals: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, "n D"]:
        chi2 = 2 * jax.random.gamma(key, self.degrees / 2, (normals.shape[0], 1))
        return normals * jnp.sqrt((self.degrees - 2) / chi2)

    def quartic(self, a: Float[Array, "D D"]) -> Float[Array, "D D"]:
        if not self.degrees > 4:
            raise ValueError(
                f"Student-t inputs with {self.degrees} degrees of freedom have no fourth moment; "
                f"the population needs more than 4 (or sample sequences instead)"
            )
        return _gaussian_quartic(a) * (self.degrees - 2) / (self.degrees - 4)


INPUTS: dict[str, type[AbstractInputs]] = {
    "gaussian": Gaussian,
    "sphere": Sphere,
    "rademacher": Rademacher,
    "student": StudentT,
}


def named_inputs(name: str) -> AbstractInputs:
    """The input distribution called `name`, one of `INPUTS`; `student:DEGREES` says how heavy."""
    kind, _, argument = name.partition(":")
    if kind not in INPUTS:
        raise ValueError(f"unknown inputs {name!r}; there are {', '.join(INPUTS)}")
    if kind != "student" or not argument:
        return INPUTS[kind]()
    try:
        return StudentT(float(argument))
    except ValueError as error:
        raise ValueError(f"inputs {name!r}: {error}") from None


def extended_fourth(task: Float[Array, "O D"]) -> Float[Array, "U U U U"]:
    """`u ⊗ u ⊗ u ⊗ u` of u = (1, vec W) for one task."""
    u = jnp.concatenate([jnp.ones(1), task.reshape(-1)])
    return jnp.einsum("i,j,k,l->ijkl", u, u, u, u)


class AbstractTaskVectors(eqx.Module):
    """A distribution of the task matrix W [O, D] in y = W x (O = 1: the task vector)."""

    @property
    @abc.abstractmethod
    def dims(self) -> tuple[int, int]:
        """(O, D), the shape of a task matrix."""

    @abc.abstractmethod
    def from_normals(self, normals: Float[Array, "O D"], key: PRNGKeyArray) -> Float[Array, "O D"]:
        """Turn standard normal numbers (and a key, if more is needed) into one task."""

    def sample(self, key: PRNGKeyArray) -> Float[Array, "O D"]:
        """Draw one task."""
        normal_key, other_key = jax.random.split(key)
        return self.from_normals(jax.random.normal(normal_key, self.dims), other_key)

    @abc.abstractmethod
    def second_moment(self) -> Float[Array, "O D O D"]:
        """`E[W_{oc} W_{pd}]`."""

    @abc.abstractmethod
    def fourth_moment(self) -> Float[Array, "U U U U"]:
        """`E[u ⊗ u ⊗ u ⊗ u]` of u = (1, vec W): all moments of W up to the fourth."""

    @abc.abstractmethod
    def symmetric(self) -> bool:
        """Whether W and -W have the same law (then the zero blocks stay zero, App. C.1, E.1)."""


class NormalTasks(AbstractTaskVectors):
    """Rows of W independent, each N(mean row, covariance); (3) is mean 0 and the identity."""

    mean: Float[Array, "O D"]
    covariance: Float[Array, "D D"]
    root: Float[Array, "D D"]

    @property
    def dims(self) -> tuple[int, int]:
        return self.mean.shape[0], self.mean.shape[1]

    def from_normals(self, normals: Float[Array, "O D"], key: PRNGKeyArray) -> Float[Array, "O D"]:
        return self.mean + normals @ self.root

    def second_moment(self) -> Float[Array, "O D O D"]:
        outputs = self.mean.shape[0]
        spread = jnp.einsum("op,cd->ocpd", jnp.eye(outputs, dtype=self.mean.dtype), self.covariance)
        return spread + jnp.einsum("oc,pd->ocpd", self.mean, self.mean)

    def fourth_moment(self) -> Float[Array, "U U U U"]:
        outputs, size = self.mean.shape
        spread = jnp.kron(jnp.eye(outputs), self.covariance)
        mean = jnp.concatenate([jnp.ones(1), self.mean.reshape(-1)])
        index = jnp.ix_(*[jnp.arange(1 + outputs * size)] * 4)
        return gaussian_moment(jnp.pad(spread, ((1, 0), (1, 0))), mean, *index)

    def symmetric(self) -> bool:
        return not bool(jnp.any(self.mean != 0))


class CommutingTasks(AbstractTaskVectors):
    """W = U diag(l) Uᵀ with l ~ N(0, variances) independent: D outputs, commuting with U S Uᵀ.

    The tasks of Mainali & Teixeira (2025), U the eigenvectors of the input covariance and all
    variances 1. As vec W is linear in l, it is Gaussian.
    """

    basis: Float[Array, "D D"]  # columns: the eigenvectors U
    variances: Float[Array, " D"]

    @classmethod
    def of(cls, basis: Float[Array, "D D"], variances: Sequence[float] | None = None) -> Self:
        """The tasks along the columns of `basis`; variances 1 if omitted."""
        size = basis.shape[0]
        found = np.ones(size) if variances is None else np.asarray(variances, dtype=float)
        if found.shape != (size,) or not np.all(np.isfinite(found) & (found >= 0)):
            raise ValueError(
                f"commuting tasks need {size} variances of at least 0, one an eigenvector, got "
                f"{found.tolist()}"
            )
        return cls(basis, jnp.asarray(found, dtype=basis.dtype))

    @property
    def dims(self) -> tuple[int, int]:
        return self.basis.shape[0], self.basis.shape[0]

    def matrices(self, values: Float[Array, "*batch D"]) -> Float[Array, "*batch D D"]:
        """U diag(l) Uᵀ for given eigenvalues l."""
        return jnp.einsum("oa,...a,ca->...oc", self.basis, values, self.basis)

    def from_normals(self, normals: Float[Array, "O D"], key: PRNGKeyArray) -> Float[Array, "O D"]:
        return self.matrices(jnp.sqrt(self.variances) * normals[0])

    def second_moment(self) -> Float[Array, "O D O D"]:
        factor = jnp.einsum("oa,ca->oca", self.basis, self.basis)
        return jnp.einsum("a,oca,pda->ocpd", self.variances, factor, factor)

    def fourth_moment(self) -> Float[Array, "U U U U"]:
        count = self.basis.size
        spread = self.second_moment().reshape(count, count)
        mean = jnp.concatenate([jnp.ones(1), jnp.zeros(count)])
        index = jnp.ix_(*[jnp.arange(1 + count)] * 4)
        return gaussian_moment(jnp.pad(spread, ((1, 0), (1, 0))), mean, *index)

    def symmetric(self) -> bool:
        return True

    def pool(self, count: int, key: PRNGKeyArray) -> "TaskPool":
        """`count` tasks drawn once and for all: a fixed (quenched) set."""
        if count < 1:
            raise ValueError(f"a pool needs at least one task, got {count}")
        normals = jax.random.normal(key, (count, self.basis.shape[0]))
        return TaskPool(self.matrices(jnp.sqrt(self.variances)[None, :] * normals))


class TaskPool(AbstractTaskVectors):
    """M given tasks, each equally likely (task diversity)."""

    tasks: Float[Array, "M O D"]

    def symmetrised(self) -> "TaskPool":
        """The 2M tasks {W, -W}, under which the zero blocks stay zero."""
        return TaskPool(jnp.concatenate([self.tasks, -self.tasks]))

    @property
    def dims(self) -> tuple[int, int]:
        return self.tasks.shape[1], self.tasks.shape[2]

    def from_normals(self, normals: Float[Array, "O D"], key: PRNGKeyArray) -> Float[Array, "O D"]:
        return self.tasks[jax.random.randint(key, (), 0, self.tasks.shape[0])]

    def second_moment(self) -> Float[Array, "O D O D"]:
        return jnp.einsum("moc,mpd->ocpd", self.tasks, self.tasks) / self.tasks.shape[0]

    def fourth_moment(self) -> Float[Array, "U U U U"]:
        return jnp.mean(jax.vmap(extended_fourth)(self.tasks), axis=0)

    def symmetric(self) -> bool:
        order = jnp.lexsort(self.tasks.reshape(self.tasks.shape[0], -1).T)
        mirror = jnp.lexsort(-self.tasks.reshape(self.tasks.shape[0], -1).T)
        return bool(jnp.array_equal(self.tasks[order], -self.tasks[mirror]))
