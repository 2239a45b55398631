"""The flow (19)(80) of all heads at once, in NumPy: slope, Jacobian, loss. Times are t/τ.

`τ dv/dt = Σᵣ kᵣᵀ A qᵣ`, `τ dk/dt = v A q`, `τ dq/dt = v Aᵀ k` with A = G - B M Λ, M = Σ v k qᵀ:
minus half the gradient of the loss, so that `dL/dt = -2 Σ |dW/dt|²` and the Jacobian is symmetric.
"""

import dataclasses
from typing import Self

import numpy as np
from jaxtyping import Bool, Float

from iclflow.theory.drops.frame import Weights
from iclflow.theory.fixed_points.modes import Modes

States = Float[np.ndarray, "T n"]  # v, k, q of all heads, one after the other
Parts = tuple[
    Float[np.ndarray, "*T H"], Float[np.ndarray, "*T H R D"], Float[np.ndarray, "*T H R D"]
]


@dataclasses.dataclass(frozen=True)
class HeadFlow:
    """B, G, Λ and the flow that they make of H heads of rank R."""

    second: Float[np.ndarray, "D D"]  # B
    cross: Float[np.ndarray, "D D"]  # G
    covariance: Float[np.ndarray, "D D"]  # Λ
    power: float
    heads: int
    rank: int

    @classmethod
    def of(cls, modes: Modes, weights: Weights) -> Self:
        """The flow of a task, for heads of the shape of `weights`."""
        arrays = (modes.second, modes.cross, modes.covariance)
        B, G, L = (np.asarray(a, np.float64) for a in arrays)
        return cls(B, G, L, float(modes.power), *weights[1].shape[:2])

    def split(self, y: Float[np.ndarray, "*T n"]) -> Parts:
        """v [..., H], k and q [..., H, R, D] of a state [..., n]."""
        heads, shape = self.heads, (*y.shape[:-1], self.heads, self.rank, len(self.cross))
        half = (y.shape[-1] - heads) // 2
        keys, queries = y[..., heads : heads + half], y[..., heads + half :]
        return y[..., :heads], keys.reshape(shape), queries.reshape(shape)

    def slope(self, t: float, y: np.ndarray) -> np.ndarray:
        """dW/dt of one state."""
        heads, size = self.heads, len(self.cross)
        k, q = y[heads:].reshape(2, -1, size)
        v = y[:heads] if self.rank == 1 else np.repeat(y[:heads], self.rank)
        vk = v[:, None] * k
        A = self.cross - self.second @ (vk.T @ q) @ self.covariance
        Aq, result = q @ A.T, np.empty_like(y)
        rise = np.einsum("pd,pd->p", k, Aq)
        result[:heads] = rise if self.rank == 1 else rise.reshape(heads, -1).sum(1)
        # In place: this is called thousands of times, on a few dozen numbers.
        rates = result[heads:].reshape(2, -1, size)
        np.multiply(v[:, None], Aq, out=rates[0])
        np.matmul(vk, A, out=rates[1])
        return result

    def jacobian(self, t: float, y: np.ndarray) -> np.ndarray:
        """∂(dW/dt)/∂W of one state, [n, n]: minus half the Hessian of the loss."""
        heads, size = self.heads, len(self.cross)
        v, k, q = np.repeat(y[:heads], self.rank), *y[heads:].reshape(2, -1, size)
        pairs, count = len(v), k.size
        Bk, qL = k @ self.second.T, q @ self.covariance
        A = self.cross - self.second @ ((v[:, None] * k).T @ q) @ self.covariance
        kBk, qLq, alone = k @ Bk.T, q @ qL.T, np.eye(pairs)
        ww = np.outer(v, v)

        def per_head(a: np.ndarray) -> np.ndarray:
            return a.reshape(*a.shape[:-1], heads, self.rank).sum(-1)

        kv = alone[:, None] * (q @ A.T)[:, :, None] - v[:, None, None] * Bk.T * qLq[:, None]
        qv = alone[:, None] * (k @ A)[:, :, None] - v[:, None, None] * qL.T * kBk[:, None]
        kq = (alone * v)[:, None, :, None] * A[:, None] - ww[:, None, :, None] * (
            Bk.T[:, :, None] * qL[:, None, None]
        )
        result = np.empty((heads + 2 * count,) * 2)
        v_, k_, q_ = (slice(0, heads), slice(heads, heads + count), slice(heads + count, None))
        result[v_, v_] = -per_head(per_head(kBk * qLq).T)
        result[k_, v_] = per_head(kv).reshape(count, heads)
        result[q_, v_] = per_head(qv).reshape(count, heads)
        result[k_, k_] = np.kron(-ww * qLq, self.second)
        result[q_, q_] = np.kron(-ww * kBk, self.covariance)
        result[k_, q_] = kq.reshape(count, count)
        result[v_, k_], result[v_, q_] = result[k_, v_].T, result[q_, v_].T
        result[q_, k_] = result[k_, q_].T
        return result

    def effective(
        self, states: States, only: Bool[np.ndarray, "#T H"] | None = None
    ) -> Float[np.ndarray, "T D D"]:
        """M = Σ v k qᵀ, of all heads or of some."""
        v, k, q = self.split(states)
        v = v if only is None else np.where(only, v, 0.0)
        rows, size = len(states), len(self.cross)
        left = (v[..., None, None] * k).reshape(rows, -1, size)
        return left.swapaxes(1, 2) @ q.reshape(rows, -1, size)

    def residual(self, matrices: np.ndarray) -> np.ndarray:
        """A = G - B M Λ."""
        return self.cross - self.second @ matrices @ self.covariance

    def loss(
        self, states: States, only: Bool[np.ndarray, "#T H"] | None = None
    ) -> Float[np.ndarray, " T"]:
        """L = E[y²] - ⟨M, G + A⟩, of all heads or of some."""
        M = self.effective(states, only)
        return self.power - np.einsum("tdc,tdc->t", M, self.cross + self.residual(M))

    def speeds(self, y: np.ndarray) -> Float[np.ndarray, " H"]:
        """|dW/dt|² of each head: its share of the fall of the loss."""
        v, k, q = self.split(self.slope(0.0, y))
        return v**2 + np.sum(k**2 + q**2, axis=(1, 2))
