"""The conventions of the published research code of arXiv 2501.16265, and its recorded runs."""

from iclflow.published.conversions import Convention as Convention
from iclflow.published.conversions import Shape as Shape
from iclflow.published.conversions import Stated as Stated
from iclflow.published.recording import RecordedRun as RecordedRun
from iclflow.published.recording import Replayed as Replayed
from iclflow.published.recording import replay as replay
from iclflow.published.training import prompt_set as prompt_set
from iclflow.published.training import published_loss as published_loss
from iclflow.published.training import published_task as published_task
from iclflow.published.training import train as train
from iclflow.published.weights import DividedSoftmax as DividedSoftmax
from iclflow.published.weights import InitConvention as InitConvention
from iclflow.published.weights import PublishedInitialiser as PublishedInitialiser
from iclflow.published.weights import from_published as from_published
from iclflow.published.weights import normalised as normalised
from iclflow.published.weights import to_published as to_published
from iclflow.study.flags import Options as Options
