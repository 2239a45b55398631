"""Inside an active head of rank R: one number for each of its pairs.

Once a head has escaped its pairs are aligned, kᵣ = qᵣ = κᵣ e_r, and with f_r = v κ_r²/m_r
`τ dκ_r/dt = g_r v κ_r (1 - f_r)`, `τ dv/dt = Σ g_r κ_r² (1 - f_r)`, so v² - Σ κ² is conserved.
Rank one is (26). Times are t/τ.
"""

import dataclasses
from typing import Self

import numpy as np
import scipy
from jaxtyping import Float

SETTLED = 1e-8  # |1 - f| at which a mode counts as learned for good


@dataclasses.dataclass(frozen=True)
class HeadCourse:
    """The course of one head from `start`: value weight, amplitudes, phase s = ∫ v dt/τ."""

    start: float
    stop: float
    modes: tuple[int, ...]
    switches: Float[np.ndarray, " n"]  # start + ∫ (1 - f) dt: when others see the mode go
    settled: bool
    m: Float[np.ndarray, " n"]
    states: object  # dense output: (v, ln κ, s, ∫ (1 - f) dt)

    @classmethod
    def solve(
        cls,
        start: float,
        value: float,
        amplitudes: Float[np.ndarray, " n"],
        modes: tuple[int, ...],
        g: Float[np.ndarray, " n"],
        m: Float[np.ndarray, " n"],
    ) -> Self:
        """Integrate until every pair has learned its mode."""
        count = len(modes)
        floor = np.finfo(float).tiny
        logs = np.log(np.maximum(amplitudes, floor))

        def left(y: np.ndarray) -> np.ndarray:
            return 1 - y[0] * np.exp(2 * y[1 : 1 + count]) / m

        def slope(t: float, y: np.ndarray) -> np.ndarray:
            v, missing = y[0], left(y)
            push = np.exp(2 * y[1 : 1 + count]) * g * missing
            return np.concatenate([[push.sum()], v * g * missing, [v], missing])

        def unsettled(t: float, y: np.ndarray) -> float:
            return float(np.max(np.abs(left(y)))) - SETTLED

        unsettled.terminal = True  # type: ignore[attr-defined]
        # Mode r needs s = ln(κ*/κ)/g, passed at speed v; the first needs about 1/(g v) besides.
        speed = min(m[0] ** (1 / 3), m.max() ** (1 / 3))
        growth = np.sum((np.maximum(np.log(m) - logs, 0) + 60) / g)
        horizon = 4 * growth / speed + 10 / (g[0] * max(value, floor))
        begin = np.concatenate([[value], logs, [0.0], np.zeros(count)])
        solution = scipy.integrate.solve_ivp(
            slope, (0.0, horizon), begin, "LSODA",
            rtol=1e-9, atol=1e-11, events=unsettled, dense_output=True,
        )  # fmt: skip
        stop = float(solution.t[-1])
        switches = start + solution.y[-count:, -1]
        settled = solution.status == 1
        return cls(start, start + stop, modes, switches, settled, m, solution.sol)

    def at(self, time: float) -> tuple[float, np.ndarray, float]:
        """v, κ and the phase since the start at one time (after the end: at the end)."""
        y = self.states(min(max(time, self.start), self.stop) - self.start)  # type: ignore[operator]
        count = len(self.modes)
        return float(y[0]), np.exp(y[1 : 1 + count]), float(y[1 + count])

    def curves(self, times: Float[np.ndarray, " T"]) -> tuple[np.ndarray, np.ndarray]:
        """v [T] and the learned fractions f [n, T]."""
        if times.size == 0:
            return np.zeros(0), np.zeros((len(self.modes), 0))
        y = self.states(np.clip(times, self.start, self.stop) - self.start)  # type: ignore[operator]
        fraction = y[0] * np.exp(2 * y[1 : 1 + len(self.modes)]) / self.m[:, None]
        return y[0], fraction
