"""`select`: the cheapest level of exactness that is exact for a model, and why."""

from typing import NamedTuple

from jaxtyping import PRNGKeyArray

from iclflow.losses import (
    AbstractFeatureMap,
    AbstractLoss,
    Features,
    FullFeatures,
    Moments,
    Population,
    ReducedFeatures,
    Sequences,
    population_moments,
)
from iclflow.losses.features import features_bytes
from iclflow.losses.memory import RESERVE, available_bytes
from iclflow.losses.moments import moments_bytes
from iclflow.models import AbstractLinearModel, AbstractModel, Blocks
from iclflow.results.progress import Progress
from iclflow.tasks.task import Task


class Choice(NamedTuple):
    """A level, the reason for it, and the features it keeps."""

    level: str
    reason: str
    features: AbstractFeatureMap | None = None

    def build(
        self,
        task: Task,
        sequences: int | None,
        key: PRNGKeyArray,
        *,
        matched: bool = False,
        progress: Progress | None = None,
    ) -> AbstractLoss:
        """The loss of a task at this level."""
        if self.level == "population":
            full = isinstance(self.features, FullFeatures)
            return population_moments(task) if full else Population(task)
        if sequences is None:
            raise ValueError(f"the level {self.level!r} needs a number of sequences")
        if self.level == "sequences":
            return Sequences.sample(task, sequences, key, matched=matched, progress=progress)
        sample = {"features": Features.sample, "moments": Moments.sample}[self.level]
        return sample(
            task, sequences, key, features=self.features, matched=matched, progress=progress
        )


LEVELS = ("sequences", "features", "moments", "population")


def select(task: Task, model: AbstractModel, sequences: int | None) -> Choice:
    """The cheapest exact level for this model on `sequences` prompts (None: the population).

    It never crosses an approximate step by itself: finite data stay finite, trained blocks stay
    trained. Softmax admits sequences only.
    """
    if not isinstance(model, AbstractLinearModel):
        if sequences is None:
            raise ValueError(
                f"{type(model).__name__} has no population in closed form: its prediction is "
                f"linear in no fixed features; give a number of sequences, for example 2000"
            )
        return Choice("sequences", "softmax is linear in no fixed features of the prompt")
    full = model.blocks is Blocks.FULL
    features = FullFeatures() if full else ReducedFeatures()
    if sequences is None:
        return Choice("population", "closed-form moments, no sampling error", features)
    count = features.count(task)
    room = RESERVE * available_bytes()
    moments_fit = moments_bytes(task, features) < room
    features_fit = features_bytes(task, sequences, features) < room
    # A step costs about 2 F² operations from moments and 4 P F from features.
    if moments_fit and (not features_fit or count <= 2 * sequences):
        reason = f"exact; a step costs {count}² whatever the {sequences} sequences and N"
        return Choice("moments", reason, features)
    if features_fit:
        reason = f"exact; cheaper than {count}² moments for {sequences} sequences"
        return Choice("features", reason, features)
    return Choice("sequences", "exact; features and moments would not fit in memory")
