"""Cells of a sweep built from their settings; what cells have in common is built once."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from iclflow.dynamics import Descent
from iclflow.dynamics.base import marks_until
from iclflow.losses import AbstractLoss
from iclflow.runs.plan import Entry
from iclflow.runs.simulate import SAVES
from iclflow.runs.sweep import Vary
from iclflow.study.fields import TASK, described
from iclflow.study.settings import Settings
from iclflow.study.study import Study, tests_of
from iclflow.tasks.task import Task

KEPT = 512  # tasks, losses and rates
# The fields that each of them is made of.
OF_TASK = (*(n for n, (_, about) in described().items() if about.group == TASK), "model")
OF_TASK += ("eigen_seed",)
OF_LOSS = (*OF_TASK, "heads", "rank", "blocks", "sequences", "match", "loss", "batch", "fresh")
OF_LOSS += ("data_seed",)
OF_INIT = (*OF_TASK, "heads", "rank", "scale", "blocks", "sequences")
OF_DYNAMICS = (*OF_LOSS, "rate", "optimiser", "momentum", "dynamics", "tolerance")


class Workshop:
    """Builds the cells of a sweep and keeps what the next ones need again."""

    def __init__(self) -> None:
        """Nothing built yet."""
        self._kept: OrderedDict[Any, Any] = OrderedDict()

    def study(self, settings: Settings) -> Study:
        """The study of settings, as `Study.of` makes it."""
        task = self.task(settings)
        init = self._once("init", OF_INIT, settings, 0, lambda: settings.initialiser(task))
        choice = self._once("choice", OF_LOSS, settings, 0, lambda: settings.choice(task))
        loss = self.loss(settings, task, choice)
        # The default rate, which is measured, depends on the kind of the weights, not on the start.
        dynamics = self._once(
            "dynamics", OF_DYNAMICS, settings, 0, lambda: settings.build_dynamics(loss, init)
        )
        tests = tests_of(settings, task, init)
        return Study(settings, task, init, choice, loss, dynamics, tests)

    def task(self, settings: Settings, offset: int = 0) -> Task:
        """The task of settings, for a seed `offset` after the first where tasks vary."""
        return self._once("task", OF_TASK, settings, offset, lambda: settings.task(offset))

    def loss(self, settings: Settings, task: Task, choice: Any, offset: int = 0) -> AbstractLoss:
        """The loss of settings."""
        names = (*OF_LOSS, "vary")
        return self._once(
            "loss", names, settings, offset, lambda: settings.build_loss(task, choice, offset)
        )

    def levels(self, study: Study) -> np.ndarray:
        """The plateau losses that the models of a study visit."""
        names = (*OF_TASK, "heads", "rank", "blocks", "sequences")
        return self._once("levels", names, study.settings, 0, study.levels)

    def entries(self, study: Study, point: int, seeds: np.ndarray, places: np.ndarray) -> list:
        """The runs of one point: one entry, or one a seed where the data vary."""
        settings, vary = study.settings, Vary(study.settings.vary)
        weights = seeds if vary is not Vary.DATA else np.full_like(seeds, settings.seed)
        shared = (study.init, study.dynamics)
        if vary is Vary.WEIGHTS:
            return [Entry((point,), study.loss, *shared, places, weights)]
        found = []
        for i, seed in enumerate(seeds):
            offset = int(seed) - settings.seed
            task = self.task(settings, offset) if vary is Vary.ALL else study.task
            loss = self.loss(settings, task, study.choice, offset)
            found.append(Entry((point,), loss, *shared, places[[i]], weights[[i]]))
        return found

    def _once(
        self, kind: str, names: tuple[str, ...], settings: Settings, offset: int, make: Callable
    ) -> Any:
        key = (kind, offset, *(getattr(settings, name) for name in names))
        if key not in self._kept:
            self._kept[key] = make()
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def marks_of(study: Study) -> np.ndarray:
    """The save points of a study: whole steps of descent, t/τ of a flow."""
    saveat = study.saveat
    if isinstance(study.dynamics, Descent):
        saveat = np.unique(np.round(saveat).astype(int))
    return np.asarray(marks_until(study.dynamics, study.until, saveat, SAVES))
