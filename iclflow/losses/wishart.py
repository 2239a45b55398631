"""Means of products of a white Wishart matrix: what the population loss of several layers needs.

W = Σ zzᵀ/n over n independent vectors z ~ N(0, I) of length D, and Δ = W - I. All formulas are
exact at any D and n. They follow from Gaussian integration by parts, which takes one Δ out of a
product: E[Δ F] = (1/n) Σ_{F = P W R} E[Pᵀ W R + tr(P W) R] (D18), where the sum is over the places
of W in F.

The formulas are in Δ and not in W, because at the end of training L is a small number, and an
expansion in W would be a small difference of large ones.
"""

import functools
from fractions import Fraction

import jax.numpy as jnp
from jaxtyping import Array, Float

from iclflow.tasks.checks import require_size

Square = Float[Array, "D D"]
Number = Float[Array, ""]


def two_layer_signal(first: Square, second: Square, tasks: Square, n: Number) -> Number:
    """E tr[Q T Qᵀ] with Q = (I - G₁ W)(I - G₀ W) for any matrices (D16).

    - `first`, `second`: G₀ and G₁, the layers in white coordinates.
    - `tasks`: T, symmetric, the second moment of the task vector in white coordinates.
    - `n`: the number of pairs in the context.

    With Q_l = I - G_l and a = Q₁G₀ it is Q = Q₁Q₀ - aΔ - G₁ΔQ₀ + G₁ΔG₀Δ, squared term by term.
    """
    identity = jnp.eye(len(first), dtype=first.dtype)
    g0, g1, t = first, second, tasks
    q0, q1 = identity - g0, identity - g1
    a, still, tq = q1 @ g0, q1 @ q0, t @ q0.T
    # G₁ [..] G₁ᵀ of three terms, and 2 a [..] G₁ᵀ of two, are summed before they are multiplied.
    both = mean_two(q0 @ tq, n) - 2 * mean_three(q0 @ t, g0.T, n) + mean_four(g0, t, g0.T, n)
    mixed = mean_two(tq, n) - mean_three(t, g0.T, n)
    return (
        _inner(still @ t, still)
        + _inner(a @ mean_two(t, n), a)
        + 2 * _inner(a @ mixed, g1)
        + _inner(g1 @ both, g1)
        + 2 * _inner(g1 @ (mean_two(g0, n) @ t), still)
    )


def two_layer_noise(first: Square, second: Square, n: Number) -> Number:
    """E tr[P W Pᵀ] with P = G₀ + G₁ - G₁ W G₀, which σ²/n times is what label noise adds (D17).

    The arguments are those of `two_layer_signal`.
    """
    g0, g1 = first, second
    p = g0 + g1 - g1 @ g0
    both = mean_two(g0 @ g0.T, n) + mean_three(g0, g0.T, n)
    return _inner(p, p) + _inner(g1 @ both, g1) - 2 * _inner(g1 @ mean_two(g0, n), p)


def mean_two(c: Square, n: Number) -> Square:
    """E[Δ C Δ] = (Cᵀ + tr C · I)/n (D11)."""
    return _plus(c.T, jnp.trace(c)) / n


def mean_three(a: Square, b: Square, n: Number) -> Square:
    """E[Δ A Δ B Δ] (D12)."""
    traces = jnp.sum(a * b) + jnp.trace(a) * jnp.trace(b)
    products = (b @ a).T + b @ (a + a.T) + b.T @ a + a.T * jnp.trace(b) + b.T * jnp.trace(a)
    return _plus(products, traces) / n**2


def mean_four(a: Square, b: Square, c: Square, n: Number) -> Square:
    """E[Δ A Δ B Δ C Δ] (D15), the first Δ taken out by (D18)."""
    two_c, two_b = mean_two(c, n), mean_two(b, n)
    terms = (
        a.T @ (b @ two_c + mean_three(b, c, n))
        + b @ (jnp.trace(a) * two_c + _mean_trace_two(a, c, n))
        + b.T @ (mean_two(a.T @ c, n) + mean_three(a.T, c, n))
        + c @ ((b @ a + (b @ a).T) / n + _mean_trace_three(a, b, n))
        + c.T @ (mean_two(b.T, n) @ a.T + mean_three(b.T, a.T, n))
    )
    traces = _inner(c @ a, two_b.T) + _inner(a, mean_three(b, c, n).T)
    return _plus(terms, traces) / n


def _mean_trace_two(a: Square, c: Square, n: Number) -> Square:
    """E[tr(A Δ) Δ C Δ] (D13)."""
    s, two = (a + a.T) / 2, mean_two(c, n)
    return (s @ two + two @ s + mean_two(s @ c + c @ s, n)) / n


def _mean_trace_three(a: Square, b: Square, n: Number) -> Square:
    """E[tr(A Δ B Δ) Δ] (D14)."""
    m = b.T @ a + a @ b.T + a * jnp.trace(b) + b * jnp.trace(a)
    return (m + m.T) / n**2


def _inner(a: Square, b: Square) -> Number:
    """tr(A Bᵀ), without the product."""
    return jnp.sum(a * b)


def _plus(matrix: Square, number: Number) -> Square:
    """The matrix with a number added to its diagonal."""
    return matrix + number * jnp.eye(len(matrix), dtype=matrix.dtype)


def trace_moments(size: int, context: int, count: int) -> tuple[Fraction, ...]:
    """m_k = E tr W^k / D for k = 0 … count, exactly, for any D and N (D7).

    With W' = N W and p_k = tr W'^k, integration by parts gives E[p_k p_μ] of a product of traces
    p_μ = Π_i p_{μ_i} in whole numbers. Whole numbers are needed: the sums (D6) over these moments
    cancel, and floating point loses all digits of them from about eight layers on.

    - `size`: D.
    - `context`: N, also below D.
    - `count`: the highest power k.

    >>> from iclflow.losses.wishart import trace_moments
    >>> [str(m) for m in trace_moments(4, 31, 2)]
    ['1', '1', '36/31']
    """
    size, context = require_size("size", size), require_size("context", context)
    count = require_size("count", count, 0)

    @functools.cache
    def mean(parts: tuple[int, ...]) -> int:
        """E Π p_k over the parts k, sorted from the largest; p_0 = D."""
        if not parts:
            return 1
        if parts[-1] == 0:
            return size * mean(parts[:-1])
        k, rest = parts[0], parts[1:]
        total = (context + k - 1) * mean(_sorted(k - 1, *rest))
        for j in range(1, k):
            total += mean(_sorted(j, k - 1 - j, *rest))
        for i, other in enumerate(rest):
            total += 2 * other * mean(_sorted(k + other - 1, *rest[:i], *rest[i + 1 :]))
        return total

    return tuple(Fraction(mean((k,)), size * context**k) for k in range(count + 1))


def _sorted(*parts: int) -> tuple[int, ...]:
    return tuple(sorted(parts, reverse=True))
