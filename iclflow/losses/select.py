"""`select`: the cheapest level of exactness that is exact for a model, and why."""

from typing import Any, NamedTuple

from jaxtyping import PRNGKeyArray

from iclflow.losses import (
    AbstractFeatureMap,
    AbstractLoss,
    AbstractPromptLoss,
    Draws,
    Features,
    FullFeatures,
    LargeContext,
    Moments,
    Population,
    ReducedFeatures,
    Sequences,
    Statistics,
    TwoLayerFeatures,
    population_moments,
)
from iclflow.losses.base import misfit
from iclflow.losses.features import Sizes, features_bytes, undeclared
from iclflow.losses.moments import moments_bytes
from iclflow.losses.population import beyond_white
from iclflow.losses.statistics import statistics_bytes
from iclflow.models import AbstractModel, Softmax
from iclflow.models.layers import AbstractLayers
from iclflow.results.messages import Progress
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.checks import RESERVE, available_bytes, require_kind, require_size
from iclflow.tasks.laws import Gaussian
from iclflow.tasks.prompts import PromptSource
from iclflow.tasks.task import Task

# Rows (prompts times lengths) per feature at which a step costs the same from features and from
# moments. Features take 4 operations per row and feature. Moments take 2 F² operations, or, beyond
# the cache, the time of reading F² numbers (benchmarks/levels.py, D = 4 to 32).
CACHE = 2**25  # bytes
WITHIN, BEYOND = 1.0, 2.5
DRAWS = 1024  # of Λ̂ for one step, where the population has no closed form and none were asked for


class Choice(NamedTuple):
    """A level, the reason for it, and the features it keeps."""

    level: str
    reason: str
    features: AbstractFeatureMap | None = None

    def build(
        self,
        task: AbstractTask,
        sequences: int | None,
        key: PRNGKeyArray,
        *,
        matched: bool = False,
        averaged: bool = False,
        progress: Progress | None = None,
    ) -> AbstractLoss:
        """The loss of a task at this level; of draws, `sequences` says how many.

        `matched` and `averaged` are those of `Sequences.sample`.
        """
        if self.level == "draws":
            if matched:
                raise ValueError("match whitens prompts, and draws have none; leave it out")
            if averaged:
                raise ValueError("draws take the mean over tasks already; leave average out")
            return Draws.sample(task, DRAWS if sequences is None else sequences, key)
        if self.level == "large-context":
            return LargeContext(task)
        if self.level == "population":
            full = isinstance(self.features, FullFeatures)
            return population_moments(task) if full else Population(task)
        if sequences is None:
            raise ValueError(f"the level {self.level!r} needs a number of sequences")
        kind, options = self._kind()
        options |= {"matched": matched, "averaged": averaged, "progress": progress}
        return kind.sample(task, sequences, key, **options)

    def of(self, prompts: PromptSource, progress: Progress | None = None) -> AbstractLoss:
        """The loss of given prompts at this level."""
        kind, options = self._kind()
        return kind.of(prompts, progress=progress, **options)

    def _kind(self) -> tuple[type[AbstractPromptLoss], dict[str, Any]]:
        if self.level in ("sequences", "statistics"):
            return Sequences if self.level == "sequences" else Statistics, {}
        kinds = {"features": Features, "moments": Moments}
        return kinds[self.level], {"features": self.features}


LEVELS = (
    "sequences",
    "features",
    "statistics",
    "moments",
    "draws",
    "large-context",
    "population",
)


def select(source: Sizes, model: AbstractModel, sequences: int | None) -> Choice:
    """The cheapest exact level for this model on `sequences` prompts (None: the population).

    It never crosses an approximate step by itself: finite data stay finite, trained blocks stay
    trained. A model that is not linear in the features, such as softmax, admits sequences only.

    The one level that it takes without being exact is `Draws`, for the population of layers that
    have no closed form; the reason says so.

    - `source`: the task, or a set of prompts.
    - `model`: what is to be trained, with any weights: its kind and its blocks decide.
    - `sequences`: how many prompts there are to train on; None for infinitely many.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.Merged.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> icl.select(task, model, sequences=None).level
    'population'
    """
    if sequences is not None:
        sequences = require_size("the number of sequences", sequences)
    require_kind("model", model, AbstractModel, "a model; an initialiser makes one of a key")
    reason = misfit(model, source.size, source.outputs)
    if reason is not None:
        raise ValueError(f"no loss of this task can take {type(model).__name__}: {reason}")
    if isinstance(model, AbstractLayers):
        return _select_layers(source, model, sequences)
    maps = (ReducedFeatures(), FullFeatures())
    features = next((map_ for map_ in maps if map_.admits(model) is None), None)
    if features is None:
        reason = undeclared(model, source.size, source.outputs)
        if sequences is None:
            approximate = ", or LargeContext, approximate" if isinstance(model, Softmax) else ""
            raise ValueError(
                f"{type(model).__name__} has no population in closed form: {reason}; give a "
                f"number of sequences, for example 2000{approximate}"
            )
        return Choice("sequences", f"exact; {reason}")
    if sequences is None:
        return Choice("population", "closed-form moments, no sampling error", features)
    count, rows = features.count(source), sequences * len(source.lengths)
    room = RESERVE * available_bytes()
    moments_fit = moments_bytes(source, features) < room
    features_fit = features_bytes(source, sequences, features) < room
    if moments_fit and (not features_fit or rows >= equal_cost(count)):
        reason = f"exact; a step costs {count}² whatever the {sequences} sequences and N"
        return Choice("moments", reason, features)
    if features_fit:
        reason = f"exact; cheaper than {count}² moments for {sequences} sequences"
        return Choice("features", reason, features)
    return Choice("sequences", "exact; features and moments would not fit in memory")


def _select_layers(source: Sizes, model: AbstractLayers, sequences: int | None) -> Choice:
    """`select` for several linear layers."""
    layers, size = model.layers, source.size
    pairs = TwoLayerFeatures() if layers == 2 and source.outputs == 1 else None
    if sequences is None:
        reason = beyond_white(source) if isinstance(source, AbstractTask) else "it is of prompts"
        if isinstance(source, Task) and Population(source).admits(model) is None:
            known = f"closed form of {layers} layers" if layers > 1 else "closed-form moments"
            return Choice("population", f"{known}, no sampling error", pairs)
        if reason is not None:
            raise ValueError(
                f"{layers} layers have no population in closed form here: {reason}; give a number "
                f"of sequences, for example 2000"
            )
        assert isinstance(source, Task)
        why = f"{layers} layers" if isinstance(source.inputs, Gaussian) else "these inputs"
        return Choice(
            "draws", f"sampled: no closed form for {why}; {DRAWS} draws of Λ̂ for every step", pairs
        )
    room, rows = RESERVE * available_bytes(), sequences * len(source.lengths)
    # A step costs 2 F² operations from moments of F features, and 4 L D² per row from statistics.
    if pairs is not None and moments_bytes(source, pairs) < room:
        count = pairs.count(source)
        if rows >= count**2 / (2 * layers * size**2):
            reason = f"exact; a step costs {count}² whatever the {sequences} sequences and N"
            return Choice("moments", reason, pairs)
    if statistics_bytes(source, sequences) < room:
        return Choice("statistics", "exact; a step costs the same whatever N", pairs)
    return Choice("sequences", "exact; the statistics of the prompts would not fit in memory")


def equal_cost(count: int) -> float:
    """The rows from which a step costs less from the moments of so many features."""
    return count * (WITHIN if 8 * count**2 <= CACHE else BEYOND)
