"""Points of a sweep built from settings; what points have in common is built once."""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from iclflow.dynamics import Descent
from iclflow.dynamics.base import marks_until
from iclflow.losses import AbstractLoss
from iclflow.losses.changing import jumps
from iclflow.runs.cells import Outline, Point, Vary
from iclflow.runs.simulate import SAVES
from iclflow.study.fields import FIELDS, TASK
from iclflow.study.settings import Settings, task_size
from iclflow.study.study import Study, tests_of
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.task import Task

KEPT = 512  # tasks, losses and rates
FEW = 64  # prompts that a loss is drawn from to count the operations of its step
# The fields that each of them is made of.
OF_TASK = (*(n for n, (_, about) in FIELDS.items() if about.group == TASK), "model")
OF_TASK += ("eigen_seed", "prompts", "prompts_digest")
OF_LOSS = (*OF_TASK, "heads", "rank", "blocks", "sequences", "loss", "batch", "fresh")
OF_LOSS += ("match", "average", "data_seed", "change")
OF_INIT = (*OF_TASK, "heads", "rank", "scale", "blocks", "sequences", "average")
OF_DYNAMICS = (*OF_LOSS, "rate", "optimiser", "momentum", "dynamics", "tolerance")


class StudyCache:
    """Builds the points of a sweep and keeps what the next ones need again."""

    def __init__(self) -> None:
        """Nothing is built yet."""
        self._kept: OrderedDict[Any, Any] = OrderedDict()

    def study(self, settings: Settings) -> Study:
        """The study of settings, as `Study.of` makes it."""
        source = self.source(settings)
        init = self._once("init", OF_INIT, settings, 0, lambda: settings.initialiser(source))
        choice = self._once("choice", OF_LOSS, settings, 0, lambda: settings.choice(source))
        loss = self.loss(settings, source, choice)
        # The default rate, which is measured, depends on the kind of the weights, not on the start.
        dynamics = self._once(
            "dynamics", OF_DYNAMICS, settings, 0, lambda: settings.build_dynamics(loss, init)
        )
        tests = tests_of(settings, source, init)
        return Study(settings, source, init, choice, loss, dynamics, tests)

    def source(self, settings: Settings, offset: int = 0) -> Task | Prompts:
        """What settings train on, for a seed `offset` after the first where tasks vary."""
        return self._once("source", OF_TASK, settings, offset, lambda: settings.source(offset))

    def loss(
        self, settings: Settings, source: Task | Prompts, choice: Any, offset: int = 0
    ) -> AbstractLoss:
        """The loss of settings."""
        names = (*OF_LOSS, "vary")
        return self._once(
            "loss", names, settings, offset, lambda: settings.build_loss(source, choice, offset)
        )

    def point(self, settings: Settings) -> Point:
        """The point of settings, as a sweep trains it."""
        key = ("point", settings)
        if key not in self._kept:
            self._keep(key, self._point(self.study(settings)))
        return self._kept[key]

    def outline(self, settings: Settings) -> Outline:
        """The point of few prompts, and without measuring a rate that is not needed."""
        source = settings.source()
        init = settings.initialiser(source)
        choice = settings.choice(source)
        prompts = settings.sequences or 0
        few = min(prompts or FEW, max(FEW, 2 * (settings.batch or 0)))
        small = dataclasses.replace(settings, sequences=few if prompts else None)
        loss = small.build_loss(source, choice)
        if settings.rate is None and settings.time is None and settings.dynamics != "flow":
            small = dataclasses.replace(small, rate=1e-3)
        tests = tests_of(settings, source, init)
        study = Study(small, source, init, choice, loss, small.build_dynamics(loss, init), tests)
        by_prompt = choice.level in ("sequences", "features") and settings.batch is None
        more = prompts / few if by_prompt and prompts else 1.0
        drawn = prompts * (settings.context + 1) * task_size(settings)
        return Outline(self._point(study), more, drawn)

    def _point(self, study: Study) -> Point:
        settings, vary = study.settings, Vary(study.settings.vary)

        def source(seed: int) -> Any:
            if isinstance(study.source, Prompts):
                return next(study.sources([seed]))
            return self.source(settings, seed - settings.seed) if vary is Vary.ALL else study.source

        def loss(seed: int) -> AbstractLoss:
            if vary is Vary.WEIGHTS:
                return study.loss
            return self.loss(settings, source(seed), study.choice, seed - settings.seed)

        return Point(
            loss=loss,
            init=study.init,
            dynamics=study.dynamics,
            marks=marks_of(study),
            record={name: name for name in ("loss", *(settings.record or ()))} | study.tests,
            final=(),
            source=source,
            vary=vary,
            first=settings.seed,
        )

    def _once(
        self, kind: str, names: tuple[str, ...], settings: Settings, offset: int, make: Callable
    ) -> Any:
        key = (kind, offset, *(getattr(settings, name) for name in names))
        if key not in self._kept:
            self._keep(key, make())
        self._kept.move_to_end(key)
        return self._kept[key]

    def _keep(self, key: Any, value: Any) -> None:
        self._kept[key] = value
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)


studies = StudyCache()  # of this process


def marks_of(study: Study) -> np.ndarray:
    """The save points of a study: whole steps of descent, t/τ of a flow."""
    saveat = study.saveat
    if isinstance(study.dynamics, Descent):
        saveat = np.unique(np.round(saveat).astype(int))
    changes = jumps([study.loss])
    return np.asarray(marks_until(study.dynamics, study.until, saveat, SAVES, changes))
