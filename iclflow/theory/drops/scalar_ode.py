"""The aligned head: one value weight, τ dv/dt = g v² - λ b v⁵, in closed form (26)(66)(67)(72).

In units x = c v with c = (λ b / g)^(1/3) = 1/v* it is dx/dθ = x² (1 - x³), θ = (g/c) t/τ, so
`θ(x) = -1/x + F(x)`, `F(x) = (1/6) ln((1+x+x²)/(1-x)²) - (1/√3) arctan((2x+1)/√3)`.
Two of v, k, q may change sign together, so every formula is in |v|; times are t/τ.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

ROOT3 = math.sqrt(3.0)
F_ZERO = -math.pi / (6 * ROOT3)  # F(0)
F_INFINITY = -math.pi / (2 * ROOT3)  # F(∞)
X_MID = (1 - math.sqrt(0.5)) ** (1 / 3)  # where (1 - x³)² = 1/2: half of the loss drop is done
SERIES = [1 / (4 + 3 * n) for n in reversed(range(16))]  # ∫_x^∞ dx/(x² (x³ - 1)), in x^(-3)
ITERATIONS = 60  # of the safeguarded Newton method at most; a few are enough


def _f(x: Float[Array, "..."]) -> Float[Array, "..."]:
    log = jnp.log1p(x + x**2) - 2 * jnp.log(jnp.abs(1 - x))
    return log / 6 - jnp.arctan((2 * x + 1) / ROOT3) / ROOT3


def _theta(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """θ(x); measured from its limit F(∞) where x > 1, for which there is a series."""
    inside = jnp.where(x < 1, x, 0.5)
    outside = jnp.where(x > 1, x, 2.0)
    far = outside > 3
    reach = jnp.where(far, outside, 4.0)
    series = jnp.polyval(jnp.asarray(SERIES, x.dtype), reach**-3) * reach**-4
    near = jnp.where(far, 2.0, outside)
    above = jnp.where(far, series, -1 / near + _f(near) - F_INFINITY)
    return jnp.where(x < 1, -1 / inside + _f(inside), above)


def _coefficient(gain: Array, curvature: Array) -> Float[Array, "..."]:
    """c = (λ b / g)^(1/3); one where the mode cannot be learned (g = 0)."""
    alive = gain > 0
    return jnp.where(alive, curvature / jnp.where(alive, gain, 1.0), 1.0) ** (1 / 3)


def value_time(value: ArrayLike, gain: ArrayLike, curvature: ArrayLike) -> Float[Array, "..."]:
    """t(v)/τ = (1/g) (-1/v + c F(c v)) up to a constant on each side of v* (67).

    Differences are elapsed times, `value_time(v1, g, λb) - value_time(v0, g, λb)`, for v0 and v1
    on the same side of v*. A mode with g = 0 never moves: infinite.

    - `value`: v.
    - `gain`, `curvature`: g and λ b of the mode.

    >>> import iclflow as icl
    >>> early, late = (float(icl.theory.value_time(v, 0.1, 0.05)) for v in (0.1, 0.5))
    >>> early < late
    True
    """
    v, g, k = jnp.broadcast_arrays(*(jnp.asarray(a, float) for a in (value, gain, curvature)))
    c = _coefficient(g, k)
    alive = g > 0
    time = c / jnp.where(alive, g, 1.0) * _theta(c * jnp.abs(v))
    return jnp.where(alive, time, jnp.inf)


@jax.jit
def value_course(
    time: ArrayLike, initial: ArrayLike, gain: ArrayLike, curvature: ArrayLike
) -> Float[Array, "..."]:
    """v(t) of an aligned head (64), the inverse of (67), for v(0) below, at or above v*.

    `time` t/τ, `initial` v(0), `gain` g, `curvature` λ b broadcast together; differentiable.

    >>> import numpy as np, iclflow as icl
    >>> v = icl.theory.value_course(np.asarray([0.0, 1e4]), 0.1, gain=0.1, curvature=0.05)
    >>> np.round(v, 4).tolist(), round((0.1 / 0.05) ** (1 / 3), 4)
    ([0.1, 1.2599], 1.2599)
    """
    arrays = jnp.broadcast_arrays(
        *(jnp.asarray(a, float) for a in (time, initial, gain, curvature))
    )
    t, start, g, k = arrays
    c = _coefficient(g, k)
    x0 = c * jnp.abs(start)
    moving = (g > 0) & (x0 > 0) & (x0 != 1)
    safe = jnp.where(moving, x0, 0.5)
    x = _inverse(_theta(safe) + g / c * t, safe > 1)
    return jnp.sign(start) * jnp.where(moving, x, x0) / c


@jax.jit
def blow_up_course(
    remaining: ArrayLike, gain: ArrayLike, curvature: ArrayLike
) -> Float[Array, "..."]:
    """|v| of an aligned head that starts from nothing, by the time left to its blow-up, T - t.

    Small v is 1/(g (T - t)), so θ = F(0) - (g/c)(T - t); `remaining` may be negative.

    - `gain`, `curvature`: g and λ b of the mode.

    >>> import iclflow as icl
    >>> v = icl.theory.blow_up_course(1e5, gain=0.1, curvature=0.05)
    >>> round(float(v) * 1e5 * 0.1, 3)
    1.0
    """
    left, g, k = jnp.broadcast_arrays(
        *(jnp.asarray(a, float) for a in (remaining, gain, curvature))
    )
    c = _coefficient(g, k)
    x = _inverse(F_ZERO - g / c * left, jnp.zeros(left.shape, bool))
    return jnp.where(g > 0, x / c, 0.0)


def _inverse(theta: Float[Array, "..."], above: Array) -> Float[Array, "..."]:
    """x with θ(x) = `theta`, x > 1 where `above`; Newton in ln(x/(1-x)) or ln(x-1), bracketed."""
    tiny, target = jnp.finfo(theta.dtype).eps, theta
    # Later than this 1 - x is below rounding.
    theta = jnp.minimum(jax.lax.stop_gradient(theta), 1 - math.log(tiny) / 3)

    def x_of(u: Array) -> Array:
        return jnp.where(above, 1 + jnp.exp(u), jax.nn.sigmoid(u))

    # First guesses from θ ≈ -1/x + F(0), θ ≈ -ln|1-x|/3 + const and θ - F(∞) ≈ 1/(4 x⁴).
    late = -3 * (theta - (math.log(3.0) / 6 - math.pi / (3 * ROOT3) - 1))
    early = 1 / jnp.maximum(F_ZERO - theta, 1.2)
    below_guess = jnp.where(theta < -1.5, jnp.log(early / (1 - early)), -late)
    high = jnp.maximum(4 * jnp.where(above, theta, 1.0), tiny**4) ** (-1 / 4)
    late_above = jnp.where(above, late - 3 * F_INFINITY, 0.0)
    above_guess = jnp.where(high > 1.5, jnp.log(jnp.maximum(high - 1, tiny)), late_above)
    guess = jnp.where(above, above_guess, below_guess)
    sign = jnp.where(above, -1.0, 1.0)  # θ falls with u above v*

    def step(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        count, u, low, top, _ = carry
        x = x_of(u)
        error = sign * (_theta(x) - theta)
        low, top = jnp.where(error < 0, u, low), jnp.where(error < 0, top, u)
        slope = jnp.where(above, 1 / (x**2 * (1 + x + x**2)), 1 / (x * (1 + x + x**2)))
        newton = u - error / slope
        new = jnp.where((newton >= low) & (newton <= top), newton, (low + top) / 2)
        moved = jnp.max(jnp.abs(new - u) / (1 + jnp.abs(u)), initial=0.0)
        return count + 1, new, low, top, moved

    def going(carry: tuple[Array, ...]) -> Array:
        return (carry[0] < ITERATIONS) & (carry[4] > 32 * tiny)

    reach = 3 - math.log(tiny)
    limits = (jnp.minimum(guess, 0) - reach, jnp.maximum(guess, 0) + reach)
    begin = (jnp.zeros((), int), guess, *limits, jnp.full((), jnp.inf, theta.dtype))
    x = x_of(jax.lax.while_loop(going, step, begin)[1])
    # One more Newton step, outside the loop, carries the derivative: dx/dθ = x² (1 - x³).
    settled = jnp.abs(1 - x) <= 4 * tiny
    refined = x + x**2 * (1 - x**3) * (target - _theta(x))
    return jnp.where(settled, jnp.ones_like(x), refined)


def mid_drop_time(initial: ArrayLike, gain: ArrayLike, curvature: ArrayLike) -> Float[Array, "..."]:
    """When an aligned head, v = |k| = |q| at first, has done half of its loss drop.

    Exact from (67); 1/(g v₀) - 1.253391 c/g up to a relative O((c v₀)³).

    - `initial`: v₀.
    - `gain`, `curvature`: g and λ b of the mode.

    >>> import iclflow as icl
    >>> bool(icl.theory.mid_drop_time(0.01, gain=0.1, curvature=0.05) > 0)
    True
    """
    v, g, k = jnp.broadcast_arrays(*(jnp.asarray(a, float) for a in (initial, gain, curvature)))
    half = X_MID / _coefficient(g, k)
    elapsed = value_time(half, g, k) - value_time(v, g, k)
    return jnp.where(g > 0, elapsed, jnp.inf)


def paper_duration(value: ArrayLike, gain: ArrayLike) -> Float[Array, "..."]:
    """(68)(73): a plateau lasts about τ/(g |v|), v of the next head when the plateau begins.

    An order of magnitude: it assumes an aligned head, v = |k| = |q|, which a random one is not
    (predicted over true duration: median 0.4 to 0.6, from 0.2 to 1.2, at every init scale).

    - `value`, `gain`: v and g.

    >>> import iclflow as icl
    >>> round(float(icl.theory.paper_duration(0.01, gain=0.1)), 6)
    1000.0
    """
    return 1 / (jnp.asarray(gain, float) * jnp.abs(jnp.asarray(value, float)))
