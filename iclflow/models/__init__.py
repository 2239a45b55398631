"""Models: attention with merged or separate key and query, softmax of either, linear networks."""

from iclflow.models.base import (
    AbstractAttention,
    AbstractInitialiser,
    AbstractLinearModel,
    AbstractModel,
    Blocks,
    draw_model,
    draw_models,
    empty_model,
)
from iclflow.models.merged import LinearTransformerInitialiser, Merged, MergedInitialiser
from iclflow.models.networks import MLP, AbstractNetwork, ConvNet, NetworkInitialiser
from iclflow.models.separate import Separate, SeparateInitialiser
from iclflow.models.softmax import Softmax, SoftmaxInitialiser

__all__ = [
    "MLP",
    "AbstractAttention",
    "AbstractInitialiser",
    "AbstractLinearModel",
    "AbstractModel",
    "AbstractNetwork",
    "Blocks",
    "ConvNet",
    "LinearTransformerInitialiser",
    "Merged",
    "MergedInitialiser",
    "NetworkInitialiser",
    "Separate",
    "SeparateInitialiser",
    "Softmax",
    "SoftmaxInitialiser",
    "draw_model",
    "draw_models",
    "empty_model",
]
