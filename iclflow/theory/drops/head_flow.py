"""The flow (19)(80) of all heads on any loss of M = Σ v k qᵀ, in NumPy (Q2). Times are t/τ.

`τ dv/dt = Σᵣ kᵣᵀ R qᵣ`, `τ dk/dt = v R q`, `τ dq/dt = v Rᵀ k` with R = -½ ∂L/∂M, which is G - 𝓗[M]
for a quadratic loss. The right-hand side is minus half the gradient of the loss in the weights, so
that `dL/dt = -2 Σ |dW/dt|²` and the Jacobian is symmetric.
"""

import dataclasses
import functools
import itertools

import numpy as np
from jaxtyping import Bool, Float, Int

from iclflow.theory.drops.quadratic import AbstractMatrixLoss

States = Float[np.ndarray, "T n"]  # v, k, q of all heads, one after the other
Parts = tuple[
    Float[np.ndarray, "*T H"], Float[np.ndarray, "*T H R D"], Float[np.ndarray, "*T H R D"]
]
FLOOR = 1e-9  # of the fastest rate: slower directions are the scales of v, k, q, which are free
ITERATIONS = 6  # eigenvectors that Newton's method takes at most; near a rest one or two are enough
SHRINKS = 8  # how much a step is shorter than the one before while the same eigenvectors serve
ROUNDING = 1e-13  # relative size of a step that is rounding


@dataclasses.dataclass(frozen=True)
class HeadFlow:
    """A loss of M and the flow that it makes of H heads of rank R.

    - `source`: the loss.
    - `heads`, `rank`: H and R.
    - `block`: where M has a block per layer, the layer of each head; None for one layer. A head has
      the D inputs of its layer, and M has D rows per block.
    """

    source: AbstractMatrixLoss
    heads: int
    rank: int
    block: Int[np.ndarray, " H"] | None = None

    @functools.cached_property
    def size(self) -> int:
        """The number D of inputs of a head. It is kept: every step of the solver asks for it."""
        return self.source.size // self.source.blocks

    def split(self, y: Float[np.ndarray, "*T n"]) -> Parts:
        """v [..., H], k and q [..., H, R, D] of a state [..., n]."""
        heads, shape = self.heads, (*y.shape[:-1], self.heads, self.rank, self.size)
        half = (y.shape[-1] - heads) // 2
        keys, queries = y[..., heads : heads + half], y[..., heads + half :]
        return y[..., :heads], keys.reshape(shape), queries.reshape(shape)

    def wide(self, vectors: np.ndarray, owner: np.ndarray | None = None) -> np.ndarray:
        """k or q [..., H, R, D] among the inputs of all layers; `owner` if of some heads only."""
        if self.block is None:
            return vectors
        block = self.block if owner is None else self.block[owner]
        inputs = vectors.shape[-1]
        result = np.zeros((*vectors.shape[:-1], self.source.blocks, inputs))
        result[..., np.arange(len(block)), :, block, :] = np.moveaxis(vectors, -3, 0)
        return result.reshape(*vectors.shape[:-1], self.source.size)

    def narrow(self, vectors: np.ndarray, owner: np.ndarray | None = None) -> np.ndarray:
        """The inverse of `wide`: of each head the inputs of its own layer."""
        if self.block is None:
            return vectors
        block = self.block if owner is None else self.block[owner]
        parts = vectors.reshape(*vectors.shape[:-1], -1, self.size)
        return np.moveaxis(parts[..., np.arange(len(block)), :, block, :], 0, -3)

    def _pairs(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """v, and k and q among the inputs of all layers, of every pair of one state."""
        k, q = y[self.heads :].reshape(2, -1, self.size)
        v = y[: self.heads] if self.rank == 1 else np.repeat(y[: self.heads], self.rank)
        if self.block is not None:
            parts = (a.reshape(self.heads, self.rank, self.size) for a in (k, q))
            k, q = (self.wide(a).reshape(len(v), -1) for a in parts)
        return v, k, q

    def slope(self, t: float, y: np.ndarray) -> np.ndarray:
        """dW/dt of one state."""
        heads, rank = self.heads, self.rank
        v, k, q = self._pairs(y)
        vk = v[:, None] * k
        R = self.source.residual(vk.T @ q)
        Rq, result = q @ R.T, np.empty_like(y)
        rise = np.einsum("pd,pd->p", k, Rq)
        result[:heads] = rise if rank == 1 else rise.reshape(heads, -1).sum(1)
        # In place: this is called thousands of times, on a few dozen numbers.
        rates = result[heads:].reshape(2, -1, self.size)
        if self.block is None:
            np.multiply(v[:, None], Rq, out=rates[0])
            np.matmul(vk, R, out=rates[1])
        else:
            for rate, forces in zip(rates, (v[:, None] * Rq, vk @ R), strict=True):
                rate[:] = self.narrow(forces.reshape(heads, rank, -1)).reshape(rate.shape)
        return result

    def moved(self, y: np.ndarray, step: np.ndarray) -> Float[np.ndarray, "D D"]:
        """How M changes to first order when the weights of one state change by a step."""
        (v, k, q), (dv, dk, dq) = self._pairs(y), self._pairs(step)
        return (dv[:, None] * k + v[:, None] * dk).T @ q + (v[:, None] * k).T @ dq

    def jacobian(self, t: float, y: np.ndarray) -> Float[np.ndarray, "n n"]:
        """∂(dW/dt)/∂W of one state: minus half the Hessian of the loss."""
        heads, inputs, size = self.heads, self.size, self.source.size
        v, k, q = self._pairs(y)
        vk, vq = v[:, None] * k, v[:, None] * q
        M = vk.T @ q
        R, result = self.source.residual(M), np.empty((len(y), len(y)))
        own = (k[:, :, None] * q[:, None, :]).reshape(heads, self.rank, size, size).sum(1)
        bent = self.source.bent(M, own)
        result[:heads, :heads] = -own.reshape(heads, -1) @ bent.reshape(heads, -1).T
        # A value weight with the keys and the queries: through M, and because it scales the force.
        count = len(k) * inputs
        forces = [-(vq @ bent.swapaxes(1, 2)), -(vk @ bent)]
        for force, direct in zip(forces, (q @ R.T, k @ R), strict=True):
            pairs = force.reshape(heads, heads, self.rank, size)
            head = np.arange(heads)
            pairs[head, head] += direct.reshape(heads, self.rank, size)
        flat = np.concatenate(
            [
                self.narrow(a.reshape(heads, heads, self.rank, size)).reshape(heads, -1)
                for a in forces
            ],
            axis=1,
        )
        result[:heads, heads:], result[heads:, :heads] = flat, flat.T
        parts = [self._inner(a) for a in self.source.between(M, vk, vq)]
        if self.block is None:
            mine = R
        else:  # the block of R of each pair's layer
            blocks = R.reshape(self.source.blocks, inputs, self.source.blocks, inputs)
            layer = np.repeat(self.block, self.rank)
            mine = blocks[layer, :, layer]
        pair = np.arange(len(k))
        parts[1][pair, :, pair] -= v[:, None, None] * mine  # k and q of one pair feel R
        keys, both, queries = (a.reshape(count, count) for a in parts)
        middle = heads + count
        np.negative(keys, out=result[heads:middle, heads:middle])
        np.negative(both, out=result[heads:middle, middle:])
        np.negative(both.T, out=result[middle:, heads:middle])
        np.negative(queries, out=result[middle:, middle:])
        return result

    def _inner(self, wide: np.ndarray) -> np.ndarray:
        """An array [P, D, P, D] among the inputs of all layers, among those of each pair's own."""
        if self.block is None:
            return wide
        layer, inputs = np.repeat(self.block, self.rank), self.size
        parts = wide.reshape(len(wide), -1, inputs, len(wide), self.source.blocks, inputs)
        pair = np.arange(len(wide))
        found = parts[pair[:, None], layer[:, None], :, pair, layer]  # [P, P, D, D]
        return found.transpose(0, 2, 1, 3).copy()

    def effective(
        self, states: States, only: Bool[np.ndarray, "#T H"] | None = None
    ) -> Float[np.ndarray, "T D D"]:
        """M = Σ v k qᵀ, of all heads or of some."""
        v, k, q = self.split(states)
        v = v if only is None else np.where(only, v, 0.0)
        shape = (len(states), -1, self.source.size)
        left = self.wide(v[..., None, None] * k).reshape(shape)
        return left.swapaxes(1, 2) @ self.wide(q).reshape(shape)

    def loss(
        self, states: States, only: Bool[np.ndarray, "#T H"] | None = None
    ) -> Float[np.ndarray, " T"]:
        """The loss, of all heads or of some."""
        return self.source.loss(self.effective(states, only))

    def speeds(self, y: np.ndarray) -> Float[np.ndarray, " H"]:
        """|dW/dt|² of each head: its share of the fall of the loss."""
        v, k, q = self.split(self.slope(0.0, y))
        return v**2 + np.sum(k**2 + q**2, axis=(1, 2))

    def some(self, y: np.ndarray, keep: Bool[np.ndarray, " H"]) -> tuple["HeadFlow", np.ndarray]:
        """The flow of some heads beside the others, which stay, and their part of a state."""
        source = self.source.beside(self.effective(y[None], ~keep[None])[0])
        block = None if self.block is None else self.block[keep]
        flow = HeadFlow(source, int(keep.sum()), self.rank, block)
        return flow, np.concatenate([a[keep].ravel() for a in self.split(y)])

    def put(self, y: np.ndarray, keep: Bool[np.ndarray, " H"], part: np.ndarray) -> np.ndarray:
        """The state with the part of some heads replaced, the inverse of `some`."""
        result = y.copy()
        parts = dataclasses.replace(self, heads=int(keep.sum())).split(part)
        for whole, one in zip(self.split(result), parts, strict=True):
            whole[keep] = one  # views of the result
        return result

    def rested(
        self, y: np.ndarray, slowest: float, within: float
    ) -> tuple[np.ndarray | None, float]:
        """Where all heads come to rest from a state near it, and how far the first step moves R.

        By Newton's method (Q4). The place is None if the first step moves the residual R by more
        than `within`: then the state is not near enough.

        Only along directions in which the flow relaxes, at a rate above `slowest`. The scales of v,
        k and q of a pair are free, so some directions have no rate at all. In others heads turn
        slowly, because two gains are nearly equal: they stay as they are in those.

        The eigenvectors of the Hessian are what this costs, so they serve for as long as the steps
        made with them shrink fast.
        """
        moved, last = 0.0, np.inf
        for search in range(ITERATIONS):
            rates, directions = np.linalg.eigh(self.jacobian(0.0, y))
            relaxing = rates < -max(slowest, FLOOR * float(np.abs(rates).max()))
            rates, directions = rates[relaxing], directions[:, relaxing]
            for count in itertools.count():
                step = directions @ ((self.slope(0.0, y) @ directions) / -rates)
                size = float(np.linalg.norm(step))
                if size > last / (SHRINKS if count else 2):
                    break
                if search == count == 0:
                    moved = self._moves(y, y + step)
                    if moved > within:
                        return None, moved
                y, last = y + step, size
            if count == 0 or last < ROUNDING * float(np.linalg.norm(y)):
                break
        return y, moved

    def _moves(self, y: np.ndarray, other: np.ndarray) -> float:
        """How far two states are from each other in R."""
        one, two = self.source.residual(self.effective(np.stack([y, other])))
        return float(np.linalg.norm(two - one))
