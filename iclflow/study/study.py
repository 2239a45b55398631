"""A study: settings turned into loss, initialiser and dynamics, run, and summarised."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import xarray as xr

from iclflow.dynamics import AbstractDynamics, Descent, sharpness
from iclflow.losses import AbstractLoss, Population, population_moments
from iclflow.losses.select import Choice
from iclflow.models import (
    AbstractInitialiser,
    AbstractLinearModel,
    AbstractModel,
    Blocks,
    draw_model,
    empty_model,
)
from iclflow.results.progress import Progress
from iclflow.runs.labels import OUTCOMES
from iclflow.runs.record import FixedPointDistance, OfModel
from iclflow.runs.sweep import Vary, sweep
from iclflow.study.settings import Settings
from iclflow.tasks.task import ContextLabels, Task

if TYPE_CHECKING:
    from iclflow.study.comparison import Comparison

TEST_SEQUENCES = 5000  # for test losses of models without a population in closed form


@dataclasses.dataclass
class Study:
    """What the settings say, built once."""

    settings: Settings
    task: Task
    init: AbstractInitialiser
    choice: Choice
    loss: AbstractLoss
    dynamics: AbstractDynamics
    tests: dict[str, Callable[[AbstractModel], Any]]

    @classmethod
    def of(cls, settings: Settings, progress: Progress | None = None) -> "Study":
        """Build task, loss, initialiser and dynamics; sampling reports to `progress`."""
        task = settings.task()
        init = settings.initialiser(task)
        choice = settings.choice(task)
        loss = settings.build_loss(task, choice, progress=progress)
        dynamics = settings.build_dynamics(loss, init)
        tests = {}
        if settings.fixed_fraction > 0:
            labels = ContextLabels(settings.in_weight_test)
            tests["in_context_loss"] = test_loss(task.in_context(), init)
            tests["in_weight_loss"] = test_loss(task.in_weight(labels), init)
        if "population_loss" in settings.record:
            tests["population_loss"] = test_loss(task, init)
        if "fixed_point_distance" in settings.record:
            if settings.vary == "all":
                raise ValueError("fixed_point_distance needs one task; vary weights or data")
            tests["fixed_point_distance"] = OfModel(FixedPointDistance.of(task))
        return cls(settings, task, init, choice, loss, dynamics, tests)

    def run(self, progress: Progress | None = None) -> xr.Dataset:
        """Train all seeds."""
        settings, vary = self.settings, Vary(self.settings.vary)
        offsets = iter(range(settings.seeds))

        def other(key: Any) -> AbstractLoss:
            offset = next(offsets)
            task = settings.task(offset) if vary is Vary.ALL else self.task
            return settings.build_loss(task, self.choice, offset)

        return sweep(
            self.loss if vary is Vary.WEIGHTS else other,
            self.init,
            self.dynamics,
            seeds=range(settings.seed, settings.seed + settings.seeds),
            vary=vary,
            until=settings.until(self.dynamics),
            saveat=settings.saveat(self.dynamics),
            record={name: name for name in settings.record} | self.tests,
            final={"sharpness": _sharpness},
            progress=progress,
            settings=settings,
        )

    def levels(self) -> np.ndarray:
        """The plateau losses L(M_m) of the task; empty where the theory does not cover it."""
        from iclflow.theory.predict import visited_levels

        if self.task.outputs > 1 or self.settings.fixed_fraction > 0:
            return np.zeros(0)
        return visited_levels(self.task, empty_model(self.init))

    def prediction(self, runs: xr.Dataset) -> "Comparison | None":
        """The theory from the same initial weights, where it covers the study."""
        from iclflow.study.comparison import compare  # SciPy's integrators: only when asked for

        settings, vary = self.settings, Vary(self.settings.vary)
        timed = "time" in runs.coords and bool(np.isfinite(runs["time"]).all())
        if settings.fixed_fraction > 0 or self.task.outputs > 1 or not timed:
            return None
        tasks, models = [], []
        for offset, seed in enumerate(runs["seed"].values):
            tasks.append(settings.task(offset) if vary is Vary.ALL else self.task)
            number = settings.seed if vary is Vary.DATA else int(seed)
            models.append(draw_model(self.init, jax.random.key(number)))
        return compare(tasks, models, runs)

    def title(self) -> str:
        """One line that names the experiment."""
        s = self.settings
        rank = f", R = {s.rank}" if "separate" in s.model or s.model == "conv" else ""
        data = "population" if s.sequences is None else f"P = {s.sequences:,}"
        heads = "" if self.task.outputs > 1 else f", H = {s.heads}"
        return f"{s.model}, D = {self.task.size}, N = {s.context}{heads}{rank}, {data}"

    def summary(self, runs: xr.Dataset, theory: "Comparison | None" = None) -> dict[str, Any]:
        """Numbers of the runs, ready for JSON."""
        settings = self.settings
        rate = float(self.dynamics.rate) if isinstance(self.dynamics, Descent) else None
        last = [_last(row) for row in runs["loss"].values]
        tests = {name: [_last(row) for row in runs[name].values] for name in self.tests}
        return {
            "title": self.title(),
            "model": settings.model,
            "level": self.choice.level,
            "level_reason": self.choice.reason,
            "rate": rate,
            "rate_times_sharpness": None
            if rate is None
            else (rate * runs["final_sharpness"].values).tolist(),
            "steps": int(runs["step"].values[-1]) if rate is not None else None,
            "time": float(runs["time"].values[-1]) if "time" in runs.coords else None,
            "seeds": runs["seed"].values.tolist(),
            "result": [OUTCOMES[code] for code in runs["result"].values],
            "stopped": runs["stopped"].values.tolist(),
            "initial_loss": runs["loss"].values[:, 0].tolist(),
            "final_loss": last,
            **tests,
            "plateau_losses": self.levels().tolist(),
            "predicted_drop_times": None if theory is None else theory.predicted.tolist(),
            "measured_drop_times": None if theory is None else theory.measured.tolist(),
            "drop_time_error": None if theory is None else theory.error,
            "content_key": runs.attrs["content_key"],
        }


def _sharpness(model: AbstractModel, loss: AbstractLoss) -> Any:
    return sharpness(loss, model, 20)


def test_loss(task: Task, init: AbstractInitialiser) -> AbstractLoss:
    """The population loss of a task for the models an initialiser draws; sampled for softmax."""
    from iclflow.losses import Sequences

    model = empty_model(init)
    if not isinstance(model, AbstractLinearModel):
        return Sequences.sample(task, TEST_SEQUENCES, jax.random.key(3))
    return population_moments(task) if model.blocks is Blocks.FULL else Population(task)


def _last(row: np.ndarray) -> float:
    finite = row[np.isfinite(row)]
    return float(finite[-1]) if finite.size else float("nan")
