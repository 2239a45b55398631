"""The Hessian spectrum of separate attention at a fixed point in closed form (commuting tasks).

In the common eigenbasis the Hessian of L/2 falls into blocks of one or two weights, and one block
of r + 1 for each head's value. With v the value of the head that holds mode d and P_d = v m_d:

- a head with modes T: the eigenvalues of diag(2 P_d λ_d b_d) + z zᵀ, z_d = (λ_d b_d)^(1/2) m_d/v,
  and |T| + 1 zeros (rank one: 3 g_d m_d^(1/3));
- ordered pairs d ≠ j in S: b_d λ_j (P_d + P_j), and 0;
- d in S, j not in S, on (k_d·e_j, q_d·e_j): [[b_j λ_d P_d, -v g_j], [-v g_j, b_d λ_j P_d]], of
  determinant v² b_j λ_j (σ_d² - σ_j²): one negative eigenvalue if and only if σ_j > σ_d;
- an empty pair of an active head: ±v g_j for every j not in S;
- a zero head: zeros.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from iclflow.models import Separate
from iclflow.theory.fixed_points.points import FixedPoint, Holdings


class Escapes(eqx.Module):
    """The unstable directions of a strict saddle, fastest first.

    Number i changes key and query `pair[i]` of `head[i]` along mode `mode[i]` by `key[i]` and
    `query[i]`; `vectors` holds whole weight vectors instead, where there is no closed form.
    """

    rates: Float[Array, " n"]
    head: Int[Array, " n"]
    pair: Int[Array, " n"]
    mode: Int[Array, " n"]
    key: Float[Array, " n"]
    query: Float[Array, " n"]
    basis: Float[Array, "D r"]
    vectors: Float[Array, "n w"] | None = None

    @classmethod
    def dense(cls, rates: Float[Array, " n"], vectors: Float[Array, "n w"]) -> "Escapes":
        """Directions given as whole weight vectors."""
        none, empty = jnp.zeros(rates.shape[0], int), jnp.zeros(rates.shape[0], rates.dtype)
        basis = jnp.zeros((0, 0), rates.dtype)
        return cls(rates, none, none, none, empty, empty, basis, vectors)

    def direction(self, model: Separate, number: int) -> Separate:
        """Direction `number` in the shape of the model's weights."""
        if self.vectors is not None:
            return ravel_pytree(model)[1](self.vectors[number])
        head, pair, mode = (int(a[number]) for a in (self.head, self.pair, self.mode))
        along = np.asarray(self.basis)[:, mode]
        keys, queries = np.zeros(model.keys.shape), np.zeros(model.queries.shape)
        keys[head, pair] = float(self.key[number]) * along
        queries[head, pair] = float(self.query[number]) * along
        dtype = model.keys.dtype
        return Separate(
            values=jnp.zeros_like(model.values),
            keys=jnp.asarray(keys, dtype),
            queries=jnp.asarray(queries, dtype),
        )


def separate_spectrum(
    point: FixedPoint, holdings: Holdings, heads: int, rank: int
) -> tuple[Float[Array, " n"], Escapes]:
    """All eigenvalues (ascending) at `point.weights(heads, rank, holdings)`, and the escapes."""
    modes = point.modes
    lam, b, g = (np.asarray(a, dtype=np.float64) for a in modes.directions())
    sigma = np.concatenate([np.asarray(modes.singular), np.zeros(modes.size - modes.rank)])
    order = [d for head in holdings for d in head]
    learned = np.asarray(order, dtype=int)
    others = np.setdiff1d(np.arange(modes.size), learned)
    m = g[learned] / (lam[learned] * b[learned])
    head_of = np.repeat(np.arange(len(holdings)), [len(h) for h in holdings])
    pair_of = np.asarray([r for head in holdings for r in range(len(head))], dtype=int)
    value = np.asarray([m[head_of == i].sum() ** (1 / 3) for i in range(len(holdings))])
    v = value[head_of] if len(order) else np.zeros(0)
    found = [_value_blocks(m, v, lam[learned] * b[learned], head_of, len(holdings))]

    stiff = b[learned][:, None] * lam[learned][None, :] * ((v * m)[:, None] + (v * m)[None, :])
    found.append(stiff[~np.eye(len(order), dtype=bool)])

    # Rows: learned modes d; columns: all other directions j.
    p = b[others][None, :] * (lam[learned] * v * m)[:, None]
    r = lam[others][None, :] * (b[learned] * v * m)[:, None]
    t = v[:, None] * g[others][None, :]
    upper = (p + r) / 2 + np.hypot((p - r) / 2, t)
    gap = sigma[learned][:, None] ** 2 - sigma[others][None, :] ** 2
    determinant = (v**2)[:, None] * (b * lam)[others][None, :] * gap
    lower = determinant / np.where(upper > 0, upper, 1.0)
    found += [upper.ravel(), lower.ravel()]
    swaps = np.argwhere(sigma[others][None, :] > sigma[learned][:, None] * (1 + 1e-9))
    d, j = swaps[:, 0], swaps[:, 1]
    key, query = t[d, j], p[d, j] - lower[d, j]
    norm = np.hypot(key, query)
    rows = [
        np.stack(
            [-lower[d, j], head_of[d], pair_of[d], others[j], key / norm, query / norm], axis=1
        )
    ]

    unlearned = others[g[others] > 0]
    for i, head in enumerate(holdings):
        for pair in range(len(head), rank):
            rates = value[i] * g[unlearned]
            found += [rates, -rates]
            same = np.ones_like(rates)
            half = same / np.sqrt(2)
            rows.append(np.stack([rates, i * same, pair * same, unlearned, half, half], axis=1))
    values = np.concatenate(found)
    zeros = np.zeros(heads * (1 + 2 * rank * modes.size) - values.size)
    dtype = modes.covariance.dtype
    table = np.concatenate(rows)
    table = table[np.argsort(-table[:, 0], kind="stable")]
    floats = (jnp.asarray(table[:, i], dtype) for i in (0, 4, 5))
    rate, key_part, query_part = floats
    head_index, pair_index, mode_index = (jnp.asarray(table[:, i], int) for i in (1, 2, 3))
    return jnp.asarray(np.sort(np.concatenate([values, zeros])), dtype), Escapes(
        rate, head_index, pair_index, mode_index, key_part, query_part, modes.right
    )


def _value_blocks(
    m: np.ndarray, v: np.ndarray, stiffness: np.ndarray, head_of: np.ndarray, count: int
) -> np.ndarray:
    """The |T| positive eigenvalues of each head along its own modes and value."""
    parts: list[np.ndarray] = [np.zeros(0)]
    for i in range(count):
        mine = head_of == i
        z = np.sqrt(stiffness[mine]) * m[mine] / v[mine]
        matrix = np.diag(2 * v[mine] * m[mine] * stiffness[mine]) + np.outer(z, z)
        parts.append(np.linalg.eigvalsh(matrix))
    return np.concatenate(parts)
