"""Task vectors with few entries that are not zero."""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Key

from iclflow.tasks.base import Place
from iclflow.tasks.checks import require_real, require_size, require_within
from iclflow.tasks.task_vectors import AbstractTaskVectors, bound


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
