"""Models by the names that the command line and settings files use."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from iclflow.models.base import AbstractInitialiser
from iclflow.models.label_row import LabelRow
from iclflow.models.layers import Layers
from iclflow.models.merged import Merged
from iclflow.models.networks import MLP, ConvNet
from iclflow.models.separate import Separate
from iclflow.models.softmax import Softmax
from iclflow.models.steps import Steps
from iclflow.models.transformer import Transformer


class Kind(NamedTuple):
    """A kind of model: its initialiser, and which options besides the scale that takes.

    `vector` kinds have as many outputs as inputs and the task law `Commuting`.
    """

    initialiser: Callable[..., AbstractInitialiser]
    options: tuple[str, ...]
    vector: bool = False


MODELS: dict[str, Kind] = {
    "merged": Kind(Merged.initialiser, ("heads", "blocks")),
    "separate": Kind(Separate.initialiser, ("heads", "rank", "blocks")),
    "mlp": Kind(MLP.initialiser, ("heads",)),
    "conv": Kind(ConvNet.initialiser, ("heads", "rank")),
    "softmax-merged": Kind(Softmax.initialiser, ("heads", "blocks")),
    "softmax-separate": Kind(partial(Softmax.initialiser, rank=1), ("heads", "rank", "blocks")),
    "layers-merged": Kind(partial(Layers.initialiser, rank=None), ("layers", "tied", "heads")),
    "layers-separate": Kind(Layers.initialiser, ("layers", "tied", "heads", "rank")),
    "steps": Kind(Steps.initialiser, ("layers", "tied")),
    "label-row": Kind(lambda source, scale: LabelRow.initialiser(source, deviation=scale), ()),
    "transformer": Kind(
        Transformer.initialiser, ("layers", "heads", "width", "mlp", "norm", "causal")
    ),
    "linear-transformer": Kind(Merged.linear_transformer, ("blocks",), vector=True),
}
