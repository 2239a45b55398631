"""Stability of the fixed points of separate attention: order, index, Hessian spectrum, escape.

The Hessian is that of L at named weights, `FixedPoint.weights(heads, rank, holdings)`, and escape
rates are those of gradient flow, half of its negative eigenvalues with the other sign. Saddles
on the path from small weights have a positive semidefinite Hessian and are left at third order;
those off it are strict. Off the weights of least norm the index changes (a head with v = 0,
q = 0, k ≠ 0 has one eigenvalue -2 |A_Sᵀ k|): use `hessian_product` there.
"""

import enum

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.models import Separate
from iclflow.theory.fixed_points.hessian import hessian_matrix
from iclflow.theory.fixed_points.modes import Gains
from iclflow.theory.fixed_points.points import FixedPoint, Holdings
from iclflow.theory.fixed_points.separate_spectrum import Escapes, separate_spectrum

DENSE_LIMIT = 2000  # weights of active heads up to which a dense Hessian is diagonalised


class Order(enum.Enum):
    """At which order of the weights a fixed point is left downhill."""

    SECOND = 2  # a negative Hessian eigenvalue: exponential escape
    THIRD = 3  # no negative eigenvalue, but -v kᵀ A_S q of a zero head: blow-up in finite time
    MINIMUM = "minimum"


class Stability(eqx.Module):
    """What the loss looks like around a fixed point at named weights.

    `eigenvalues` of the Hessian of L (ascending, one for every weight) and `escapes` are None for
    a non-commuting task with more than 2000 weights in active heads, where there is no closed
    form; order, index and cubic gains are exact all the same.
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
