"""Other people's checkpoints: attention heads as factored matrices, measured over training."""

from iclflow.checkpoints.files import AbstractSource as AbstractSource
from iclflow.checkpoints.files import Arrays as Arrays
from iclflow.checkpoints.files import CheckpointError as CheckpointError
from iclflow.checkpoints.files import open_checkpoint as open_checkpoint
from iclflow.checkpoints.hub import hub_series as hub_series
from iclflow.checkpoints.layouts import GPT2 as GPT2
from iclflow.checkpoints.layouts import AbstractLayout as AbstractLayout
from iclflow.checkpoints.layouts import GPTNeoX as GPTNeoX
from iclflow.checkpoints.layouts import Heads as Heads
from iclflow.checkpoints.layouts import Llama as Llama
from iclflow.checkpoints.layouts import TransformerLens as TransformerLens
from iclflow.checkpoints.layouts import find_layout as find_layout
from iclflow.checkpoints.measures import DEFAULT_MEASURES as DEFAULT_MEASURES
from iclflow.checkpoints.measures import MEASURES as MEASURES
from iclflow.checkpoints.over_steps import mark_stages as mark_stages
from iclflow.checkpoints.over_steps import measure_series as measure_series
from iclflow.checkpoints.series import Checkpoint as Checkpoint
from iclflow.checkpoints.series import find_series as find_series
