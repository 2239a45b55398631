"""Dormant heads on a plateau: integrable, with a blow-up time for each (any rank, any signs).

While the loss rests at M(S) a small head obeys τ dv/dt = Σᵣ kᵣᵀ A qᵣ, τ dk/dt = v A q,
τ dq/dt = v Aᵀ k with the constant A = A_S. In the singular basis of A, with p = k + q and
n = k - q, the phase s = ∫ v dt/τ solves it: `p_d → p_d e^{g_d s}`, `n_d → n_d e^{-g_d s}` (62)(63)

    v² = W(s) = v(0)² + ¼ Σ_d [P_d (e^{2 g_d s} - 1) + N_d (e^{-2 g_d s} - 1)],  P_d = Σᵣ p_{rd}²,

and s runs to ±∞ in a finite time, ∫ ds/√W (`EscapePath`). Everything is NumPy, vectorised over
heads; times t/τ.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Self

import numpy as np
import scipy
from jaxtyping import ArrayLike, Bool, Float

from iclflow.theory.drops.escape_path import EscapePath, slope_of


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
