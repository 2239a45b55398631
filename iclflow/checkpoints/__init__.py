"""Other people's checkpoints: attention heads as factored matrices, measured over training."""

from iclflow.checkpoints.files import AbstractSource as AbstractSource
from iclflow.checkpoints.files import Arrays as Arrays
from iclflow.checkpoints.files import CheckpointError as CheckpointError
from iclflow.checkpoints.files import open_checkpoint as open_checkpoint
from iclflow.checkpoints.hub import hub_series as hub_series
from iclflow.checkpoints.layouts import Factors as Factors
from iclflow.checkpoints.layouts import Family as Family
from iclflow.checkpoints.layouts import Heads as Heads
from iclflow.checkpoints.layouts import Layout as Layout
from iclflow.checkpoints.layouts import NoAttentionError as NoAttentionError
from iclflow.checkpoints.layouts import find_layout as find_layout
from iclflow.checkpoints.logs import find_log as find_log
from iclflow.checkpoints.logs import read_columns as read_columns
from iclflow.checkpoints.logs import read_curve as read_curve
from iclflow.checkpoints.measures import DEFAULT_MEASURES as DEFAULT_MEASURES
from iclflow.checkpoints.measures import MEASURES as MEASURES
from iclflow.checkpoints.monitor import Monitor as Monitor
from iclflow.checkpoints.monitor import TrainerCallback as TrainerCallback
from iclflow.checkpoints.series import Checkpoint as Checkpoint
from iclflow.checkpoints.series import check_series as check_series
from iclflow.checkpoints.series import find_series as find_series
from iclflow.checkpoints.series import mark_stages as mark_stages
from iclflow.checkpoints.series import measure_series as measure_series
