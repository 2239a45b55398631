"""The staircase where heads feel each other: jump the plateaus, follow the flow down each drop.

Between drops all dormant heads have their closed form; from shortly before the first blow-up
until the next long plateau every head follows the flow (19)(80) itself. This takes any task
(no common eigenvectors, or gains and drops in different order, E1) and any rank. Times are t/τ.
"""

import abc
import dataclasses
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float

from iclflow.theory.drops.base import AbstractRun, Drop
from iclflow.theory.drops.dormant import DormantHeads
from iclflow.theory.drops.frame import Weights
from iclflow.theory.drops.head_flow import HeadFlow, States
from iclflow.theory.fixed_points.modes import Modes

LEAD = 50.0  # the flow takes over when c v = 1/LEAD
ARRIVED = 1e-10  # excess loss, in units of the drop to come, at which a plateau is reached
AWAKE = 0.3  # share of the smallest final value weight above which a head counts as escaped
PATIENCE = 1e4  # longest drop followed, in units c/g of the slowest mode
CLOSE = 2e-4  # relative distance at which the residual counts as A_S
TOLERANCE = 1e-6
STRIDE = 8  # steps between two looks at the loss


class AbstractLeg(abc.ABC):
    """A stretch of time and the weights in it."""

    start: float
    stop: float

    @abc.abstractmethod
    def states(self, times: Float[np.ndarray, " T"]) -> States:
        """All weights at times between start and stop."""


@dataclasses.dataclass(frozen=True)
class Plateau(AbstractLeg):
    """Escaped heads rest and dormant heads have their closed form."""

    start: float
    stop: float
    flow: HeadFlow
    rest: Float[np.ndarray, " n"]  # the state when it began
    dormant: DormantHeads
    asleep: Bool[np.ndarray, " H"]
    left: Float[np.ndarray, "D D"]  # singular vectors of A_S, columns
    right: Float[np.ndarray, "D D"]

    def states(self, times: Float[np.ndarray, " T"]) -> States:
        result = np.repeat(self.rest[None], len(times), axis=0)
        v, k, q = self.flow.split(result)
        # In portions: the closed form needs hundreds of numbers for each time, head and mode.
        portion = max(1, 2000 // max(self.dormant.sums.size, 1))
        for i in range(0, len(times), portion):
            rows = slice(i, i + portion)
            v[rows, self.asleep], p, n = self.dormant.along(times[None, rows] - self.start)
            k[rows, self.asleep] = (p + n) / 2 @ self.left.T
            q[rows, self.asleep] = (p - n) / 2 @ self.right.T
        return result


@dataclasses.dataclass(frozen=True)
class Descent(AbstractLeg):
    """All heads follow the flow down one or more drops."""

    start: float
    stop: float
    course: Any  # by time, scipy.integrate.OdeSolution

    def states(self, times: Float[np.ndarray, " T"]) -> States:
        return self.course(times - self.start).T


@dataclasses.dataclass(frozen=True)
class _Escape:
    """The head about to escape from a plateau."""

    head: int
    blow_up: float
    gain: float
    misalignment: float
    unit: float  # c/g
    value: float  # |v| when the plateau began


class FlowDrops(AbstractRun):
    """The legs of one run, plateaus and drops in turn."""

    def __init__(self, modes: Modes, weights: Weights) -> None:
        self.flow = HeadFlow.of(modes, weights)
        self.drops: list[Drop] = []
        self.ended = "every mode is learned"
        self.start = np.concatenate([a.ravel() for a in weights])
        self.legs: list[AbstractLeg] = []

    @property
    def drop_times(self) -> Float[np.ndarray, " n"]:
        return np.asarray([drop.switch for drop in self.drops], float)

    def states(self, times: Float[np.ndarray, " T"]) -> States:
        """All weights (after the end: at the end)."""
        result = np.repeat(self.start[None], len(times), axis=0)
        index = np.searchsorted([leg.start for leg in self.legs], times, side="right") - 1
        for i, leg in enumerate(self.legs):
            inside = index == i
            if inside.any():
                result[inside] = leg.states(np.minimum(times[inside], leg.stop))
        return result

    def loss(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
        return self.flow.loss(self.states(times))

    def values(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T H"]:
        return self.flow.split(self.states(times))[0]

    def own_values(self, times: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return self.values(times)[np.arange(len(times)), [drop.head for drop in self.drops]]

    def effective(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T D D"]:
        return self.flow.effective(self.states(times))


class _Follower:
    """The state between two legs."""

    def __init__(self, modes: Modes, weights: Weights) -> None:
        self.run = FlowDrops(modes, weights)
        self.flow, self.state, self.now = self.run.flow, self.run.start, 0.0
        self.sizes = np.asarray(modes.drops, float)
        self.levels = self.flow.power - np.concatenate([[0.0], np.cumsum(self.sizes)])
        arrays = (modes.singular, modes.key_vectors, modes.query_vectors)
        sigma, keys, queries = (np.asarray(a, float) for a in arrays)
        self.weights = list(np.einsum("s,ds,cs->sdc", sigma, keys, queries))  # M of each mode alone
        smallest = min((np.linalg.norm(m) ** (1 / 3) for m in self.weights), default=np.inf)
        self.floor = AWAKE * float(smallest)
        gains = np.linalg.svd(self.flow.cross, compute_uv=False)[: len(sigma)]
        self.horizon = PATIENCE / float(gains.min(initial=np.inf) * smallest)
        self.awake = np.zeros(self.flow.heads, bool)

    def step(self) -> bool:
        """A plateau, if the heads that are awake have learned all they can, and a descent."""
        learned, escape = len(self.run.drops), None
        if learned == len(self.sizes):
            return False
        capacity = self.flow.rank * int(self.awake.sum())
        if capacity <= learned:
            escape = self._plateau()
            if escape is None:
                return False
            capacity += self.flow.rank
        return self._descend(min(len(self.sizes), capacity), escape)

    def _plateau(self) -> _Escape | None:
        """Let the dormant heads run until shortly before the first escapes."""
        left, gains, right = self._open(self.state, self.awake)
        asleep, names = ~self.awake, np.flatnonzero(~self.awake)
        v, k, q = (a[asleep] for a in self.flow.split(self.state))
        k, q = k @ left, q @ right
        dormant = DormantHeads(v, k + q, k - q, gains)
        times, _ = dormant.blow_up()
        if len(names) == 0 or not np.isfinite(times.min()):
            escapes = "no head that is left ever escapes" if len(names) else "no head is left"
            self.run.ended = escapes
            return None
        winner, unit = int(np.argmin(times)), self._unit(left, gains, right)
        stop = self.now + max(0.0, float(times[winner]) - LEAD * unit)
        leg = Plateau(self.now, stop, self.flow, self.state, dormant, asleep, left, right)
        self.run.legs.append(leg)
        end = dormant.after(stop - self.now)
        along = np.sum(end.sums[winner] ** 2 + end.differences[winner] ** 2, axis=0)[gains > 0]
        escape = _Escape(
            int(names[winner]), self.now + float(times[winner]), float(gains[0]),
            1 - float(along[0] / along.sum()), unit, abs(float(v[winner])),
        )  # fmt: skip
        self.state, self.now = leg.states(np.asarray([stop]))[0], stop
        return escape

    def _open(
        self, state: np.ndarray, escaped: Bool[np.ndarray, " H"]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Left vectors, gains and right vectors of A once the escaped heads have settled.

        That is A_S, unless of modes that are equal, or nearly, the heads chose their own mixture.
        """
        learned = len(self.run.drops)
        A = self.flow.residual(sum(self.weights[:learned], np.zeros_like(self.flow.cross)))
        left_over = self.flow.residual(self.flow.effective(state[None], escaped[None])[0])
        if np.linalg.norm(left_over - A) > CLOSE * np.linalg.norm(A):
            A = left_over
        left, gains, right = np.linalg.svd(A)
        gains[len(self.sizes) - learned :] = 0.0  # what is left there is not yet settled
        return left, gains, right.T

    def _unit(self, left: np.ndarray, gains: np.ndarray, right: np.ndarray) -> float:
        """c/g of the mode that grows fastest."""
        u, w, g = left[:, 0], right[:, 0], float(gains[0])
        return float((u @ self.flow.second @ u) * (w @ self.flow.covariance @ w) / g) ** (1 / 3) / g

    def _descend(self, target: int, escape: _Escape | None) -> bool:
        """Follow the flow of all heads until those awake have brought the loss to a level."""
        # The mode to come sees what the awake heads still lack: measured by its gain, g² ∝ size.
        size = self.sizes[min(target, len(self.sizes) - 1)]
        level = self.levels[target] + ARRIVED * size + 1e-13 * self.flow.power
        keys = np.abs(self.flow.split(self.state)[1])
        smallest = float(np.sqrt(np.mean(keys.min(axis=(1, 2)) ** 2)))
        solver = scipy.integrate.LSODA(
            self.flow.slope, 0.0, self.state, self.horizon, rtol=TOLERANCE,
            atol=TOLERANCE * max(smallest, 1e-12),
            jac=lambda t, y: self.flow.jacobian(t, y),  # SciPy < 1.17 reads its signature
        )  # fmt: skip
        times, states, pieces, arrived = [0.0], [self.state], [], False
        while solver.status == "running" and not arrived:
            solver.step()
            if solver.status == "failed":
                break
            times.append(float(solver.t))
            states.append(solver.y.copy())
            pieces.append(solver.dense_output())
            if len(pieces) % STRIDE == 0 or solver.status == "finished":
                recent = np.stack(states[-STRIDE:])
                large = np.abs(self.flow.split(recent)[0]) > self.floor
                # Dormant heads move the loss of a plateau a little; at the end all of them help.
                some = None if target == len(self.sizes) else large
                arrived = bool(self.flow.loss(recent, some).min() <= level)
        begin, losses = self.now, self.flow.loss(np.stack(states))
        self.run.legs.append(
            Descent(
                begin, begin + times[-1], scipy.integrate.OdeSolution(np.asarray(times), pieces)
            )
        )
        self.state, self.now = states[-1], begin + times[-1]
        self.awake = self.awake | (np.abs(self.flow.split(self.state)[0]) > self.floor)
        for middle in (self.levels[:-1] + self.levels[1:])[len(self.run.drops) :] / 2:
            if losses.min() >= middle:
                break
            step = max(1, int(np.argmax(losses < middle)))
            course, span = pieces[step - 1], (times[step - 1], times[step])
            time = _crossing(self.flow, course, middle, *span)
            self.run.drops.append(self._drop(begin + time, course(time), escape))
        if not arrived:
            self.run.ended = "a drop took longer than it was followed for"
        return arrived

    def _drop(self, time: float, state: np.ndarray, escape: _Escape | None) -> Drop:
        """A drop of the last leg, made by the head that moves most in the middle of it."""
        drops, mode = self.run.drops, len(self.run.drops)
        head = int(np.argmax(self.flow.speeds(state)))
        value = float(self.flow.split(self.state)[0][head])
        before = np.isin(np.arange(self.flow.heads), [drop.head for drop in drops])
        if before[head]:
            return Drop(mode, head, time, np.inf, float(np.sign(value)), 0.0, 0.0, abs(value))
        if escape is None or head != escape.head:  # a further one that escapes in the same leg
            begin = drops[-1].switch if drops else self.run.legs[-1].start
            v, k, q = (a[head] for a in self.flow.split(self.run.states(np.asarray([begin]))[0]))
            left, gains, right = self._open(state, before)
            along = np.sum((k @ left) ** 2 + (q @ right) ** 2, axis=0)[gains > 0]
            escape = _Escape(
                head, time, float(gains[0]), 1 - float(along[0] / along.sum()),
                self._unit(left, gains, right), abs(float(v)),
            )  # fmt: skip
        blow_up = max(escape.blow_up, time + escape.unit)
        return Drop(
            mode, head, time, blow_up, float(np.sign(value)), escape.gain, escape.misalignment,
            escape.value,
        )  # fmt: skip


def _crossing(flow: HeadFlow, course: Any, middle: float, low: float, high: float) -> float:
    """When the loss is `middle`, in one step of the solver."""

    def excess(t: float) -> float:
        return float(flow.loss(course(t)[None])[0]) - middle

    root = scipy.optimize.brentq
    return root(excess, low, high) if excess(low) > 0 else low  # type: ignore[return-value]


def flow_drops(modes: Modes, weights: Weights) -> FlowDrops:
    """Follow the run from the initial weights."""
    follower = _Follower(modes, weights)
    while follower.step():
        pass
    return follower.run
