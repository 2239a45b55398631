"""How few frequencies a table over the numbers modulo p uses: a progress measure of grokking."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def frequency_shares(table: Float[Array, "p d"]) -> Float[Array, " k"]:
    """Each frequency's share of the squared norm of a table M[a, ·] over a = 0 … p - 1.

    |M̂(k)|² + |M̂(-k)|² over ‖M - mean‖²_F, for k = 1 … ⌊p/2⌋; M̂ is the Fourier transform along a.
    The constant, k = 0, tells no number from another and is left out, so that the shares sum to
    1 (0 for a constant table). Rotations of the columns, the size of the table, shifts a → a + c
    and constants added to the rows do not matter; a → ua with u coprime to p permutes them.
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
    """
    shares = frequency_shares(table)
    if not 1 <= count <= shares.shape[0]:
        raise ValueError(
            f"there are {shares.shape[0]} frequencies modulo {table.shape[0]}, got count {count}"
        )
    return jnp.sum(jax.lax.top_k(shares, count)[0])
