"""Dormant heads on a plateau: integrable, with a blow-up time for each (any rank, any signs).

While the loss rests at M(S) a small head obeys τ dv/dt = Σᵣ kᵣᵀ A qᵣ, τ dk/dt = v A q,
τ dq/dt = v Aᵀ k with the constant A = A_S. In the singular basis of A, with p = k + q and
n = k - q, the phase s = ∫ v dt/τ solves it: `p_d → p_d e^{g_d s}`, `n_d → n_d e^{-g_d s}` (62)(63)

    v² = W(s) = v(0)² + ¼ Σ_d [P_d (e^{2 g_d s} - 1) + N_d (e^{-2 g_d s} - 1)],  P_d = Σᵣ p_{rd}²,

and s runs to ±∞ in a finite time, ∫ ds/√W, by quadrature (`EscapePath`). W is convex: a head that
moves towards a zero of W turns there and escapes on the other side. Everything is NumPy, vectorised
over heads; times t/τ. Keys and queries turn towards the unlearned modes (62)(63)(70).
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Self

import jax.numpy as jnp
import numpy as np
import scipy
from jaxtyping import Array, ArrayLike, Bool, Float

from iclflow.models import Separate
from iclflow.theory.drops.quadratic import separate_weights

PANELS, ORDER = 14, 12  # composite Gauss-Legendre in a variable where the integrand is smooth
NODES, WEIGHTS = np.polynomial.legendre.leggauss(ORDER)
LOG_END = 2 * np.log(1e14)  # the integral is cut where √W has grown 1e14 times
LOG_MAX = 700.0  # of an exponential
FLOOR = 1e-290
PORTION = 2**15  # numbers at a time: temporaries of this size stay in the cache
CLOSEST = 1e-15  # distance of two zeros of W that rounding can tell apart

Head = Float[np.ndarray, " H"]
HeadMode = Float[np.ndarray, "H D"]


def excess(up: HeadMode, down: HeadMode, gains: np.ndarray, s: np.ndarray) -> np.ndarray:
    """W(s) - W(0) = ¼ Σ [P (e^{2gs} - 1) + N (e^{-2gs} - 1)] at s [H, ...]."""
    points = s.reshape(len(s), -1)
    rows = max(1, PORTION // max(points.shape[1] * gains.size, 1))
    if rows < len(points):
        parts = [slice(i, i + rows) for i in range(0, len(points), rows)]
        return np.concatenate([excess(up[i], down[i], gains, s[i]) for i in parts])
    rise = np.expm1(np.minimum(2 * gains * np.abs(points)[..., None], LOG_MAX))
    fall = rise / (1 + rise)  # 1 - e^{-2gs}: one exponential serves both
    pair = np.stack([up, down], axis=-1)
    ahead, back = rise @ pair, fall @ pair
    found = np.where(points >= 0, ahead[..., 0] - back[..., 1], ahead[..., 1] - back[..., 0])
    return found.reshape(s.shape) / 4


def slope_of(up: HeadMode, down: HeadMode, gains: np.ndarray, s: np.ndarray) -> np.ndarray:
    """W'(s) = ½ Σ g (P e^{2gs} - N e^{-2gs}) at s [H]."""
    z = 2 * gains * s[:, None]
    return np.sum(gains * (up * np.exp(z) - down * np.exp(-z)), -1) / 2


@dataclasses.dataclass(frozen=True)
class EscapePath:
    """The way of each head to its blow-up, parametrised by x in which dt/dx is smooth.

    Weights are scaled to about one and s by the largest gain. The head is turned (s → -s, P ↔ N) so
    that it ends at s = +∞. Where W has zeros s₋ < s₊, the head starts right of s₊, and
    `s = s₊ + δ sinh² x`, δ = min(s₊ - s₋, 1), with x < 0 before the turn: 1/√W has its other
    singularity δ to the left, and x resolves both. Where W has none, `s = s_c + δ sinh x` about the
    minimum, of width δ.
    """

    gains: Float[np.ndarray, " D"]
    up: Float[np.ndarray, "H D"]  # P at the centre, after turning
    down: Float[np.ndarray, "H D"]
    least: Float[np.ndarray, " H"]  # W at the centre: 0, or the minimum
    centre: Float[np.ndarray, " H"]
    width: Float[np.ndarray, " H"]  # δ
    turns: Bool[np.ndarray, " H"]  # whether W has zeros
    sign: Float[np.ndarray, " H"]
    speed: Float[np.ndarray, " H"]  # value weight = speed times √W
    top: float  # the largest gain: rescaled phase = top times phase, time = speed * top times time
    edges: Float[np.ndarray, "H n"]  # ends of the panels in x
    sums: Float[np.ndarray, "H n"]  # time at those ends
    moving: Bool[np.ndarray, " H"]  # whether the head ever escapes

    @property
    def blow_up(self) -> Head:
        """The time of the escape, infinite for a head that stays."""
        return np.where(self.moving, self.sums[:, -1], np.inf) / (self.speed * self.top)

    @classmethod
    def of(cls, values: Head, up: HeadMode, down: HeadMode, gains: Float[np.ndarray, " D"]) -> Self:
        """Find where each head turns and add up its time panel by panel."""
        alive = gains > 0
        top = float(gains.max(initial=0.0)) or 1.0
        gains, up, down = gains[alive] / top, up[:, alive], down[:, alive]
        size = np.sqrt(values**2 + up.sum(-1) + down.sum(-1))
        # A power of two: rounding would move zeros of W that are close.
        scale = np.ldexp(1.0, np.frexp(np.where(size > 0, size, 1.0))[1])
        v, up, down = values / scale, up / scale[:, None] ** 2, down / scale[:, None] ** 2
        driven = (gains * (up + down)).sum(-1) > 0
        stuck = (v == 0) & (slope_of(up, down, gains, np.zeros_like(v)) == 0)
        lone_up, lone_down = up.sum(-1) == 0, down.sum(-1) == 0
        up = np.where(lone_up[:, None], FLOOR, up)
        down = np.where(lone_down[:, None], FLOOR, down)

        lowest = _minimum(up, down, gains)
        least = v**2 + excess(up, down, gains, lowest)
        turns = least <= 0
        sign = np.where(np.where(turns, lowest > 0, v < 0), -1.0, 1.0)
        flip = sign < 0
        up, down = np.where(flip[:, None], down, up), np.where(flip[:, None], up, down)
        lowest, v = sign * lowest, sign * v
        moving = driven & ~stuck & ~np.where(flip, lone_down, lone_up)
        lowest = np.where(moving, lowest, 0.0)

        centre = lowest.copy()
        if turns.any():
            centre[turns] = _zero(v[turns], up[turns], down[turns], gains, lowest[turns])
        z = 2 * gains * centre[:, None]
        up, down = up * np.exp(z), down * np.exp(-z)
        least = np.where(turns, 0.0, least)
        curvature = np.sum(gains**2 * (up + down), -1)
        # Zeros that are close lie evenly about the minimum; of far ones the distance is not used.
        gap = np.clip(2 * (centre - lowest), CLOSEST, 1.0)
        bowl = np.sqrt(2 * least / np.maximum(curvature, FLOOR))
        width = np.where(turns, gap, np.where(bowl > 0, bowl, 1.0))
        with np.errstate(divide="ignore"):
            reach = np.min((LOG_END + np.log(4) - np.log(up)) / (2 * gains), -1, initial=np.inf)
        reach = np.where(moving, reach, 0.0)  # a head at rest needs no path
        before = np.sqrt(np.maximum(-centre, 0) / width)
        low = np.arcsinh(np.where(turns, np.where(v < 0, -before, before), -centre / width))
        high = np.arcsinh(np.where(turns, np.sqrt(reach / width), reach / width))
        edges = low[:, None] + np.maximum(high - low, 0)[:, None] * np.linspace(0, 1, PANELS + 1)
        path = cls(
            gains, up, down, least, centre, width, turns, sign, scale, top,
            edges, np.zeros_like(edges), moving,
        )  # fmt: skip
        parts = path._quadrature(edges[:, :-1], edges[:, 1:])
        sums = np.concatenate([np.zeros((len(v), 1)), np.cumsum(parts, axis=1)], axis=1)
        return dataclasses.replace(path, sums=sums)

    def only(self, keep: Bool[np.ndarray, " H"] | slice) -> Self:
        """The paths of some of the heads."""
        return dataclasses.replace(self, **{name: getattr(self, name)[keep] for name in PER_HEAD})

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The paths of all heads of several sets with equal gains."""
        fields = {name: np.concatenate([getattr(p, name) for p in parts]) for name in PER_HEAD}
        return dataclasses.replace(parts[0], **fields)

    def _place(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """s - s_c and its derivative at x [H, ...]."""
        width, turns = (a.reshape(-1, *(1,) * (x.ndim - 1)) for a in (self.width, self.turns))
        sinh, cosh = np.sinh(x), np.cosh(x)
        # At the turn itself both go to zero, and their ratio does not.
        away = np.maximum(np.abs(sinh), 1e-20)
        s = width * np.where(turns, away**2, sinh)
        return s, width * cosh * np.where(turns, 2 * away, 1.0)

    def _rate(self, x: np.ndarray) -> np.ndarray:
        """dt/dx = (ds/dx)/√W at x [H, ...]."""
        s, stretch = self._place(x)
        least = self.least.reshape(-1, *(1,) * (x.ndim - 1))
        root = np.sqrt(least + excess(self.up, self.down, self.gains, s))
        return stretch / np.maximum(root, FLOOR)

    def _quadrature(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """The time between low and high, one Gauss-Legendre panel each."""
        half = (high - low) / 2
        x = (low + half)[..., None] + half[..., None] * NODES
        return half * (self._rate(x) @ WEIGHTS)

    def at(
        self, times: Float[np.ndarray, "#H T"]
    ) -> tuple[Float[np.ndarray, "H T"], Float[np.ndarray, "H T"]]:
        """Value weight and phase s of the heads that escape, at times before they do."""
        if np.any(times.max(axis=1, initial=0.0) >= self.blow_up):
            raise ValueError("a head escapes before that time; propagate to an earlier one")
        wanted = (self.speed * self.top)[:, None] * times
        panel = np.sum(self.sums[:, None] <= wanted[..., None], axis=-1) - 1
        panel = np.clip(panel, 0, PANELS - 1)
        low, high = (np.take_along_axis(self.edges, panel + end, axis=1) for end in (0, 1))
        begin, whole = (np.take_along_axis(self.sums, panel + end, axis=1) for end in (0, 1))
        left = wanted - begin
        share = left / np.where(whole > begin, whole - begin, 1.0)
        x, bottom, ceiling = low + share.clip(0, 1) * (high - low), low, high
        for _ in range(60):
            error = self._quadrature(low, x) - left
            bottom, ceiling = np.where(error < 0, x, bottom), np.where(error < 0, ceiling, x)
            newton = x - error / self._rate(x)
            inside = (newton >= bottom) & (newton <= ceiling)
            new = np.where(inside, newton, (bottom + ceiling) / 2)
            done = np.abs(new - x) <= 1e-14 * (1 + np.abs(x))  # the next step would be rounding
            x = new
            if np.all(done | ~self.moving[:, None]):
                break
        s, _ = self._place(x)
        square = self.least[:, None] + excess(self.up, self.down, self.gains, s)
        root = np.sqrt(np.maximum(square, 0)) * np.where(self.turns[:, None] & (x < 0), -1, 1)
        sign = self.sign[:, None]
        return sign * root * self.speed[:, None], sign * (self.centre[:, None] + s) / self.top


PER_HEAD = [f.name for f in dataclasses.fields(EscapePath) if f.name not in ("gains", "top")]


def _minimum(up: HeadMode, down: HeadMode, gains: np.ndarray) -> Head:
    """Where W' = 0: Newton on ln Σ g P e^{2gs} - ln Σ g N e^{-2gs}, which is nearly linear."""
    s = np.zeros(len(up))
    if gains.size == 0:
        return s
    low, high = np.full(len(up), -np.inf), np.full(len(up), np.inf)
    with np.errstate(divide="ignore"):
        log_up, log_down = np.log(gains * up), np.log(gains * down)
    for _ in range(200):
        z = 2 * gains * s[:, None]
        a, b = log_up + z, log_down - z
        a_top, b_top = a.max(-1, keepdims=True), b.max(-1, keepdims=True)
        a_sum, b_sum = np.exp(a - a_top), np.exp(b - b_top)
        value = (a_top - b_top)[:, 0] + np.log(a_sum.sum(-1) / b_sum.sum(-1))
        slope = 2 * (a_sum @ gains / a_sum.sum(-1) + b_sum @ gains / b_sum.sum(-1))
        low, high = np.where(value < 0, s, low), np.where(value < 0, high, s)
        new = s - value / slope
        bounded = np.isfinite(low) & np.isfinite(high)
        outside = bounded & ((new < low) | (new > high))
        new = np.where(outside, (np.where(bounded, low + high, 0)) / 2, new)
        done = np.abs(new - s) <= 1e-15 * (1 + np.abs(s))
        s = new
        if np.all(done):
            break
    return s


def _zero(v: Head, up: HeadMode, down: HeadMode, gains: np.ndarray, minimum: Head) -> Head:
    """The larger zero of W, between its minimum and s = 0, of heads that have one."""
    low, high = np.minimum(minimum, 0.0), np.zeros_like(v)
    s, last = high.copy(), np.full_like(v, np.inf)
    for _ in range(200):
        value = v**2 + excess(up, down, gains, s)
        low, high = np.where(value < 0, s, low), np.where(value < 0, high, s)
        slope = slope_of(up, down, gains, s)
        new = s - value / np.where(slope > 0, slope, 1.0)
        inside = (new >= low) & (new <= high) & (slope > 0)
        new = np.where(inside, new, (low + high) / 2)
        step = np.abs(new - s)
        # Close to the zero W is rounding, and steps that no longer shrink are noise.
        done = step <= np.where(step > last / 2, 1e-12, 2e-16) * np.abs(s)
        s, last = new, step
        if np.all(done):
            break
    return s


@dataclasses.dataclass(frozen=True)
class DormantHeads:
    """Small heads (61)(69) in the singular basis of A_S; learned modes are frozen, gain 0 (E6)."""

    values: Float[np.ndarray, " H"]  # v
    sums: Float[np.ndarray, "H R D"]  # p = k + q
    differences: Float[np.ndarray, "H R D"]  # n = k - q
    gains: Float[np.ndarray, " D"]  # g, the singular values of A_S

    @classmethod
    def of(
        cls,
        values: ArrayLike,
        keys: ArrayLike,
        queries: ArrayLike,
        residual: ArrayLike,
    ) -> Self:
        """Heads given by their weights [H], [H R D], [H R D], on the plateau with residual A_S."""
        left, gains, right = np.linalg.svd(np.asarray(residual))
        k, q = np.asarray(keys) @ left, np.asarray(queries) @ right.T
        return cls(np.asarray(values), k + q, k - q, gains)

    def blow_up(self) -> tuple[Float[np.ndarray, " H"], Float[np.ndarray, " H"]]:
        """The time until each head escapes (infinite if it never does) and the sign v then has."""
        if self.values.size == 0:
            return np.zeros(0), np.zeros(0)
        return self._path.blow_up, self._path.sign

    @functools.cached_property
    def _path(self) -> EscapePath:
        up, down = (np.sum(a**2, axis=1) for a in (self.sums, self.differences))
        return EscapePath.of(self.values, up, down, self.gains)

    def only(self, keep: Bool[np.ndarray, " H"] | slice) -> Self:
        """Some of the heads."""
        some = type(self)(self.values[keep], self.sums[keep], self.differences[keep], self.gains)
        if "_path" in self.__dict__:
            some.__dict__["_path"] = self._path.only(keep)
        return some

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """All heads of several sets with equal gains, so that NumPy is called once for them."""
        values, sums, differences = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("values", "sums", "differences")
        )
        whole = cls(values, sums, differences, parts[0].gains)
        if all("_path" in part.__dict__ for part in parts):
            whole.__dict__["_path"] = EscapePath.join([part._path for part in parts])
        return whole

    def after(self, time: float | Float[np.ndarray, " H"]) -> Self:
        """The heads a time later (one for all, or one each), before any of them has escaped."""
        if self.values.size == 0 or not np.any(time):
            return self
        times = np.broadcast_to(np.asarray(time, float), self.values.shape)[:, None]
        values, sums, differences = (a[0] for a in self.along(times))
        return dataclasses.replace(self, values=values, sums=sums, differences=differences)

    def along(
        self, times: Float[np.ndarray, "#H T"]
    ) -> tuple[
        Float[np.ndarray, "T H"], Float[np.ndarray, "T H R D"], Float[np.ndarray, "T H R D"]
    ]:
        """v, p and n at times (a row for all heads, or one each) before any head has escaped."""
        values, phase = self._path.at(times)
        rows = np.broadcast_to(times, phase.shape)
        for i in np.flatnonzero(~self._path.moving):
            for j, time in enumerate(rows[i]):
                values[i, j], phase[i, j] = self._rest(int(i), float(time))
        growth = np.exp(self.gains * phase.T[:, :, None, None])
        return values.T, self.sums * growth, self.differences / growth

    def _rest(self, head: int, time: float) -> tuple[float, float]:
        """A head that never escapes: s'' = W'(s)/2 from s = 0, s' = v."""
        up, down = (np.sum(a[head] ** 2, axis=0)[None] for a in (self.sums, self.differences))
        v = float(self.values[head])

        def slope(t: float, y: np.ndarray) -> list[float]:
            return [y[1], float(slope_of(up, down, self.gains, y[:1])[0]) / 2]

        if v == 0 and slope(0.0, np.zeros(2))[1] == 0:
            return 0.0, 0.0
        size = abs(v) + float(np.sqrt(up.sum() + down.sum()))
        solution = scipy.integrate.solve_ivp(
            slope, (0, time), [0.0, v], "DOP853", rtol=1e-11, atol=1e-11 * size
        )
        return float(solution.y[1, -1]), float(solution.y[0, -1])


def aligned_weights(
    keys: Float[Array, "*R D"],
    queries: Float[Array, "*R D"],
    residual: Float[Array, "D D"],
    phase: ArrayLike,
) -> tuple[Float[Array, "*R D"], Float[Array, "*R D"]]:
    """Key and query of one head after the phase s = ∫ v dt/τ on a plateau with residual A_S.

    τ dk/dt = v A q, τ dq/dt = v Aᵀ k (62) has the solution (63)(70): along the singular vectors
    (u_d, w_d) of A with gain g_d, `k_d = cosh(g_d s) k_d + sinh(g_d s) q_d` and the same with k
    and q exchanged, that is k ± q times e^{±g_d s}. On learned modes, g_d = 0, each of k and q
    is frozen by itself (E6; (70) has their sum instead). Linear in v only through s: exact while
    the head is small.

    - `keys`, `queries`: R of each, at the start.
    - `residual`, `phase`: A_S and s.

    >>> import jax.numpy as jnp, iclflow as icl
    >>> e = jnp.eye(2)[:1]
    >>> k, q = icl.theory.aligned_weights(e, e, jnp.diag(jnp.asarray([0.3, 0.1])), 1.0)
    >>> bool(jnp.allclose(k, q)), round(float(jnp.log(k[0, 0])), 4)
    (True, 0.3)
    """
    left, gains, right = jnp.linalg.svd(residual)
    angle = gains * jnp.asarray(phase, residual.dtype)
    cosh, sinh = jnp.cosh(angle), jnp.sinh(angle)
    k, q = keys @ left, queries @ right.T

    def along(scale: Array, part: Array) -> Array:
        return part * jnp.broadcast_to(scale, part.shape)

    new_k = (along(cosh, k) + along(sinh, q)) @ left.T
    new_q = (along(sinh, k) + along(cosh, q)) @ right
    return new_k, new_q


def plateau_weights(
    model: Separate, residual: Float[Array, "D D"] | Float[np.ndarray, "D D"], time: float
) -> Separate:
    """All weights of small heads a time t/τ later on a plateau with residual A_S.

    `ValueError` if a head escapes before; `DormantHeads.blow_up` says when.

    - `model`: the weights now.
    - `residual`, `time`: A_S, and t/τ from now on.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> start = icl.Separate.initialiser(task, heads=2, scale=0.01)(jax.random.key(0))
    >>> residual = icl.theory.residual_matrix(start, task)
    >>> later = icl.theory.plateau_weights(start, residual, 10.0)
    >>> bool(abs(later.keys).sum() > abs(start.keys).sum())
    True
    """
    values, keys, queries = separate_weights(model)
    left, _, right = np.linalg.svd(np.asarray(residual, np.float64))
    later = DormantHeads.of(values, keys, queries, np.asarray(residual, np.float64)).after(time)
    dtype = model.values.dtype
    return Separate(
        values=jnp.asarray(later.values[:, None, None], dtype),
        keys=jnp.asarray((later.sums + later.differences) / 2 @ left.T, dtype),
        queries=jnp.asarray((later.sums - later.differences) / 2 @ right, dtype),
    )
