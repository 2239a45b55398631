"""Models: attention with merged or separate key and query, its layers, softmax, networks."""

from iclflow.models.base import AbstractAttention as AbstractAttention
from iclflow.models.base import AbstractInitialiser as AbstractInitialiser
from iclflow.models.base import AbstractLinearModel as AbstractLinearModel
from iclflow.models.base import AbstractModel as AbstractModel
from iclflow.models.base import Blocks as Blocks
from iclflow.models.base import draw_model as draw_model
from iclflow.models.base import draw_models as draw_models
from iclflow.models.base import empty_model as empty_model
from iclflow.models.label_row import LabelRow as LabelRow
from iclflow.models.label_row import LabelRowInitialiser as LabelRowInitialiser
from iclflow.models.layers import AbstractLayers as AbstractLayers
from iclflow.models.layers import Layers as Layers
from iclflow.models.layers import LayersInitialiser as LayersInitialiser
from iclflow.models.merged import LinearTransformerInitialiser as LinearTransformerInitialiser
from iclflow.models.merged import Merged as Merged
from iclflow.models.merged import MergedInitialiser as MergedInitialiser
from iclflow.models.networks import MLP as MLP
from iclflow.models.networks import AbstractNetwork as AbstractNetwork
from iclflow.models.networks import ConvNet as ConvNet
from iclflow.models.networks import NetworkInitialiser as NetworkInitialiser
from iclflow.models.separate import Separate as Separate
from iclflow.models.separate import SeparateInitialiser as SeparateInitialiser
from iclflow.models.softmax import Softmax as Softmax
from iclflow.models.softmax import SoftmaxInitialiser as SoftmaxInitialiser
from iclflow.models.steps import Steps as Steps
from iclflow.models.steps import StepsInitialiser as StepsInitialiser
