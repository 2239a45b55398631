"""How many directions a weight matrix uses, and how few frequencies a table modulo p.

Equation numbers are those of Mainali & Teixeira (2025). Measures of rank take the singular values
of one matrix, so that a product kept as factors is never formed; zero matrices have rank 0. The
concentration of a table on few frequencies is a progress measure of grokking.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from iclflow.linalg import FactoredMatrix


def singular_values(matrix: Float[Array, "m n"] | FactoredMatrix) -> Float[Array, " k"]:
    """The singular values of a matrix or of a factored one, largest first.

    - `matrix`: of any shape.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> icl.measures.singular_values(jnp.asarray([[0.0, 2.0], [1.0, 0.0]])).tolist()
    [2.0, 1.0]
    """
    if isinstance(matrix, FactoredMatrix):
        return matrix.singular_values()
    return jnp.linalg.svd(jnp.asarray(matrix), compute_uv=False)


def effective_rank(values: Float[Array, " k"]) -> Float[Array, ""]:
    """exp(-Σ σ̂ ln σ̂) with σ̂ = σ/Σσ (15): k equal singular values give k, whatever their size.

    - `values`: the singular values σ.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> round(float(icl.measures.effective_rank(jnp.asarray([1.0, 1.0, 0.0]))), 6)
    2.0
    """
    total = jnp.sum(values)
    share = values / jnp.where(total > 0, total, 1)
    entropy = -jnp.sum(jax.scipy.special.xlogy(share, share))
    return jnp.where(total == 0, 0, jnp.exp(entropy)).astype(values.dtype)  # NaN stays NaN


def stable_rank(values: Float[Array, " k"]) -> Float[Array, ""]:
    """‖M‖_F² / ‖M‖₂² = Σσ²/σ₁²: never above the rank, and deaf to small singular values.

    - `values`: the singular values σ.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> round(float(icl.measures.stable_rank(jnp.asarray([2.0, 2.0, 1.0]))), 6)
    2.25
    """
    top = jnp.max(values)
    scaled = values / jnp.where(top > 0, top, 1)
    return jnp.sum(scaled**2)


def marginalised_effective_rank(values: Float[Array, " k"], drop: int) -> Float[Array, ""]:
    """The effective rank (15) without the `drop` largest singular values.

    The first reading of "after removing the components that converged earliest": the largest
    components are taken to be those. `tracked_effective_rank` is the second.

    - `values`: the singular values σ.
    - `drop`: how many of the largest are left out.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> values = jnp.asarray([5.0, 1.0, 1.0])
    >>> round(float(icl.measures.marginalised_effective_rank(values, drop=1)), 6)
    2.0
    """
    if not 0 <= drop < values.shape[0]:
        raise ValueError(
            f"drop must leave at least one of {values.shape[0]} singular values, got {drop}"
        )
    return effective_rank(-jnp.sort(-values)[drop:])


def mode_strengths(
    matrix: Float[Array, "m n"] | FactoredMatrix,
    left: Float[Array, "m k"],
    right: Float[Array, "n k"],
) -> Float[Array, " k"]:
    """uᵢᵀ M vᵢ for tracked modes (uᵢ, vᵢ), such as the singular vectors of the last checkpoint.

    - `matrix`: M.
    - `left`, `right`: the tracked uᵢ and vᵢ, as columns.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> matrix = jnp.diag(jnp.asarray([2.0, 1.0]))
    >>> icl.measures.mode_strengths(matrix, jnp.eye(2), jnp.eye(2)).tolist()
    [2.0, 1.0]
    """
    if isinstance(matrix, FactoredMatrix):
        return jnp.sum((left.T @ matrix.left) * (matrix.right @ right).T, axis=1)
    return jnp.sum((left.T @ matrix) * right.T, axis=1)


def convergence_order(
    strengths: Float[Array, "T k"], tolerance: float = 0.1
) -> tuple[Int[Array, " k"], Int[Array, " k"]]:
    """Tracked modes in the order in which they converge, and the saved time at which each did.

    A mode has converged at the first saved time after which it stays within `tolerance` of its
    last value (relative to the mode's largest size). Ties go to the stronger mode.

    - `strengths`: of every tracked mode over the saved times.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> strengths = jnp.asarray([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> order, when = icl.measures.convergence_order(strengths)
    >>> order.tolist(), when.tolist()
    ([1, 0], [2, 1])
    """
    final = strengths[-1:]
    size = jnp.max(jnp.abs(strengths), axis=0, keepdims=True)
    far = jnp.abs(strengths - final) > tolerance * size
    index = jnp.arange(1, strengths.shape[0] + 1)[:, None]
    settled = jnp.max(jnp.where(far, index, 0), axis=0)
    return jnp.lexsort((-jnp.abs(final[0]), settled)), settled


def tracked_effective_rank(
    strengths: Float[Array, "T k"], drop: int, tolerance: float = 0.1
) -> Float[Array, " T"]:
    """The effective rank (15) of |uᵢᵀ M(t) vᵢ| without the `drop` modes that converged first.

    The second reading of the marginalised effective rank: modes are followed by their
    directions, so a component that is learned early is dropped even when it ends up small.

    - `strengths`: of every tracked mode over the saved times, uᵢᵀ M(t) vᵢ.
    - `drop`: how many of the modes that converged first are left out.
    - `tolerance`: as in `convergence_order`.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> strengths = jnp.asarray([[0.1, 0.1, 0.1], [5.0, 0.1, 0.1], [5.0, 1.0, 1.0]])
    >>> icl.measures.tracked_effective_rank(strengths, drop=1).round(6).tolist()
    [2.0, 2.0, 2.0]
    """
    if not 0 <= drop < strengths.shape[1]:
        raise ValueError(f"drop must leave at least one of {strengths.shape[1]} modes, got {drop}")
    order, _ = convergence_order(strengths, tolerance)
    return jax.vmap(effective_rank)(jnp.abs(strengths)[:, order[drop:]])


def remove_modes(
    matrix: Float[Array, "m n"] | FactoredMatrix,
    left: Float[Array, "m k"],
    right: Float[Array, "n k"],
) -> Float[Array, "m n"] | FactoredMatrix:
    """(I - U Uᵀ) M (I - V Vᵀ): the matrix outside the tracked orthonormal modes.

    - `matrix`: M.
    - `left`, `right`: the modes U and V, as orthonormal columns.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> matrix, first = jnp.diag(jnp.asarray([2.0, 1.0])), jnp.eye(2)[:, :1]
    >>> icl.measures.remove_modes(matrix, first, first).tolist()
    [[0.0, 0.0], [0.0, 1.0]]
    """
    if isinstance(matrix, FactoredMatrix):
        return FactoredMatrix(
            matrix.left - left @ (left.T @ matrix.left),
            matrix.right - (matrix.right @ right) @ right.T,
        )
    rest = matrix - left @ (left.T @ matrix)
    return rest - (rest @ right) @ right.T


def relative_to_start(series: Float[Array, "T *rest"]) -> Float[Array, "T *rest"]:
    """A measure over saved times divided by its value at the first one (1 where that is zero).

    - `series`: the measure, over the saved times first.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> icl.measures.relative_to_start(jnp.asarray([2.0, 3.0, 1.0])).tolist()
    [1.0, 1.5, 0.5]
    """
    first = series[:1]
    return jnp.where(first != 0, series / jnp.where(first != 0, first, 1), 1)


def frequency_shares(table: Float[Array, "p d"]) -> Float[Array, " k"]:
    """Each frequency's share of the squared norm of a table M[a, ·] over a = 0 … p - 1.

    |M̂(k)|² + |M̂(-k)|² over ‖M - mean‖²_F, for k = 1 … ⌊p/2⌋; M̂ is the Fourier transform along a.
    The constant, k = 0, tells no number from another and is left out, so that the shares sum to
    1 (0 for a constant table). Rotations of the columns, the size of the table, shifts a → a + c
    and constants added to the rows do not matter; a → ua with u coprime to p permutes them.

    - `table`: the vector of every number a.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> wave = jnp.cos(2 * jnp.pi * 3 * jnp.arange(11) / 11)[:, None]
    >>> int(icl.measures.frequency_shares(wave).argmax()) + 1
    3
    """
    p = table.shape[0]
    if p < 2:
        raise ValueError(f"a table over numbers modulo p needs at least 2 rows, got {p}")
    transform = jnp.fft.rfft(table, axis=0)[1:]
    power = jnp.sum(jnp.real(transform) ** 2 + jnp.imag(transform) ** 2, axis=1)
    # A frequency and its negative are two but for p/2, which is its own negative.
    twice = np.where(2 * np.arange(1, p // 2 + 1) == p, 1.0, 2.0)
    power = power * jnp.asarray(twice, power.dtype)
    total = jnp.sum(power)
    return power / jnp.where(total > 0, total, 1)


def fourier_concentration(table: Float[Array, "p d"], count: int = 5) -> Float[Array, ""]:
    """The share of the squared norm (without the mean row) in the `count` largest frequencies.

    1 for a table that is a sum of at most `count` waves; near count/⌊p/2⌋, and a little above, for
    one of random numbers.

    - `table`: the vector of every number, such as its embedding.
    - `count`: how many frequencies are taken.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> wave = jnp.cos(2 * jnp.pi * 3 * jnp.arange(11) / 11)[:, None]
    >>> round(float(icl.measures.fourier_concentration(wave, count=1)), 6)
    1.0
    """
    shares = frequency_shares(table)
    if not 1 <= count <= shares.shape[0]:
        raise ValueError(
            f"there are {shares.shape[0]} frequencies modulo {table.shape[0]}, got count {count}"
        )
    return jnp.sum(jax.lax.top_k(shares, count)[0])
