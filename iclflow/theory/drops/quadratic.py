"""Any loss that is quadratic in the effective weights (Q1).

With β the correlation of a context and φ = β x_qᵀ, linear attention with frozen zero blocks
predicts ⟨M, φ⟩, so that for one output every mean squared error is

    L(M) = c - 2 ⟨G, M⟩ + ⟨M, 𝓗[M]⟩,   c = E[y²],  G = E[y φ],  𝓗[M] = E[φ ⟨φ, M⟩]   (Q1)

where E is the mean over whatever the loss averages: P prompts, a pool of tasks, a population. In a
sample 𝓗 is any symmetric positive operator on matrices, and G shares eigenvectors with nothing. For
the population 𝓗[M] = B M Λ. `separate_weights` takes v, k and q out of a model.
"""

import abc
import dataclasses
import functools
from collections.abc import Iterator
from typing import Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from iclflow.linalg import packed_pairs
from iclflow.losses import (
    AbstractLoss,
    Blend,
    Features,
    FullFeatures,
    Moments,
    Population,
    ReducedFeatures,
    Sequences,
)
from iclflow.models import AbstractModel, ConvNet, Separate
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.prompts import AbstractPromptSet
from iclflow.tasks.task import Task
from iclflow.theory.fixed_points.modes import Modes

Source = AbstractTask | AbstractLoss | Modes
KNOWN = Task | Population | Moments | Features | Sequences  # those that are quadratic
LEARNED = 1e-6  # relative size of a singular value of M that counts as learned
LEAST = 1e-100  # size of initial weights whose products are still numbers
CHUNK = 4096  # prompts whose features are multiplied at once


class AbstractMatrixLoss(abc.ABC):
    """A loss that knows the weights only through one matrix M = Σ v k qᵀ.

    This is all that the staircase asks of a loss. The annotations of the methods are plain, because
    solvers call them thousands of times and each check of shapes costs.
    """

    power: float  # the loss at M = 0

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of rows of M."""

    @property
    def blocks(self) -> int:
        """The number of blocks on the diagonal of M, one per layer that has its own heads."""
        return 1

    @abc.abstractmethod
    def residual(self, matrices: np.ndarray) -> np.ndarray:
        """R = -½ ∂L/∂M of matrices [..., D, D]."""

    @abc.abstractmethod
    def hessian(self, at: np.ndarray) -> np.ndarray:
        """Half the Hessian [D, D, D, D] at one matrix, which is -∂R/∂M."""

    def bent(self, at: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """-dR along directions [..., D, D] at one matrix: half the Hessian, applied to them."""
        return np.tensordot(directions, self.hessian(at), 2)

    def between(
        self, at: np.ndarray, keys: np.ndarray, queries: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Half the Hessian between directions of M that pairs have, three arrays [P, D, P, D].

        - `at`: the matrix M.
        - `keys`, `queries`: v k and v q of P pairs. Their key weights move M by e_a (v q)ᵀ, and
          their query weights by (v k) e_bᵀ. The arrays are of keys with keys, of keys with queries
          and of queries with queries.

        Contracting one vector after the other costs D⁴ P + D³ P² operations. The matrices that
        move M, written out, would cost D⁶ P² in `bent` and in the product with each other.
        """
        half, size = self.hessian(at), len(at)
        across = (queries @ half.transpose(1, 0, 2, 3).reshape(size, -1)).reshape(
            -1, *half.shape[1:]
        )
        along = (keys @ half.reshape(size, -1)).reshape(-1, *half.shape[1:])
        shape = (len(keys), size, len(keys), size)
        across, along = (a.reshape(len(keys), size, size, size) for a in (across, along))
        return (
            (queries @ across.swapaxes(-1, -2)).reshape(shape),
            (keys @ across).reshape(shape),
            (keys @ along).reshape(shape),
        )

    @abc.abstractmethod
    def loss(self, matrices: np.ndarray) -> np.ndarray:
        """L of matrices [..., D, D]."""

    @abc.abstractmethod
    def beside(self, others: np.ndarray) -> "AbstractMatrixLoss":
        """The loss of what some heads add to the matrix of the others, up to a constant."""

    @abc.abstractmethod
    def end(self, rest: np.ndarray) -> np.ndarray:
        """The matrix of the last plateau, given one with nothing left to learn."""

    @property
    @abc.abstractmethod
    def modes(self) -> int:
        """The rank of M on the last plateau."""


@dataclasses.dataclass(frozen=True)
class Quadratic(AbstractMatrixLoss):
    """The numbers of (Q1): c, G, and 𝓗 as a matrix or as its two factors.

    `operator` acts on vec M, row by row: D⁴ numbers. A population has `factors` (B, Λ) instead,
    2 D² numbers, and the same methods.

    - `power`: the loss at M = 0.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> found = icl.theory.Quadratic.of(task)
    >>> round(found.power, 6), found.cross.shape
    (0.9, (2, 2))
    """

    power: float  # c
    cross: Float[np.ndarray, "D D"]  # G
    operator: Float[np.ndarray, "E E"] | None  # 𝓗 on vec M, E = D²
    factors: tuple[Float[np.ndarray, "D D"], Float[np.ndarray, "D D"]] | None = None  # B, Λ

    @classmethod
    def of(cls, source: "Source | Quadratic") -> "Quadratic":
        """The quadratic of a task, of its population, or of the prompts of a loss.

        - `source`: a `Task` or `Population` (𝓗 keeps its factors), or `Moments`, `Features` or
          `Sequences`. Of all features those of the reduced model are taken, β x_qᵀ.
        """
        reason = not_quadratic(source)
        if reason is not None:
            raise ValueError(reason)
        if isinstance(source, Quadratic):
            return source
        if isinstance(source, Task | Population | Modes):
            found = Population(source) if isinstance(source, Task) else source
            cross = found.cross if isinstance(found, Modes) else np.asarray(found.cross)[0]
            arrays = (np.asarray(a, np.float64) for a in (cross, found.second, found.covariance))
            G, B, covariance = arrays
            return cls(float(found.power), G, None, (B, covariance))
        if isinstance(source, Moments):
            return cls._of_moments(source)
        if isinstance(source, Blend):
            return cls._of_blend(source)
        assert isinstance(source, Features | Sequences)
        return cls._of_rows(_rows(source))

    @classmethod
    def _of_moments(cls, loss: Moments) -> Self:
        G, second = (np.asarray(a, np.float64) for a in (loss.cross[0], loss.second))
        if isinstance(loss.map, FullFeatures):
            # A packed S = [[., β], [βᵀ, .]] holds β in the entries (d, D), each times all of x_q.
            size = _input_size(len(G))
            rows, columns = packed_pairs(size + 1)
            kept = np.flatnonzero((rows < size) & (columns == size))
            index = (kept[:, None] * size + np.arange(size)).ravel()
            G, second = G[index], second[np.ix_(index, index)]
        size = round(len(G) ** 0.5)
        return cls(float(loss.power), G.reshape(size, size), (second + second.T) / 2)

    @classmethod
    def _of_blend(cls, loss: Blend) -> Self:
        """Sums of the numbers of several losses, by their shares."""
        parts = [cls.of(one).dense() for one in loss.losses]
        shares = np.asarray(loss.shares, np.float64)
        numbers = [(one.power, one.cross, one.operator) for one in parts]
        power, cross, operator = (
            sum((s * a for s, a in zip(shares[1:], column[1:], strict=True)), shares[0] * column[0])
            for column in zip(*numbers, strict=True)
        )
        return cls(float(power), cross, operator)  # pyright: ignore

    @classmethod
    def _of_rows(cls, rows: Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Self:
        """The means over rows β, x_q and y, a chunk of them at a time."""
        count, power, cross, second = 0, 0.0, 0.0, 0.0
        for beta, query, y in rows:
            phi = (beta[:, :, None] * query[:, None, :]).reshape(len(y), -1)
            count, power = count + len(y), power + float(y @ y)
            cross, second = cross + y @ phi, second + phi.T @ phi
        G, H = np.asarray(cross) / count, np.asarray(second) / count
        size = round(len(G) ** 0.5)
        return cls(power / count, G.reshape(size, size), H)

    @property
    def size(self) -> int:
        """The input dimension D."""
        return len(self.cross)

    def curved(self, matrices: np.ndarray) -> np.ndarray:
        """𝓗[M] of matrices [..., D, D]."""
        if self.factors is not None:
            return self.factors[0] @ matrices @ self.factors[1]
        assert self.operator is not None
        return (matrices.reshape(-1, len(self.operator)) @ self.operator).reshape(matrices.shape)

    def residual(self, matrices: np.ndarray) -> np.ndarray:
        """R = G - 𝓗[M], minus half the gradient of the loss (Q2), of matrices [..., D, D]."""
        return self.cross - self.curved(matrices)

    def hessian(self, at: np.ndarray) -> np.ndarray:
        """𝓗 as it acts on matrices, which is the same everywhere."""
        del at
        return np.asarray(self.dense().operator).reshape((self.size,) * 4)

    def bent(self, at: np.ndarray, directions: np.ndarray) -> np.ndarray:
        """𝓗 of directions."""
        del at
        return self.curved(directions)

    def between(
        self, at: np.ndarray, keys: np.ndarray, queries: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """𝓗 between directions of pairs; of a population B and Λ act each on its own side."""
        if self.factors is None:
            return super().between(at, keys, queries)
        B, covariance = self.factors
        left, right = keys @ B, queries @ covariance
        return (
            (right @ queries.T)[:, None, :, None] * B[:, None],
            right[:, None, None] * left.T[None, :, :, None],
            (left @ keys.T)[:, None, :, None] * covariance[:, None],
        )

    def beside(self, others: np.ndarray) -> "Quadratic":
        """What the others add to M only shifts G."""
        return dataclasses.replace(self, cross=self.residual(others))

    def end(self, rest: np.ndarray) -> np.ndarray:
        """Least squares, whatever rest point was found."""
        del rest
        return self.least_squares

    @property
    def modes(self) -> int:
        """The rank of the weights of least squares."""
        return rank(self.least_squares)

    def loss(self, matrices: np.ndarray) -> np.ndarray:
        """L = c - ⟨M, G + R⟩ of matrices [..., D, D]."""
        parts = matrices * (self.cross + self.residual(matrices))
        return np.asarray(self.power - parts.sum(axis=(-2, -1)))

    def dense(self) -> "Quadratic":
        """The same loss with 𝓗 written out as a matrix, B ⊗ Λ of a population."""
        if self.factors is None:
            return self
        return dataclasses.replace(self, operator=np.kron(*self.factors), factors=None)

    @functools.cached_property
    def least_squares(self) -> Float[np.ndarray, "D D"]:
        """The weights of the least loss, vec M = 𝓗⁺ vec G: the last plateau with enough heads."""
        if self.factors is not None:
            left, right = (np.linalg.pinv(a, rcond=1e-12, hermitian=True) for a in self.factors)
            return left @ self.cross @ right
        assert self.operator is not None
        inverse = np.linalg.pinv(self.operator, rcond=1e-12, hermitian=True)
        return (inverse @ self.cross.ravel()).reshape(self.cross.shape)


def rank(matrix: np.ndarray) -> int:
    """How many modes a matrix has learned: its singular values above `LEARNED`, relatively."""
    sizes = np.linalg.svd(matrix, compute_uv=False)
    return int(np.sum(sizes > LEARNED * sizes[0])) if sizes[0] > 0 else 0


def require_products(weights: np.ndarray) -> None:
    """Refuse weights that are not zero and whose products are."""
    largest = float(np.abs(weights).max(initial=0.0))
    if 0 < largest < LEAST:
        raise ValueError(
            f"the largest weight is {largest:.2g}, and products of such weights are zero in double "
            f"precision; give a larger init scale"
        )


def not_quadratic(source: object) -> str | None:
    """Why a source is no quadratic of one output; None if it is one."""
    if isinstance(source, Quadratic | Modes):
        return None
    if not isinstance(source, AbstractTask | AbstractLoss):
        hint = (
            "; give icl.Moments.of(prompts)"
            if isinstance(source, Prompts | AbstractPromptSet)
            else ""
        )
        return f"the theory is of a Task or a loss, got {type(source).__name__}{hint}"
    if isinstance(source, AbstractLoss) and (source.drifts or len(source.pieces) > 1):
        how = "drifts" if source.drifts else f"changes at {source.pieces[1][0]:g}"
        return (
            f"the theory is of one loss, and this {type(source).__name__} {how}; predict from "
            f"loss.at(0) up to there, or from loss.at(step) and the weights at that step"
        )
    if isinstance(source, Blend):
        return next(filter(None, map(not_quadratic, source.losses)), None)
    if isinstance(source, AbstractLoss) and source.stochastic:
        return f"{type(source).__name__} draws a batch per step: give the loss it draws from"
    if not isinstance(source, KNOWN):
        return f"{type(source).__name__} is not known to be quadratic; give Moments of its prompts"
    known = FullFeatures | ReducedFeatures
    if isinstance(source, Moments | Features) and not isinstance(source.map, known):
        return f"the features {type(source.map).__name__} do not hold β x_qᵀ by themselves"
    outputs = _outputs(source)
    return None if outputs == 1 else f"the theory covers one output, got {outputs}"


def _outputs(source: Task | Population | Moments | Features | Sequences) -> int:
    if isinstance(source, Task):
        return source.outputs
    if isinstance(source, Population | Moments):
        return source.cross.shape[0]
    return (source.target if isinstance(source, Features) else source.prompts.targets).shape[-1]


def _input_size(features: int) -> int:
    """D of (D + 1)(D + 2)/2 · D features."""
    return next(d for d in range(1, features + 1) if (d + 1) * (d + 2) // 2 * d == features)


def _rows(loss: Features | Sequences) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """β, x_q and y of every prompt and prefix, a chunk at a time."""
    for begin in range(0, loss.count, CHUNK):
        part = loss.take(jnp.arange(begin, min(begin + CHUNK, loss.count)))
        if isinstance(part, Sequences):
            part = Features.of(part.prompts, lengths=part.lengths, features=ReducedFeatures())
        statistic, query, target = (
            np.asarray(a, np.float64).reshape(-1, a.shape[-1])
            for a in (part.statistic, part.query, part.target)
        )
        if isinstance(part.map, FullFeatures):
            rows, columns = packed_pairs(query.shape[1] + 1)
            statistic = statistic[:, (rows < query.shape[1]) & (columns == query.shape[1])]
        yield statistic, query, target[:, 0]


Weights = tuple[
    Float[np.ndarray, " H"], Float[np.ndarray, "H R D"], Float[np.ndarray, "H R D"]
]  # v, k, q


def separate_weights(model: AbstractModel) -> Weights:
    """v, k and q of a model with separate key and query, one output, zero blocks frozen."""
    if isinstance(model, ConvNet):
        model = model.as_attention()
    if not isinstance(model, Separate):
        raise ValueError(
            f"the staircase covers separate key and query, got {type(model).__name__}; "
            f"use Separate, or merged_course for Merged"
        )
    if model.value_inputs is not None:
        raise ValueError("the staircase covers frozen zero blocks; use model.reduce()")
    if model.values.shape[1] != 1:
        raise ValueError(f"the staircase covers one output, got {model.values.shape[1]}")
    arrays = (np.asarray(model.values)[:, 0, 0], model.keys, model.queries)
    v, k, q = (np.asarray(a, np.float64) for a in arrays)
    if not all(np.isfinite(a).all() for a in (v, k, q)):
        raise ValueError("the initial weights hold numbers that are not finite")
    return v, k, q
