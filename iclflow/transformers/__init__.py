"""Attention-only transformers on tokens: models, corpora, losses and scores."""

from iclflow.transformers.attention_only import CIRCUITS as CIRCUITS
from iclflow.transformers.attention_only import AttentionOnly as AttentionOnly
from iclflow.transformers.attention_only import AttentionOnlyInitialiser as AttentionOnlyInitialiser
from iclflow.transformers.attention_only import Spectrum as Spectrum
from iclflow.transformers.attention_only import distances_to_end as distances_to_end
from iclflow.transformers.attention_only import effective_ranks as effective_ranks
from iclflow.transformers.attention_only import spectrum as spectrum
from iclflow.transformers.corpora import AbstractCorpus as AbstractCorpus
from iclflow.transformers.corpora import Markov as Markov
from iclflow.transformers.corpora import Repeated as Repeated
from iclflow.transformers.losses import FreshTokens as FreshTokens
from iclflow.transformers.losses import NextToken as NextToken
from iclflow.transformers.scores import in_context_score as in_context_score
from iclflow.transformers.scores import late_loss as late_loss
from iclflow.transformers.scores import prefix_matching as prefix_matching
from iclflow.transformers.scores import previous_token as previous_token
from iclflow.transformers.scores import repeated_accuracy as repeated_accuracy
from iclflow.transformers.scores import repeats as repeats
from iclflow.transformers.scores import score_series as score_series
