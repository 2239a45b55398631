"""The staircase of separate key and query, predicted from the initial weights (Sections 4 and 5).

Which head learns which mode, when, and the whole loss curve on the clock t/τ, for one start. The
paper's estimate of the durations, (68)(73), is listed beside it.
"""

import dataclasses
import enum
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from iclflow.losses import Population
from iclflow.models import AbstractModel
from iclflow.results.trajectory import RESULTS, Trajectory
from iclflow.tasks.task import Task
from iclflow.theory.drops.aligned import aligned_drops
from iclflow.theory.drops.base import AbstractRun, Times
from iclflow.theory.drops.followed import flow_drops
from iclflow.theory.drops.frame import Frame, Weights, separate_weights
from iclflow.theory.fixed_points.modes import Modes

PERTURBATION = 1e-4  # relative change of every initial weight behind the condition number


class DropsBy(enum.Enum):
    """How the drops themselves are computed; plateaus always have their closed form.

    `COURSE`: each mode by its scalar course (26), each head of rank R by R + 1 numbers; needs a
    commuting task whose gains and drops order the modes alike. `FLOW`: all heads follow the flow
    from shortly before a drop until it is over; any task, and 10 to 100 times more accurate.
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
    run: AbstractRun

    @property
    def durations(self) -> Float[np.ndarray, " n"]:
        """How long each plateau lasts, from drop to drop; the first from the start."""
        return np.diff(self.times, prepend=0.0)

    def at(self, times: Times) -> Trajectory:
        """The run at the times t/τ: `loss`, `values` [T, H], `effective` [T, D, D]."""
        saves = np.atleast_1d(np.asarray(times, float))
        return Trajectory(
            time=jnp.asarray(saves),
            step=jnp.asarray(saves),
            record={
                "loss": jnp.asarray(self.run.loss(saves)),
                "values": jnp.asarray(self.run.values(saves)),
                "effective": jnp.asarray(self.run.effective(saves)),
            },
            result=RESULTS.finished,
            stopped=jnp.asarray(saves[-1]),
        )

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
    def trajectory(self) -> Trajectory:
        """The run at times that show every drop."""
        return self.at(self.marks())

    @property
    def time(self) -> Float[np.ndarray, " T"]:
        """The times of `trajectory`."""
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
    probes: int = 4,
) -> Staircase:
    """Predict the staircase of one start, for a small init scale.

    On each plateau every dormant head has a blow-up time in closed form; the first to blow up
    makes the next drop. Relative error of the times at λ = .4 .3 .2 .1, N = 31, five heads, rank
    one, median and worst of 100 starts: by the scalar courses 0.1% and 18% at w = 1e-2, 0.005%
    and 2.3% at 1e-3; by the flow 0.002% and 0.4% at 1e-1, 0.001% and 0.5% at 1e-2. Errors
    grow with `condition` (their logarithms correlate, 0.6).

    - `source`: the task (one output), any Λ, S_w and noise; equal and zero eigenvalues allowed.
    - `model`: the initial weights, `Separate` (any heads and rank) or the equivalent `ConvNet`.
    - `drops_by`: the scalar courses where the task has them, else the flow, if omitted.
    - `probes`: random relative perturbations of the weights that measure `condition`; 0 for none.
    """
    modes, weights = Modes.of(source), separate_weights(model)
    if weights[1].shape[2] != modes.size:
        raise ValueError(
            f"the model has {weights[1].shape[2]} inputs and the task {modes.size}; "
            f"draw it with Separate.initialiser(task, ...)"
        )
    follow = _engine(modes, drops_by)
    run = follow(modes, weights)
    times = drop_times(modes, run)
    generator = np.random.default_rng(0)  # the same probes for every start
    moved = np.zeros((probes, len(times)))
    for row in moved:
        noisy = tuple(a * (1 + PERTURBATION * generator.standard_normal(a.shape)) for a in weights)
        other = drop_times(modes, follow(modes, noisy))  # type: ignore[arg-type]
        count = min(len(times), len(other))
        row[:count] = (other[:count] / times[:count] - 1) / PERTURBATION
        row[count:] = np.inf  # a drop that comes and goes with the perturbation
    condition = np.sqrt(np.mean(moved**2, axis=0)) if probes else np.full(len(times), np.nan)
    ends = np.append(times[1:], 10 * times[-1:]) if len(times) else times
    drops = run.drops
    heads = np.asarray([drop.head for drop in drops], int)
    # On the plateau that follows: late, but before the next drop of the same head.
    after = run.values(times + 0.5 * (ends - times))[np.arange(len(times)), heads]
    paper = [1 / (d.gain * d.dormant_value) if d.escape else np.nan for d in drops]
    return Staircase(
        times=times,
        heads=heads,
        escapes=np.asarray([drop.escape for drop in drops], bool),
        levels=float(modes.power)
        - np.concatenate([[0.0], np.cumsum(np.asarray(modes.drops, float)[: len(times)])]),
        values=after,
        misalignment=np.asarray([drop.misalignment for drop in drops], float),
        condition=condition,
        paper_durations=np.asarray(paper, float),
        ended=run.ended,
        run=run,
    )


def _engine(modes: Modes, drops_by: DropsBy | None) -> Callable[[Modes, Weights], AbstractRun]:
    """Scalar courses where a mode can be learned alone, else the flow down each drop (E1)."""
    scalar = modes.commuting and Frame.of(modes).ordered()
    if drops_by is DropsBy.COURSE and not scalar:
        raise ValueError(
            "the modes of this task have no scalar courses: its moments do not commute, or its "
            "gains and drops order the modes differently; use DropsBy.FLOW"
        )
    return aligned_drops if scalar and drops_by is not DropsBy.FLOW else flow_drops


def drop_times(modes: Modes, run: AbstractRun) -> Float[np.ndarray, " n"]:
    """When the loss curve crosses the middle of each drop, by bisection."""
    count = len(run.drops)
    if count == 0:
        return np.zeros(0)
    levels = float(modes.power) - np.concatenate([[0.0], np.cumsum(np.asarray(modes.drops, float))])
    middle = ((levels[:-1] + levels[1:]) / 2)[:count]
    low, high = np.zeros(count), np.asarray([drop.switch for drop in run.drops])
    over, under = np.full(count, levels[0]) - middle, run.loss(high) - middle
    for _ in range(200):  # the middle comes shortly before or after the switch
        late = under > 0
        if not late.any():
            break
        low, over = np.where(late, high, low), np.where(late, under, over)
        high = np.where(late, high + np.maximum(0.01 * high, 1.0), high)
        under = run.loss(high) - middle
    # Bisection and false position in turn: the loss is flat almost everywhere.
    for turn in range(120):
        share = 0.5 if turn % 2 else np.clip(over / (over - under), 0.01, 0.99)
        centre = low + share * (high - low)
        excess = run.loss(centre) - middle
        low, over = np.where(excess > 0, centre, low), np.where(excess > 0, excess, over)
        high, under = np.where(excess > 0, high, centre), np.where(excess > 0, under, excess)
        if np.all(high - low <= 1e-12 * high):
            break
    return (low + high) / 2
