"""The staircase of a commuting task whose gains and drops order its modes alike: its curves.

Each mode is learned by one head, along the scalar course (26) of its escape (`events`). Times t/τ.
"""

import numpy as np
from jaxtyping import Float

from iclflow.theory.drops.base import AbstractRun, Drop
from iclflow.theory.drops.dormant import DormantHeads
from iclflow.theory.drops.frame import Frame
from iclflow.theory.drops.in_head import HeadCourse
from iclflow.theory.drops.scalar_ode import KAPPA, blow_up_course

EARLY, LATE = 1e3, 15.0  # in units c/g from the blow-up: a course is then its limit
SMALL = 0.05  # c v up to which the dormant head's own value weight is shown


class AlignedDrops(AbstractRun):
    """The events of one run, and its curves."""

    def __init__(self, frame: Frame, heads: int, power: float) -> None:
        self.frame, self.heads, self.power = frame, heads, power
        self.drops: list[Drop] = []
        self.ended = "every mode is learned"
        self.plateaus: list[tuple[float, DormantHeads, np.ndarray]] = []  # start, heads, names
        self.courses: dict[int, list[HeadCourse]] = {}  # of heads with several pairs

    @property
    def _units(self) -> Float[np.ndarray, " n"]:
        """c/g of each drop's mode."""
        modes = [drop.mode for drop in self.drops]
        return self.frame.c[modes] / self.frame.g[modes]

    @property
    def lone_times(self) -> Float[np.ndarray, " n"]:
        """When each drop would be halfway down if it were alone (inside a head: its switch)."""
        pairs = zip(self.drops, self._units, strict=True)
        return np.asarray([d.blow_up - KAPPA * u if d.escape else d.switch for d, u in pairs])

    @property
    def drop_times(self) -> Float[np.ndarray, " n"]:
        """When the loss curve crosses the middle of each drop, by false position (Illinois)."""
        count = len(self.drops)
        if count == 0:
            return np.zeros(0)
        levels = self.power - np.concatenate([[0.0], np.cumsum(self.frame.drops)])
        middle = ((levels[:-1] + levels[1:]) / 2)[:count]
        alone, unit = self.lone_times, self._units
        low, high = np.maximum(alone - unit, 0.0), alone + unit
        over, under = self.loss(low) - middle, self.loss(high) - middle
        for _ in range(200):  # heads that fall together are farther from their times alone
            early, late = (over <= 0) & (low > 0), under > 0
            if not (early | late).any():
                break
            span = 2 * (high - low)
            low, high = (
                np.where(early, np.maximum(low - span, 0.0), np.where(late, high, low)),
                np.where(late, high + span, np.where(early, low, high)),
            )
            over, under = self.loss(low) - middle, self.loss(high) - middle
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
