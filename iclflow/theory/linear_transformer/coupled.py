"""The exact mean flow of diagonal weights at any N: the modes couple at order 1/N.

E[Σ̂_αβ²] = δ s_α² + (s_α s_β + δ s_α²)/N: entries of Σ̂ off the diagonal have mean zero but not
square zero. With T_p = Σ v s p² and T_q = Σ s² q²,
L = ½ Σ [s² q² ((N+1)/N v s p² + T_p/N) - 2 v s² p q + v s].
"""

import dataclasses

import numpy as np
import scipy
from jaxtyping import Float

from iclflow.theory.linear_transformer.spectrum import TransformerModes

Weights = Float[np.ndarray, "*T D"]


@dataclasses.dataclass(frozen=True)
class Course:
    """Diagonal weights over time t/τ."""

    time: Float[np.ndarray, " T"]
    p: Float[np.ndarray, "T D"]
    q: Float[np.ndarray, "T D"]

    @property
    def products(self) -> Float[np.ndarray, "T D"]:
        """a = p q."""
        return self.p * self.q

    @property
    def conserved(self) -> Float[np.ndarray, "T D"]:
        """p² - q² by mode; only the sum over modes is conserved at finite N."""
        return self.p**2 - self.q**2


@dataclasses.dataclass(frozen=True)
class CoupledFlow:
    """τ ṗ = -∂L/∂p, τ q̇ = -∂L/∂q of the exact mean loss with its factor ½."""

    modes: TransformerModes

    def _parts(self, p: Weights, q: Weights) -> tuple[np.ndarray, np.ndarray]:
        """T_p/N and T_q/N."""
        s, v, n = self.modes.spectrum, self.modes.variances, self.modes.context
        keep = {"axis": -1, "keepdims": True}
        return np.sum(v * s * p**2, **keep) / n, np.sum(s**2 * q**2, **keep) / n

    def loss(self, p: Weights, q: Weights) -> Float[np.ndarray, "*T"]:
        """L, the mean of ½ |ŷ - W x_q|² as in the second paper (5)."""
        s, v, n = self.modes.spectrum, self.modes.variances, self.modes.context
        p_part, _ = self._parts(p, q)
        terms = s**2 * q**2 * ((n + 1) / n * v * s * p**2 + p_part) - 2 * v * s**2 * p * q + v * s
        return np.asarray(np.sum(terms, axis=-1) / 2)

    def slope(self, p: Weights, q: Weights) -> tuple[Weights, Weights]:
        """τ ṗ = v s² q - (N+1)/N v s³ q² p - v s p T_q/N, and τ q̇ likewise with s² q T_p/N."""
        s, v, n = self.modes.spectrum, self.modes.variances, self.modes.context
        p_part, q_part = self._parts(p, q)
        drive = v * s**2 * (1 - (n + 1) / n * s * p * q)
        return drive * q - v * s * p * q_part, drive * p - s**2 * q * p_part

    def balance_drift(self, p: Weights, q: Weights) -> Weights:
        """τ d(p² - q²)/dt = (2/N)(s² q² T_p - v s p² T_q) by mode; the sum over modes is 0."""
        s, v = self.modes.spectrum, self.modes.variances
        p_part, q_part = self._parts(p, q)
        return 2 * (s**2 * q**2 * p_part - v * s * p**2 * q_part)

    def solve(
        self,
        time: Float[np.ndarray, " T"],
        p: Float[np.ndarray, " D"],
        q: Float[np.ndarray, " D"],
        *,
        tolerance: float = 1e-10,
    ) -> Course:
        """The course from given weights at increasing times, the first at least 0."""
        size = self.modes.size

        def right(_: float, state: np.ndarray) -> np.ndarray:
            return np.concatenate(self.slope(state[:size], state[size:]))

        start = np.concatenate([p, q])
        scale = max(float(np.abs(start).max()), np.finfo(float).tiny)
        span = (0.0, max(float(time[-1]), np.finfo(float).tiny))
        found = scipy.integrate.solve_ivp(
            right, span, start, method="LSODA", t_eval=time, rtol=tolerance,
            atol=tolerance * scale,
        )  # fmt: skip
        if not found.success:
            raise ValueError(f"the exact flow could not be integrated: {found.message}")
        return Course(time, found.y[:size].T, found.y[size:].T)

    def hessian(
        self, p: Float[np.ndarray, " D"], q: Float[np.ndarray, " D"]
    ) -> Float[np.ndarray, "W W"]:
        """∂²L over (p, q): its eigenvalues are rates of relaxation in 1/τ."""
        s, v, n = self.modes.spectrum, self.modes.variances, self.modes.context
        p_part, q_part = self._parts(p, q)
        curve = (n + 1) / n * v * s**3
        mixed = np.diag(2 * curve * p * q - v * s**2)
        mixed = mixed + 2 / n * np.outer(v * s * p, s**2 * q)
        first, second = (
            np.diag(curve * q**2 + v * s * q_part),
            np.diag(curve * p**2 + s**2 * p_part),
        )
        return np.block([[first, mixed], [mixed.T, second]])
