"""The staircase event by event, for a commuting task whose gains and drops order its modes alike.

Dormant heads follow their closed form under a constant A_S; the first to blow up, at T, learns
the unlearned mode of largest gain. To the others that mode is switched off at T - c/g, which is
exact: ∫ (1 - v³/m) dt over the escape of an aligned head. Heads of rank R go on to learn further
modes with their other pairs. Times are t/τ.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from iclflow.theory.drops.base import AbstractRun, Drop
from iclflow.theory.drops.dormant import DormantHeads
from iclflow.theory.drops.frame import Frame, Weights, turn
from iclflow.theory.drops.in_head import HeadCourse
from iclflow.theory.drops.scalar_ode import KAPPA, blow_up_course
from iclflow.theory.fixed_points.modes import Modes

LEAD = 50.0  # an escape is followed pair by pair from c v = 1/LEAD on
EARLY, LATE = 1e3, 15.0  # in units c/g from the blow-up: a course is then its limit
LOG_MAX = 600.0  # of a growth factor
SMALL = 0.05  # c v up to which the dormant head's own value weight is shown


@dataclasses.dataclass
class _Active:
    """An escaped head: its learned modes, and the pairs that have none yet."""

    head: int
    sign: float
    owned: list[int]
    amplitudes: Float[np.ndarray, " n"]  # κ of the owned modes
    value: float
    rest: Float[np.ndarray, "R r"]  # p of the free pairs along the modes
    course: HeadCourse | None = None

    def follow(self, frame: Frame, open_modes: list[int], time: float) -> HeadCourse:
        """Integrate from now on, the free pairs heading for the open modes."""
        modes, sizes, _ = frame.slots(self.rest, open_modes, self.rest.shape[0])
        order = [*self.owned, *modes]
        self.course = HeadCourse.solve(
            time, self.value, np.concatenate([self.amplitudes, sizes]), tuple(order),
            frame.g[order], frame.m[order],
        )  # fmt: skip
        return self.course

    def next(self) -> tuple[float, int]:
        """When the next free pair has learned its mode, and which."""
        assert self.course is not None
        free = range(len(self.owned), len(self.course.modes))
        return min(
            ((float(self.course.switches[i]), self.course.modes[i]) for i in free),
            default=(np.inf, -1),
        )

    def advance(self, frame: Frame, open_modes: list[int], time: float) -> dict[int, float]:
        """Move to a time, and return the amplitudes of all pairs then."""
        assert self.course is not None
        self.value, amplitudes, phase = self.course.at(time)
        size = dict(zip(self.course.modes, amplitudes.tolist(), strict=True))
        self.amplitudes = np.asarray([size[d] for d in self.owned])
        growth = np.zeros(frame.rank)  # learned modes are closed to the free pairs
        growth[open_modes] = np.exp(np.minimum(frame.g[open_modes] * phase, LOG_MAX))
        self.rest = self.rest * growth[None, :]
        return size

    def take(self, mode: int, amplitude: float) -> None:
        """Give a mode to one pair, turned so that it carries all of it."""
        left = np.linalg.svd(self.rest[:, [mode]])[0]
        self.rest = left[:, 1:].T @ self.rest
        self.owned.append(mode)
        self.amplitudes = np.append(self.amplitudes, amplitude)


class AlignedDrops(AbstractRun):
    """The events of one run, and its curves."""

    def __init__(self, frame: Frame, heads: int, power: float) -> None:
        self.frame, self.heads, self.power = frame, heads, power
        self.drops: list[Drop] = []
        self.ended = "every mode is learned"
        self.plateaus: list[tuple[float, DormantHeads, np.ndarray]] = []  # start, heads, names
        self.courses: dict[int, list[HeadCourse]] = {}  # of heads with several pairs

    @property
    def drop_times(self) -> Float[np.ndarray, " n"]:
        """When the loss curve crosses the middle of each drop, by false position (Illinois)."""
        count = len(self.drops)
        if count == 0:
            return np.zeros(0)
        levels = self.power - np.concatenate([[0.0], np.cumsum(self.frame.drops)])
        middle = ((levels[:-1] + levels[1:]) / 2)[:count]
        modes = [drop.mode for drop in self.drops]
        unit = self.frame.c[modes] / self.frame.g[modes]
        alone = [d.blow_up - KAPPA * u if d.escape else d.switch
                 for d, u in zip(self.drops, unit, strict=True)]  # fmt: skip
        low, high = np.maximum(np.asarray(alone) - unit, 0.0), np.asarray(alone) + unit
        for _ in range(200):  # heads that fall together are farther from their times alone
            over, under = self.loss(low) - middle, self.loss(high) - middle
            early, late = (over <= 0) & (low > 0), under > 0
            if not (early | late).any():
                break
            span = 2 * (high - low)
            low, high = (
                np.where(early, np.maximum(low - span, 0.0), np.where(late, high, low)),
                np.where(late, high + span, np.where(early, low, high)),
            )
        side = np.zeros(count)
        for _ in range(60):
            share = np.clip(over / np.where(over > under, over - under, 1.0), 1e-9, 1 - 1e-9)
            centre = low + share * (high - low)
            excess = self.loss(centre) - middle
            above = excess > 0
            # An end that stays for the second time counts half, else it would stay for good.
            over = np.where(above, excess, np.where(side < 0, over / 2, over))
            under = np.where(above, np.where(side > 0, under / 2, under), excess)
            low, high = np.where(above, centre, low), np.where(above, high, centre)
            side = np.where(above, 1.0, -1.0)
            if np.all((high - low <= 1e-12 * high) | (np.abs(excess) <= 1e-14 * self.power)):
                break
        return np.where(np.abs(over) < np.abs(under), low, high)

    def fractions(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, "r T"]:
        """f_d(t), the learned fraction of each mode: M = Σ f_d m_d e_d e_dᵀ."""
        result = np.zeros((self.frame.rank, len(times)))
        alone = [drop for drop in self.drops if drop.head not in self.courses]
        left = np.asarray([drop.blow_up for drop in alone])[:, None] - times[None, :]
        index = [drop.mode for drop in alone]
        result[index] = (self.frame.c[index, None] * self._course(left, index)) ** 3
        for drop in self.drops:
            for course in self.courses.get(drop.head, []):
                if drop.mode in course.modes:
                    row, inside = course.modes.index(drop.mode), times >= course.start
                    result[drop.mode, inside] = course.curves(times[inside])[1][row]
        return result

    def _course(self, left: np.ndarray, index: list[int]) -> np.ndarray:
        """|v| [n, T] of aligned heads on the modes `index`, by the time left to their blow-up."""
        gains, curvature = self.frame.g[index, None], self.frame.curvature[index, None]
        units = self.frame.c[index, None] * np.ones_like(left)
        scaled = gains / units * left
        # Early v = 1/(g (T - t)) to a relative c³v³, and late 1 - f = e^{-3|T - t| g/c}.
        sizes = np.where(scaled > 0, 1 / np.where(scaled > 0, scaled, 1.0), 1.0) / units
        between = (scaled < EARLY) & (scaled > -LATE)
        arrays = [np.broadcast_to(a, left.shape)[between] for a in (left, gains, curvature)]
        # Padded, so that the course is compiled for a few sizes only.
        count = int(between.sum())
        size = 256
        while size < count:
            size *= 2
        padded = [np.concatenate([a, np.ones(size - count)]) for a in arrays]
        sizes[between] = np.asarray(blow_up_course(*padded))[:count]
        return sizes

    def loss(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, " T"]:
        """L = E[y²] - Σ σ_d² (1 - (1 - f_d)²)."""
        return self.power - self.frame.drops @ (1 - (1 - self.fractions(times)) ** 2)

    def effective(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T D D"]:
        """M = Σ f_d m_d e_d e_dᵀ."""
        weights = self.fractions(times) * self.frame.m[:, None]
        return np.einsum("dr,rt,cr->tdc", self.frame.basis, weights, self.frame.basis)

    def values(self, times: Float[np.ndarray, " T"]) -> Float[np.ndarray, "T H"]:
        """v of every head: its own dormant course, then the course of the aligned head."""
        result = np.zeros((len(times), self.heads))
        starts = np.asarray([start for start, _, _ in self.plateaus])
        index = np.maximum(np.searchsorted(starts, times, side="right") - 1, 0)
        for row, (time, i) in enumerate(zip(times, index, strict=True)):
            start, heads, names = self.plateaus[i]
            if len(names) == 0:
                continue
            limit = 0.999999 * float(np.min(heads.blow_up()[0]))
            result[row, names] = heads.after(min(time - start, limit)).values
        escapes = [drop for drop in self.drops if drop.escape]
        names, modes = [drop.head for drop in escapes], [drop.mode for drop in escapes]
        g, c = self.frame.g[modes], self.frame.c[modes]
        blow_up, switch, signs = (
            np.asarray([getattr(drop, name) for drop in escapes])
            for name in ("blow_up", "switch", "sign")
        )
        dormant = result[:, names]
        small = (c * np.abs(dormant) < SMALL) & (times[:, None] < switch)
        own = 1 / (g * np.maximum(np.abs(dormant), 1e-200))
        left = np.where(small, own, blow_up - times[:, None])
        course = self._course(left.T, modes).T
        for column, head in enumerate(names):
            for segment in self.courses.get(head, []):
                inside = times >= segment.start
                course[inside, column] = segment.curves(times[inside])[0]
        result[:, names] = np.where(small, np.sign(dormant), signs) * course
        return result

    def own_values(self, times: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        escape = {drop.head: drop for drop in self.drops if drop.escape}
        own = [escape[drop.head] for drop in self.drops]
        left = np.asarray([drop.blow_up for drop in own]) - times
        sizes = self._course(left[:, None], [drop.mode for drop in own])[:, 0]
        for i, drop in enumerate(own):
            for segment in self.courses.get(drop.head, []):
                if times[i] >= segment.start:
                    sizes[i] = segment.at(float(times[i]))[0]
        return np.asarray([drop.sign for drop in own]) * sizes


class _Stairs:
    """The state between two events: dormant heads, heads with free pairs, unlearned modes."""

    def __init__(self, modes: Modes, weights: Weights) -> None:
        frame, (values, keys, queries) = Frame.of(modes), weights
        k, q = keys @ frame.basis, queries @ frame.basis
        self.run = AlignedDrops(frame, len(values), float(modes.power))
        self.dormant = DormantHeads(values, k + q, k - q, frame.g)
        self.names = np.arange(len(values))
        self.open = list(range(frame.rank))
        self.active: list[_Active] = []
        self.now = 0.0

    def step(self) -> bool:
        """Process the next event; False if there is none."""
        self.run.plateaus.append((self.now, self.dormant, self.names))
        if not self.open:
            return False
        times, signs = self.dormant.blow_up()
        winner = int(np.argmin(times)) if len(times) else -1
        escape = self.now + float(times[winner]) if winner >= 0 else np.inf
        frame, first = self.run.frame, max(self.open, key=lambda d: self.run.frame.g[d])
        delay = float(frame.c[first] / frame.g[first])
        inner = min((one.next()[0] for one in self.active), default=np.inf)
        if not np.isfinite(min(escape, inner)):
            left = len(self.names) > 0
            self.run.ended = "no head that is left ever escapes" if left else "no head is left"
            return False
        if escape - delay <= inner:
            drop = self._escape(winner, float(signs[winner]), escape, delay)
        else:
            drop = self._inner()
        self.run.drops.append(drop)
        self._switch(drop)
        return True

    def _escape(self, winner: int, sign: float, escape: float, delay: float) -> Drop:
        """A dormant head blows up."""
        begin = max(self.now, escape - LEAD * delay)
        one = np.arange(len(self.names)) == winner
        state = self.dormant.only(one).after(begin - self.now)
        weights = (state.sums if sign > 0 else state.differences)[0]
        rank = weights.shape[0]
        modes, _, turns = self.run.frame.slots(weights, self.open, rank)
        self._turn(turns)
        weights = turn(weights, turns)
        other = 1 - np.sum(weights[:, modes[0]] ** 2) / np.sum(weights[:, self.open] ** 2)
        head, switch = int(self.names[winner]), escape - delay
        if rank > 1:
            value = abs(float(state.values[0]))
            fresh = _Active(head, sign, [], np.zeros(0), value, weights)
            switch = float(self._follow(fresh, begin).switches[0])
            self.active.append(fresh)
        size = abs(float(self.dormant.values[winner]))
        self.dormant, self.names = self.dormant.only(~one), self.names[~one]
        switch = max(self.now, switch)
        gain = float(self.run.frame.g[modes[0]])
        return Drop(modes[0], head, switch, escape, sign, gain, float(other), size)

    def _inner(self) -> Drop:
        """A free pair of an active head learns a mode."""
        owner = min(self.active, key=lambda one: one.next()[0])
        switch, mode = owner.next()
        turns = self.run.frame.slots(owner.rest, self.open, owner.rest.shape[0])[2]
        self._turn({members: r for members, r in turns.items() if mode in members})
        switch, gain = max(self.now, switch), float(self.run.frame.g[mode])
        return Drop(mode, owner.head, switch, np.inf, owner.sign, gain, 0.0, owner.value)

    def _switch(self, drop: Drop) -> None:
        """Bring everything to the time of a drop and take its mode away."""
        times, _ = self.dormant.blow_up()
        # Where two heads escape at once the other is left just before its blow-up.
        elapsed = min(drop.switch - self.now, 0.999999 * float(times.min(initial=np.inf)))
        sizes = [one.advance(self.run.frame, self.open, drop.switch) for one in self.active]
        self.open.remove(drop.mode)
        gains = np.zeros(self.run.frame.rank)
        gains[self.open] = self.run.frame.g[self.open]
        self.dormant = dataclasses.replace(self.dormant.after(elapsed), gains=gains)
        for one, size in zip(self.active, sizes, strict=True):
            if one.head == drop.head:
                one.take(drop.mode, size[drop.mode])
            self._follow(one, drop.switch)
        self.active = [one for one in self.active if one.rest.shape[0] > 0]
        self.now = drop.switch

    def _follow(self, one: _Active, time: float) -> HeadCourse:
        course = one.follow(self.run.frame, self.open, time)
        self.run.courses.setdefault(one.head, []).append(course)
        return course

    def _turn(self, turns: dict[tuple[int, ...], np.ndarray]) -> None:
        """Turn equal modes among each other, everywhere."""
        if not turns:
            return
        self.run.frame = self.run.frame.turned(turns)
        self.dormant = dataclasses.replace(
            self.dormant,
            sums=turn(self.dormant.sums, turns),
            differences=turn(self.dormant.differences, turns),
        )
        for one in self.active:
            one.rest = turn(one.rest, turns)


def aligned_drops(modes: Modes, weights: Weights) -> AlignedDrops:
    """Follow the events from the initial weights."""
    stairs = _Stairs(modes, weights)
    while stairs.step():
        pass
    return stairs.run
