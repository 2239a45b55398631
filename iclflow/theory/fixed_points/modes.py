"""The modes of a task: the singular value decomposition that orders everything it teaches (E1).

For one output the population loss of the reduced models is, in function space,
`L(M) = E[y²] - ‖Y‖² + ‖B^(1/2) M Λ^(1/2) - Y‖²` with `Y = B^(-1/2) G Λ^(-1/2) = Σ σ_s u_s w_sᵀ`.
Its fixed points, levels and gains all follow from the triples (σ_s, u_s, w_s), the *modes*. Where
B, G and Λ have common eigenvectors, the triples are found by these, which is exact. The loss
levels, where training pauses and where it ends (24)(59), are sums of the σ_s² (Section 5).
"""

import math
from collections.abc import Iterable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.losses import AbstractLoss, Population
from iclflow.models import AbstractModel, Merged
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.checks import require_size
from iclflow.tasks.task import Task

MIXTURES = ((1.0, 0.0, 0.0), (1.0, 0.618034, 0.414214), (1.0, -0.302776, 0.236068))


def joint_basis(
    covariance: np.ndarray, second: np.ndarray, cross: np.ndarray, eps: float
) -> tuple[np.ndarray, bool]:
    """Eigenvectors of Λ, and of B and G too if they have them in common.

    Equal eigenvalues of Λ leave its eigenvectors open; those of a mixture of the three matrices
    settle them, and one mixture that diagonalises all three proves that they commute.
    """
    matrices = [a / max(np.linalg.norm(a), np.finfo(float).tiny) for a in (covariance, second)]
    matrices.append(cross / max(np.linalg.norm(cross), np.finfo(float).tiny))
    best, error = np.eye(len(covariance)), np.inf
    for mixture in MIXTURES:
        mixed = sum(c * (a + a.T) / 2 for c, a in zip(mixture, matrices, strict=True))
        basis = np.linalg.eigh(mixed)[1]
        turned = [basis.T @ a @ basis for a in matrices]
        off = max(float(np.abs(a - np.diag(np.diagonal(a))).max()) for a in turned)
        if off < error:
            best, error = basis, off
    if error <= 1e3 * len(covariance) * eps:
        return best, True
    return np.linalg.eigh(matrices[0])[1], False


def diagonals(basis: np.ndarray, *matrices: np.ndarray) -> np.ndarray:
    """The diagonals of Eᵀ A E, one row per matrix."""
    return np.stack([np.sum(basis * (a @ basis), axis=0) for a in matrices])


def kept(values: np.ndarray, eps: float) -> np.ndarray:
    """Which of some non-negative numbers are more than rounding error of the largest."""
    return values > 8 * len(values) * eps * max(float(values.max(initial=0.0)), 0.0)


def commuting_modes(
    covariance: np.ndarray, second: np.ndarray, cross: np.ndarray, basis: np.ndarray, eps: float
) -> tuple[np.ndarray, ...]:
    """Y is diagonal in the common basis: σ_d = g_d/sqrt(λ_d b_d), u_d = w_d = e_d."""
    eigenvalue, b, g = diagonals(basis, covariance, second, cross)
    keep = kept(eigenvalue, eps)
    eigenvalue, b, g, basis = eigenvalue[keep], b[keep], g[keep], basis[:, keep]
    sigma = g / np.sqrt(eigenvalue * b)
    order = np.argsort(-sigma, kind="stable")
    order = order[kept(sigma[order], eps)]
    e = basis[:, order]
    keys, queries = e / np.sqrt(b[order])[None, :], e / np.sqrt(eigenvalue[order])[None, :]
    return sigma[order], e, e, keys, queries


def general_modes(
    covariance: np.ndarray, second: np.ndarray, cross: np.ndarray, basis: np.ndarray, eps: float
) -> tuple[np.ndarray, ...]:
    """The decomposition in coordinates that whiten Λ, where B is well conditioned.

    With Λ = F Fᵀ, B' = F⁻¹ B F⁻ᵀ (bounded below by the sampling noise tr(Λ S_w)/N) and
    G' = F⁻¹ G F⁻ᵀ, the matrix B'^(-1/2) G' has the singular values and right vectors of Y, and
    F⁻ᵀ B'^(-1/2) u' = B^(-1/2) u gives the left ones without inverting B.
    """
    (eigenvalue,) = diagonals(basis, covariance)
    keep = kept(eigenvalue, eps)
    basis, eigenvalue = basis[:, keep], eigenvalue[keep]
    whiten = basis / np.sqrt(eigenvalue)[None, :]  # F⁻ᵀ on the range of Λ
    values, vectors = np.linalg.eigh(whiten.T @ second @ whiten)
    root = (vectors / np.sqrt(values)[None, :]) @ vectors.T  # B'^(-1/2)
    left, sigma, right = np.linalg.svd(root @ (whiten.T @ cross @ whiten))
    positive = kept(sigma, eps)
    keys = whiten @ root @ left[:, positive]
    w = basis @ right[positive].T
    queries = whiten @ right[positive].T
    b, vectors = np.linalg.eigh(second)
    u = (vectors * np.sqrt(b.clip(min=0.0))[None, :]) @ vectors.T @ keys
    return sigma[positive], u, w, keys, queries


class Gains(eqx.Module):
    """The singular values and vectors of A_S, largest first: how fast dormant heads grow.

    A dormant head on the plateau M(S) grows its key along `left`, its query along `right`.

    - `values`: the singular values.
    """

    values: Float[Array, " n"]
    left: Float[Array, "D n"]
    right: Float[Array, "D n"]


class Modes(eqx.Module):
    """Singular triples of Y = B^(-1/2) G Λ^(-1/2), largest first; those with σ = 0 are left out.

    An *index set* S is a set of mode numbers 0, …, rank - 1 in this order. Where an eigenvalue
    of Λ or of the task covariance is zero, the weights are those of the pseudo-inverse.

    >>> import iclflow as icl
    >>> modes = icl.theory.Modes.of(icl.Task([0.6, 0.3], context=31))
    >>> modes.rank, modes.commuting
    (2, True)
    """

    power: Float[Array, ""]  # E[y²]
    cross: Float[Array, "D D"]  # G = E[β y xᵀ]
    second: Float[Array, "D D"]  # B = E[ββᵀ]
    covariance: Float[Array, "D D"]  # Λ
    singular: Float[Array, " r"]  # σ_s
    left: Float[Array, "D r"]  # u_s
    right: Float[Array, "D r"]  # w_s
    key_vectors: Float[Array, "D r"]  # B^(-1/2) u_s
    query_vectors: Float[Array, "D r"]  # Λ^(-1/2) w_s
    along: Float[Array, "3 r"] | None  # λ, b, g of each mode; None unless `commuting`

    @classmethod
    def of(cls, source: "AbstractTask | Population | Modes") -> "Modes":
        """The modes of a task, from its population moments (evaluated on concrete numbers)."""
        if isinstance(source, Modes):
            return source
        if not isinstance(source, AbstractTask | Population):
            prompts = isinstance(source, AbstractLoss)
            raise ValueError(
                f"modes are those of a Task or its Population, got {type(source).__name__}"
                + ("; the theory of a sample is icl.predict and plateau_losses" if prompts else "")
            )
        population = Population(source) if isinstance(source, AbstractTask) else source
        outputs = population.cross.shape[0]
        if outputs != 1:
            raise ValueError(
                f"the modes are those of a task with one output, got {outputs}; "
                f"a task whose outputs are independent has these modes for each of them"
            )
        dtype = population.covariance.dtype
        eps = float(jnp.finfo(dtype).eps)
        given = np.asarray(population.cross)[0]
        cross, second, covariance = (
            np.asarray(a, dtype=np.float64)
            for a in (given, population.second, population.covariance)
        )
        basis, commuting = joint_basis(covariance, second, cross, eps)
        decompose = commuting_modes if commuting else general_modes
        arrays = decompose(covariance, second, cross, basis, eps)
        along = diagonals(arrays[2], covariance, second, cross) if commuting else None
        sigma, left, right, keys, queries = (jnp.asarray(a, dtype=dtype) for a in arrays)
        return cls(
            power=population.power,
            cross=jax.device_put(given),
            second=population.second,
            covariance=population.covariance,
            singular=sigma,
            left=left,
            right=right,
            key_vectors=keys,
            query_vectors=queries,
            along=None if along is None else jnp.asarray(along, dtype=dtype),
        )

    @property
    def size(self) -> int:
        """The input dimension D."""
        return self.covariance.shape[0]

    @property
    def rank(self) -> int:
        """The number of modes with σ > 0; there are 2^rank fixed points in function space."""
        return self.singular.shape[0]

    @property
    def commuting(self) -> bool:
        """Whether Λ, B and G have their eigenvectors in common."""
        return self.along is not None

    @property
    def drops(self) -> Float[Array, " r"]:
        """σ_s², by how much learning mode s lowers the loss: g²/(λ b); λ³/a in the paper (24)."""
        return self.singular**2

    def members(self, index_set: Iterable[int]) -> tuple[int, ...]:
        """The index set in ascending order, checked."""
        given = [int(s) for s in index_set]
        found = tuple(sorted(set(given)))
        if len(found) != len(given) or (found and not 0 <= found[0] <= found[-1] < self.rank):
            raise ValueError(
                f"an index set holds distinct mode numbers from 0 to {self.rank - 1} "
                f"(largest drop first), got {given}"
            )
        return found

    def others(self, index_set: Iterable[int]) -> tuple[int, ...]:
        """The modes that are not in the index set, in ascending order."""
        inside = set(self.members(index_set))
        return tuple(s for s in range(self.rank) if s not in inside)

    def _array(self, values: np.ndarray | np.floating) -> Array:
        # Sets of every size pass through here: NumPy has nothing to compile for each.
        return jnp.asarray(values, dtype=self.covariance.dtype)

    def weight(self, index_set: Iterable[int]) -> Float[Array, "D D"]:
        """M(S) = B^(-1/2) (Σ_{s∈S} σ_s u_s w_sᵀ) Λ^(-1/2), (C1) (23)(55) and E1."""
        index = np.asarray(self.members(index_set), dtype=int)
        keys, queries = np.asarray(self.key_vectors), np.asarray(self.query_vectors)
        sigma = np.asarray(self.singular)
        return self._array((keys[:, index] * sigma[None, index]) @ queries[:, index].T)

    def level(self, index_set: Iterable[int]) -> Float[Array, ""]:
        """L(M(S)) = E[y²] - Σ_{s∈S} σ_s² (24)(59)."""
        index = np.asarray(self.members(index_set), dtype=int)
        return self._array(np.asarray(self.power) - np.sum(np.asarray(self.singular)[index] ** 2))

    def residual(self, index_set: Iterable[int]) -> Float[Array, "D D"]:
        """A_S = G - B M(S) Λ = B^(1/2) (Σ_{s∉S} σ_s u_s w_sᵀ) Λ^(1/2) (56)."""
        index = np.asarray(self.others(index_set), dtype=int)
        keys = np.asarray(self.second) @ np.asarray(self.key_vectors)[:, index]
        queries = np.asarray(self.covariance) @ np.asarray(self.query_vectors)[:, index]
        return self._array((keys * np.asarray(self.singular)[None, index]) @ queries.T)

    def gains(self, index_set: Iterable[int]) -> Gains:
        """The rank - |S| positive singular values of A_S with their vectors."""
        index = np.asarray(self.others(index_set), dtype=int)
        if self.commuting:  # A_S = Σ_{j∉S} g_j e_j e_jᵀ, whatever the degeneracies
            g, e = np.asarray(self.g), np.asarray(self.right)
            order = index[np.argsort(-g[index], kind="stable")]
            left, values, right = e[:, order], g[order], e[:, order]
        else:
            left, values, right = np.linalg.svd(np.asarray(self.residual(index_set)))
            count = len(index)
            left, values, right = left[:, :count], values[:count], right[:count].T
        return Gains(self._array(values), self._array(left), self._array(right))

    def _own(self, row: int) -> Float[Array, " r"]:
        if self.along is None:
            raise ValueError(
                "Λ, B and G of this task have no common eigenvectors, so a mode has no "
                "eigenvalues of its own; use `weight`, `residual` and `gains`"
            )
        return self.along[row]

    @property
    def eigenvalue(self) -> Float[Array, " r"]:
        """λ_d of each mode (commuting tasks)."""
        return self._own(0)

    @property
    def b(self) -> Float[Array, " r"]:
        """b_d, the eigenvalue of B: a_d of (32)(33) for the paper's task (commuting tasks)."""
        return self._own(1)

    @property
    def g(self) -> Float[Array, " r"]:
        """g_d, the eigenvalue of G: λ_d² s_d, the rate at which a mode is learned (commuting)."""
        return self._own(2)

    @property
    def m(self) -> Float[Array, " r"]:
        """m_d = g_d/(λ_d b_d), the weight of mode d at a fixed point (23) (commuting tasks)."""
        return self.g / (self.eigenvalue * self.b)

    @property
    def c(self) -> Float[Array, " r"]:
        """c_d = m_d^(-1/3) = 1/v*_d, the inverse of the final value weight (25) (commuting)."""
        return self.m ** (-1 / 3)

    def groups(self, tolerance: float = 1e-9) -> tuple[tuple[int, ...], ...]:
        """The modes in groups of equal σ (to a relative `tolerance`), largest first."""
        sigma = np.asarray(self.singular)
        found: list[list[int]] = []
        for s in range(self.rank):
            if found and sigma[found[-1][0]] - sigma[s] <= tolerance * sigma[found[-1][0]]:
                found[-1].append(s)
            else:
                found.append([s])
        return tuple(tuple(group) for group in found)

    def rotated(self, group: Iterable[int], rotation: Float[Array, "k k"]) -> "Modes":
        """Another basis of a group of modes with one σ: the same task, other index sets.

        Equal σ leave the modes of a group open: S picks a subspace, and column i of the
        orthogonal `rotation` says how new mode `group[i]` is made of the old ones.
        """
        index = jnp.asarray(self.members(group), dtype=int)

        def turn(a: Float[Array, "D r"]) -> Float[Array, "D r"]:
            return a.at[:, index].set(a[:, index] @ rotation)

        right = turn(self.right)
        turned = np.stack([right.T @ a @ right for a in (self.covariance, self.second, self.cross)])
        along = np.diagonal(turned, axis1=1, axis2=2)
        off = turned - along[:, None, :] * np.eye(self.rank)
        tolerance = 1e3 * self.size * float(jnp.finfo(right.dtype).eps)
        scale = np.abs(turned).max(axis=(1, 2), initial=0.0)
        common = bool(np.all(np.abs(off).max(axis=(1, 2), initial=0.0) <= tolerance * scale))
        return Modes(
            power=self.power,
            cross=self.cross,
            second=self.second,
            covariance=self.covariance,
            singular=self.singular,
            left=turn(self.left),
            right=right,
            key_vectors=turn(self.key_vectors),
            query_vectors=turn(self.query_vectors),
            along=self._array(along) if self.commuting and common else None,
        )

    def directions(self) -> tuple[Float[Array, " D"], Float[Array, " D"], Float[Array, " D"]]:
        """λ, b and g along all D common eigenvectors: the modes, then those never learned."""
        lam, b, g = self.eigenvalue, self.b, self.g
        missing = self.size - self.rank
        if missing == 0:
            return lam, b, g
        complement = np.linalg.svd(np.asarray(self.right))[0][:, self.rank :]
        inside = [complement.T @ np.asarray(a) @ complement for a in (self.covariance, self.second)]
        eps = float(jnp.finfo(lam.dtype).eps)
        basis, _ = joint_basis(inside[0], inside[1], np.zeros_like(inside[0]), eps)
        extra = [jnp.asarray(np.diagonal(basis.T @ a @ basis).clip(min=0.0)) for a in inside]
        zeros = jnp.zeros(missing, lam.dtype)
        return (
            jnp.concatenate([lam, extra[0].astype(lam.dtype)]),
            jnp.concatenate([b, extra[1].astype(lam.dtype)]),
            jnp.concatenate([g, zeros]),
        )


def plateau_losses(source: Any) -> Float[Array, " levels"]:
    """L(M_m) = E[y²] - Σ_{s<m} σ_s², m = 0 … rank: the visited plateaus, highest first (24).

    - `source`: a task, its population or its modes. Or a loss of prompts, `Moments`, `Features` or
      `Sequences`: a sample has no closed form, and its plateaus are those of heads that come one by
      one from vanishing weights (Q4).

    The modes come in the order of their drops σ², the order in which long plateaus are visited
    (E1). Equal drops make equal steps, not fewer levels. The last one is the loss of least
    squares in context (16), the end of merged attention too.

    >>> import numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> np.round(icl.theory.plateau_losses(task), 4).tolist()
    [0.9, 0.3448, 0.0791]
    """
    if not isinstance(source, AbstractTask | Population | Modes):
        from iclflow.theory.drops.quadratic import Quadratic  # it needs SciPy's integrators
        from iclflow.theory.drops.staircase import saddle_levels

        return jnp.asarray(saddle_levels(Quadratic.of(source)))
    modes = Modes.of(source)
    drops = np.cumsum(np.asarray(modes.singular) ** 2)
    return jnp.asarray(np.asarray(modes.power) - np.concatenate([[0.0], drops]), modes.power.dtype)


def visited_levels(source: Any, model: AbstractModel) -> Float[np.ndarray, " m"]:
    """The losses of the plateaus that a model visits; empty where the theory has none for it.

    Several layers have none: which levels they visit depends on the start (`predict`).

    - `source`: the task, its population, or the loss of a sample.
    - `model`: any weights of the model.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> start = icl.Merged.initialiser(task, heads=2, scale=0.01)(jax.random.key(0))
    >>> len(icl.theory.visited_levels(task, start)), len(icl.theory.plateau_losses(task))
    (2, 3)
    """
    if model.depth > 1:
        return np.zeros(0)
    levels = np.asarray(plateau_losses(source))
    visited = list(model.visits(len(levels) - 1))
    if visited and isinstance(model.as_attention(), Merged):
        from iclflow.theory.drops.quadratic import Quadratic

        return two_levels(Quadratic.of(source))
    return levels[visited]


def covered_levels(task: AbstractTask, model: AbstractModel) -> Float[np.ndarray, " m"]:
    """`visited_levels` where theory covers the task: random tasks only, one output; else empty."""
    if not isinstance(task, Task) or task.tasks.mixed() or task.outputs > 1:
        return np.zeros(0)
    return visited_levels(task, model)


def two_levels(loss: Any) -> Float[np.ndarray, " 2"]:
    """Before and after the one drop of merged key and query: E[y²] and least squares.

    - `loss`: as a `Quadratic`.
    """
    return np.asarray([loss.power, float(loss.loss(loss.least_squares))])


def drop_sizes(source: Task | Population | Modes) -> Float[Array, " r"]:
    """σ_s² = g²/(λ b) (commuting), λ³/a for the paper's task: the height of each step (24).

    - `source`: the task, its population or its modes.

    >>> import numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> levels = icl.theory.plateau_losses(task)
    >>> bool(np.allclose(icl.theory.drop_sizes(task), -np.diff(levels)))
    True
    """
    return Modes.of(source).drops


def conspicuous_plateaus(
    source: Task | Population | Modes, rank: int
) -> tuple[tuple[int, ...], Float[Array, " n"]]:
    """Modes learned and loss at the long plateaus of rank-R attention: m = 0, R, 2R, … (Sec. 5).

    A head of rank R learns R modes one soon after another; a long plateau waits for a new head.

    - `source`: the task, its population or its modes.
    - `rank`: R.

    >>> import iclflow as icl
    >>> task = icl.Task([0.4, 0.3, 0.2, 0.1], context=31)
    >>> icl.theory.conspicuous_plateaus(task, rank=2)[0]
    (0, 2, 4)
    """
    require_size("rank", rank)
    levels = plateau_losses(source)
    last = levels.shape[0] - 1
    counts = (*range(0, last, rank), last)
    return counts, jnp.concatenate([levels[:-1:rank], levels[-1:]])


def final_loss(source: Task | Population | Modes, heads: int, rank: int = 1) -> Float[Array, ""]:
    """The least loss of H heads of rank R: the top H·R modes (all of them if H·R ≥ rank).

    - `source`: the task, its population or its modes.
    - `heads`, `rank`: H and R.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> bool(icl.theory.final_loss(task, heads=1) == icl.theory.plateau_losses(task)[1])
    True
    """
    require_size("heads", heads)
    require_size("rank", rank)
    levels = plateau_losses(source)
    return levels[min(heads * rank, levels.shape[0] - 1)]


def fixed_point_count(source: Task | Population | Modes) -> int:
    """2^rank, the number of index sets S (Section 4.2); an exact integer at any dimension.

    - `source`: the task, its population or its modes.

    >>> import iclflow as icl
    >>> icl.theory.fixed_point_count(icl.Task([0.6, 0.3], context=31))
    4
    """
    return 2 ** Modes.of(source).rank


def level_count(source: Task | Population | Modes) -> int:
    """The number of fixed-point levels counted by subspaces: Π (multiplicity + 1) over equal σ.

    With distinct drops it is 2^rank. With equal ones the fixed points form continuous families
    (S becomes a subspace), and only how many modes of each group are learned matters.

    - `source`: the task, its population or its modes.

    >>> import iclflow as icl
    >>> icl.theory.level_count(icl.Task([0.5, 0.5], context=31))
    3
    """
    return math.prod(len(group) + 1 for group in Modes.of(source).groups())
