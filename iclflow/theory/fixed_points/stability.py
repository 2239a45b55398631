"""Stability of the fixed points of separate attention: order, index, Hessian spectrum, escape.

The Hessian is that of L, which has no factor ½ (9), and which a run records as `sharpness`. It is
taken at named weights, `FixedPoint.weights(heads, rank, holdings)`. Gradient flow is
τ dW/dt = -∂(L/2)/∂W, so a direction with eigenvalue h grows at the rate -h/2 in t/τ: escape rates
are half of the negative eigenvalues with the other sign. Saddles on the path from small weights
have a positive semidefinite Hessian and are left at third order; those off it are strict. Off the
weights of least norm the index changes (a head with v = 0, q = 0, k ≠ 0 has one eigenvalue
-2 |A_Sᵀ k|): use `hessian_product` there.

For commuting tasks the spectrum is known in closed form. In the common eigenbasis the Hessian of
L/2 falls into blocks of one or two weights, and one block of r + 1 for each head's value. With v
the value of the head that holds mode d and P_d = v m_d:

- a head with modes T: the eigenvalues of diag(2 P_d λ_d b_d) + z zᵀ, z_d = (λ_d b_d)^(1/2) m_d/v,
  and |T| + 1 zeros (rank one: 3 g_d m_d^(1/3));
- ordered pairs d ≠ j in S: b_d λ_j (P_d + P_j), and 0;
- d in S, j not in S, on (k_d·e_j, q_d·e_j): [[b_j λ_d P_d, -v g_j], [-v g_j, b_d λ_j P_d]], of
  determinant v² b_j λ_j (σ_d² - σ_j²): one negative eigenvalue if and only if σ_j > σ_d;
- an empty pair of an active head: ±v g_j for every j not in S;
- a zero head: zeros.
"""

import enum

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from iclflow.losses import Population
from iclflow.models import Merged, Separate
from iclflow.tasks.task import Task
from iclflow.theory.fixed_points.modes import Gains, Modes
from iclflow.theory.fixed_points.points import FixedPoint, Holdings
from iclflow.theory.fixed_points.stationarity import Attention, residual_matrix


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


def hessian_product(
    model: Attention, direction: Attention, source: Task | Population | Modes
) -> Attention:
    """H d for the Hessian H of L at given weights, without forming it: O(H R D² + D³).

    With dM the change of M along d and dA = -B dM Λ, separate attention has
    (H d)_v = -2 Σ_r (dkᵀ A q + kᵀ A dq + kᵀ dA q), (H d)_k = -2 (dv A q + v A dq + v dA q),
    (H d)_q = -2 (dv Aᵀ k + v Aᵀ dk + v dAᵀ k); merged (H d)_v = -2 (⟨dU, A⟩ + ⟨U, dA⟩),
    (H d)_U = -2 (dv A + v dA).

    - `model`: the weights at which the Hessian is taken, merged or separate attention.
    - `direction`: d, weights of the same shape.
    - `source`: the task, its population or its modes.

    >>> import jax, jax.numpy as jnp, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> point = icl.theory.FixedPoint.of(task, [0]).weights(heads=2)
    >>> away = jax.tree.map(jnp.ones_like, point)
    >>> icl.theory.hessian_product(point, away, task).keys.shape
    (2, 1, 2)
    """
    modes = Modes.of(source)
    a = residual_matrix(model, modes)
    v, dv = model.values[:, 0, 0], direction.values[:, 0, 0]
    if isinstance(model, Merged):
        assert isinstance(direction, Merged)
        change = jnp.einsum("h,hdc->dc", dv, model.merged)
        change = change + jnp.einsum("h,hdc->dc", v, direction.merged)
        da = -modes.second @ change @ modes.covariance
        value = jnp.einsum("hdc,dc->h", direction.merged, a)
        value = value + jnp.einsum("hdc,dc->h", model.merged, da)
        merged = dv[:, None, None] * a[None] + v[:, None, None] * da[None]
        return type(model)(values=-2 * value[:, None, None], merged=-2 * merged)
    assert isinstance(direction, Separate)
    k, q, dk, dq = model.keys, model.queries, direction.keys, direction.queries
    change = jnp.einsum("h,hrd,hrc->dc", dv, k, q)
    change = change + jnp.einsum("h,hrd,hrc->dc", v, dk, q)
    change = change + jnp.einsum("h,hrd,hrc->dc", v, k, dq)
    da = -modes.second @ change @ modes.covariance
    # A q, A dq + dA q and their transposes for the keys; every entry below is built from these.
    aq, ak = q @ a.T, k @ a
    daq, dak = dq @ a.T + q @ da.T, dk @ a + k @ da
    value = jnp.sum(dk * aq, axis=(1, 2)) + jnp.sum(k * daq, axis=(1, 2))
    dv, v = dv[:, None, None], v[:, None, None]
    return type(model)(
        values=-2 * value[:, None, None],
        keys=-2 * (dv * aq + v * daq),
        queries=-2 * (dv * ak + v * dak),
    )


def hessian_matrix(
    model: Merged | Separate, source: Task | Population | Modes
) -> Float[Array, "n n"]:
    """The dense Hessian of L, weights in the order of `ravel_pytree` (values first).

    - `model`: the weights at which it is taken, merged or separate attention.
    - `source`: the task, its population or its modes.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Merged.initialiser(task, heads=1, scale=0.1)(jax.random.key(0))
    >>> icl.theory.hessian_matrix(model, task).shape
    (5, 5)
    """
    return _dense(model, Modes.of(source))


@eqx.filter_jit
def _dense(model: Merged | Separate, modes: Modes) -> Float[Array, "n n"]:
    flat, unravel = ravel_pytree(model)

    def column(unit: Float[Array, " n"]) -> Float[Array, " n"]:
        return ravel_pytree(hessian_product(model, unravel(unit), modes))[0]

    return jax.vmap(column)(jnp.eye(flat.shape[0], dtype=flat.dtype))


DENSE_LIMIT = 2000  # weights of active heads up to which a dense Hessian is diagonalised


class Order(enum.Enum):
    """At which order of the weights a fixed point is left downhill.

    >>> import iclflow as icl
    >>> [order.name for order in icl.theory.Order]
    ['SECOND', 'THIRD', 'MINIMUM']
    """

    SECOND = 2  # a negative Hessian eigenvalue: exponential escape
    THIRD = 3  # no negative eigenvalue, but -v kᵀ A_S q of a zero head: blow-up in finite time
    MINIMUM = "minimum"


class Stability(eqx.Module):
    """What the loss looks like around a fixed point at named weights.

    `eigenvalues` of the Hessian of L (ascending, one for every weight) and `escapes` are None for
    a non-commuting task with more than 2000 weights in active heads, where there is no closed
    form; order, index and cubic gains are exact all the same.

    - `point`: the fixed point.
    - `order`: whether the second or the third order decides.
    - `zero_heads`: how many heads are not in use.
    """

    point: FixedPoint
    model: Separate  # the weights at which all this holds
    gains: Gains  # of A_S: zero heads change L/2 by -Σ g v (kᵀu)(wᵀq) at third order
    eigenvalues: Float[Array, " n"] | None
    escapes: Escapes | None
    order: Order = eqx.field(static=True)
    index: int = eqx.field(static=True)  # the number of negative eigenvalues
    zero_heads: int = eqx.field(static=True)

    @property
    def cubic_gain(self) -> Float[Array, ""]:
        """g_max(A_S): an aligned zero head of size ε leaves after t = τ/(g_max ε)."""
        return jnp.max(self.gains.values, initial=0.0)

    @property
    def rates(self) -> Float[Array, " index"]:
        """The exponential rates of escape in t/τ, fastest first: minus half the eigenvalues < 0."""
        return self._require().rates

    def direction(self, number: int) -> Separate:
        """The unit direction in weight space that grows at `rates[number]`."""
        if not 0 <= number < self.index:
            raise ValueError(f"there are {self.index} unstable directions, got number {number}")
        return self._require().direction(self.model, number)

    def cubic_direction(self, head: int, gain: int) -> Separate:
        """(v, k, q) = (1, u, w)/√3 of a zero head along one of the `gains`.

        Along ε times this, L/2 changes by -g (ε/√3)³; flipping two of the three signs keeps it.
        """
        heads = self.model.values.shape[0]
        if not heads - self.zero_heads <= head < heads:
            raise ValueError(
                f"head {head} is not one of the {self.zero_heads} zero heads, the last of {heads}"
            )
        if not 0 <= gain < self.gains.values.shape[0]:
            raise ValueError(f"there are {self.gains.values.shape[0]} gains, got number {gain}")
        third = 3**-0.5
        zero = jnp.zeros_like
        return Separate(
            values=zero(self.model.values).at[head].set(third),
            keys=zero(self.model.keys).at[head, 0].set(third * self.gains.left[:, gain]),
            queries=zero(self.model.queries).at[head, 0].set(third * self.gains.right[:, gain]),
        )

    def _require(self) -> Escapes:
        if self.escapes is None:
            raise ValueError(
                f"a non-commuting task with more than {DENSE_LIMIT} weights in active heads has "
                f"no closed Hessian spectrum; iterate `hessian_product` instead"
            )
        return self.escapes


def swap_index(point: FixedPoint) -> int:
    """#{(d, j): d in S, j not in S, σ_j > σ_d}: the unstable swaps of a learned mode.

    The index at any weights of M(S) with |S| key-query pairs, all in use, commuting or not: such
    weights are a linear change of variables away from K Qᵀ = Y_S (Sylvester). 0 on the path.

    - `point`: M(S).

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> icl.theory.swap_index(icl.theory.FixedPoint.of(task, [1]))
    1
    """
    sigma = np.asarray(point.modes.singular)
    inside = sigma[list(point.index_set)]
    outside = sigma[list(point.modes.others(point.index_set))]
    return int(np.sum(outside[None, :] > inside[:, None] * (1 + 1e-9)))


def separate_stability(
    point: FixedPoint, heads: int, rank: int = 1, holdings: Holdings | None = None
) -> Stability:
    """Order, index, spectrum and escape directions at `point.weights(heads, rank, holdings)`.

    Zero heads have no second-order coupling at all. An active head with empty pairs is a strict
    saddle while anything is unlearned: each empty pair has eigenvalues ±2 v g_j.

    >>> import iclflow as icl
    >>> saddle = icl.theory.saddle_path(icl.Task([0.6, 0.3], context=31))[1]
    >>> found = icl.theory.separate_stability(saddle, heads=2)
    >>> found.order.name, found.index
    ('THIRD', 0)
    """
    model = point.weights(heads, rank, holdings)
    pairs = np.sum(np.linalg.norm(np.asarray(model.keys), axis=2) > 0, axis=1)
    active = int(np.sum(pairs > 0))
    unlearned = point.modes.rank - len(point.index_set)
    index = swap_index(point) + int(np.sum(rank - pairs[:active])) * unlearned
    if index > 0:
        order = Order.SECOND
    elif unlearned > 0 and active < heads:
        order = Order.THIRD
    else:
        order = Order.MINIMUM
    if point.modes.commuting:
        held = point.minimal_holdings(rank) if holdings is None else holdings
        rates, escapes = separate_spectrum(point, held, heads, rank)
    else:
        rates, escapes = _dense_spectrum(point, model, active, index)
    return Stability(
        point=point,
        model=model,
        gains=point.modes.gains(point.index_set),
        eigenvalues=None if rates is None else 2 * rates,
        escapes=escapes,
        order=order,
        index=index,
        zero_heads=heads - active,
    )


def _dense_spectrum(
    point: FixedPoint, model: Separate, active: int, index: int
) -> tuple[Float[Array, " n"] | None, Escapes | None]:
    """The spectrum of a non-commuting task: numerical on the active heads, zeros elsewhere.

    As `separate_spectrum`, of the Hessian of L/2.
    """
    heads, rank, size = model.keys.shape
    block = 1 + 2 * rank * size
    if active * block > DENSE_LIMIT:
        return None, None
    part = Separate(
        values=model.values[:active], keys=model.keys[:active], queries=model.queries[:active]
    )
    dtype = model.keys.dtype
    values, vectors = np.zeros(0), np.zeros((0, 0))
    if active:
        matrix = np.asarray(hessian_matrix(part, point.modes)) / 2
        values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    everything = np.sort(np.concatenate([values, np.zeros((heads - active) * block)]))
    # Zero heads come last: the weights of each layer are padded with zeros.
    split = np.cumsum([active, active * rank * size])
    padded = [
        np.concatenate([layer, np.zeros(((heads - active) * width, index))])
        for layer, width in zip(
            np.split(vectors[:, :index], split), (1, rank * size, rank * size), strict=True
        )
    ]
    directions = jnp.asarray(np.concatenate(padded).T, dtype)
    rates = jnp.asarray(-values[:index], dtype)
    return jnp.asarray(everything, dtype), Escapes.dense(rates, directions)
