"""Losses: one task known at several levels of exactness."""

from iclflow.losses.base import AbstractLoss as AbstractLoss
from iclflow.losses.base import AbstractPromptLoss as AbstractPromptLoss
from iclflow.losses.changing import Blend as Blend
from iclflow.losses.changing import Curriculum as Curriculum
from iclflow.losses.changing import Drift as Drift
from iclflow.losses.draws import Draws as Draws
from iclflow.losses.features import AbstractFeatureMap as AbstractFeatureMap
from iclflow.losses.features import AbstractStatistic as AbstractStatistic
from iclflow.losses.features import Features as Features
from iclflow.losses.features import FullFeatures as FullFeatures
from iclflow.losses.features import LabelFeatures as LabelFeatures
from iclflow.losses.features import ReducedFeatures as ReducedFeatures
from iclflow.losses.features import TwoLayerFeatures as TwoLayerFeatures
from iclflow.losses.label_population import LabelPopulation as LabelPopulation
from iclflow.losses.label_rows import label_rows as label_rows
from iclflow.losses.large_context import LargeContext as LargeContext
from iclflow.losses.moments import Moments as Moments
from iclflow.losses.moments import population_moments as population_moments
from iclflow.losses.population import Population as Population
from iclflow.losses.sequences import Sequences as Sequences
from iclflow.losses.statistics import Statistics as Statistics
from iclflow.losses.stochastic import Fresh as Fresh
from iclflow.losses.stochastic import Minibatch as Minibatch
