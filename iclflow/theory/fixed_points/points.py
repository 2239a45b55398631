"""Fixed points of the population dynamics, with explicit weights (14)(16)(23)-(25)(78), E1, E9.

In function space the fixed points of attention with separate key and query are the partial
decompositions M(S) of the task, one for every set S of modes; merged attention has only the
empty and the full one.
"""

import itertools
from collections.abc import Iterator, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.losses import Population
from iclflow.models import Merged, Separate
from iclflow.tasks.checks import require_size
from iclflow.tasks.task import Task
from iclflow.theory.algorithms.linear import LinearPredictor
from iclflow.theory.fixed_points.modes import Modes

Holdings = tuple[tuple[int, ...], ...]  # the modes that each active head holds


class FixedPoint(eqx.Module):
    """M(S) (21)(22), the function that has learned exactly the modes in S; rank R (81)-(83).

    - `modes`: those of the task.
    - `index_set`: S.

    >>> import iclflow as icl
    >>> point = icl.theory.FixedPoint.of(icl.Task([0.6, 0.3], context=31), [0])
    >>> point.visited, point.weights(heads=2).values.shape
    (True, (2, 1, 1))
    """

    modes: Modes
    index_set: tuple[int, ...] = eqx.field(static=True)

    def __check_init__(self) -> None:
        if self.modes.members(self.index_set) != self.index_set:
            raise ValueError(f"the index set must be in ascending order, got {self.index_set}")

    @classmethod
    def of(cls, source: Task | Population | Modes, index_set: Sequence[int]) -> "FixedPoint":
        """The fixed point of a task with a given set of modes (numbered by drop, from 0)."""
        modes = Modes.of(source)
        return cls(modes, modes.members(index_set))

    @property
    def loss(self) -> Float[Array, ""]:
        """L(M(S)) (24)(59)."""
        return self.modes.level(self.index_set)

    @property
    def weight(self) -> Float[Array, "D D"]:
        """M(S) (23)(55), the weights on β x_qᵀ."""
        return self.modes.weight(self.index_set)

    @property
    def residual(self) -> Float[Array, "D D"]:
        """A_S = G - B M(S) Λ, what dormant heads see."""
        return self.modes.residual(self.index_set)

    @property
    def visited(self) -> bool:
        """Whether S holds the modes with the largest drops, as on the way from small weights."""
        count = len(self.index_set)
        if count in (0, self.modes.rank):
            return True
        sigma = np.asarray(self.modes.singular)
        inside = sigma[list(self.index_set)].min()
        outside = sigma[list(self.modes.others(self.index_set))].max()
        return bool(inside >= outside * (1 - 1e-9))

    @property
    def algorithm(self) -> str:
        """The in-context algorithm that M(S) implements."""
        count = len(self.index_set)
        if count == 0:
            return "zero prediction"
        if count == self.modes.rank:
            return "least squares"
        if self.modes.commuting:
            eigenvalue = np.asarray(self.modes.eigenvalue)
            outside = eigenvalue[list(self.modes.others(self.index_set))].max()
            if eigenvalue[list(self.index_set)].min() >= outside * (1 - 1e-9):
                plural = "" if count == 1 else "s"
                return f"principal component regression, {count} component{plural}"
        return f"regression on modes {', '.join(str(s + 1) for s in self.index_set)}"

    def predictor(self) -> LinearPredictor:
        """M(S) as a predictor βᵀ M(S) x_q; principal component regression on the path (27)."""
        return LinearPredictor(self.weight[None, None])

    def learned_holdings(self, rank: int = 1) -> Holdings:
        """R modes per head in the order of their drops: how small weights share them out."""
        require_size("rank", rank)
        members = self.index_set
        return tuple(members[i : i + rank] for i in range(0, len(members), rank))

    def minimal_holdings(self, rank: int = 1) -> Holdings:
        """R modes per head, the largest weights m_d together: the least norm (commuting tasks)."""
        require_size("rank", rank)
        members = np.asarray(self.index_set, dtype=int)
        order = members[np.argsort(-np.asarray(self.modes.m)[members], kind="stable")]
        chunks = (sorted(order[i : i + rank].tolist()) for i in range(0, len(order), rank))
        return tuple(sorted(tuple(chunk) for chunk in chunks))

    def weights(self, heads: int, rank: int = 1, holdings: Holdings | None = None) -> Separate:
        """Weights of least norm for this function, H heads of rank R, unused heads at zero.

        A head with key-query matrix of singular values μ_r has v = (Σ μ_r)^(1/3) and
        |k_r| = |q_r| = (μ_r/v)^(1/2) (E9); for rank one and a commuting task this is
        k = q = v e_d, v = m_d^(1/3) (25)(78). Without `holdings` the norm is the least of all
        weights with this function: the singular vectors of M(S), the largest R values in one
        head, the next R in another. With `holdings` (the modes of each head) it is the least of
        those.
        """
        require_size("heads", heads)
        require_size("rank", rank)
        count = len(self.index_set)
        if heads * rank < count:
            raise ValueError(
                f"{heads} heads of rank {rank} hold at most {heads * rank} modes, this fixed "
                f"point has {count}; use more heads or a higher rank"
            )
        if holdings is not None:
            held = sorted(s for head in holdings for s in head)
            if held != list(self.index_set) or any(not 0 < len(h) <= rank for h in holdings):
                raise ValueError(
                    f"holdings must share out the modes {self.index_set}, 1 to {rank} per head, "
                    f"got {holdings}"
                )
            if len(holdings) > heads:
                raise ValueError(f"{len(holdings)} holdings need as many heads, got {heads}")
        elif self.modes.commuting:
            holdings = self.minimal_holdings(rank)
        if holdings is not None:
            return self._assemble([self._triples(head) for head in holdings], heads, rank)
        # Groups of R make the tail sums of nuclear norms, hence Σ v², least.
        values, left, right = self._triples(self.index_set)
        chunks = [slice(i, i + rank) for i in range(0, count, rank)]
        return self._assemble([(values[c], left[:, c], right[:, c]) for c in chunks], heads, rank)

    def _triples(self, head: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Singular values, left and right vectors (as columns) of M(head)."""
        if self.modes.along is not None:
            index = list(head)
            e = np.asarray(self.modes.right)[:, index]
            eigenvalue, b, g = np.asarray(self.modes.along)[:, index]
            return g / (eigenvalue * b), e, e
        left, values, right = np.linalg.svd(np.asarray(self.modes.weight(head)))
        count = len(head)
        return values[:count], left[:, :count], right[:count].T

    def _assemble(
        self,
        heads_used: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
        heads: int,
        rank: int,
    ) -> Separate:
        size = self.modes.size
        values = np.zeros((heads, 1, 1))
        keys, queries = np.zeros((heads, rank, size)), np.zeros((heads, rank, size))
        for i, (mu, left, right) in enumerate(heads_used):
            v = mu.sum() ** (1 / 3)
            length = np.sqrt(mu / v)[:, None]
            values[i] = v
            keys[i, : len(mu)] = length * left.T
            queries[i, : len(mu)] = length * right.T
        dtype = self.modes.covariance.dtype
        return Separate(
            values=jnp.asarray(values, dtype),
            keys=jnp.asarray(keys, dtype),
            queries=jnp.asarray(queries, dtype),
        )


def all_fixed_points(source: Task | Population | Modes) -> Iterator[FixedPoint]:
    """All 2^rank fixed points, lazily: by the number of modes, then by the modes.

    The first of each size is M_m, the one that training from small weights visits. With equal
    σ these are the representatives in one basis of continuous families (see `level_count`).

    - `source`: the task, its population or its modes.

    >>> import iclflow as icl
    >>> points = icl.theory.all_fixed_points(icl.Task([0.6, 0.3], context=31))
    >>> [point.index_set for point in points]
    [(), (0,), (1,), (0, 1)]
    """
    modes = Modes.of(source)
    for count in range(modes.rank + 1):
        for index_set in itertools.combinations(range(modes.rank), count):
            yield FixedPoint(modes, index_set)


def saddle_path(source: Task | Population | Modes) -> tuple[FixedPoint, ...]:
    """M_0, M_1, …, M_rank: the saddles visited from small weights, by largest drop (E1).

    - `source`: the task, its population or its modes.

    >>> import iclflow as icl
    >>> path = icl.theory.saddle_path(icl.Task([0.6, 0.3], context=31))
    >>> [point.index_set for point in path]
    [(), (0,), (0, 1)]
    """
    modes = Modes.of(source)
    return tuple(FixedPoint(modes, tuple(range(m))) for m in range(modes.rank + 1))


def merged_weights(
    source: Task | Population | Modes, heads: int, direction: Float[Array, " H"] | None = None
) -> Merged:
    """Weights of least norm on the least-squares manifold Σ vᵢ Uᵢ = M* of merged attention (16).

    All heads are parallel, vᵢ = √s aᵢ and Uᵢ = √s aᵢ M*/s with s = ‖M*‖ and a the unit vector
    along `direction` (all heads equal if omitted): the balanced end of small weights (17).

    - `source`: the task, its population or its modes.
    - `heads`: H.

    >>> import numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> best = icl.theory.merged_weights(task, heads=2)
    >>> bool(np.isclose(icl.Population(task)(best), icl.theory.plateau_losses(task)[-1]))
    True
    """
    require_size("heads", heads)
    modes = Modes.of(source)
    target = modes.weight(range(modes.rank))
    a = jnp.ones(heads, target.dtype) if direction is None else direction
    if a.shape != (heads,) or not float(jnp.linalg.norm(a)) > 0:
        raise ValueError(f"the direction must be {heads} numbers, not all zero, got {a}")
    a = a / jnp.linalg.norm(a)
    norm = jnp.linalg.norm(target)
    safe = jnp.where(norm > 0, norm, 1.0)
    return Merged(
        values=(jnp.sqrt(norm) * a)[:, None, None],
        merged=(a / jnp.sqrt(safe))[:, None, None] * target[None],
    )
