"""The staircase where no scalar course exists: jump the plateaus, follow the flow down each drop.

Between drops all dormant heads have their closed form; from shortly before the first blow-up
until the next long plateau every head follows the flow (19)(80) itself. This takes any task
(no common eigenvectors, or gains and drops in different order, E1) and any rank. Times are t/τ.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_ivp

from iclflow.theory.drops.base import AbstractRun, Drop
from iclflow.theory.drops.dormant import DormantHeads
from iclflow.theory.drops.frame import TIED, Weights
from iclflow.theory.fixed_points.modes import Modes

LEAD = 50.0  # the flow takes over when c v = 1/LEAD
ARRIVED = 1e-10  # excess loss, in units of the last drop, at which a plateau is reached
AWAKE = 0.3  # share of the smallest final value weight above which a head counts as escaped
PATIENCE = 1e4  # longest drop followed, in units c/g of the slowest mode


@dataclasses.dataclass(frozen=True)
class Leg:
    """A stretch of time with the weights as a function of it."""

    start: float
    stop: float
    weights: Callable[[float], Weights]


@dataclasses.dataclass(frozen=True)
class _Escape:
    """The head about to escape from a plateau."""

    head: int
    blow_up: float
    sign: float
    gain: float
    misalignment: float
    dormant_value: float


class FlowDrops(AbstractRun):
    """The legs of one run, plateaus and drops in turn."""

    def __init__(self, modes: Modes, weights: Weights) -> None:
        self.modes, self.moments = modes, _Moments(modes, weights[1].shape)
        self.drops: list[Drop] = []
        self.legs: list[Leg] = [Leg(0.0, 0.0, lambda t: weights)]
        self.ended = "every mode is learned"

    def weights(self, time: float) -> Weights:
        """All weights at one time (after the end: at the end)."""
        leg = next(leg for leg in reversed(self.legs) if time >= leg.start or leg is self.legs[0])
        return leg.weights(min(time, leg.stop))

    def loss(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
        return np.asarray([self.moments.loss(*self.weights(float(t))) for t in times])

    def values(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T H"]:
        return np.stack([self.weights(float(t))[0] for t in times])

    def effective(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T D D"]:
        return np.stack([product(*self.weights(float(t))) for t in times])


class _Moments:
    """B, G, Λ and the flow they make."""

    def __init__(self, modes: Modes, shape: tuple[int, ...]) -> None:
        arrays = (modes.second, modes.cross, modes.covariance)
        self.B, self.G, self.L = (np.asarray(a, np.float64) for a in arrays)
        self.power, self.shape = float(modes.power), shape

    def unpack(self, y: np.ndarray) -> Weights:
        heads, count = self.shape[0], int(np.prod(self.shape))
        k, q = y[heads : heads + count], y[heads + count :]
        return y[:heads], k.reshape(self.shape), q.reshape(self.shape)

    def residual(self, v: np.ndarray, k: np.ndarray, q: np.ndarray) -> np.ndarray:
        """A = G - B M Λ."""
        return self.G - self.B @ product(v, k, q) @ self.L

    def loss(self, v: np.ndarray, k: np.ndarray, q: np.ndarray) -> float:
        """L = E[y²] - ⟨M, G + A⟩."""
        return self.power - float(np.sum(product(v, k, q) * (self.G + self.residual(v, k, q))))

    def slope(self, t: float, y: np.ndarray) -> np.ndarray:
        """The flow (19)(80)."""
        v, k, q = self.unpack(y)
        A = self.residual(v, k, q)
        Aq, Ak = q @ A.T, k @ A
        w = v[:, None, None]
        return np.concatenate([np.sum(k * Aq, axis=(1, 2)), (w * Aq).ravel(), (w * Ak).ravel()])


def product(v: np.ndarray, k: np.ndarray, q: np.ndarray) -> Float[np.ndarray, "D D"]:
    """M = Σ v k qᵀ."""
    size = k.shape[-1]
    return (v[:, None, None] * k).reshape(-1, size).T @ q.reshape(-1, size)


def flow_drops(modes: Modes, weights: Weights) -> FlowDrops:
    """Follow the run from the initial weights."""
    run = FlowDrops(modes, weights)
    moments, drops, rank = run.moments, np.asarray(modes.drops, float), weights[1].shape[1]
    levels = moments.power - np.concatenate([[0.0], np.cumsum(drops)])
    middles = (levels[:-1] + levels[1:]) / 2
    floor = AWAKE * float(_final_values(modes).min()) if modes.rank else np.inf
    now, state, awake = 0.0, weights, np.zeros(len(weights[0]), bool)
    escape = None
    while len(run.drops) < modes.rank:
        learned, capacity = len(run.drops), rank * int(awake.sum())
        if capacity <= learned:
            jump = _plateau(run, state, awake, now)
            if jump is None:
                break
            now, state, escape = jump
            capacity += rank
        target = min(modes.rank, capacity)
        arrived = levels[target] + ARRIVED * drops[target - 1] + 1e-13 * moments.power
        leg, solution = _descend(run, state, now, arrived)
        run.legs.append(leg)
        losses = np.asarray([moments.loss(*moments.unpack(y)) for y in solution.y.T])
        state, start, now = moments.unpack(solution.y[:, -1]), now, leg.stop
        awake = awake | (np.abs(state[0]) > floor)
        for mode in range(learned, modes.rank):
            if losses.min() >= middles[mode]:
                break
            switch = start + float(solution.t[np.argmax(losses < middles[mode])])
            run.drops.append(_drop(mode, switch, escape, run.drops, state[0]))
            escape = None
        if solution.status != 1:
            run.ended = "a drop took longer than it was followed for"
            break
    return run


def _drop(
    mode: int, switch: float, escape: _Escape | None, before: list[Drop], values: np.ndarray
) -> Drop:
    """The record of a drop, made by the head that escaped or by the last one to have escaped."""
    if escape is not None:
        return Drop(mode, switch=switch, **dataclasses.asdict(escape))
    head = before[-1].head if before else int(np.argmax(np.abs(values)))
    value = float(values[head])
    return Drop(mode, head, switch, np.inf, float(np.sign(value)), 0.0, 0.0, abs(value))


def _final_values(modes: Modes) -> Float[np.ndarray, " r"]:
    """|M(s)|^(1/3) for each mode s alone, v* of a head that holds it."""
    sizes = [np.linalg.norm(a, axis=0) for a in (modes.key_vectors, modes.query_vectors)]
    return (np.asarray(modes.singular, float) * sizes[0] * sizes[1]) ** (1 / 3)


def _plateau(
    run: FlowDrops, state: Weights, awake: np.ndarray, now: float
) -> tuple[float, Weights, _Escape] | None:
    """Let the dormant heads run until shortly before the first escapes."""
    moments = run.moments
    learned, drops = len(run.drops), np.asarray(run.modes.drops, float)
    if learned > 0 and drops[learned] > (1 - TIED) * drops[learned - 1]:
        # Some of several equal modes are learned: the escaped heads chose which.
        A = moments.residual(*(a[awake] for a in state))
    else:
        A = np.asarray(run.modes.residual(range(learned)), np.float64)
    left, gains, right = np.linalg.svd(A)
    v, k, q = (a[~awake] for a in state)
    dormant, names = DormantHeads.of(v, k, q, A), np.flatnonzero(~awake)
    times, signs = dormant.blow_up()
    if len(names) == 0 or not np.isfinite(times.min()):
        run.ended = "no head that is left ever escapes" if len(names) else "no head is left"
        return None
    winner = int(np.argmin(times))
    u, w, g = left[:, 0], right[0], float(gains[0])
    c = (float(u @ moments.B @ u) * float(w @ moments.L @ w) / g) ** (1 / 3)
    wait = max(0.0, float(times[winner]) - LEAD * c / g)

    def weights(t: float) -> Weights:
        later = dormant.after(t - now)
        values, keys, queries = (a.copy() for a in state)
        values[~awake] = later.values
        keys[~awake] = (later.sums + later.differences) / 2 @ left.T
        queries[~awake] = (later.sums - later.differences) / 2 @ right
        return values, keys, queries

    run.legs.append(Leg(now, now + wait, weights))
    end = dormant.after(wait)
    along = np.sum(end.sums[winner] ** 2 + end.differences[winner] ** 2, axis=0)
    other = 1 - float(along[0] / along[gains > 1e-6 * g].sum())
    escape = _Escape(
        int(names[winner]), now + float(times[winner]), float(signs[winner]), g, other,
        abs(float(v[winner])),
    )  # fmt: skip
    return now + wait, weights(now + wait), escape


def _descend(run: FlowDrops, state: Weights, now: float, arrived: float) -> tuple[Leg, Any]:
    """The flow of all heads until the loss has come down to a level."""
    moments, learned = run.moments, len(run.drops)

    def excess(t: float, y: np.ndarray) -> float:
        return moments.loss(*moments.unpack(y)) - arrived

    excess.terminal = True  # type: ignore[attr-defined]
    gains = np.asarray(run.modes.gains(range(learned)).values, float)
    horizon = PATIENCE / (float(gains.min()) * float(_final_values(run.modes).min()))
    y = np.concatenate([a.ravel() for a in state])
    smallest = float(np.sqrt(np.mean(np.min(np.abs(state[1]), axis=(1, 2)) ** 2)))
    solution = solve_ivp(
        moments.slope, (0.0, horizon), y, "LSODA",
        rtol=1e-9, atol=1e-9 * max(smallest, 1e-12), events=excess, dense_output=True,
    )  # fmt: skip
    course = solution.sol
    stop = now + float(solution.t[-1])
    return Leg(now, stop, lambda t: moments.unpack(course(t - now))), solution
