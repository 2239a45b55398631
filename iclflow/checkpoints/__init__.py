"""Other people's checkpoints: attention heads as factored matrices, measured over training."""

from iclflow.checkpoints.files import (
    AbstractSource,
    Arrays,
    CheckpointError,
    open_checkpoint,
)
from iclflow.checkpoints.hub import hub_series
from iclflow.checkpoints.layouts import (
    GPT2,
    AbstractLayout,
    GPTNeoX,
    Heads,
    Llama,
    TransformerLens,
    find_layout,
)
from iclflow.checkpoints.measures import DEFAULT_MEASURES, MEASURES
from iclflow.checkpoints.over_steps import mark_stages, measure_series
from iclflow.checkpoints.series import Checkpoint, find_series

__all__ = [
    "DEFAULT_MEASURES",
    "GPT2",
    "MEASURES",
    "AbstractLayout",
    "AbstractSource",
    "Arrays",
    "Checkpoint",
    "CheckpointError",
    "GPTNeoX",
    "Heads",
    "Llama",
    "TransformerLens",
    "find_layout",
    "find_series",
    "hub_series",
    "mark_stages",
    "measure_series",
    "open_checkpoint",
]
