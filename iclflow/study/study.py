"""A study: settings turned into loss, initialiser and dynamics, run, and summarised."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr

from iclflow.dynamics import AbstractDynamics, Descent
from iclflow.dynamics.base import linear_steps
from iclflow.losses import AbstractLoss, AbstractPromptLoss
from iclflow.losses.select import Choice
from iclflow.measures import first_crossings
from iclflow.models import (
    AbstractInitialiser,
    AbstractModel,
    draw_models,
    empty_model,
)
from iclflow.results.progress import Progress
from iclflow.runs.cells import Vary
from iclflow.runs.record import OUTCOMES, FixedPointDistance, OfModel, in_order, is_timed
from iclflow.runs.summaries import theory_times
from iclflow.runs.sweep import sweep
from iclflow.runs.testing import TEST_LOSS, Tests, population_of
from iclflow.study.fields import DEEP, LONGEST
from iclflow.study.settings import SMALL, Settings
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.task import ContextLabels, Task

STEPS = 10_001  # where the theory predicts no end
MOST_STEPS = 1_000_001  # that a run takes without being asked to
BEYOND = 1.3  # times the last predicted drop: the end of a run that was given none
PREDICTED = 4  # seeds whose drops are predicted for that
TEST_DIMS = ("test", "test_context")  # of test_loss
TEST_SEQUENCES = 5000  # for test losses of models without a population in closed form


@dataclasses.dataclass
class Study:
    """What settings stand for, built once: the objects that a sweep takes.

    - `settings`: in plain values.
    - `source`: the task, or the given prompts.
    - `init`, `loss`, `dynamics`: what is trained, on what, and how.
    - `choice`: the level of exactness, with the reason for it.
    - `tests`: what is measured besides the training loss, name -> recorder.
    """

    settings: Settings
    source: Task | Prompts
    init: AbstractInitialiser
    choice: Choice
    loss: AbstractLoss
    dynamics: AbstractDynamics
    tests: dict[str, Callable[[AbstractModel], Any]]

    @classmethod
    def of(cls, settings: Settings, progress: Progress | None = None) -> "Study":
        """Build source, loss, initialiser and dynamics.

        - `settings`: in plain values.
        - `progress`: called while prompts are sampled.
        """
        source = settings.source()
        init = settings.initialiser(source)
        choice = settings.choice(source)
        loss = settings.build_loss(source, choice, progress=progress)
        dynamics = settings.build_dynamics(loss, init)
        tests = tests_of(settings, source, init)
        return cls(settings, source, init, choice, loss, dynamics, tests)

    @property
    def task(self) -> Task:
        """The task; `ValueError` in one line where given prompts stand for it."""
        return self.source if isinstance(self.source, Task) else self.settings.task()

    def run(self, progress: Progress | None = None, store: Path | str | None = None) -> xr.Dataset:
        """Train all seeds.

        - `progress`: as in `sweep`.
        - `store`: a folder from which the same run goes on.
        """
        settings, vary = self.settings, Vary(self.settings.vary)

        def other(key: Any) -> AbstractLoss:
            offset = int(jax.random.key_data(key)[-1]) - settings.seed  # it is the key of a seed
            source = settings.task(offset) if vary is Vary.ALL else self.source
            return settings.build_loss(source, self.choice, offset)

        return sweep(
            self.loss if vary is Vary.WEIGHTS else other,
            self.init,
            self.dynamics,
            seeds=range(settings.seed, settings.seed + settings.seeds),
            vary=vary,
            until=self.until,
            saveat=self.saveat,
            record={name: name for name in self.record} | self.tests,
            final=["sharpness"],
            progress=progress,
            store=store,
            settings=settings,
        )

    @cached_property
    def drops(self) -> np.ndarray:
        """Predicted drop times t/τ of the first seeds; empty where no theory covers the study."""
        if self.settings.scale == 0 or not self.dynamics.keeps_time:
            return np.zeros(0)
        if self.settings.fixed_fraction > 0 or self.source.outputs > 1 or self.settings.change:
            return np.zeros(0)
        seeds = range(self.settings.seed, self.settings.seed + self.settings.seeds)[:PREDICTED]
        pairs = zip(self.sources(seeds), self._starts(seeds), strict=True)
        times = [theory_times(source, model) for source, model in pairs]
        return np.unique(np.concatenate(times))

    @cached_property
    def until(self) -> float | int:
        """The end: t/τ of a flow, steps of descent; past the predicted drops if not given."""
        settings, dynamics = self.settings, self.dynamics
        if not isinstance(dynamics, Descent):
            assert settings.time is not None
            return settings.time
        if settings.steps is not None:
            return settings.steps
        if settings.time is not None:
            steps = float(dynamics.steps(settings.time))
            if steps > LONGEST:
                raise ValueError(
                    f"time {settings.time:g} at rate {dynamics.rate_at(0):g} is {steps:.2g} steps"
                )
            return max(1, int(steps))
        needed = self.needed_steps
        return STEPS if needed is None else min(MOST_STEPS, needed)

    @property
    def needed_steps(self) -> int | None:
        """Steps past the last predicted drop, in thousands and one; None where there is none."""
        dynamics = self.dynamics
        if not isinstance(dynamics, Descent) or self.drops.size == 0:
            return None
        return 1000 * int(np.ceil(dynamics.steps(BEYOND * float(self.drops[-1])) / 1000)) + 1

    @cached_property
    def saveat(self) -> np.ndarray:
        """The save points.

        The setting `save` says how they are placed: evenly in the logarithm of time, evenly in
        time, both, both and more of them around predicted drops, or as a list.
        """
        save, end, whole = self.settings.save, self.until, isinstance(self.dynamics, Descent)
        kind, _, argument = save.partition(":")
        try:
            if kind in ("log", "linear", "mixed", "auto"):
                count = int(argument or 200)
                log = self.dynamics.spread(end, count)
                linear = linear_steps(int(end), count) if whole else np.linspace(0, end, count)
                mixed = np.union1d(log, linear)
                dense = self._around_drops(end, count) if save.startswith("auto") else mixed[:0]
                auto = np.union1d(mixed, dense)
                return {"log": log, "linear": linear, "mixed": mixed, "auto": auto}[kind]
            if save == "all" and whole:
                return np.arange(end + 1)
            points = np.asarray([float(x) for x in save.split(",")])
        except ValueError:
            raise ValueError(
                f"save must be log:COUNT, linear:COUNT, mixed:COUNT, auto:COUNT, all (descent), "
                f"or a list, got {save!r}"
            ) from None
        return points

    def _around_drops(self, end: float, count: int) -> np.ndarray:
        """Further marks around the predicted drops of a long run.

        - `end`: where the run ends. Where it is so short that the even marks lie close, there are
          none.
        - `count`: about how many marks are wanted.
        """
        descent = self.dynamics if isinstance(self.dynamics, Descent) else None
        if (descent is not None and end <= 2 * count) or self.drops.size == 0:
            return np.zeros(0)
        marks = self.drops if descent is None else descent.steps(self.drops)
        share = np.linspace(0.85, 1.15, max(8, count // len(marks)))
        near = np.outer(marks, share).ravel()
        near = near[near <= end]
        return near if descent is None else np.round(near).astype(int)

    @cached_property
    def record(self) -> tuple[str, ...]:
        """What is recorded: what was asked for, or else the loss and the value weights.

        Nothing asked for also means all weights, as long as they take little room.
        """
        asked = self.settings.record
        if asked is not None:
            return tuple(dict.fromkeys(("loss", *asked)))
        count = sum(leaf.size for leaf in jax.tree.leaves(empty_model(self.init)))
        small = 8 * count * len(self.saveat) * self.settings.seeds <= SMALL
        single = empty_model(self.init).as_attention() is not None  # else no one set of values
        found = ("loss", "values") if single else ("loss",)
        return (*found, "weights") if small else found

    def levels(self) -> np.ndarray:
        """The plateau losses of the task, or of given prompts; empty where theory has none."""
        from iclflow.theory.drops.quadratic import not_quadratic
        from iclflow.theory.fixed_points.modes import covered_levels, visited_levels

        if self.settings.change:  # the plateaus are those of one task
            return np.zeros(0)
        model = empty_model(self.init)
        if isinstance(self.source, Task):
            return covered_levels(self.source, model)
        loss = self.loss.reported
        return np.zeros(0) if not_quadratic(loss) else visited_levels(loss, model)

    def prediction(self, runs: xr.Dataset) -> "TheoryComparison | None":
        """The theory from the same initial weights, where it covers the study."""
        if self.settings.fixed_fraction > 0 or self.source.outputs > 1 or not is_timed(runs):
            return None
        if self.settings.change:  # the theory is of one loss
            return None
        seeds = runs["seed"].values.tolist()
        return compare(self.sources(seeds), self._starts(seeds), runs)

    def sources(self, seeds: Iterable[int]) -> Iterator[Any]:
        """What the theory of each seed is of: the prompts it was trained on, or the population.

        Training on batches of prompts has the theory of all of them.
        """
        vary, settings = Vary(self.settings.vary), self.settings
        sampled = settings.finite and isinstance(self.loss.reported, AbstractPromptLoss)
        for seed in seeds:
            offset = int(seed) - settings.seed
            source = settings.task(offset) if vary is Vary.ALL else self.source
            if not sampled:
                yield source
            elif vary is Vary.WEIGHTS:
                yield self.loss.reported
            else:
                yield settings.build_loss(source, self.choice, offset).reported

    def _starts(self, seeds: Iterable[int]) -> Iterator[AbstractModel]:
        """The initial weights of each seed."""
        first, same = self.settings.seed, self.settings.vary == "data"
        for seed in seeds:
            place = 0 if same else int(seed) - first
            yield jax.tree.map(lambda a, place=place: jax.numpy.asarray(a[place]), self._models)

    @cached_property
    def _models(self) -> AbstractModel:
        """The initial weights of all seeds, drawn by the program that the sweep draws them with."""
        first = self.settings.seed
        return jax.device_get(draw_models(self.init, range(first, first + self.settings.seeds)))

    def title(self) -> str:
        """One line that names the experiment."""
        s, source = self.settings, self.source
        words = [f"linear attention ({s.model})" if s.model in ("merged", "separate") else s.model]
        if s.model in DEEP.values():
            words.append(f"{s.layers or 2} {'tied ' if s.tied else ''}layers")
        if s.model != "linear-transformer":
            ranked = s.rank > 1 and ("separate" in s.model or s.model == "conv")
            rank = f" of rank {s.rank}" if ranked else ""
            words.append(f"{s.heads} head{'s' * (s.heads > 1)}{rank}")
        words.append(f"{source.size} inputs")
        count = f"{s.sequences:,}" if s.sequences else "infinitely many"
        if isinstance(source, Prompts):
            count = f"{source.count:,}"
        file = f" from {s.prompts}" if isinstance(source, Prompts) else ""
        words.append(f"{count} prompts of {source.context} pairs{file}")
        return ", ".join(words)

    def summary(self, runs: xr.Dataset, theory: "TheoryComparison | None" = None) -> dict[str, Any]:
        """Numbers of the runs, ready for JSON."""
        runs = in_order(runs)
        settings, blocks = self.settings, self.settings.zero_blocks()
        rate = self.dynamics.rate_at(0)
        rate = None if rate is None else float(rate)
        last = [_last(row) for row in runs["loss"].values]
        tests = {name: _final(runs[name]) for name in self.tests}
        tests |= {name: runs[name].values.tolist() for name in TEST_DIMS if name in runs.coords}
        return {
            "title": self.title(),
            "model": settings.model,
            "level": self.choice.level,
            "level_reason": self.choice.reason,
            "blocks": blocks and blocks.value,
            "engine": runs.attrs["engine"],
            "rate": rate,
            "rate_times_sharpness": None
            if rate is None
            else (rate * runs["final_sharpness"].values).tolist(),
            "steps": int(runs["step"].values[-1]) if rate is not None else None,
            "needed_steps": None if settings.steps or settings.time else self.needed_steps,
            "time": float(runs["time"].values[-1]) if is_timed(runs) else None,
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
            "worst_drop_time_error": None if theory is None else theory.worst,
            "content_key": runs.attrs["content_key"],
        }


def tests_of(
    settings: Settings, source: Task | Prompts, init: AbstractInitialiser
) -> dict[str, Any]:
    """What a study measures that its training loss does not know of, name -> recorder.

    - `settings`: they name other tasks, context lengths and quantities.
    - `source`: what is trained on.
    - `init`: the initialiser of the models that are tested.
    """
    tests: dict[str, Any] = {}
    if isinstance(source, Prompts):
        if "population_loss" in (settings.record or ()):
            raise ValueError("given prompts have no population_loss; leave it out of record")
        return tests
    task = source
    if settings.fixed_fraction > 0:
        labels = ContextLabels(settings.in_weight_test)
        tests["in_context_loss"] = test_loss(task.in_context(), init)
        tests["in_weight_loss"] = test_loss(task.in_weight(labels), init)
    if settings.test or settings.test_context:
        named = {name: one.task() for name, one in settings.variants("test").items()}
        axes = {"context": settings.test_context} if settings.test_context else {}
        found = Tests(named or task, sequences=TEST_SEQUENCES, **axes)
        tests[TEST_LOSS] = found.recorder(empty_model(init))
    record = settings.record or ()
    if "population_loss" in record:
        tests["population_loss"] = test_loss(task, init)
    if "fixed_point_distance" in record:
        if settings.vary == "all":
            raise ValueError("fixed_point_distance needs one task; vary weights or data")
        tests["fixed_point_distance"] = OfModel(FixedPointDistance.of(task))
    return tests


def test_loss(task: Task, init: AbstractInitialiser) -> AbstractLoss:
    """The population loss of a task for the models an initialiser draws.

    It is sampled for softmax and for three layers or more, which have no closed form.
    """
    return population_of(task, empty_model(init), TEST_SEQUENCES)


def _final(recorded: xr.DataArray) -> list[Any]:
    """The last number of each run that is one, of each of its further dimensions."""
    rows = recorded.transpose("seed", ..., "time").values
    return np.apply_along_axis(_last, -1, rows).tolist()


def _last(row: np.ndarray) -> float:
    finite = row[np.isfinite(row)]
    return float(finite[-1]) if finite.size else float("nan")


@dataclasses.dataclass(frozen=True)
class TheoryComparison:
    """Predicted loss curves beside the measured ones, and the drop times of both."""

    curves: xr.Dataset  # loss [seed, time]
    predicted: np.ndarray  # [seed, drop], t/τ; NaN where there is none
    measured: np.ndarray  # [seed, drop], NaN where the run ended before

    @property
    def errors(self) -> np.ndarray:
        """Relative errors of the drop times that were both predicted and seen."""
        both = np.isfinite(self.predicted) & np.isfinite(self.measured)
        return np.abs(self.predicted[both] / self.measured[both] - 1)

    @property
    def error(self) -> float:
        """The median of the errors; NaN without any."""
        return float(np.median(self.errors)) if self.errors.size else float("nan")

    @property
    def worst(self) -> float:
        """The largest of the errors; NaN without any."""
        return float(self.errors.max()) if self.errors.size else float("nan")


def compare(
    sources: Iterable[AbstractTask | AbstractLoss],
    models: Iterable[AbstractModel],
    runs: xr.Dataset,
) -> TheoryComparison | None:
    """The theory of each run from its initial weights; None where no theory covers the model.

    Drop times are when the loss crosses the middle between two levels that the model visits.

    - `sources`: what each run was trained on, the task of a population or the loss of a sample.
    - `models`: the initial weights of each run.
    - `runs`: the measured losses.
    """
    from iclflow.theory.predict import select  # SciPy's integrators: only when asked for

    times, curves, predicted, measured = runs["time"].values, [], [], []
    for i, (source, model) in enumerate(zip(sources, models, strict=True)):
        engine = select(source, model)
        if engine is None:
            return None
        found = engine(source, model)
        expected = np.full(len(found.levels) - 1, np.nan)
        expected[: len(found.times)] = found.times
        curves.append(found.curve(times).loss)
        predicted.append(expected)
        middles = (found.levels[:-1] + found.levels[1:]) / 2
        loss = runs["loss"].isel(seed=i).values
        measured.append(first_crossings(times, loss, middles))
    data = xr.Dataset(
        {"loss": (("seed", "time"), np.stack(curves))},
        coords={"seed": runs["seed"].values, "time": times},
    )
    return TheoryComparison(data, _padded(predicted), _padded(measured))


def _padded(rows: list[np.ndarray]) -> np.ndarray:
    """Rows of different lengths as one array: two samples need not have as many drops."""
    whole = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for row, values in zip(whole, rows, strict=True):
        row[: len(values)] = values
    return whole
