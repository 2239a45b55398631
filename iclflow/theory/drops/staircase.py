"""The staircase of any loss of M = Σ v k qᵀ, predicted from the initial weights: one engine.

Between drops every dormant head has its closed form under the residual R that the resting heads
leave (Q3). The first to blow up makes the next drop. From shortly before its blow-up all heads
follow the flow (19)(80), until those awake rest again; where they rest is polished by Newton's
method (Q4). What R is left there decides the next plateau (Q5). Nothing but R enters, so a task,
its population, a sample and somebody's own prompts are one case. Times are t/τ.
"""

import abc
import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from iclflow.models import AbstractModel
from iclflow.theory.drops.base import Curve, Times
from iclflow.theory.drops.dormant import DormantHeads
from iclflow.theory.drops.head_flow import HeadFlow, States
from iclflow.theory.drops.quadratic import (
    LEARNED,
    AbstractMatrixLoss,
    Quadratic,
    Source,
    Weights,
    rank,
    require_products,
    separate_weights,
)
from iclflow.theory.drops.stack import Stack

LEAD = 50.0  # the flow takes over when c v = 1/LEAD
AWAKE = 0.3  # share of the expected final value weight above which a head counts as escaped
NEAR_REST = 1e-2  # force on the heads awake, in units of the drop, at which a rest is looked for
TRANSIENT = 1e-8  # phase that dormant heads may miss when heads awake are put at rest
CLOSE = 1e-4  # relative change of R at which heads awake may be put at rest
FAR = 10  # times that, after one step of Newton's method: it is not worth another one
AGAIN = (1 / 300, 1 / 3)  # bounds of the share to which the force falls before the next search
FITTED = 1e-7  # relative size of R at which nothing is left to learn
DRIFT = 1e-5  # relative change of R that heads at rest may still make during the plateau
NOTHING = 1e-10  # relative size of R that counts as nothing
TOLERANCE = 1e-7  # of the solver
STRIDE = 8  # steps of it between two looks at the state
LONGEST = 1e12  # of a leg, in units c/g
STEPS = 30_000  # of a leg
PERTURBATION = 1e-4  # relative change of every initial weight behind the condition number
UNSTABLE = 1e-6  # rate of growth, in units g/c, above which heads at rest turn away from it
KICK = 1e-4  # relative change of the weights that lets them
TOGETHER = 5.0  # distance of two escapes, in units c/g, below which they are not told apart

ALL_LEARNED = "every mode is learned"
NO_HEAD = "no head is left"
NO_ESCAPE = "no head that is left ever escapes"
TOO_LONG = "a drop took longer than it was followed for"


@dataclasses.dataclass(frozen=True)
class HeadDrop:
    """One drop of the loss, made by one head. Times are t/τ."""

    head: int
    time: float  # when the loss is halfway down
    blow_up: float  # of the head that escapes; infinite for a drop inside an active head
    sign: float  # of the head's value weight from then on
    gain: float  # g, the largest singular value of R on the plateau before
    misalignment: float  # share of the head's |p|² off the leading direction, shortly before
    dormant_value: float  # |v| of the head at the beginning of the plateau
    margin: float  # how much later, relatively, the next head would have escaped
    width: float  # c/g, the unit of time of the drop

    @property
    def escape(self) -> bool:
        """Whether a new head makes the drop, rather than a further pair of an active one."""
        return bool(np.isfinite(self.blow_up))


class AbstractLeg(abc.ABC):
    """A stretch of time and the weights in it."""

    start: float
    stop: float

    @abc.abstractmethod
    def states(self, times: Float[np.ndarray, " T"]) -> States:
        """All weights at times between start and stop."""


@dataclasses.dataclass(frozen=True)
class PlateauLeg(AbstractLeg):
    """Escaped heads rest and dormant heads have their closed form."""

    start: float
    stop: float
    flow: HeadFlow
    rest: Float[np.ndarray, " n"]  # the state when it began
    dormant: DormantHeads
    asleep: Bool[np.ndarray, " H"]
    left: Float[np.ndarray, "D D"]  # singular vectors of R, columns
    right: Float[np.ndarray, "D D"]

    def states(self, times: Float[np.ndarray, " T"]) -> States:
        result = np.repeat(self.rest[None], len(times), axis=0)
        v, k, q = self.flow.split(result)
        # In portions: the closed form needs hundreds of numbers for each time, head and mode.
        portion = max(1, 2000 // max(self.dormant.sums.size, 1))
        for i in range(0, len(times), portion):
            rows = slice(i, i + portion)
            v[rows, self.asleep], p, n = self.dormant.along(times[None, rows] - self.start)
            k[rows, self.asleep] = self.flow.narrow((p + n) / 2 @ self.left.T, self.asleep)
            q[rows, self.asleep] = self.flow.narrow((p - n) / 2 @ self.right.T, self.asleep)
        return result


@dataclasses.dataclass(frozen=True)
class DropLeg(AbstractLeg):
    """All heads follow the flow down one or more drops."""

    start: float
    stop: float
    course: Any  # by time, scipy.integrate.OdeSolution

    def states(self, times: Float[np.ndarray, " T"]) -> States:
        return self.course(times - self.start).T


@dataclasses.dataclass(frozen=True)
class Opening:
    """What the heads at rest leave to learn: R, and what it would make of one more head."""

    left: Float[np.ndarray, "D D"]  # singular vectors of R, columns
    gains: Float[np.ndarray, " D"]
    right: Float[np.ndarray, "D D"]
    size: float  # the value weight of a head that has learned the leading pair: 1/c

    @classmethod
    def of(cls, flow: HeadFlow, y: np.ndarray, awake: Bool[np.ndarray, " H"]) -> "Opening":
        """What R the heads awake leave, off the directions that they have learned.

        At rest R q = 0 and Rᵀ k = 0 for every pair of a head awake. What is left there is
        rounding, and would be the fastest mode of a late plateau.
        """
        M = flow.effective(y[None], awake[None])[0]
        R = flow.source.residual(M)
        k, q = (flow.wide(a[awake], awake).reshape(-1, len(R)) for a in flow.split(y)[1:])
        for vectors, axis in ((k, 0), (q, 1)):
            span = _span(vectors)
            off = np.eye(len(R)) - span @ span.T
            R = off @ R if axis == 0 else R @ off
        left, gains, right = np.linalg.svd(R)
        scale = NOTHING * float(np.linalg.norm(flow.source.residual(np.zeros_like(M))))
        gains = np.where(gains > scale, gains, 0.0)
        if gains[0] == 0:
            return cls(left, gains, right.T, np.inf)
        top = left[:, :1] * right[:1]
        stiffness = float(np.sum(top * flow.source.bent(M, top)))
        return cls(left, gains, right.T, (float(gains[0]) / stiffness) ** (1 / 3))

    @property
    def unit(self) -> float:
        """c/g, in which the drop to come takes a few."""
        return 1 / (self.size * float(self.gains[0]))

    def dormant(self, flow: HeadFlow, y: np.ndarray, asleep: np.ndarray) -> DormantHeads:
        """The heads asleep, in the singular basis of R."""
        v, k, q = (a[asleep] for a in flow.split(y))
        k, q = flow.wide(k, asleep) @ self.left, flow.wide(q, asleep) @ self.right
        return DormantHeads(v, k + q, k - q, self.gains)


def _span(vectors: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "D m"]:
    """An orthonormal basis of what the rows span, those of negligible length left out."""
    left, sizes, _ = np.linalg.svd(vectors.T, full_matrices=False)
    return left[:, sizes > LEARNED**0.5 * sizes.max(initial=0.0)]


@dataclasses.dataclass(frozen=True)
class _Escape:
    """The head about to escape from a plateau."""

    head: int
    blow_up: float
    misalignment: float
    value: float  # |v| when the plateau began
    margin: float


def _escape(
    begin: DormantHeads, end: DormantHeads, which: int, head: int, now: float, opening: Opening
) -> _Escape:
    """The escape of one dormant head, given all when the plateau begins and shortly before."""
    times, _ = begin.blow_up()
    along = np.sum(end.sums[which] ** 2 + end.differences[which] ** 2, axis=0)[opening.gains > 0]
    blow_up = now + float(times[which])
    later = np.delete(times, which).min(initial=np.inf) - float(times[which])
    other = 1 - float(along[0] / along.sum())
    return _Escape(head, blow_up, other, abs(float(begin.values[which])), max(0.0, later) / blow_up)


class _Follower:
    """The state between two legs, and the legs so far."""

    def __init__(
        self, source: AbstractMatrixLoss, weights: Weights, block: Int[np.ndarray, " H"] | None
    ) -> None:
        heads, rank = weights[1].shape[:2]
        self.flow = HeadFlow(source, heads, rank, block)
        self.state = np.concatenate([a.ravel() for a in weights])
        require_products(self.state)
        self.now = 0.0
        self.awake = np.zeros(self.flow.heads, bool)
        self.opening = Opening.of(self.flow, self.state, self.awake)
        self.floor = AWAKE * self.opening.size
        self.legs: list[AbstractLeg] = []
        self.drops: list[HeadDrop] = []
        self.levels = [source.power]
        self.ended = ""

    def step(self) -> bool:
        """A plateau until shortly before an escape, and the descent that follows."""
        escape = self._plateau()
        return escape is not None and self._descend(escape)

    def _plateau(self) -> _Escape | None:
        """Let the dormant heads run until shortly before the first escapes."""
        asleep, names = ~self.awake, np.flatnonzero(~self.awake)
        dormant = self.opening.dormant(self.flow, self.state, asleep)
        times, _ = dormant.blow_up()
        if self.opening.gains[0] == 0:
            self.ended = ALL_LEARNED
        elif len(names) == 0:
            self.ended = NO_HEAD
        elif not np.isfinite(times.min()):
            self.ended = NO_ESCAPE
        if self.ended:
            return None
        winner, unit = int(np.argmin(times)), self.opening.unit
        if np.spacing(self.now + times[winner]) > unit:
            raise ValueError(
                f"a drop at t/τ = {self.now + times[winner]:.2g} that lasts {unit:.2g} cannot be "
                f"told from its neighbours in double precision; give a larger init scale"
            )
        stop = self.now + max(0.0, float(times[winner]) - LEAD * unit)
        leg = PlateauLeg(
            self.now, stop, self.flow, self.state, dormant, asleep,
            self.opening.left, self.opening.right,
        )  # fmt: skip
        self.legs.append(leg)
        end = dormant.after(stop - self.now)
        escape = _escape(dormant, end, winner, int(names[winner]), self.now, self.opening)
        self.state, self.now = leg.states(np.asarray([stop]))[0], stop
        return escape

    def _descend(self, escape: _Escape) -> bool:
        """Follow the flow of all heads until those awake rest, with a plateau ahead of them."""
        search = _RestSearch(self.flow, self.opening, self.awake, self.floor)
        times, states, pieces, rest = _follow(self.flow, self.state, search)
        begin, self.now = self.now, self.now + times[-1]
        course = scipy.integrate.OdeSolution(np.asarray(times), pieces)
        self.legs.append(DropLeg(begin, self.now, course))
        before, opening, floor = self.awake, self.opening, self.floor
        if rest is None:
            self.ended, self.state = TOO_LONG, states[-1]
        else:
            self.state, self.awake, self.opening = rest.state, rest.awake, rest.opening
            self.floor = min(self.floor, AWAKE * rest.opening.size)
        losses = self.flow.loss(np.stack(states))
        between = functools.partial(self._between, before, opening, floor, states)
        levels = self._levels(before, between, float(losses.min()), rest is not None)
        heads: list[int | None] = [None] * len(levels)
        if len(levels) > 1 and not isinstance(self.flow.source, Quadratic):
            # These levels are those of the heads that had risen, so each drop is made by the next.
            risen = self._risen(before, floor, states)
            heads = list(risen) if len(risen) == len(levels) else heads
        for level, head in zip(levels, heads, strict=True):
            middle = (self.levels[-1] + level) / 2
            if losses.min() >= middle:  # a rest that is no lower is no drop
                continue
            step = max(1, int(np.argmax(losses < middle)))
            piece, span = pieces[step - 1], (times[step - 1], times[step])
            time = _crossing(self.flow, piece, middle, *span)
            self.levels.append(level)
            drop = self._drop(begin + time, piece(time), before, opening, escape, head)
            self.drops.append(drop)
        return rest is not None

    def _risen(
        self, before: Bool[np.ndarray, " H"], floor: float, states: list[np.ndarray]
    ) -> list[int]:
        """The heads that rise along a descent, in their order; the larger of two goes first."""
        values = np.abs(np.stack([self.flow.split(state)[0] for state in states]))
        up = values > floor
        first = np.argmax(up, axis=0)
        found = np.flatnonzero(up.any(axis=0) & ~before)
        return sorted(map(int, found), key=lambda h: (first[h], -values[first[h], h]))

    def _levels(
        self,
        before: Bool[np.ndarray, " H"],
        between: Callable[[], Float[np.ndarray, " n"]],
        lowest: float,
        rested: bool,
    ) -> list[float]:
        """The levels that a descent has passed, the one where it rests last.

        A descent may make several drops: heads of rank R learn R modes one soon after another, and
        a plateau may be shorter than its drop. The levels between are then those of heads that come
        one by one from vanishing weights.
        """
        first, source = self._learned(before), self.flow.source
        if not rested:
            known = between()
            middles = (known[:-1] + known[1:]) / 2
            return known[1:][middles > lowest].tolist()
        over = self.opening.gains[0] == 0
        M = self.flow.effective(self.state[None], self.awake[None])[0]
        last = float(source.loss(source.end(M) if over else M))
        count = self._learned(self.awake) - first
        passed = between()[1:count] if count > 1 else []
        return [*(x for x in passed if last < x < self.levels[-1]), last]

    def _between(
        self,
        before: Bool[np.ndarray, " H"],
        opening: Opening,
        floor: float,
        states: list[np.ndarray],
    ) -> Float[np.ndarray, " n"]:
        """The levels from a plateau with its opening on, of heads that come one by one.

        A quadratic loss has them by itself. Where the path is not unique, as with several layers,
        they are those of the heads that have risen so far, each time the others were not there.
        """
        source = self.flow.source
        if isinstance(source, Quadratic):
            return self._saddles[self._learned(before) :]
        levels, risen = self.levels[-1:], before
        for state, later in itertools.pairwise(states):
            up = risen | (np.abs(self.flow.split(later)[0]) > floor)
            if risen.sum() > before.sum() and up.sum() > risen.sum():
                alone = self.flow.put(state, ~risen, 0.0 * self.flow.some(state, ~risen)[1])
                flow, part = self.flow.some(alone, risen)
                search = _RestSearch(flow, opening, np.zeros(flow.heads, bool), floor)
                rest = _follow(flow, part, search)[3]
                if rest is not None:
                    levels.append(float(flow.loss(rest.state[None])[0]))
            risen = up
        return np.asarray(levels)

    @functools.cached_property
    def _saddles(self) -> Float[np.ndarray, " n"]:
        assert isinstance(self.flow.source, Quadratic)
        return saddle_levels(self.flow.source)

    def _learned(self, awake: Bool[np.ndarray, " H"]) -> int:
        """How many modes some heads have learned: the rank of their M."""
        return rank(self.flow.effective(self.state[None], awake[None])[0])

    def _drop(
        self,
        time: float,
        state: np.ndarray,
        before: Bool[np.ndarray, " H"],
        opening: Opening,
        escape: _Escape,
        head: int | None = None,
    ) -> HeadDrop:
        """A drop of the last leg, made by `head`, or by the one that moves most in its middle."""
        head = int(np.argmax(self.flow.speeds(state))) if head is None else head
        sign = float(np.sign(self.flow.split(self.state)[0][head]))
        others = [drop.head for drop in self.drops]
        if before[head] or head in others:
            value = abs(float(self.flow.split(state)[0][head]))
            return HeadDrop(head, time, np.inf, sign, 0.0, 0.0, value, np.inf, opening.unit)
        if head != escape.head:  # a further one that escapes in the same leg
            asleep = ~(before | np.isin(np.arange(self.flow.heads), others))
            opening = Opening.of(self.flow, state, ~asleep)
            begin = self.drops[-1].time if self.drops else self.legs[-1].start
            dormant = opening.dormant(self.flow, self.states(np.asarray([begin]))[0], asleep)
            own = int(np.flatnonzero(np.flatnonzero(asleep) == head)[0])
            escape = _escape(dormant, dormant, own, head, begin, opening)
        return HeadDrop(
            head, time, max(escape.blow_up, time + opening.unit), sign, float(opening.gains[0]),
            escape.misalignment, escape.value, escape.margin, opening.unit,
        )  # fmt: skip

    def states(self, times: Float[np.ndarray, " T"]) -> States:
        """All weights (after the end: at the end)."""
        result = np.repeat(self.state[None], len(times), axis=0)
        index = np.searchsorted([leg.start for leg in self.legs], times, side="right") - 1
        for i, leg in enumerate(self.legs):
            inside = (index == i) & (times <= leg.stop)
            if inside.any():
                result[inside] = leg.states(times[inside])
        return result


@dataclasses.dataclass(frozen=True)
class _Rest:
    """Where the heads awake have come to rest."""

    state: Float[np.ndarray, " n"]
    awake: Bool[np.ndarray, " H"]
    opening: Opening


class _RestSearch:
    """Looks along a descent for the place where the heads awake rest.

    They rest if Newton's method has hardly to move them, if they can learn no more by themselves,
    and if they will not turn on their own while the dormant heads wait. Otherwise the flow goes on:
    it is right everywhere, only slower.
    """

    def __init__(
        self,
        flow: HeadFlow,
        opening: Opening,
        before: Bool[np.ndarray, " H"],
        floor: float,
        below: float = np.inf,
    ) -> None:
        self.flow, self.opening, self.before, self.floor = flow, opening, before, floor
        self.below = below  # a loss that a rest must be below
        self.tried, self.force = before, np.inf  # heads last seen awake, and the force to wait for

    def _finished(self, y: np.ndarray, up: Bool[np.ndarray, " H"]) -> bool:
        """Whether all heads together are at least squares, of which those awake have every mode.

        Heads that never escape add a little to M, and those awake make up for it. Where 𝓗 is
        singular fewer modes than those of 𝓗⁺G may do: then nothing must be left at all.
        """
        loss = self.flow.source
        missing = float(np.linalg.norm(loss.residual(self.flow.effective(y[None])[0])))
        missing /= float(self.opening.gains[0])
        if missing > CLOSE or missing < FITTED:
            return missing < FITTED
        return rank(self.flow.effective(y[None], up[None])[0]) >= loss.modes

    def look(self, y: np.ndarray) -> _Rest | None:
        """The rest that a state is close to; None if it is not close to any."""
        up = np.abs(self.flow.split(y)[0]) > self.floor
        if not up.any() or np.array_equal(up, self.before):
            return None
        if np.isfinite(self.below) and self.flow.loss(y[None])[0] > self.below:
            return None
        if not np.array_equal(up, self.tried):
            self.tried, self.force = up, np.inf
        if self._finished(y, up):
            nothing = dataclasses.replace(self.opening, gains=0 * self.opening.gains, size=np.inf)
            return _Rest(y, up, nothing)
        flow, part = self.flow.some(y, up)
        force = float(np.linalg.norm(flow.slope(0.0, part)))
        gain, capacity = float(self.opening.gains[0]), flow.heads * flow.rank
        if force > min(NEAR_REST * gain * self.opening.size**2, self.force):
            return None
        M = flow.effective(part[None])[0]
        spare = rank(M) < capacity
        if spare and np.linalg.norm(self.flow.source.residual(M)) > NEAR_REST * gain:
            return None
        # A search costs as much as some ten steps, so the next one waits.
        self.force = np.inf if spare else force * AGAIN[1]
        # What takes longer than the plateau to come to rest stays as it is.
        ahead = Opening.of(self.flow, y, up).dormant(self.flow, y, ~up).blow_up()[0]
        slowest = 1 / float(ahead.min(initial=np.inf))
        rested, moves = flow.rested(part, slowest, within=FAR * CLOSE * gain)
        if rested is None:
            # How far R moves falls with the force.
            share = CLOSE * gain / moves
            self.force = np.inf if spare else force * min(max(share, AGAIN[0]), AGAIN[1])
            return None
        state = self.flow.put(y, up, rested)
        opening = Opening.of(self.flow, state, up)
        over = opening.gains[0] == 0
        if spare and not over:
            return None
        if over:  # nothing grows where nothing is left; a head on its way up does
            rates = np.linalg.eigvalsh(flow.jacobian(0.0, rested))
            if rates[-1] > UNSTABLE * abs(float(rates[0])):
                return None
        moved = flow.source.residual(np.stack([M, flow.effective(rested[None])[0]]))
        missed = float(np.linalg.norm(moved[1] - moved[0]))
        if missed > CLOSE * gain:
            return None
        waiting = np.abs(self.flow.split(y)[0][~up]).max(initial=0.0)
        relaxation = float(np.linalg.norm(rested - part)) / force
        if over or up.all():
            return _Rest(state, up, opening)
        if waiting * missed * relaxation > TRANSIENT:
            return None
        wait = float(opening.dormant(self.flow, y, ~up).blow_up()[0].min())
        if not np.isfinite(wait):
            return _Rest(state, up, opening)
        turning = flow.moved(rested, flow.slope(0.0, rested))
        at = flow.effective(rested[None])[0]
        drift = float(np.linalg.norm(flow.source.bent(at, turning))) * wait
        if drift > DRIFT * opening.gains[0] or wait < LEAD * opening.unit:
            return None
        return _Rest(state, up, opening)


def _follow(
    flow: HeadFlow, y: np.ndarray, search: _RestSearch
) -> tuple[list[float], list[np.ndarray], list[Any], _Rest | None]:
    """The flow from a state to the next rest: times, states, dense pieces, and the rest."""
    keys = np.abs(flow.split(y)[1])
    smallest = float(np.sqrt(np.mean(keys.min(axis=(1, 2)) ** 2)))
    solver = scipy.integrate.LSODA(
        flow.slope, 0.0, y, LONGEST * search.opening.unit, rtol=TOLERANCE,
        atol=TOLERANCE * max(smallest, 1e-12),
        jac=lambda t, y: flow.jacobian(t, y),  # SciPy < 1.17 reads its signature
    )  # fmt: skip
    times, states, pieces, rest = [0.0], [y], [], None
    while solver.status == "running" and rest is None and len(pieces) < STEPS:
        solver.step()
        if solver.status == "failed":
            break
        times.append(float(solver.t))
        states.append(solver.y.copy())
        pieces.append(solver.dense_output())
        if len(pieces) % STRIDE == 0 or solver.status == "finished":
            rest = search.look(states[-1])
    return times, states, pieces, rest


def _crossing(flow: HeadFlow, course: Any, middle: float, low: float, high: float) -> float:
    """When the loss is `middle`, in one step of the solver."""

    def excess(t: float) -> float:
        return float(flow.loss(course(t)[None])[0]) - middle

    root = scipy.optimize.brentq
    return root(excess, low, high) if excess(low) > 0 else low  # type: ignore[return-value]


def saddle_levels(quadratic: Quadratic) -> Float[np.ndarray, " n"]:
    """The losses of the plateaus of heads that come one by one from vanishing weights (Q4).

    For a population they are E[y²] - Σ σ_s² (24), else those of `saddle_weights`.
    """
    if quadratic.factors is not None:
        roots = [_inverse_root(a) for a in quadratic.factors]
        sizes = np.linalg.svd(roots[0] @ quadratic.cross @ roots[1], compute_uv=False)
        sizes = sizes[sizes > NOTHING * sizes.max(initial=0.0)]
        return quadratic.power - np.concatenate([[0.0], np.cumsum(sizes**2)])
    return quadratic.loss(saddle_weights(quadratic))


def saddle_weights(quadratic: Quadratic) -> Float[np.ndarray, "n D D"]:
    """The effective weights M of the plateaus of heads that come one by one (Q4).

    In a sample there is no closed form: a head starts along the leading singular vectors of R, and
    where it and the others come to rest is the next plateau. The last one is least squares.
    """
    quadratic = quadratic.dense()
    found = [np.zeros_like(quadratic.cross)]
    y, awake, floor = np.zeros(0), np.zeros(0, bool), np.inf
    for count in range(1, quadratic.size + 1):
        opening = Opening.of(HeadFlow(quadratic, count - 1, 1), y, awake)
        if opening.gains[0] == 0:
            break
        floor = min(floor, AWAKE * opening.size)
        rest = _one_more(HeadFlow(quadratic, count, 1), y, opening, floor)
        if rest is None:
            break
        y, awake = rest.state, np.ones(count, bool)
        found.append(HeadFlow(quadratic, count, 1).effective(y[None])[0])
        if rest.opening.gains[0] == 0:
            # The search ends when nearly nothing is left. What is left is taken exactly, and what
            # 𝓗 does not see of M stays as it is.
            left = dataclasses.replace(quadratic, cross=quadratic.residual(found[-1]))
            found[-1] = found[-1] + left.least_squares
    return np.stack(found)


def _one_more(flow: HeadFlow, y: np.ndarray, opening: Opening, floor: float) -> _Rest | None:
    """Where heads at rest and one more, aligned and small, come to rest."""
    before, small = np.arange(flow.heads) < flow.heads - 1, opening.size / LEAD
    fresh = np.concatenate([[1.0], opening.left[:, 0], opening.right[:, 0]])
    start = flow.put(np.zeros(flow.heads * (1 + 2 * flow.size)), ~before, small * fresh)
    start = flow.put(start, before, y)
    search = _RestSearch(flow, opening, before, floor)
    for _ in range(2 * flow.size):
        rest = _follow(flow, start, search)[3]
        if rest is None:
            return None
        # An aligned head may come to rest where a real one, never quite aligned, would turn.
        rates, directions = np.linalg.eigh(flow.jacobian(0.0, rest.state))
        if rest.opening.gains[0] == 0 or rates[-1] < UNSTABLE / opening.unit:
            return rest
        kick = KICK * float(np.linalg.norm(rest.state))
        start = rest.state + kick * directions[:, -1]
        # The rest that it leaves is near for a while: it falls by the rate times kick² at first.
        lower = float(flow.loss(rest.state[None])[0]) - 100 * float(rates[-1]) * kick**2
        search = _RestSearch(flow, opening, before, floor, lower)
    return None


def _inverse_root(matrix: Float[np.ndarray, "D D"]) -> Float[np.ndarray, "D D"]:
    """A^(-1/2) on the range of a symmetric A."""
    values, vectors = np.linalg.eigh(matrix)
    alive = values > 1e-12 * values.max(initial=0.0)
    return (vectors[:, alive] * values[alive] ** -0.5) @ vectors[:, alive].T


@dataclasses.dataclass(frozen=True)
class Staircase:
    """The predicted run: n drops in order, and its curves at any time.

    - `drops`, `run`: what the curves are made from; `staircase` gives both.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> start = icl.Separate.initialiser(task, heads=3, scale=0.01)(jax.random.key(0))
    >>> found = icl.theory.staircase(task, start, probes=0)
    >>> len(found.times), found.at([0.0]).loss.shape
    (2, (1,))
    """

    times: Float[np.ndarray, " n"]  # t/τ at which the loss is halfway down each drop
    heads: Int[np.ndarray, " n"]  # which head makes it
    escapes: Bool[np.ndarray, " n"]  # whether that head is new (else: a further pair of its)
    levels: Float[np.ndarray, " n+1"]  # the plateaus before, between and after
    values: Float[np.ndarray, " n"]  # value weight of that head on the plateau that follows
    misalignment: Float[np.ndarray, " n"]  # of the escaping head: the prediction's small parameter
    margin: Float[np.ndarray, " n"]  # how much later, relatively, another head would have escaped
    condition: Float[np.ndarray, " n"]  # relative change of the time per relative change of weights
    paper_durations: Float[np.ndarray, " n"]  # (68)(73): 1/(g |v|); NaN inside a head: no formula
    ended: str  # why there are no more drops
    drops: tuple[HeadDrop, ...]
    run: _Follower

    @property
    def complete(self) -> bool:
        """Whether every drop of the run is there: False where one took too long to follow."""
        return self.ended != TOO_LONG

    @property
    def together(self) -> Bool[np.ndarray, " n"]:
        """Which drops come with another: two heads escape so close that chance decides which."""
        apart = [d.margin * d.blow_up / d.width if d.escape else np.inf for d in self.drops]
        return np.asarray(apart, float) < TOGETHER

    @property
    def durations(self) -> Float[np.ndarray, " n"]:
        """How long each plateau lasts, from drop to drop; the first from the start."""
        return np.diff(self.times, prepend=0.0)

    def at(self, times: Times) -> Curve:
        """The run at the times t/τ."""
        saves, flow = np.atleast_1d(np.asarray(times, float)), self.run.flow
        states = self.run.states(saves)
        return Curve(saves, flow.loss(states), flow.split(states)[0], flow.effective(states))

    def marks(self, count: int = 400) -> Float[np.ndarray, " T"]:
        """About `count` times t/τ that show every drop: spread evenly, and close about each."""
        end = 1.3 * self.times[-1] if len(self.times) else 1.0
        each = max(7, count // (1 + len(self.times)))
        grids = [np.linspace(0, end, each)]
        for drop, time in zip(self.drops, self.times, strict=True):
            width = 1.5 * drop.width if drop.escape else (end - time) / 20
            width = min(abs(width), time / 2)
            grids.append(time + 8 * width * np.linspace(-1, 1, each))
        found = np.unique(np.concatenate(grids))
        return found[(found >= 0) & (found <= end)]

    @property
    def time(self) -> Float[np.ndarray, " T"]:
        """Times that show every drop."""
        return self.marks()

    @functools.cached_property
    def loss(self) -> Float[np.ndarray, " T"]:
        """The loss at `time`."""
        return self.at(self.time).loss


def staircase(source: Source | Quadratic, model: AbstractModel, *, probes: int = 3) -> Staircase:
    """Predict the staircase of one start, for a small init scale.

    - `source`: a task (one output; any Λ, S_w and noise, equal and zero eigenvalues allowed), its
      population, or a loss of prompts: `Moments`, `Features` or `Sequences`.
    - `model`: the initial weights, `Separate` (any heads and rank), the equivalent `ConvNet`, or
      several `Layers` of separate key and query, tied or not, on any loss that admits them. The
      heads of layers are numbered layer after layer.
    - `probes`: how many relative perturbations of the weights measure `condition`; 0 for none.

    >>> import jax, numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> start = icl.Separate.initialiser(task, heads=3, scale=0.01)(jax.random.key(0))
    >>> bool(np.all(np.diff(icl.theory.staircase(task, start, probes=0).times) > 0))
    True
    """
    block = None
    if model.depth > 1:
        loss = Stack.of(source, model)
        weights, block = loss.weights(model)
    else:
        loss = Quadratic.of(source)
        weights = separate_weights(model.single())
    if weights[1].shape[2] * loss.blocks != loss.size:
        raise ValueError(
            f"the model has {weights[1].shape[2]} inputs and the loss {loss.size // loss.blocks}; "
            f"draw it with Separate.initialiser(task, ...)"
        )
    run = _followed(loss, weights, block)
    times = np.asarray([drop.time for drop in run.drops], float)
    others = [_followed(loss, _perturbed(weights, number), block) for number in range(probes)]
    ends = np.append(times[1:], 10 * times[-1:]) if len(times) else times
    heads = np.asarray([drop.head for drop in run.drops], int)
    # On the plateau that follows: late, but before the next drop of the same head.
    after = run.flow.split(run.states(times + 0.5 * (ends - times)))[0]
    paper = [1 / (d.gain * d.dormant_value) if d.escape else np.nan for d in run.drops]
    return Staircase(
        times=times,
        heads=heads,
        escapes=np.asarray([drop.escape for drop in run.drops], bool),
        levels=np.asarray(run.levels),
        values=after[np.arange(len(times)), heads],
        misalignment=np.asarray([drop.misalignment for drop in run.drops], float),
        margin=np.asarray([drop.margin for drop in run.drops], float),
        condition=_condition(times, others),
        paper_durations=np.asarray(paper, float),
        ended=run.ended,
        drops=tuple(run.drops),
        run=run,
    )


def _followed(
    source: AbstractMatrixLoss, weights: Weights, block: Int[np.ndarray, " H"] | None = None
) -> _Follower:
    """Follow the run from the initial weights."""
    run = _Follower(source, weights, block)
    while run.step():
        pass
    return run


def _condition(times: Float[np.ndarray, " n"], others: list[_Follower]) -> Float[np.ndarray, " n"]:
    """√E(δt/t)² over relative changes of the weights, in units of those; NaN without any."""
    if not others:
        return np.full(len(times), np.nan)
    moved = np.full((len(others), len(times)), np.inf)
    for other, row in zip(others, moved, strict=True):
        found = np.asarray([drop.time for drop in other.drops])[: len(times)]
        # Drops come and go with the perturbation: one that is missing is infinitely far.
        row[: len(found)] = (found / times[: len(found)] - 1) / PERTURBATION
    return np.sqrt(np.mean(moved**2, axis=0))


def _perturbed(weights: Weights, number: int) -> Weights:
    """Every weight changed by 1e-4 times a normal number; the same ones for every start.

    Multiples of an irrational number, modulo one, are spread evenly without a generator.
    """
    step, count, moved = np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0][number % 6]), 0, []
    for a in weights:
        even = (np.arange(count + 1, count + 1 + a.size) * step * (1 + number // 6)) % 1.0
        moved.append(a * (1 + PERTURBATION * scipy.special.ndtri(even).reshape(a.shape)))
        count += a.size
    return moved[0], moved[1], moved[2]
