"""Losses: one task known at several levels of exactness."""

from iclflow.losses.base import AbstractLoss
from iclflow.losses.features import (
    AbstractFeatureMap,
    Features,
    FullFeatures,
    ReducedFeatures,
)
from iclflow.losses.moments import Moments
from iclflow.losses.population import Population
from iclflow.losses.population_moments import population_moments
from iclflow.losses.prompted import AbstractPromptLoss
from iclflow.losses.sequences import Sequences
from iclflow.losses.stochastic import Fresh, Minibatch, PoolPass

__all__ = [
    "AbstractFeatureMap",
    "AbstractLoss",
    "AbstractPromptLoss",
    "Features",
    "Fresh",
    "FullFeatures",
    "Minibatch",
    "Moments",
    "PoolPass",
    "Population",
    "ReducedFeatures",
    "Sequences",
    "population_moments",
]
