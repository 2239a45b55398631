"""Recorded runs of the published code: an .npz file read into losses, model and curves.

`replay` repeats such a run on the same prompts and weights, in double precision.
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.losses import AbstractLoss, Moments, ReducedFeatures
from iclflow.models import AbstractInitialiser, AbstractModel
from iclflow.published.training import descend, published_loss
from iclflow.published.weights import from_published
from iclflow.results.archives import Archive
from iclflow.results.files import parse_json
from iclflow.results.messages import Progress
from iclflow.runs.record import OUTCOMES
from iclflow.study.flags import Options
from iclflow.tasks.base import Normaliser, Prompt
from iclflow.tasks.checks import require_memory
from iclflow.tasks.prompts import StackedPrompts

WEIGHTS = {"attnM": ("kq", "value"), "attnS": ("key", "query", "value"), "mlp": ("fc1", "fc2")}
TESTS = {"in_weight": "iwl", "in_context": "icl"}


@dataclasses.dataclass(frozen=True)
class RecordedRun:
    """One recorded run: what it was given, and what was measured before every update.

    - `options`: of the published code, read from `arguments`.
    - `train`: the training loss.
    """

    options: Options
    arguments: dict[str, Any]  # all that was stored beside the arrays
    model: AbstractModel  # the initial weights
    train: AbstractLoss
    tests: dict[str, AbstractLoss]  # in_weight, in_context
    loss: np.ndarray  # [epoch]
    test_losses: dict[str, np.ndarray]  # as `tests`, [epoch]
    values: np.ndarray | None  # [epoch, H]

    @property
    def seconds(self) -> float | None:
        """The wall time of the recorded run."""
        found = self.arguments.get("wall_s")
        return float(found) if isinstance(found, int | float) else None

    @classmethod
    def load(cls, path: Path | str) -> "RecordedRun":
        """Read a recording; `ValueError` in one line if it is not one."""
        path = Path(path)
        try:
            return _build(read_arrays(path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, without the intermediate weights; nothing is unpickled."""
    try:
        archive = Archive(path)
        names = [name for name in archive.shapes if not name.startswith("traj_")]
        needed = 3 * sum(archive.sizes[name] for name in names)
        require_memory(needed, "its arrays", "it is too large to be repeated here")
        return {name: archive.read(name, needed) for name in names}
    except ValueError as error:
        reason = " ".join(str(error).split()).removeprefix(f"{path}: ")[:100]
        raise ValueError(f"not a readable recording ({reason})") from None


def _build(arrays: dict[str, np.ndarray]) -> RecordedRun:
    if "args_json" not in arrays:
        raise ValueError("the options are missing (array args_json); is it a recorded run?")
    try:
        arguments = parse_json(str(arrays["args_json"]), "args_json")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise ValueError("args_json is not a JSON object of options")
    options = Options.from_recorded(arguments)
    size, heads = options.in_dim, options.head_num
    loss = _array(arrays, "loss", (options.epoch,))
    shapes = {
        "kq": (heads * (size + 1), size + 1),
        "value": (heads * (size + 1), size + 1),
        "key": (heads * options.rank, size + 1),
        "query": (heads * options.rank, size + 1),
        "fc1": (heads, size**2),
        "fc2": (1, heads),
    }
    names = WEIGHTS[options.model]
    weights = {name: _array(arrays, f"init_{name}", shapes[name]) for name in names}
    model = from_published(weights, options)
    train = _loss(arrays, "", options, model, options.lengths)
    tests, curves = {}, {}
    for name, short in TESTS.items():
        if f"loss_{short}_test" in arrays:
            curves[name] = _array(arrays, f"loss_{short}_test", (options.epoch,))
            # Whole sequences, at varying length too.
            tests[name] = _loss(arrays, f"_{short}", options, model, (options.context,))
    values = None
    if "v_traj" in arrays:
        values = _array(arrays, "v_traj", (options.epoch, heads))
    return RecordedRun(options, arguments, model, train, tests, loss, curves, values)


def _array(arrays: dict[str, np.ndarray], name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """One array in double precision, refused unless it has the shape (None: any length)."""
    if name not in arrays:
        raise ValueError(f"the array {name} is missing; the file has {', '.join(sorted(arrays))}")
    array = arrays[name]
    fits = len(array.shape) == len(shape) and all(
        want in (None, got) for got, want in zip(array.shape, shape, strict=True)
    )
    if not fits or array.dtype.kind not in "fiu":
        want = " x ".join("P" if n is None else str(n) for n in shape)
        raise ValueError(
            f"the array {name} must be numbers of shape {want} by the recorded options, "
            f"got {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.float64)


def _loss(
    arrays: dict[str, np.ndarray],
    suffix: str,
    options: Options,
    model: AbstractModel,
    lengths: tuple[int, ...],
) -> AbstractLoss:
    """The loss of the sequences X (MLP: their cubic features) with targets yq."""
    size = options.in_dim
    token = (options.seq_len, size + 1) if options.model != "mlp" else (size**2,)
    x = _array(arrays, f"X{suffix}", (None, *token))
    y = _array(arrays, f"yq{suffix}", (len(x),))
    if not (len(x) and np.all(np.isfinite(x)) and np.all(np.isfinite(y))):
        raise ValueError(f"X{suffix} and yq{suffix} must hold at least one sequence of numbers")
    if options.model == "mlp":
        # z is recorded in the order of ReducedFeatures: β first, then x_q.
        return Moments(
            power=jnp.mean(jnp.asarray(y) ** 2),
            cross=jnp.asarray((y @ x)[None] / len(x)),
            second=jnp.asarray(x.T @ x / len(x)),
            map=ReducedFeatures(),
        )
    normaliser = Normaliser.TOKENS if options.vary_len else Normaliser.NONE
    labels = x[:, :, size:]
    targets = np.concatenate([labels[:, :-1], y[:, None, None]], axis=1)
    prompts = jax.vmap(lambda x, y, t: Prompt(x, y, t, None, normaliser))(
        *map(jax.device_put, (x[:, :, :size], labels, targets))
    )
    return published_loss(StackedPrompts(prompts, lengths), model)


class GivenWeights(AbstractInitialiser):
    """The same weights for every key."""

    scale: Float[Array, ""]
    model: AbstractModel

    def __call__(self, key: PRNGKeyArray) -> AbstractModel:
        del key
        return self.model


@dataclasses.dataclass(frozen=True)
class Replayed:
    """A recorded run beside its repetition: largest absolute differences over all epochs.

    None where the recording has no such curve; infinite where the repetition is not finite.
    Epochs from the first one on where the recorded loss is not finite are left out.

    - `recording`, `run`: the recorded run and its repetition.
    - `epochs`: how many are compared.
    - `max_abs_loss`, `max_abs_values`: the differences of the training loss and the value weights.
    - `max_abs_in_context`, `max_abs_in_weight`: those of the test losses.
    - `seconds`: how long the repetition took.
    """

    recording: RecordedRun
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


def replay(recording: RecordedRun, progress: Progress | None = None) -> Replayed:
    """Train from the recorded weights on the recorded sequences, and compare at every epoch.

    - `recording`: what `RecordedRun.load` reads.
    - `progress`: called as the run trains.

    >>> import jax, numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=7)
    >>> model = icl.Merged.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> prompts = icl.published.prompt_set(task, 1.0, 20, jax.random.key(1))
    >>> loss = icl.published.published_loss(prompts, model)
    >>> run = icl.simulate(loss, model, icl.Descent(0.1), saveat=range(3))
    >>> options = icl.published.Options(model="attnM", head_num=2, in_dim=2, epoch=3, lr=0.1)
    >>> curve = np.asarray(run.loss)
    >>> recording = icl.published.RecordedRun(options, {}, model, loss, {}, curve, {}, None)
    >>> icl.published.replay(recording).max_abs_loss < 1e-12
    True
    """
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
    return Replayed(
        recording=recording,
        run=run,
        epochs=epochs,
        max_abs_loss=loss,
        max_abs_values=difference("values", recording.values),
        max_abs_in_context=difference("in_context_loss", recording.test_losses.get("in_context")),
        max_abs_in_weight=difference("in_weight_loss", recording.test_losses.get("in_weight")),
        seconds=seconds,
    )
