"""Laws: what the inputs and the task matrix W [O, D] in y = W x are drawn from, with their moments.

A law of task matrices (O = 1: of task vectors) may leave open what only the Task knows, its
dimension and its eigenvectors; the Task settles that with `bind`. Moments and draws are those of
bound laws.

Laws of inputs are *standardised*: mean 0, covariance the identity. A `Task` turns them into tokens
with `x = E diag(sqrt(lambda)) z`, so non-rotation-invariant ones (Rademacher) live in the
eigenbasis of the covariance. Named spectra are eigenvalues of that covariance.
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
from iclflow.results.messages import nearest
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

        - `mean`: a number, D of them, or one row per output.
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
        - `fixed`: w*, D numbers or one row per output; the sum of the eigenvectors of the inputs
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


class Commuting(AbstractTaskVectors):
    """W = U diag(l) Uᵀ with l ~ N(0, variances) independent: D outputs, commuting with U S Uᵀ.

    The tasks of Mainali & Teixeira (2025), U the eigenvectors of the input covariance and all
    variances 1. As vec W is linear in l, it is Gaussian.

    >>> import iclflow as icl
    >>> icl.Task([0.6, 0.3], context=31, tasks=icl.Commuting()).outputs
    2
    """

    variances: Float[Array, "..."]
    basis: Float[Array, "D D"] | None  # columns: the eigenvectors U; None until bound

    def __init__(self, variances: Values = 1.0, basis: Float[Array, "D D"] | None = None) -> None:
        """State the law.

        - `variances`: of the eigenvalues l, one number for all or D of them.
        - `basis`: the eigenvectors U; those of the task's inputs if omitted.
        """
        self.variances, self.basis = require_real("variances", variances), basis

    def bind(self, basis: Float[Array, "D D"]) -> Self:
        size, found = basis.shape[0], np.asarray(self.variances)
        own = basis if self.basis is None else self.basis
        fits = found.shape in ((), (size,)) and own.shape == (size, size)
        if not fits or not np.all(np.isfinite(found) & (found >= 0)):
            raise ValueError(
                f"commuting tasks need {size} variances of at least 0, one per eigenvector, got "
                f"{found.tolist()} and {own.shape[0]} eigenvectors"
            )
        return type(self)(np.broadcast_to(found, (size,)), own)

    @property
    def dims(self) -> tuple[int, int]:
        size = bound(self.basis).shape[0]
        return size, size

    @property
    def mean(self) -> Float[Array, "O _"]:
        return jnp.zeros(self.dims, self.variances.dtype)

    def matrices(self, values: Float[Array, "*batch D"]) -> Float[Array, "*batch D D"]:
        """U diag(l) Uᵀ for given eigenvalues l."""
        basis = bound(self.basis)
        return jnp.einsum("oa,...a,ca->...oc", basis, values, basis)

    def from_normals(
        self, normals: Float[Array, "O D"], keys: Key[Array, "2"], place: Place | None = None
    ) -> Float[Array, "O D"]:
        return self.matrices(jnp.sqrt(self.variances) * normals[0])

    def second_moment(self) -> Float[Array, "O D O D"]:
        basis = bound(self.basis)
        factor = jnp.einsum("oa,ca->oca", basis, basis)
        return jnp.einsum("a,oca,pda->ocpd", self.variances, factor, factor)

    def fourth_moment(self) -> Float[Array, "U U U U"]:
        count = self.dims[0] ** 2
        return gaussian_fourth(jnp.zeros(count), self.second_moment().reshape(count, count))

    def symmetric(self) -> bool:
        return True

    def pool(self, count: int, key: PRNGKeyArray) -> Pool:
        """`count` tasks drawn once and for all: a fixed (quenched) set."""
        count = require_size("the number of tasks in a pool", count)
        normals = jax.random.normal(key, (count, self.dims[0]))
        return Pool(self.matrices(jnp.sqrt(self.variances)[None, :] * normals))


class Sparse(AbstractTaskVectors):
    """Rows of W with s entries N(0, v) at random places along the eigenvectors, the others zero.

    Sparse linear regression in context: with fewer pairs than dimensions it can be learned where
    plain regression cannot. Every row has its own places. `theory.bayes_predictor` has the exact
    posterior mean, and `theory.Lasso` what one would take without knowing the law.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([1.0] * 8, context=6, tasks=icl.Sparse(nonzero=2))
    >>> int((task.draw(jax.random.key(0)).task != 0).sum())
    2
    """

    variance: Float[Array, ""]
    basis: Float[Array, "D D"] | None  # columns: the axes of the entries; None until bound
    nonzero: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)

    def __init__(self, nonzero: int, variance: ArrayLike = 1.0, outputs: int = 1) -> None:
        """State the law.

        - `nonzero`: s, how many entries of a row are not zero.
        - `variance`: v, of each of them; 1 makes E|w|² = s, and D/s makes it that of `Normal`.
        - `outputs`: the number of rows O.
        """
        self.nonzero = require_size("the number of entries that are not zero", nonzero)
        self.outputs = require_size("outputs", outputs)
        self.variance, self.basis = require_real("variance", variance, ndim=0), None
        require_within("variance", self.variance, lower=0.0)

    def bind(self, basis: Float[Array, "D D"]) -> Self:
        if self.nonzero > len(basis):
            raise ValueError(
                f"a task vector of {len(basis)} entries cannot have {self.nonzero} that are not "
                f"zero; give nonzero at most {len(basis)}"
            )
        return eqx.tree_at(lambda law: law.basis, self, basis, is_leaf=lambda leaf: leaf is None)

    @property
    def dims(self) -> tuple[int, int]:
        return self.outputs, bound(self.basis).shape[0]

    @property
    def mean(self) -> Float[Array, "O _"]:
        return jnp.zeros(self.dims, self.variance.dtype)

    def from_normals(
        self, normals: Float[Array, "O D"], keys: Key[Array, "2"], place: Place | None = None
    ) -> Float[Array, "O D"]:
        order = jnp.argsort(jax.random.uniform(keys[0], normals.shape), axis=1)
        kept = jnp.argsort(order, axis=1) < self.nonzero
        return jnp.where(kept, jnp.sqrt(self.variance) * normals, 0.0) @ bound(self.basis).T

    def second_moment(self) -> Float[Array, "O D O D"]:
        outputs, size = self.dims
        each = self.variance * self.nonzero / size
        identity = jnp.eye(outputs * size, dtype=each.dtype)
        return each * identity.reshape(outputs, size, outputs, size)

    def fourth_moment(self) -> Float[Array, "U U U U"]:
        """Of u = (1, vec W): entries in pairs, each pair weighed by how often both are kept."""
        outputs, size = self.dims
        count, kept = outputs * size, self.nonzero
        one = kept / size  # P(an entry is kept)
        two = one * (kept - 1) / max(size - 1, 1)  # P(two of one row are)
        row = np.arange(count) // size
        both = np.where(row[:, None] == row[None, :], two, one**2)
        np.fill_diagonal(both, one)  # P(both kept) of every two entries
        v = self.variance
        full = jnp.zeros((count + 1,) * 4, v.dtype).at[0, 0, 0, 0].set(1.0)
        own = np.arange(1, count + 1)
        for a, b in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)):  # two entries beside ones
            index = [np.zeros(count, int)] * 4
            index[a] = index[b] = own
            full = full.at[tuple(index)].set(v * one)
        i, j = (a.reshape(-1) for a in np.meshgrid(own, own, indexing="ij"))
        pairs = v**2 * jnp.asarray(both.reshape(-1))
        for index in ((i, i, j, j), (i, j, i, j), (i, j, j, i)):  # E wᵢ⁴ = 3v²P is all three
            full = full.at[index].add(pairs)
        turn = jax.scipy.linalg.block_diag(
            jnp.ones((1, 1)), jnp.kron(jnp.eye(outputs), bound(self.basis))
        )
        return jnp.einsum("abcd,ia,jb,kc,ld->ijkl", full, turn, turn, turn, turn)

    def symmetric(self) -> bool:
        return True


class AbstractInputs(eqx.Module):
    """A standardised distribution on R^D.

    >>> import iclflow as icl
    >>> isinstance(icl.StudentT(degrees=6.0), icl.AbstractInputs)
    True
    """

    @abc.abstractmethod
    def from_normals(self, normals: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, "n D"]:
        """Turn rows of standard normal numbers (and a key, if more is needed) into draws."""

    @abc.abstractmethod
    def quartic(self, a: Float[Array, "D D"]) -> Float[Array, "D D"]:
        """`E[z zᵀ A z zᵀ]` for symmetric A; raises `ValueError` where it does not exist."""


def _gaussian_quartic(a: Float[Array, "D D"]) -> Float[Array, "D D"]:
    return 2 * a + jnp.trace(a) * jnp.eye(a.shape[0], dtype=a.dtype)


class Gaussian(AbstractInputs):
    """Independent standard normal components (2).

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> isinstance(task.inputs, icl.Gaussian)
    True
    """

    def from_normals(self, normals: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, "n D"]:
        return normals

    def quartic(self, a: Float[Array, "D D"]) -> Float[Array, "D D"]:
        return _gaussian_quartic(a)


class Sphere(AbstractInputs):
    """Uniform on the sphere of radius sqrt(D).

    >>> import jax, numpy as np, iclflow as icl
    >>> task = icl.Task([1.0, 1.0], context=31, inputs=icl.Sphere())
    >>> squares = np.sum(np.square(task.sample(jax.random.key(0)).inputs), axis=1)
    >>> bool(np.allclose(squares, 2))
    True
    """

    def from_normals(self, normals: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, "n D"]:
        length = jnp.linalg.norm(normals, axis=-1, keepdims=True)
        return normals * jnp.sqrt(normals.shape[1]) / length

    def quartic(self, a: Float[Array, "D D"]) -> Float[Array, "D D"]:
        size = a.shape[0]
        return _gaussian_quartic(a) * size / (size + 2)


class Rademacher(AbstractInputs):
    """Independent signs (fourth moment 1: the lightest tails there are).

    >>> import jax, numpy as np, iclflow as icl
    >>> task = icl.Task([1.0, 1.0], context=31, inputs=icl.Rademacher())
    >>> np.unique(np.abs(task.sample(jax.random.key(0)).inputs)).tolist()
    [1.0]
    """

    def from_normals(self, normals: Float[Array, "n D"], key: PRNGKeyArray) -> Float[Array, "n D"]:
        return jnp.where(normals < 0, -1.0, 1.0)

    def quartic(self, a: Float[Array, "D D"]) -> Float[Array, "D D"]:
        return _gaussian_quartic(a) - 2 * jnp.diag(jnp.diagonal(a))


class StudentT(AbstractInputs):
    """Multivariate Student t, scaled to unit covariance (heavy tails).

    - `degrees`: of freedom, more than 2; the fewer, the heavier.

    >>> import iclflow as icl
    >>> float(icl.StudentT(degrees=6.0).degrees)
    6.0
    """

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


SPECTRA = ("white", "linear", "power:ALPHA")


def named_spectrum(name: str, size: int, trace: float = 1.0) -> np.ndarray:
    """The spectrum called `name`, with D = `size` eigenvalues, largest first, summing to `trace`.

    `white`: all equal. `linear`: λ_d ∝ D, D-1, …, 1 (0.4, 0.3, 0.2, 0.1 for D = 4).
    `power:α`: λ_d ∝ d^(-α) (`power:1` is the spectrum of Figs 4 and 9).

    >>> import iclflow as icl
    >>> icl.named_spectrum("power:1", 2).round(4).tolist()
    [0.6667, 0.3333]
    """
    size = require_size("the number of eigenvalues D", size)
    if not (isinstance(trace, int | float) and 0 <= trace < np.inf):
        raise ValueError(f"the trace of a spectrum must be finite and at least 0, got {trace!r}")
    rank = np.arange(1, size + 1, dtype=float)
    kind, _, argument = name.partition(":")
    if name == "white":
        shape = np.ones(size)
    elif name == "linear":
        shape = rank[::-1].copy()
    elif kind == "power":
        try:
            exponent = float(argument)
        except ValueError:
            raise ValueError(
                f"spectrum {name!r} needs a number after 'power:', for example power:1"
            ) from None
        shape = rank**-exponent
        shape = np.sort(shape)[::-1]
    else:
        hint = nearest(kind, [n.partition(":")[0] for n in SPECTRA])
        raise ValueError(
            f"unknown spectrum {name!r}: give a list such as 0.4,0.3,0.2,0.1 "
            f"or one of {', '.join(SPECTRA)}{hint}"
        )
    return shape * (trace / shape.sum())
