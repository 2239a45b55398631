"""Other people's checkpoints: attention heads as factored matrices, measured over training."""

from iclflow.diagnostics.checkpoints.files import (
    AbstractSource,
    Arrays,
    CheckpointError,
    open_checkpoint,
)
from iclflow.diagnostics.checkpoints.hub import hub_series
from iclflow.diagnostics.checkpoints.layouts import (
    GPT2,
    AbstractLayout,
    GPTNeoX,
    Heads,
    Llama,
    TransformerLens,
    find_layout,
)
from iclflow.diagnostics.checkpoints.measures import DEFAULT_MEASURES, MEASURES
from iclflow.diagnostics.checkpoints.over_steps import mark_stages, measure_series
from iclflow.diagnostics.checkpoints.series import Checkpoint, find_series

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
