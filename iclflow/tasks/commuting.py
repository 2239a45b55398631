"""Task matrices that commute with the covariance of the inputs."""

from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from iclflow.tasks.base import Place, Values
from iclflow.tasks.checks import require_real, require_size
from iclflow.tasks.task_vectors import AbstractTaskVectors, Pool, bound, gaussian_fourth


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
                f"commuting tasks need {size} variances of at least 0, one an eigenvector, got "
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
