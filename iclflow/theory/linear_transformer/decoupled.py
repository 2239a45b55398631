"""The second paper's theory (11)-(14): every mode by itself, in closed form. Exact as N → ∞.

It takes Σ̂ for diagonal in the eigenvectors and so leaves out couplings of order 1/N between
modes; `CoupledFlow` has them.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from iclflow.theory.linear_transformer.spectrum import TransformerModes

Weights = Float[np.ndarray, "*T D"]


@dataclasses.dataclass(frozen=True)
class DecoupledFlow:
    """τ_α ṗ = q (1 - p q s∞), τ_α q̇ = p (1 - p q s∞) (12)."""

    modes: TransformerModes

    @property
    def effective(self) -> Float[np.ndarray, " D"]:
        """s∞ = ((N+1) s + tr S)/N."""
        s, n = self.modes.spectrum, self.modes.context
        return ((n + 1) * s + s.sum()) / n

    @property
    def timescales(self) -> Float[np.ndarray, " D"]:
        """τ_α/τ = 1/(v s²): epochs, times ηP."""
        return 1 / (self.modes.variances * self.modes.spectrum**2)

    @property
    def fixed_point(self) -> Float[np.ndarray, " D"]:
        """a∞ = 1/s∞ (11)."""
        return 1 / self.effective

    def balanced(
        self, time: Float[np.ndarray, " T"], start: Float[np.ndarray, " D"]
    ) -> Float[np.ndarray, "T D"]:
        """a(t) = a∞ a₀/(a₀ + (a∞ - a₀) e^(-2t/τ)) from p = q = √a₀ (13)."""
        decay = np.exp(-2 * time[:, None] / self.timescales)
        end = self.fixed_point
        return end * start / (start + (end - start) * decay)

    def weights(
        self,
        time: Float[np.ndarray, " T"],
        p: Float[np.ndarray, " D"],
        q: Float[np.ndarray, " D"],
    ) -> tuple[Float[np.ndarray, "T D"], Float[np.ndarray, "T D"]]:
        """p(t) and q(t) from any start; (12) is a Riccati equation for u = q/p.

        u' = 1 - u² - 2κu, κ = s∞ c/2, c = p² - q² conserved. Written in 1 - u and 1 + u, relative
        to their first values, nothing cancels: the balanced start needs no case of its own.
        """
        swap = np.abs(q) > np.abs(p)
        large, small = np.where(swap, q, p), np.where(swap, p, q)
        ratio = small / np.where(large == 0, 1.0, large)
        below, above = 1 - ratio, 1 + ratio  # 1 - u(0), 1 + u(0)
        half = self.effective * large**2 / 2
        kappa = half * below * above
        rho = np.sqrt(1 + kappa**2)
        begin = ratio + kappa
        late = np.exp(-2 * rho * time[:, None] / self.timescales)
        rest, tanh = 2 * late / (1 + late), (1 - late) / (1 + late)  # 1 - T and T
        scale = (rho + begin) - begin * rest
        first = (1 + kappa) * rest + 2 * half * above * (tanh - below / (rho + 1 + kappa))
        second = rho + tanh * (1 - kappa + 2 * half * below)
        grown = large * scale / np.sqrt(first * second)
        other = grown * (1 - below * first / scale)
        return np.where(swap, other, grown), np.where(swap, grown, other)

    def products(
        self,
        time: Float[np.ndarray, " T"],
        p: Float[np.ndarray, " D"],
        q: Float[np.ndarray, " D"],
    ) -> Float[np.ndarray, "T D"]:
        """a(t) = p(t) q(t)."""
        first, second = self.weights(time, p, q)
        return first * second

    def loss(self, products: Weights) -> Float[np.ndarray, "*T"]:
        """L = ½ Σ v s (s a²/a∞ - 2 s a + 1) (14)."""
        s, v = self.modes.spectrum, self.modes.variances
        terms = s * (s * products**2 * self.effective - 2 * s * products + 1)
        return np.asarray(np.sum(v * terms, axis=-1) / 2)

    @property
    def final_loss(self) -> float:
        """L(∞) = ½ Σ v s (s + tr S)/((N+1) s + tr S)."""
        s, n = self.modes.spectrum, self.modes.context
        return float(np.sum(self.modes.variances * s * (s + s.sum()) / (n * self.effective)) / 2)

    def escape_times(self, start: Float[np.ndarray, " D"]) -> Float[np.ndarray, " D"]:
        """t* = (τ_α/2) ln(1/(s∞ a₀)), for small a₀ = p q of a balanced start."""
        return self.timescales / 2 * np.log(1 / (self.effective * start))

    def half_times(self, start: Float[np.ndarray, " D"]) -> Float[np.ndarray, " D"]:
        """When (13) reaches a∞/2: (τ_α/2) ln((a∞ - a₀)/a₀)."""
        return self.timescales / 2 * np.log((self.fixed_point - start) / start)

    def drop_times(self, start: Float[np.ndarray, " D"]) -> Float[np.ndarray, " D"]:
        """When the loss of a mode is halfway down, a = (1 - 2^(-1/2)) a∞ by (13)(14).

        By (14) a mode's loss is a square in a∞ - a: where a is a∞/2 it is three quarters down.
        """
        return self.half_times(start) + self.timescales / 2 * np.log(2**0.5 - 1)
