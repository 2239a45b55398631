"""The events of a staircase whose modes are learned one by one: escapes, and drops inside a head.

Dormant heads follow their closed form under a constant A_S; the first to blow up, at T, learns
the unlearned mode of largest gain. To the others that mode is switched off at T - c/g, which is
exact: ∫ (1 - v³/m) dt over the escape of an aligned head. Heads of rank R go on to learn further
modes with their other pairs. Times are t/τ.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from iclflow.theory.drops.aligned import AlignedDrops
from iclflow.theory.drops.base import Drop
from iclflow.theory.drops.dormant import DormantHeads
from iclflow.theory.drops.frame import Frame, Weights, turn
from iclflow.theory.drops.in_head import HeadCourse
from iclflow.theory.fixed_points.modes import Modes

LEAD = 50.0  # an escape is followed pair by pair from c v = 1/LEAD on
LOG_MAX = 600.0  # of a growth factor


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


class _Stairs:
    """The state between two events: dormant heads, heads with free pairs, unlearned modes."""

    def __init__(self, frame: Frame, power: float, weights: Weights) -> None:
        values, keys, queries = weights
        k, q = keys @ frame.basis, queries @ frame.basis
        self.run = AlignedDrops(frame, len(values), power)
        self.dormant = DormantHeads(values, k + q, k - q, frame.g)
        self.wait, self.gains = 0.0, frame.g  # what the dormant heads are still to be moved by
        self.leader = self.dormant  # the head that escapes first, shortly before
        self.names = np.arange(len(values))
        self.open = list(range(frame.rank))
        self.active: list[_Active] = []
        self.now = 0.0

    @property
    def delay(self) -> float:
        """c/g of the open mode that grows fastest."""
        frame = self.run.frame
        return max((float(frame.g[d]), float(frame.c[d] / frame.g[d])) for d in self.open)[1]

    def first(self) -> tuple[int, float]:
        """The head that escapes first, and how long it is dormant before that is followed."""
        times = self.dormant.blow_up()[0]
        winner = int(np.argmin(times)) if len(times) and self.open else 0
        wait = float(times[winner]) - LEAD * self.delay if len(times) and self.open else 0.0
        return winner, max(wait, 0.0) if np.isfinite(wait) else 0.0

    def step(self) -> bool:
        """Process the next event; False if there is none."""
        self.run.plateaus.append((self.now, self.dormant, self.names))
        if not self.open:
            return False
        times, signs = self.dormant.blow_up()
        winner = int(np.argmin(times)) if len(times) else -1
        escape = self.now + float(times[winner]) if winner >= 0 else np.inf
        delay = self.delay
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
        begin = self.now + self.first()[1]
        one, state = np.arange(len(self.names)) == winner, self.leader
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
        self.wait, self.gains = elapsed, gains
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


def aligned_drops(modes: Modes, starts: Sequence[Weights]) -> list[AlignedDrops]:
    """Follow the events of several starts; heads on equal plateaus are computed together."""
    frame, power = Frame.of(modes), float(modes.power)
    runs = [_Stairs(frame, power, weights) for weights in starts]
    going = runs
    while going:
        alike: dict[bytes, list[_Stairs]] = {}
        for one in going:
            alike.setdefault(one.dormant.gains.tobytes() + one.gains.tobytes(), []).append(one)
        for group in alike.values():
            counts = [len(one.names) for one in group]
            whole = DormantHeads.join([one.dormant for one in group])
            whole = whole.after(np.repeat([one.wait for one in group], counts))
            whole = dataclasses.replace(whole, gains=group[0].gains)
            whole.blow_up()
            for one, end, count in zip(group, np.cumsum(counts), counts, strict=True):
                one.dormant, one.wait = whole.only(slice(end - count, end)), 0.0
            leading = [one for one in group if one.names.size]
            firsts = [one.first() for one in leading]
            heads = [
                one.dormant.only(slice(i, i + 1))
                for one, (i, _) in zip(leading, firsts, strict=True)
            ]
            if heads:
                ahead = DormantHeads.join(heads).after(np.asarray([wait for _, wait in firsts]))
                for row, one in enumerate(leading):
                    one.leader = ahead.only(slice(row, row + 1))
        going = [one for one in going if one.step()]
    return [one.run for one in runs]
