"""Repeating a recorded run on the same prompts and weights, in double precision."""

import dataclasses
import time

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.models import AbstractInitialiser, AbstractModel
from iclflow.published.recording import Recording
from iclflow.published.training import descend
from iclflow.results.progress import Progress
from iclflow.runs.labels import OUTCOMES


class GivenWeights(AbstractInitialiser):
    """The same weights for every key."""

    scale: Float[Array, ""]
    model: AbstractModel

    def __call__(self, key: PRNGKeyArray) -> AbstractModel:
        del key
        return self.model


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A recorded run beside its repetition: largest absolute differences over all epochs.

    None where the recording has no such curve; infinite where the repetition is not finite.
    Epochs from the first one on where the recorded loss is not finite are left out.
    """

    recording: Recording
    run: xr.Dataset
    epochs: int
    max_abs_loss: float
    max_abs_values: float | None
    max_abs_in_context: float | None
    max_abs_in_weight: float | None
    seconds: float

    @property
    def within(self) -> bool:
        """Whether every difference is within what single precision explains."""
        found = (
            self.max_abs_loss,
            self.max_abs_values,
            self.max_abs_in_context,
            self.max_abs_in_weight,
        )
        return all(d is None or d <= self.recording.options.tolerance for d in found)

    @property
    def result(self) -> str:
        """How the repetition ended."""
        return OUTCOMES[int(self.run["result"])]


def replay(recording: Recording, progress: Progress | None = None) -> Comparison:
    """Train from the recorded weights on the recorded sequences, and compare at every epoch."""
    finite = np.isfinite(recording.loss)
    epochs = len(finite) if finite.all() else int(np.argmin(finite))
    if epochs == 0:
        raise ValueError("the recorded loss is not finite at the initial weights")
    options = dataclasses.replace(recording.options, epoch=epochs)
    tests = {f"{name}_loss": loss for name, loss in recording.tests.items()}
    init = GivenWeights(jnp.asarray(options.init, float), recording.model)
    settings = {"published": options, "weights": recording.model, "loss": recording.train}
    began = time.perf_counter()
    run = descend(recording.train, init, options, tests, settings, progress)
    seconds = time.perf_counter() - began

    def difference(name: str, recorded: np.ndarray | None) -> float | None:
        if recorded is None:
            return None
        gap = np.abs(run[name].values.reshape(epochs, -1) - recorded[:epochs].reshape(epochs, -1))
        return float(np.max(np.where(np.isnan(gap), np.inf, gap)))

    loss = difference("loss", recording.loss)
    assert loss is not None
    return Comparison(
        recording=recording,
        run=run,
        epochs=epochs,
        max_abs_loss=loss,
        max_abs_values=difference("values", recording.values),
        max_abs_in_context=difference("in_context_loss", recording.test_losses.get("in_context")),
        max_abs_in_weight=difference("in_weight_loss", recording.test_losses.get("in_weight")),
        seconds=seconds,
    )
