"""Dormant heads on a plateau: integrable, with a blow-up time for each (any rank, any signs).

While the loss rests at M(S) a small head obeys τ dv/dt = Σᵣ kᵣᵀ A qᵣ, τ dk/dt = v A q,
τ dq/dt = v Aᵀ k with the constant A = A_S. In the singular basis of A, with p = k + q and
n = k - q, the phase s = ∫ v dt/τ solves it: `p_d → p_d e^{g_d s}`, `n_d → n_d e^{-g_d s}` (62)(63)

    v² = W(s) = v(0)² + ¼ Σ_d [P_d (e^{2 g_d s} - 1) + N_d (e^{-2 g_d s} - 1)],  P_d = Σᵣ p_{rd}²,

and s runs to ±∞ in a finite time, ∫ ds/√W. W is convex: a head that moves towards a zero of W
turns there and escapes on the other side. Everything is NumPy, vectorised over heads; times t/τ.
"""

import dataclasses
import functools
from typing import Self

import numpy as np
from jaxtyping import Bool, Float
from scipy.integrate import solve_ivp

PANELS, ORDER = 20, 12  # composite Gauss-Legendre in a variable where the integrand is smooth
NODES, WEIGHTS = np.polynomial.legendre.leggauss(ORDER)
LOG_END = 2 * np.log(1e17)  # the integral is cut where √W has grown 1e17 times
LOG_MAX = 700.0  # of an exponential
FLOOR = 1e-290

Head = Float[np.ndarray, " H"]
HeadMode = Float[np.ndarray, "H D"]


@dataclasses.dataclass(frozen=True)
class DormantHeads:
    """Small heads in the singular basis of A_S; learned modes have gain 0 and are frozen (E6)."""

    values: Float[np.ndarray, " H"]  # v
    sums: Float[np.ndarray, "H R D"]  # p = k + q
    differences: Float[np.ndarray, "H R D"]  # n = k - q
    gains: Float[np.ndarray, " D"]  # g, the singular values of A_S

    @classmethod
    def of(
        cls,
        values: Float[np.ndarray, " H"],
        keys: Float[np.ndarray, "H R D"],
        queries: Float[np.ndarray, "H R D"],
        residual: Float[np.ndarray, "D D"],
    ) -> Self:
        """Heads given by their weights, on the plateau with residual A_S."""
        left, gains, right = np.linalg.svd(residual)
        k, q = keys @ left, queries @ right.T
        return cls(values, k + q, k - q, gains)

    def blow_up(self) -> tuple[Head, Head]:
        """The time until each head escapes (infinite if it never does) and the sign v then has."""
        if self.values.size == 0:
            return np.zeros(0), np.zeros(0)
        return self._path.total / self._path.unit, self._path.sign

    @functools.cached_property
    def _path(self) -> "_Path":
        return _Path.of(self)

    def only(self, keep: Bool[np.ndarray, " H"]) -> Self:
        """Some of the heads."""
        some = type(self)(self.values[keep], self.sums[keep], self.differences[keep], self.gains)
        if "_path" in self.__dict__:
            some.__dict__["_path"] = self._path.only(keep, some)
        return some

    def after(self, time: float) -> Self:
        """The heads a time later, before any of them has escaped."""
        if self.values.size == 0 or time == 0:
            return self
        values, phase = self._path.at(time)
        growth = np.exp(self.gains[None, None, :] * phase[:, None, None])
        return dataclasses.replace(
            self, values=values, sums=self.sums * growth, differences=self.differences / growth
        )


def _excess(up: HeadMode, down: HeadMode, gains: np.ndarray, s: np.ndarray) -> np.ndarray:
    """W(s) - W(0) = ¼ Σ [P (e^{2gs} - 1) + N (e^{-2gs} - 1)] at s [H, ...]."""
    points = s.reshape(len(s), -1)
    rise = np.expm1(np.minimum(2 * gains * np.abs(points)[..., None], LOG_MAX))
    fall = rise / (1 + rise)  # 1 - e^{-2gs}: one exponential serves both
    ahead, behind = (np.einsum("hxd,hd->hx", rise, a) for a in (up, down))
    left, right = (np.einsum("hxd,hd->hx", fall, a) for a in (up, down))
    return np.where(points >= 0, ahead - right, behind - left).reshape(s.shape) / 4


def _slope(up: HeadMode, down: HeadMode, gains: np.ndarray, s: np.ndarray) -> np.ndarray:
    """W'(s) = ½ Σ g (P e^{2gs} - N e^{-2gs}) at s [H]."""
    z = 2 * gains * s[:, None]
    return np.sum(gains * (up * np.exp(z) - down * np.exp(-z)), -1) / 2


@dataclasses.dataclass(frozen=True)
class _Path:
    """The way of each head to its blow-up, parametrised by x in which dt/dx is smooth.

    Weights are scaled to one and s by the largest gain. The head is turned (s → -s, p ↔ n) so
    that it ends at s = +∞. Where W has zeros, the head starts right of the larger, s₊, and
    `s = s₊ + x²`, with x < 0 before the turn; where it has none `s = s_c + δ sinh x` about the
    minimum, of width δ. In between, x is itself `sinh u`, as s may run over several scales.
    """

    gains: Float[np.ndarray, " D"]
    up: Float[np.ndarray, "H D"]  # P at the centre, after turning
    down: Float[np.ndarray, "H D"]
    least: Float[np.ndarray, " H"]  # W at the centre: 0, or the minimum
    centre: Float[np.ndarray, " H"]
    width: Float[np.ndarray, " H"]  # δ where W has no zero, else 0
    sign: Float[np.ndarray, " H"]
    unit: Float[np.ndarray, " H"]  # rescaled time = unit times time
    edges: Float[np.ndarray, "H n"]  # ends of the panels in u
    sums: Float[np.ndarray, "H n"]  # time at those ends
    moving: Bool[np.ndarray, " H"]  # whether the head ever escapes
    heads: DormantHeads

    @property
    def total(self) -> Head:
        """The blow-up time in rescaled units."""
        return np.where(self.moving, self.sums[:, -1], np.inf)

    @classmethod
    def of(cls, heads: DormantHeads) -> Self:
        """Find where each head turns and add up its time panel by panel."""
        alive = heads.gains > 0
        top = float(heads.gains.max(initial=0.0))
        gains = heads.gains[alive] / (top if top > 0 else 1.0)
        up = np.sum(heads.sums[..., alive] ** 2, axis=1)
        down = np.sum(heads.differences[..., alive] ** 2, axis=1)
        size = np.sqrt(heads.values**2 + up.sum(-1) + down.sum(-1))
        scale = np.where(size > 0, size, 1.0)
        v, up, down = heads.values / scale, up / scale[:, None] ** 2, down / scale[:, None] ** 2
        driven = (gains * (up + down)).sum(-1) > 0
        stuck = (v == 0) & (_slope(up, down, gains, np.zeros_like(v)) == 0)
        lone_up, lone_down = up.sum(-1) == 0, down.sum(-1) == 0
        up = np.where(lone_up[:, None], FLOOR, up)
        down = np.where(lone_down[:, None], FLOOR, down)

        centre = _minimum(up, down, gains)
        least = v**2 + _excess(up, down, gains, centre)
        zeros = least <= 0
        sign = np.where(np.where(zeros, centre > 0, v < 0), -1.0, 1.0)
        flip = sign < 0
        up, down = np.where(flip[:, None], down, up), np.where(flip[:, None], up, down)
        centre, v = sign * centre, sign * v
        moving = driven & ~stuck & ~np.where(flip, lone_down, lone_up)
        centre = np.where(moving, centre, 0.0)

        centre = np.where(zeros, _zero(v, up, down, gains, centre, zeros), centre)
        z = 2 * gains * centre[:, None]
        up, down = up * np.exp(z), down * np.exp(-z)
        least = np.where(zeros, 0.0, least)
        curvature = np.sum(gains**2 * (up + down), -1)
        width = np.where(zeros, 0.0, np.sqrt(2 * least / np.maximum(curvature, FLOOR)))
        with np.errstate(divide="ignore"):
            reach = np.min((LOG_END + np.log(4) - np.log(up)) / (2 * gains), -1, initial=np.inf)
        reach = np.where(moving, reach, 0.0)  # a head at rest needs no path
        safe = np.where(width > 0, width, 1.0)
        start = np.where(
            zeros,
            np.where(v < 0, -1.0, 1.0) * np.sqrt(np.maximum(-centre, 0)),
            np.arcsinh(-centre / safe),
        )
        stop = np.where(zeros, np.sqrt(reach), np.arcsinh(reach / safe))
        low, high = np.arcsinh(start), np.arcsinh(np.maximum(stop, start))
        edges = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, PANELS + 1)
        path = cls(
            gains, up, down, least, centre, width, sign, scale * (top if top > 0 else 1.0),
            edges, np.zeros_like(edges), moving, heads,
        )  # fmt: skip
        parts = path._quadrature(edges[:, :-1], edges[:, 1:])
        sums = np.concatenate([np.zeros((len(v), 1)), np.cumsum(parts, axis=1)], axis=1)
        return dataclasses.replace(path, sums=sums)

    def only(self, keep: np.ndarray, heads: DormantHeads) -> Self:
        """The paths of some of the heads."""
        per_head = [f.name for f in dataclasses.fields(self) if f.name not in ("gains", "heads")]
        kept = {name: getattr(self, name)[keep] for name in per_head}
        return dataclasses.replace(self, heads=heads, **kept)

    def _s(self, u: np.ndarray) -> np.ndarray:
        """S - s_c at u [H, ...]."""
        x = np.sinh(u)
        width = self.width.reshape(-1, *(1,) * (u.ndim - 1))
        return np.where(width > 0, width * np.sinh(x), x**2)

    def _rate(self, u: np.ndarray) -> np.ndarray:
        """dt/du = (ds/du)/√W at u [H, ...]."""
        shape = (-1, *(1,) * (u.ndim - 1))
        x, width = np.sinh(u), self.width.reshape(shape)
        s = np.where(width > 0, width * np.sinh(x), np.maximum(x**2, 1e-40))
        root = np.sqrt(self.least.reshape(shape) + _excess(self.up, self.down, self.gains, s))
        stretch = np.where(width > 0, width * np.cosh(x), 2 * np.maximum(np.abs(x), 1e-20))
        return stretch * np.cosh(u) / np.maximum(root, FLOOR)

    def _quadrature(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """The time between low and high, one Gauss-Legendre panel each."""
        half = (high - low) / 2
        u = (low + half)[..., None] + half[..., None] * NODES
        return half * (self._rate(u) @ WEIGHTS)

    def at(self, time: float) -> tuple[Head, Head]:
        """Value weight and phase s at a time, in the units and signs of the heads."""
        wanted = self.unit * time
        if np.any(self.moving & (wanted >= self.total)):
            raise ValueError("a head escapes before that time; propagate to an earlier one")
        rows = np.arange(len(wanted))
        panel = np.sum(self.sums <= wanted[:, None], axis=1) - 1
        panel = np.clip(panel, 0, PANELS - 1)
        low, high = self.edges[rows, panel], self.edges[rows, panel + 1]
        left = wanted - self.sums[rows, panel]
        u, bottom, ceiling = (low + high) / 2, low, high
        for _ in range(60):
            error = self._quadrature(low, u) - left
            bottom, ceiling = np.where(error < 0, u, bottom), np.where(error < 0, ceiling, u)
            newton = u - error / self._rate(u)
            inside = (newton >= bottom) & (newton <= ceiling)
            new = np.where(inside, newton, (bottom + ceiling) / 2)
            done = np.abs(new - u) <= 4e-16 * (1 + np.abs(u))
            u = new
            if np.all(done | ~self.moving):
                break
        s = self._s(u)
        speed = np.sqrt(np.maximum(self.least + _excess(self.up, self.down, self.gains, s), 0))
        speed = np.where((self.width == 0) & (u < 0), -speed, speed)
        top = float(self.heads.gains.max(initial=0.0))
        values = self.sign * speed * self.unit / (top if top > 0 else 1.0)
        phase = self.sign * (self.centre + s) / (top if top > 0 else 1.0)
        for i in np.flatnonzero(~self.moving):
            values[i], phase[i] = _rest(self.heads, int(i), time)
        return values, phase


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


def _zero(
    v: Head,
    up: HeadMode,
    down: HeadMode,
    gains: np.ndarray,
    minimum: Head,
    wanted: Bool[np.ndarray, " H"],
) -> Head:
    """The larger zero of W, between its minimum and s = 0, where it is `wanted`."""
    low, high = np.minimum(minimum, 0.0), np.zeros_like(v)
    s = high.copy()
    for _ in range(200):
        value = v**2 + _excess(up, down, gains, s)
        low, high = np.where(value < 0, s, low), np.where(value < 0, high, s)
        slope = _slope(up, down, gains, s)
        new = s - value / np.where(slope > 0, slope, 1.0)
        inside = (new >= low) & (new <= high) & (slope > 0)
        new = np.where(inside, new, (low + high) / 2)
        done = np.abs(new - s) <= 2e-16 * np.abs(s)
        s = new
        if np.all(done | ~wanted):
            break
    return s


def _rest(heads: DormantHeads, head: int, time: float) -> tuple[float, float]:
    """A head that never escapes: s'' = W'(s)/2 from s = 0, s' = v."""
    up = np.sum(heads.sums[head] ** 2, axis=0)[None]
    down = np.sum(heads.differences[head] ** 2, axis=0)[None]
    v = float(heads.values[head])

    def slope(t: float, y: np.ndarray) -> list[float]:
        return [y[1], float(_slope(up, down, heads.gains, y[:1])[0]) / 2]

    if v == 0 and slope(0.0, np.zeros(2))[1] == 0:
        return 0.0, 0.0
    size = abs(v) + float(np.sqrt(up.sum() + down.sum()))
    solution = solve_ivp(slope, (0, time), [0.0, v], "DOP853", rtol=1e-11, atol=1e-11 * size)
    return float(solution.y[1, -1]), float(solution.y[0, -1])
