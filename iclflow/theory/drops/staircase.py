"""The staircase of separate key and query, predicted from the initial weights (Sections 4 and 5).

Which head learns which mode, when, and the whole loss curve on the clock t/τ, for one start. The
paper's estimate of the durations, (68)(73), is listed beside it.
"""

import dataclasses
import enum
from collections.abc import Sequence

import numpy as np
import scipy
from jaxtyping import Bool, Float, Int

from iclflow.losses import Population
from iclflow.models import AbstractModel
from iclflow.tasks.task import Task
from iclflow.theory.drops.base import AbstractRun, Curve, Times
from iclflow.theory.drops.events import aligned_drops
from iclflow.theory.drops.followed import FlowDrops, flow_drops
from iclflow.theory.drops.frame import Frame, Weights, separate_weights
from iclflow.theory.fixed_points.modes import Modes

NEAR = 0.05  # relative difference of times by scalar courses and by the flow
LARGE = 300  # weights from which the flow, whose Jacobian has their square, costs too much
PERTURBATION = 1e-4  # relative change of every initial weight behind the condition number


class DropsBy(enum.Enum):
    """How the drops themselves are computed; plateaus always have their closed form.

    `FLOW`: all heads follow the flow from shortly before a drop until it is over; any task.
    `COURSE`: each mode by its scalar course (26), each head of rank R by R + 1 numbers; needs a
    commuting task whose gains and drops order the modes alike, and is 100 times less accurate.
    """

    COURSE = "course"
    FLOW = "flow"


@dataclasses.dataclass(frozen=True)
class Staircase:
    """The predicted run: n drops in order, and its curves at any time."""

    times: Float[np.ndarray, " n"]  # t/τ at which the loss is halfway down each drop
    heads: Int[np.ndarray, " n"]  # which head makes it
    escapes: Bool[np.ndarray, " n"]  # whether that head is new (else: a further pair of its)
    levels: Float[np.ndarray, " n+1"]  # the plateaus before, between and after
    values: Float[np.ndarray, " n"]  # value weight of that head on the plateau that follows
    misalignment: Float[np.ndarray, " n"]  # of the escaping head: the prediction's small parameter
    condition: Float[np.ndarray, " n"]  # relative change of the time per relative change of weights
    paper_durations: Float[np.ndarray, " n"]  # (68)(73): 1/(g |v|); NaN inside a head: no formula
    ended: str  # why there are no more drops
    by: DropsBy  # how the drops were computed
    run: AbstractRun

    @property
    def durations(self) -> Float[np.ndarray, " n"]:
        """How long each plateau lasts, from drop to drop; the first from the start."""
        return np.diff(self.times, prepend=0.0)

    def at(self, times: Times) -> Curve:
        """The run at the times t/τ."""
        saves, run = np.atleast_1d(np.asarray(times, float)), self.run
        return Curve(saves, run.loss(saves), run.values(saves), run.effective(saves))

    def marks(self, count: int = 400) -> Float[np.ndarray, " T"]:
        """About `count` times t/τ that show every drop: spread evenly, and close about each."""
        end = 1.3 * self.times[-1] if len(self.times) else 1.0
        each = max(7, count // (1 + len(self.times)))
        grids = [np.linspace(0, end, each)]
        for drop, time in zip(self.run.drops, self.times, strict=True):
            # An escape goes through its drop in a few c/g = (blow-up - switch).
            width = drop.blow_up - drop.switch if drop.escape else (end - time) / 20
            width = min(abs(width), time / 2)
            grids.append(time + 8 * width * np.linspace(-1, 1, each))
        found = np.unique(np.concatenate(grids))
        return found[(found >= 0) & (found <= end)]

    @property
    def time(self) -> Float[np.ndarray, " T"]:
        """Times that show every drop."""
        return self.marks()

    @property
    def loss(self) -> Float[np.ndarray, " T"]:
        """The loss at `time`."""
        return self.run.loss(self.marks())


def staircase(
    source: Task | Population | Modes,
    model: AbstractModel,
    *,
    drops_by: DropsBy | None = None,
    probes: int = 3,
) -> Staircase:
    """Predict the staircase of one start, for a small init scale.

    On each plateau every dormant head has a blow-up time in closed form; the first to blow up
    makes the next drop. Relative error of the times, median and worst over 30 fresh random tasks
    of two to five dimensions (benchmarks/staircase.py): by the flow 2e-6 and 3e-5 at w = 1e-2, 4e-6
    and 1e-4 at w = 0.07; by the scalar courses 8e-4 and 0.3, 9e-3 and 0.8.

    - `source`: the task (one output), any Λ, S_w and noise; equal and zero eigenvalues allowed.
    - `model`: the initial weights, `Separate` (any heads and rank) or the equivalent `ConvNet`.
    - `drops_by`: if omitted the flow, but for more than 300 weights the scalar courses where the
      task has them; `Staircase.by` says which.
    - `probes`: how many relative perturbations of the weights measure `condition`; 0 for none.
    """
    modes, weights = Modes.of(source), separate_weights(model)
    if weights[1].shape[2] != modes.size:
        raise ValueError(
            f"the model has {weights[1].shape[2]} inputs and the task {modes.size}; "
            f"draw it with Separate.initialiser(task, ...)"
        )
    by = _choose(modes, weights, drops_by)
    probed = [_perturbed(weights, number) for number in range(probes)]
    if by is DropsBy.COURSE:
        run, *others = aligned_drops(modes, [weights, *probed])
        base: AbstractRun = run
    else:
        run = flow_drops(modes, weights)
        base, others = _followed(modes, weights, run, probed)
    times = run.drop_times
    condition = _condition(times, base, others)
    ends = np.append(times[1:], 10 * times[-1:]) if len(times) else times
    drops = run.drops
    # On the plateau that follows: late, but before the next drop of the same head.
    after = run.own_values(times + 0.5 * (ends - times))
    paper = [1 / (d.gain * d.dormant_value) if d.escape else np.nan for d in drops]
    return Staircase(
        times=times,
        heads=np.asarray([drop.head for drop in drops], int),
        escapes=np.asarray([drop.escape for drop in drops], bool),
        levels=float(modes.power)
        - np.concatenate([[0.0], np.cumsum(np.asarray(modes.drops, float)[: len(times)])]),
        values=after,
        misalignment=np.asarray([drop.misalignment for drop in drops], float),
        condition=condition,
        paper_durations=np.asarray(paper, float),
        ended=run.ended,
        by=by,
        run=run,
    )


def _followed(
    modes: Modes, weights: Weights, run: FlowDrops, probed: Sequence[Weights]
) -> tuple[AbstractRun, Sequence[AbstractRun]]:
    """A run to compare perturbed ones with, and those.

    By scalar courses where they name the same heads at nearly the same times: a derivative does not
    need more. Else, for nearly equal modes for one, by the flow.
    """
    if probed and has_courses(modes):
        base, *others = aligned_drops(modes, [weights, *probed])
        same = [d.head for d in base.drops] == [d.head for d in run.drops]
        if same and np.all(np.abs(_switches(base) / run.drop_times - 1) < NEAR):
            return base, others
    return run, [flow_drops(modes, start) for start in probed]


def _condition(
    times: Float[np.ndarray, " n"], base: AbstractRun, others: Sequence[AbstractRun]
) -> Float[np.ndarray, " n"]:
    """√E(δt/t)² over relative changes of the weights, in units of those; NaN without any."""
    if not others:
        return np.full(len(times), np.nan)
    switches, moved = _switches(base), np.full((len(others), len(times)), np.inf)
    for other, row in zip(map(_switches, others), moved, strict=True):
        count = min(len(times), len(other))  # others come and go with the perturbation
        row[:count] = (other[:count] - switches[:count]) / times[:count] / PERTURBATION
    return np.sqrt(np.mean(moved**2, axis=0))


def _switches(run: AbstractRun) -> Float[np.ndarray, " n"]:
    return np.asarray([drop.switch for drop in run.drops], float)


def has_courses(modes: Modes) -> bool:
    """Whether each mode can be learned alone (E1)."""
    return modes.commuting and Frame.of(modes).ordered()


def _choose(modes: Modes, weights: Weights, wanted: DropsBy | None) -> DropsBy:
    """The flow, unless it costs too much and the modes have scalar courses."""
    if wanted is DropsBy.FLOW:
        return wanted
    large = sum(a.size for a in weights) > LARGE
    if wanted is None and not large:
        return DropsBy.FLOW
    scalar = has_courses(modes)
    if wanted is DropsBy.COURSE and not scalar:
        raise ValueError(
            "the modes of this task have no scalar courses: its moments do not commute, or its "
            "gains and drops order the modes differently; use DropsBy.FLOW"
        )
    return DropsBy.COURSE if scalar else DropsBy.FLOW


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
