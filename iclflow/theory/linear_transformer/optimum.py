"""The least loss of the linear transformer: not the paper's fixed point at finite N.

With P = v s p² and Q = s² q² the loss is ½ [(N+1)/N Σ PQ + (ΣP)(ΣQ)/N - 2 Σ √(vs PQ) + Σ vs].
For given z = √(PQ) the second term is least, (Σz)²/N, when P ∝ Q; what is left is a convex
quadratic in z ≥ 0.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

from iclflow.theory.linear_transformer.spectrum import TransformerModes


@dataclasses.dataclass(frozen=True)
class Optimum:
    """a = p q at the least loss, which modes are active, and that loss (with ½)."""

    modes: TransformerModes
    products: Float[np.ndarray, " D"]
    active: Bool[np.ndarray, " D"]
    threshold: float  # μ: a mode is active iff v s > μ
    loss: float

    def weights(
        self, conserved: float = 0.0
    ) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
        """p and q of the optimum with Σ(p² - q²) = C: p/q = κ √(s/v) in every active mode."""
        ratio = np.sqrt(self.modes.spectrum / self.modes.variances)
        a = self.products
        up, down = np.sum(a * ratio), np.sum(a / ratio)
        kappa = (conserved + np.sqrt(conserved**2 + 4 * up * down)) / (2 * up)
        return np.sqrt(a * kappa * ratio), np.sqrt(a / (kappa * ratio))


def optimum(modes: TransformerModes, learned: int | None = None) -> Optimum:
    """a = N/((N+1) s) (1 - √(μ/(vs))), √μ = Σ_A √(vs)/(N+1+k) over the k active modes A.

    With all active, L = [Σ vs + N (Σ√(vs))²/(N+1+d)]/(2 (N+1)). With `learned`, the best that the
    so many fastest modes can do alone, largest v s² first: the plateau on which they wait for the
    next, if the eigenvalues are well separated.
    """
    s, v, n = modes.spectrum, modes.variances, modes.context
    learned = s.size if learned is None else learned
    if not 0 <= learned <= s.size:
        raise ValueError(f"the modes learned must be 0 to {s.size}, got {learned}")
    allowed = np.zeros(s.size, bool)
    allowed[np.argsort(-v * s**2, kind="stable")[:learned]] = True
    root = np.sqrt(v * s)
    order = np.sort(np.where(allowed, root, 0.0))[::-1]
    means = np.cumsum(order) / (n + 1 + np.arange(1, s.size + 1))
    # Strongest first, a mode joins while it lies above the √μ that it would itself make.
    joined = np.flatnonzero(order > means)
    level = float(means[joined[-1]]) if joined.size else 0.0
    active = allowed & (root > level)
    gain = np.where(active, root - level, 0.0)  # (N+1)/N z
    products = n / (n + 1) * gain / (root * s)
    loss = (np.sum(v * s) - n / (n + 1) * np.sum(root * gain)) / 2
    return Optimum(modes, products, active, level**2, float(loss))


def overshoot(modes: TransformerModes) -> Float[np.ndarray, " D"]:
    """a of each mode on the plateau that its own learning leads to: its largest value.

    N/((N+2) s) for the fastest. Slower modes then take their share of Σz, and it drifts down to
    the optimum. N/((N+1+d) s) if all d eigenvalues are equal.
    """
    order = np.argsort(-modes.variances * modes.spectrum**2, kind="stable")
    levels = np.empty(modes.size)
    for count, mode in enumerate(order, start=1):
        levels[mode] = optimum(modes, count).products[mode]
    return levels


def plateau_losses(modes: TransformerModes) -> Float[np.ndarray, " levels"]:
    """The loss (with ½) with the 0, 1, …, d fastest modes learned, each at its best."""
    return np.asarray([optimum(modes, count).loss for count in range(modes.size + 1)])
