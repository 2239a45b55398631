"""How model families name and store attention weights: from tensors to QK and OV of every head."""

from iclflow.checkpoints.layouts.base import Factors as Factors
from iclflow.checkpoints.layouts.base import Family as Family
from iclflow.checkpoints.layouts.base import Heads as Heads
from iclflow.checkpoints.layouts.base import Layout as Layout
from iclflow.checkpoints.layouts.base import NoAttentionError as NoAttentionError
from iclflow.checkpoints.layouts.families import find_layout as find_layout
