"""The conventions of the published research code of arXiv 2501.16265, and its recorded runs."""

from iclflow.published.options import Options
from iclflow.published.recording import Recording
from iclflow.published.replay import Comparison, replay
from iclflow.published.training import prompt_set, published_loss, published_task, train
from iclflow.published.weights import (
    DividedSoftmax,
    InitConvention,
    PublishedInitialiser,
    from_published,
    normalised,
    to_published,
)

__all__ = [
    "Comparison",
    "DividedSoftmax",
    "InitConvention",
    "Options",
    "PublishedInitialiser",
    "Recording",
    "from_published",
    "normalised",
    "prompt_set",
    "published_loss",
    "published_task",
    "replay",
    "to_published",
    "train",
]
