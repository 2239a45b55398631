"""The flow (19)(80) of all heads on any quadratic loss (Q2), in NumPy. Times are t/τ.

`τ dv/dt = Σᵣ kᵣᵀ R qᵣ`, `τ dk/dt = v R q`, `τ dq/dt = v Rᵀ k` with R = G - 𝓗[M], M = Σ v k qᵀ:
minus half the gradient of the loss, so that `dL/dt = -2 Σ |dW/dt|²` and the Jacobian is symmetric.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

from iclflow.theory.drops.quadratic import Quadratic

States = Float[np.ndarray, "T n"]  # v, k, q of all heads, one after the other
Parts = tuple[
    Float[np.ndarray, "*T H"], Float[np.ndarray, "*T H R D"], Float[np.ndarray, "*T H R D"]
]
FLOOR = 1e-9  # of the fastest rate: slower directions are the scales of v, k, q, which are free
ITERATIONS = 6  # of Newton's method at most; near a rest point two or three are enough


@dataclasses.dataclass(frozen=True)
class HeadFlow:
    """A quadratic loss and the flow that it makes of H heads of rank R."""

    quadratic: Quadratic
    heads: int
    rank: int

    @property
    def size(self) -> int:
        """The input dimension D."""
        return self.quadratic.size

    def split(self, y: Float[np.ndarray, "*T n"]) -> Parts:
        """v [..., H], k and q [..., H, R, D] of a state [..., n]."""
        heads, shape = self.heads, (*y.shape[:-1], self.heads, self.rank, self.size)
        half = (y.shape[-1] - heads) // 2
        keys, queries = y[..., heads : heads + half], y[..., heads + half :]
        return y[..., :heads], keys.reshape(shape), queries.reshape(shape)

    def slope(self, t: float, y: np.ndarray) -> np.ndarray:
        """dW/dt of one state."""
        heads, size = self.heads, self.size
        k, q = y[heads:].reshape(2, -1, size)
        v = y[:heads] if self.rank == 1 else np.repeat(y[:heads], self.rank)
        vk = v[:, None] * k
        R = self.quadratic.residual(vk.T @ q)
        Rq, result = q @ R.T, np.empty_like(y)
        rise = np.einsum("pd,pd->p", k, Rq)
        result[:heads] = rise if self.rank == 1 else rise.reshape(heads, -1).sum(1)
        # In place: this is called thousands of times, on a few dozen numbers.
        rates = result[heads:].reshape(2, -1, size)
        np.multiply(v[:, None], Rq, out=rates[0])
        np.matmul(vk, R, out=rates[1])
        return result

    def tangents(self, y: np.ndarray) -> Float[np.ndarray, "n D D"]:
        """∂M/∂W of one state, a matrix per weight."""
        heads, size = self.heads, self.size
        k, q = y[heads:].reshape(2, -1, size)
        v, pairs = np.repeat(y[:heads], self.rank), len(k)
        result = np.zeros((len(y), size, size))
        each = k[:, :, None] * q[:, None, :]
        result[:heads] = each.reshape(heads, self.rank, size, size).sum(1)
        keys, queries = result[heads:].reshape(2, pairs, size, size, size)
        axis = np.arange(size)
        keys[:, axis, axis, :] = (v[:, None] * q)[:, None, :]
        queries[:, axis, :, axis] = (v[:, None] * k)[None]
        return result

    def jacobian(self, t: float, y: np.ndarray) -> Float[np.ndarray, "n n"]:
        """∂(dW/dt)/∂W of one state: minus half the Hessian of the loss."""
        heads, size = self.heads, self.size
        tangents = self.tangents(y)
        flat, curved = (a.reshape(len(y), -1) for a in (tangents, self.quadratic.curved(tangents)))
        result = -flat @ curved.T
        k, q = y[heads:].reshape(2, -1, size)
        v, count = np.repeat(y[:heads], self.rank), k.size
        R = self.quadratic.residual((v[:, None] * k).T @ q)
        owner = np.repeat(np.arange(heads), self.rank * size)
        index = heads + np.arange(count)
        for rows, forces in ((index, q @ R.T), (index + count, k @ R)):
            result[rows, owner] += forces.ravel()
            result[owner, rows] += forces.ravel()
        pairs = index.reshape(-1, size)  # k and q of one pair feel R
        keys, queries = pairs[:, :, None], pairs[:, None, :] + count
        result[keys, queries] += v[:, None, None] * R
        result[queries, keys] += v[:, None, None] * R
        return result

    def effective(
        self, states: States, only: Bool[np.ndarray, "#T H"] | None = None
    ) -> Float[np.ndarray, "T D D"]:
        """M = Σ v k qᵀ, of all heads or of some."""
        v, k, q = self.split(states)
        v = v if only is None else np.where(only, v, 0.0)
        rows = len(states)
        left = (v[..., None, None] * k).reshape(rows, -1, self.size)
        return left.swapaxes(1, 2) @ q.reshape(rows, -1, self.size)

    def loss(
        self, states: States, only: Bool[np.ndarray, "#T H"] | None = None
    ) -> Float[np.ndarray, " T"]:
        """L = c - ⟨M, G + R⟩, of all heads or of some."""
        return self.quadratic.loss(self.effective(states, only))

    def speeds(self, y: np.ndarray) -> Float[np.ndarray, " H"]:
        """|dW/dt|² of each head: its share of the fall of the loss."""
        v, k, q = self.split(self.slope(0.0, y))
        return v**2 + np.sum(k**2 + q**2, axis=(1, 2))

    def some(self, y: np.ndarray, keep: Bool[np.ndarray, " H"]) -> tuple["HeadFlow", np.ndarray]:
        """The flow of some of the heads beside the others, which stay, and their part of a state.

        What the others add to M only shifts G.
        """
        others = self.effective(y[None], ~keep[None])[0]
        shifted = dataclasses.replace(self.quadratic, cross=self.quadratic.residual(others))
        flow = dataclasses.replace(self, quadratic=shifted, heads=int(keep.sum()))
        return flow, np.concatenate([a[keep].ravel() for a in self.split(y)])

    def put(self, y: np.ndarray, keep: Bool[np.ndarray, " H"], part: np.ndarray) -> np.ndarray:
        """The state with the part of some heads replaced, the inverse of `some`."""
        result = y.copy()
        parts = dataclasses.replace(self, heads=int(keep.sum())).split(part)
        for whole, one in zip(self.split(result), parts, strict=True):
            whole[keep] = one  # views of the result
        return result

    def rested(self, y: np.ndarray, slowest: float) -> np.ndarray:
        """Where all heads come to rest from a state near it, by Newton's method (Q4).

        Only along directions in which the flow relaxes, at a rate above `slowest`. The scales of v,
        k and q of a pair are free, so some directions have no rate at all. In others heads turn
        slowly, because two gains are nearly equal: they stay as they are in those.
        """
        last = np.inf
        for _ in range(ITERATIONS):
            rates, directions = np.linalg.eigh(self.jacobian(0.0, y))
            relaxing = rates < -max(slowest, FLOOR * float(np.abs(rates).max()))
            directions = directions[:, relaxing]
            step = directions @ ((self.slope(0.0, y) @ directions) / -rates[relaxing])
            size = float(np.linalg.norm(step))
            if size > last / 2:  # what is left is rounding
                break
            y, last = y + step, size
        return y
