"""Power laws of deep linear attention for power-law spectra, at infinite or finite context.

λ_k = k^(-ν) are the eigenvalues of the inputs and λ_k ω_k = k^(-νβ - 1) is the power of the label
along each of them. L layers with Γ = γ I leave (1 - γ λ_k/L)^L of mode k. The exponents are those
of the loss in time t, in depth L and in the context length N. They are measured here on finite
sums, with an error that says how much the exponent still moves along the range of the fit.

The loss in N is that of least-norm regression. Its average over contexts has a deterministic
equivalent, known from kernel regression: B. Bordelon, A. Canatar, C. Pehlevan, "Spectrum dependent
learning curves in kernel regression" (2020), and, with the exponents, H. Cui, B. Loureiro,
F. Krzakala, L. Zdeborová, "Generalization error rates in kernel regression" (2021).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

Curve = tuple[Float[np.ndarray, " T"], Float[np.ndarray, " T"]]


@dataclasses.dataclass(frozen=True)
class PowerLaw:
    """Spectra with exponents ν and β.

    - `decay`: ν, of the eigenvalues.
    - `source`: β, of the tasks.
    - `modes`: how many modes are summed.

    >>> from iclflow.theory.scaling import PowerLaw
    >>> round(PowerLaw(1.5, 0.75).time_exponent, 3)
    -0.273
    """

    decay: float
    source: float
    modes: int = 100_000

    @property
    def eigenvalues(self) -> Float[np.ndarray, " K"]:
        """λ_k = k^(-ν)."""
        return np.arange(1.0, self.modes + 1) ** -self.decay

    @property
    def powers(self) -> Float[np.ndarray, " K"]:
        """λ_k ω_k = k^(-νβ - 1), normalised to one."""
        found = np.arange(1.0, self.modes + 1) ** -(self.decay * self.source + 1)
        return found / found.sum()

    @property
    def time_exponent(self) -> float:
        """-β/(2 + β): deep layers γ I, for covariances rotated from prompt to prompt."""
        return self.factor_exponent(1)

    def factor_exponent(self, factors: int) -> float:
        """-mβ/(mβ + 2): the same with γ a product of m equal factors."""
        return -factors * self.source / (factors * self.source + 2)

    @property
    def depth_exponent(self) -> float:
        """-β: the least loss of L layers γ I in L."""
        return -self.source

    @property
    def context_exponent(self) -> float:
        """-ν min(β, 2): deep layers in the context length, for ν > 1.

        The unlearned share of the first modes falls as κ² and no faster, κ ~ N^(-ν), so β > 2
        does not help. Below β = 2 it is a correction of relative order N^(-ν(2 - β)), which is
        slow for β near 2. At ν = 1, κ ~ ln(K/N)/N has a logarithm of the number of modes.
        """
        return -self.decay * min(self.source, 2.0)

    @property
    def fixed_exponent(self) -> float:
        """-νβ/(νβ + 2ν + 1): a fixed covariance and Γ trained itself."""
        product = self.decay * self.source
        return -product / (product + 2 * self.decay + 1)

    def loss(self, rate: float, layers: float) -> float:
        """Σ λ_k ω_k (1 - γ λ_k/L)^(2L); e^(-2γλ_k) for infinitely many layers."""
        return float(self.powers @ _left(rate, layers, self.eigenvalues) ** 2)

    def slope(self, rate: float, layers: float) -> float:
        """-½ ∂L/∂γ, by which γ grows."""
        left = _left(rate, layers, self.eigenvalues)
        one = 1.0 if np.isinf(layers) else 1 - rate * self.eigenvalues / layers
        return float((self.powers * self.eigenvalues) @ (left**2 / one))

    def over_time(self, times: np.ndarray, layers: float, factors: int = 1) -> np.ndarray:
        """The loss of layers γ I over t/τ, γ = sᵐ from s = 0 (m = 1) or a small s."""
        from scipy.integrate import solve_ivp

        def rise(t: float, y: np.ndarray) -> list[float]:
            s = float(y[0])
            return [self.slope(s**factors, layers) * factors * s ** (factors - 1)]

        start = 0.0 if factors == 1 else 0.5
        found = solve_ivp(
            rise, (0.0, float(times[-1])), [start], "LSODA", times, rtol=1e-8, atol=1e-12
        )
        return np.array([self.loss(s**factors, layers) for s in found.y[0]])

    def fixed_over_time(self, times: np.ndarray) -> np.ndarray:
        """The loss over t/τ of one layer whose Γ is trained itself: Σ λω e^(-2 λ · λω · t)."""
        rates = 2 * self.eigenvalues * self.powers
        return np.array([self.powers @ np.exp(-rates * self.eigenvalues * t) for t in times])

    def least(self, layers: float) -> float:
        """The loss of L layers γ I at the best γ."""
        from scipy.optimize import minimize_scalar

        top = 2 * layers / self.eigenvalues[0]
        found: Any = (
            minimize_scalar(
                lambda g: self.loss(g, layers), bounds=(0.2 * top, top), method="bounded",
                options={"xatol": 1e-9 * top},
            )
        )  # fmt: skip
        return float(found.fun)

    def context_limit(self, contexts: np.ndarray) -> Float[np.ndarray, " C"]:
        """The mean of `in_context` over contexts of N pairs: its deterministic equivalent.

        Modes above κ are learned, with Σ_k λ_k/(λ_k + κ) = N. The loss is
        Σ_k λ_k ω_k (κ/(λ_k + κ))² / (1 - (1/N) Σ_k (λ_k/(λ_k + κ))²), for N and K large.

        - `contexts`: the numbers of pairs N, each below the number of modes.

        >>> import numpy as np
        >>> from iclflow.theory.scaling import PowerLaw
        >>> PowerLaw(1.5, 0.75, 1000).context_limit(np.array([16, 64])).round(4)
        array([0.0765, 0.0159])
        """
        from scipy.optimize import brentq

        values, powers, found = self.eigenvalues, self.powers, []
        for n in np.asarray(contexts, float):
            if not 0 < n < self.modes:
                raise ValueError(f"a context needs 0 < N < {self.modes} modes, got N = {n:g}")

            def excess(log: float, n: float = n) -> float:
                return float(np.sum(values / (values + np.exp(log)))) - n

            top = np.log(values.sum() / n)  # there Σ λ/(λ + κ) < N
            bottom = np.log(values[-1] * (1 - n / self.modes) / 2)  # and there it is above
            root: Any = brentq(excess, bottom, top, xtol=1e-12)
            kappa = np.exp(root)
            learned = values / (values + kappa)
            found.append(powers @ (1 - learned) ** 2 / (1 - learned @ learned / n))
        return np.array(found)

    def in_context(self, normals: Float[np.ndarray, "K N"]) -> float:
        """The loss of infinitely many layers on one context of N pairs: what N inputs do not span.

        - `normals`: standard normal numbers, of which λ^(1/2) times a column is an input.

        With Γ = γ I the layers are gradient descent on the prompt, whose end is the solution of
        least norm. What is left of w is its part beside the inputs.
        """
        inputs = np.sqrt(self.eigenvalues)[:, None] * normals
        basis, _ = np.linalg.qr(inputs)
        tasks, weights = self.powers / self.eigenvalues, self.eigenvalues
        # tr[Λ (1 - P) S (1 - P)], P = U Uᵀ
        both = (basis * weights[:, None]).T @ (basis * tasks[:, None])
        inner = (basis * tasks[:, None]).T @ basis
        outer = (basis * weights[:, None]).T @ basis
        return float(weights @ tasks - 2 * np.trace(both) + np.sum(inner * outer))


def _left(rate: float, layers: float, eigenvalues: np.ndarray) -> np.ndarray:
    if np.isinf(layers):
        return np.exp(-rate * eigenvalues)
    return (1 - rate * eigenvalues / layers) ** layers


def fitted_exponent(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The slope of ln y over ln x, and half the difference of its two halves as its error.

    >>> import numpy as np
    >>> from iclflow.theory.scaling import fitted_exponent
    >>> x = np.geomspace(1, 100, 11)
    >>> slope, error = fitted_exponent(x, x**-0.5)
    >>> round(slope, 6), error < 1e-9
    (-0.5, True)
    """
    u, v = np.log(np.asarray(x, float)), np.log(np.asarray(y, float))
    middle = len(u) // 2
    fit: Callable[..., float] = lambda part: float(np.polyfit(u[part], v[part], 1)[0])  # noqa: E731
    halves = fit(slice(0, middle + 1)), fit(slice(middle, None))
    return fit(slice(None)), abs(halves[1] - halves[0]) / 2
