"""Attention-only transformers on tokens: models, corpora, losses and scores."""

from iclflow.transformers.attention_only import AttentionOnly, AttentionOnlyInitialiser
from iclflow.transformers.circuits import (
    CIRCUITS,
    Spectrum,
    distances_to_end,
    effective_ranks,
    spectrum,
)
from iclflow.transformers.corpora import AbstractCorpus, Markov, Repeated
from iclflow.transformers.losses import FreshTokens, NextToken
from iclflow.transformers.scores import (
    find_period,
    in_context_score,
    late_loss,
    prefix_matching,
    previous_token,
    repeated_accuracy,
    repeats,
)

__all__ = [
    "CIRCUITS",
    "AbstractCorpus",
    "AttentionOnly",
    "AttentionOnlyInitialiser",
    "FreshTokens",
    "Markov",
    "NextToken",
    "Repeated",
    "Spectrum",
    "distances_to_end",
    "effective_ranks",
    "find_period",
    "in_context_score",
    "late_loss",
    "prefix_matching",
    "previous_token",
    "repeated_accuracy",
    "repeats",
    "spectrum",
]
