"""The linear systems of an implicit step of attention in the population, and their inverse, nearly.

With M = Σ v k qᵀ over pairs p of key and query and A = G - B M Λ the flow is `τ dv/dt = Σ kᵀAq`,
`τ dk/dt = v A q`, `τ dq/dt = v Aᵀ k` (19)(80). Here W = 1 - wJ, J its Jacobian, with keys in the
eigenvectors of B and queries in those of Λ. A pair p that has learned mode j couples its entries
(k, q) at mode i to those at j of the pair that has learned i. These fours, and v with (k, q) at the
pair's own mode, are blocks of W; all else is small, and is left to conjugate gradients.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from iclflow.losses import AbstractLoss, Population
from iclflow.models import AbstractModel

MIX = 0.37  # any share: of matrices that commute, a sum has the common eigenvectors

Weights = Float[Array, " W"]  # v, k, q of all heads, one after the other
Entries = Float[Array, "P D"]
Two = tuple[Entries, Entries, Entries, Entries]  # a 2 x 2 matrix for every entry, row by row


class PairSystem(eqx.Module):
    """B, Λ and G in the eigenvectors of B (rows, keys) and of Λ (columns, queries)."""

    key_vectors: Float[Array, "D D"]
    query_vectors: Float[Array, "D D"]
    second: Float[Array, "1 D"]  # eigenvalues of B
    covariance: Float[Array, "1 D"]  # and of Λ
    cross: Float[Array, "D D"]

    @classmethod
    def of(cls, loss: AbstractLoss, model: AbstractModel) -> "PairSystem | None":
        """The system of a model on a loss; None if it is not known."""
        if not isinstance(loss, Population) or model.pairs() is None:
            return None
        B, L = loss.second, loss.covariance
        common = jnp.linalg.eigh(L / jnp.linalg.norm(L) + MIX * B / jnp.linalg.norm(B))[1]
        (b, rows), (c, columns) = _sorted_eigh(B, common), _sorted_eigh(L, common)
        return cls(rows, columns, b[None], c[None], rows.T @ loss.cross[0] @ columns)

    def at(self, model: AbstractModel, width: Float[Array, ""]) -> "System":
        """1 - width · J at the weights of the model."""
        pairs = model.pairs()
        assert pairs is not None
        v, k, q = pairs
        heads, rank, size = k.shape
        k = k.reshape(-1, size) @ self.key_vectors
        q = q.reshape(-1, size) @ self.query_vectors
        v = jnp.repeat(v, rank)
        M = (v[:, None] * k).T @ q
        A = self.cross - self.second.T * M * self.covariance
        Aq, Ak = q @ A.T, k @ A
        blocks = _blocks(self, (v, k, q, A, Aq, Ak), width, heads)
        return System(self, width, v, k, q, A, Aq, Ak, blocks, heads)


def _sorted_eigh(
    matrix: Float[Array, "D D"], common: Float[Array, "D D"]
) -> tuple[Float[Array, " D"], Float[Array, "D D"]]:
    """Eigenvalues and -vectors in the order of a common basis, so that equal numbers belong."""
    values, vectors = jnp.linalg.eigh(common.T @ matrix @ common)
    order = jnp.argsort(jnp.argmax(jnp.abs(vectors), axis=0))
    return values[order], common @ vectors[:, order]


class PairBlocks(NamedTuple):
    """The inverse of the blocks of W."""

    mode: Int[Array, " P"]  # that a pair has learned, or comes nearest to
    owner: Int[Array, " D"]  # the pair that comes nearest to a mode
    owned: Bool[Array, " D"]  # whether the two agree
    across: Two  # what of the partner's (k, q) is taken off, before
    own: Two  # the inverse at each entry
    main: Int[Array, " H"]  # the pair of each head that is solved with v
    three: Float[Array, "H 3 3"]  # the inverse for (v, k, q) there

    def partner(self, x: Entries) -> Entries:
        """For each entry (p, i), x at (owner of i, mode of p)."""
        return _partner(x, self.mode, self.owner, self.owned)


class System(NamedTuple):
    """W x, and nearly W⁻¹ x, for x = (v, k, q) in the eigenvectors."""

    task: PairSystem
    width: Float[Array, ""]
    v: Float[Array, " P"]
    k: Entries
    q: Entries
    A: Float[Array, "D D"]
    Aq: Entries
    Ak: Entries
    blocks: PairBlocks
    heads: int

    def turned(self, x: Weights) -> Weights:
        """From weights into the eigenvectors."""
        v, k, q = self._split(x)
        return _joined(v, k @ self.task.key_vectors, q @ self.task.query_vectors)

    def back(self, x: Weights) -> Weights:
        """From the eigenvectors into weights."""
        v, k, q = self._split(x)
        return _joined(v, k @ self.task.key_vectors.T, q @ self.task.query_vectors.T)

    def product(self, x: Weights) -> Weights:
        """W x = x - w J x."""
        k, q, A, task = self.k, self.q, self.A, self.task
        dv, dk, dq = self._split(x)
        dv, v = jnp.repeat(dv, len(k) // self.heads)[:, None], self.v[:, None]
        left = jnp.concatenate([dv * k + v * dk, v * k])
        change = left.T @ jnp.concatenate([q, dq])  # of M, then of A
        change = -task.second.T * change * task.covariance
        along = jnp.concatenate([q, dq], 1) @ jnp.concatenate([change, A], 1).T
        across = jnp.concatenate([k, dk], 1) @ jnp.concatenate([change, A])
        rise = jnp.sum(dk * self.Aq + k * along, axis=1).reshape(self.heads, -1).sum(1)
        rates = _joined(rise, dv * self.Aq + v * along, dv * self.Ak + v * across)
        return x - self.width * rates

    def inverse(self, x: Weights) -> Weights:
        """W⁻¹ x of the blocks alone."""
        some, (v, k, q) = self.blocks, self._split(x)
        place = (some.main, some.mode[some.main])
        three = jnp.stack([v, k[place], q[place]], axis=1)
        three = jnp.einsum("hij,hj->hi", some.three, three)
        other = _apply(some.across, some.partner(k), some.partner(q))
        k, q = _apply(some.own, k - other[0], q - other[1])
        k, q = k.at[place].set(three[:, 1]), q.at[place].set(three[:, 2])
        return _joined(three[:, 0], k, q)

    def _split(self, x: Weights) -> tuple[Float[Array, " H"], Entries, Entries]:
        k, q = x[self.heads :].reshape(2, *self.k.shape)
        return x[: self.heads], k, q


def _joined(v: Float[Array, " H"], k: Entries, q: Entries) -> Weights:
    return jnp.concatenate([v, k.ravel(), q.ravel()])


def _partner(x: Entries, mode: Array, owner: Array, owned: Array) -> Entries:
    return jnp.where(owned[:, None], x[owner], 0.0).T[mode]


def _blocks(
    task: PairSystem, state: tuple[Array, ...], width: Float[Array, ""], heads: int
) -> PairBlocks:
    """Principal blocks of W, which are positive where W is, inverted."""
    v, k, q, A, Aq, Ak = state
    pairs, size = k.shape
    Bk, Lq, vs = k * task.second, q * task.covariance, v[:, None]
    kBk, qLq = Bk @ k.T, Lq @ q.T
    of_k = vs**2 * jnp.diagonal(qLq)[:, None] * task.second
    of_q = vs**2 * jnp.diagonal(kBk)[:, None] * task.covariance
    each_pair, each_mode, each_head = (jnp.arange(n) for n in (pairs, size, heads))
    held = k**2 * of_k + q**2 * of_q
    mode, owner = jnp.argmax(held, axis=1), jnp.argmax(held, axis=0)
    owned, owns = mode[owner] == each_mode, owner[mode] == each_pair

    kk, qq = 1 + width * of_k, 1 + width * of_q
    kq = width * vs * (vs * Bk * Lq - jnp.diagonal(A)[None])
    both = owns[:, None] & owned[None] & (each_mode[None] != mode[:, None])
    joint = jnp.where(both, width * vs * v[owner][None], 0.0)
    # of k at (p, i) with q at its partner, and of q with k
    k_q = joint * Bk[owner, each_mode][None] * Lq[each_pair, mode][:, None]
    q_k = joint * Lq[owner, each_mode][None] * Bk[each_pair, mode][:, None]
    other = [
        jnp.where(both, _partner(x, mode, owner, owned), y)
        for x, y in ((kk, 1.0), (kq, 0.0), (qq, 1.0))
    ]
    a, c, _, d = _inverse((other[0], other[1], other[1], other[2]))
    across = (k_q * c, k_q * d, q_k * a, q_k * c)
    own = _inverse(
        (
            kk - across[1] * k_q,
            kq - across[0] * q_k,
            kq - across[3] * k_q,
            qq - across[2] * q_k,
        )
    )

    rank = pairs // heads
    best = jnp.where(owns, jnp.max(held, axis=1), -1.0).reshape(heads, rank)
    main = jnp.argmax(best, axis=1) + rank * each_head
    at = mode[main]

    def of_head(x: Float[Array, "P H"]) -> Float[Array, " H"]:
        """Σ over the pairs of each head, of its own column."""
        return jnp.sum(x.reshape(heads, rank, heads)[each_head, :, each_head], axis=1)

    vv = 1 + width * of_head(jnp.sum((kBk * qLq).reshape(pairs, heads, rank), axis=2))
    kv = width * (v[main] * of_head(Bk[:, at] * qLq[:, main]) - Aq[main, at])
    qv = width * (v[main] * of_head(Lq[:, at] * kBk[:, main]) - Ak[main, at])
    kk, kq, qq = kk[main, at], kq[main, at], qq[main, at]
    three = jnp.stack([vv, kv, qv, kv, kk, kq, qv, kq, qq], axis=1).reshape(heads, 3, 3)
    return PairBlocks(mode, owner, owned, across, own, main, jnp.linalg.inv(three))


def _inverse(two: Two) -> Two:
    a, b, c, d = two
    size = a * d - b * c
    return d / size, -b / size, -c / size, a / size


def _apply(two: Two, k: Entries, q: Entries) -> tuple[Entries, Entries]:
    a, b, c, d = two
    return a * k + b * q, c * k + d * q
