"""The summaries that a design may ask for: those of every sweep, and those of the last weights."""

import numpy as np

from iclflow.diagnosis.identify import identify
from iclflow.runs.cells import Vary
from iclflow.runs.summaries import SUMMARIES, Finished, Summary
from iclflow.sweeps.regimes import REGIMES, STEPS, orbit, regimes
from iclflow.tasks.task import Task

ALWAYS = ("final_loss", "drop_times", "plateau_lengths")  # computed without being asked for


def algorithm(runs: Finished) -> np.ndarray:
    """The in-context algorithm that the last weights are nearest to (`diagnosis.identify`)."""
    task = runs.point.source(runs.point.first)
    if not isinstance(task, Task) or task.outputs != 1 or runs.point.vary is Vary.ALL:
        return np.full(len(runs.seeds), "", object)
    return identify(runs.models(), task)["algorithm"].values.astype(object)


def lyapunov(runs: Finished) -> np.ndarray:
    """The largest Lyapunov exponent a step of descent, from the last weights on."""
    return _orbit(runs)[1]


def regime(runs: Finished) -> np.ndarray:
    """How descent at this rate ends: one of `REGIMES`."""
    losses, exponent = _orbit(runs)
    return regimes(runs.loss, losses, exponent)


def _orbit(runs: Finished) -> tuple[np.ndarray, np.ndarray]:
    return orbit(runs.point.loss(runs.point.first), runs.point.dynamics, runs.models())


ORBIT = 3.0 * STEPS  # training steps that an orbit with its tangent is worth
KINDS = SUMMARIES | {
    "algorithm": Summary(
        algorithm, (), "in-context algorithm at the end", weights=True, seconds=1e-3
    ),
    "lyapunov": Summary(
        lyapunov, (), "largest Lyapunov exponent a step, at the end", weights=True, steps=ORBIT
    ),
    "regime": Summary(
        regime, (), "how descent ends: " + ", ".join(REGIMES), weights=True, steps=ORBIT
    ),
}
