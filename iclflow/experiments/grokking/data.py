"""Grokking in modular addition: the losses, and when each measure moves (second paper, Figs 3B, 7).

A transformer of one layer on a + b mod p memorises its training pairs and, long after, answers
the others too. The standard set-up at full scale; the quick one is smaller in p and width and has
a larger rate, so that it groks within seconds. All seeds share one split and train together.
"""

import dataclasses
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from iclflow.dynamics import Adam, Descent
from iclflow.experiments.runs import Variable, checkpointed, labelled, trained
from iclflow.linalg import FactoredMatrix
from iclflow.measures import (
    change_time,
    effective_rank,
    fourier_concentration,
    marginalised_effective_rank,
    projector_distance,
    relative_to_start,
    singular_values,
    time_curvature,
    unexplained,
)
from iclflow.results.messages import Progress
from iclflow.runs.folder import own_folder
from iclflow.runs.record import OfModel
from iclflow.transformers.modular import ModularInitialiser, ModularTransformer, split_pairs


@dataclasses.dataclass(frozen=True)
class Preset:
    """A size at which grokking was seen: model, share of pairs, AdamW, length."""

    modulus: int
    width: int
    heads: int
    hidden: int
    fraction: float
    rate: float
    steps: int
    seeds: int
    weight_decay: float = 1.0
    b2: float = 0.98

    @property
    def kept(self) -> int:
        """k of the subspaces, a quarter of a head's size."""
        return max(1, self.width // self.heads // 4)


STANDARD = Preset(113, 128, 4, 512, 0.3, 1e-3, 14_000, 8)
SMALL = Preset(53, 48, 4, 128, 0.4, 5e-3, 3_500, 3)
SPLIT_KEY, TRAINING_KEY = 0, 1
FREQUENCIES = 5  # of the Fourier concentration
POINTS, WINDOW = 400, 21  # of the norm curvature
MEASURES = {  # name -> what it is; in the order of the figure
    "test_loss": "test loss",
    "effective_rank": "effective rank (15) of OV, over its start",
    "marginalised_rank": "the same without the largest quarter of singular values",
    "subspace_distance": "subspace distance (16) of OV to its end",
    "projector_distance": r"$\|P_k-P_k(\infty)\|_F/\sqrt{2k}$ of OV",
    "weight_norm": "norm of all weights, over its start",
    "embedding_concentration": f"embedding: share of its {FREQUENCIES} largest frequencies",
    "unembedding_concentration": f"unembedding: share of its {FREQUENCIES} largest frequencies",
}


def compute(
    *, quick: bool = False, progress: Progress | None = None, folder: Path | str | None = None
) -> xr.Dataset:
    """Losses, accuracies and measures of every seed, and when each measure changes.

    With a folder, training leaves checkpoints there, and goes on from them.
    """
    preset = SMALL if quick else STANDARD
    run = run_preset(preset, progress, folder)
    variables = _curves(run, preset)
    steps = marks(preset.steps)
    variables |= _times(steps, variables)
    variables |= _norm_curvature(steps, variables["weight_norm"][1])
    coordinates = {
        "step": ("time", steps, {"long_name": "training steps", "units": "1"}),
        "seed": np.arange(preset.seeds),
        "measure": list(MEASURES),
    }
    settings = {
        "figure": "grokking", "quick": quick, **dataclasses.asdict(preset),
        "subspace_size": preset.kept, "frequencies": FREQUENCIES,
        "training": "AdamW on all training pairs at once, weights in single precision; the "
        "cross-entropy in a form that keeps its relative precision",
    }  # fmt: skip
    return labelled(variables, coordinates, settings)


def run_preset(
    preset: Preset, progress: Progress | None = None, folder: Path | str | None = None
) -> dict[str, np.ndarray]:
    """Train all seeds of a preset and record at its marks."""
    loss, test = split_pairs(preset.modulus, preset.fraction, jax.random.key(SPLIT_KEY))
    init = ModularInitialiser(preset.modulus, preset.width, preset.heads, preset.hidden)
    optimiser = Adam(b2=preset.b2, weight_decay=preset.weight_decay)
    record = {
        "train_loss": loss,
        "test_loss": test,
        "train_accuracy": loss.accuracy,
        "test_accuracy": test.accuracy,
        "weight_norm": ModularTransformer.weight_norm,
        "singular_values": _head_spectra,
        "bases": _HeadBases(preset.kept),
        "embedding_concentration": _embedding_concentration,
        "unembedding_concentration": _unembedding_concentration,
    }
    # In single precision, also on devices whose default for products is less than that.
    with jax.default_matmul_precision("highest"):
        return trained(
            loss,
            init,
            Descent(preset.rate, optimiser),
            saveat=marks(preset.steps),
            seeds=preset.seeds,
            record={name: OfModel(measure) for name, measure in record.items()},
            final={"writing": _writing},
            key=jax.random.key(TRAINING_KEY),
            progress=progress,
            **checkpointed(own_folder(folder, __name__, preset), ModularTransformer.tensors),
        )


def marks(steps: int) -> np.ndarray:
    """Steps 0 to the last: every hundredth part, and evenly in the logarithm in the first tenth."""
    early = np.geomspace(1, steps / 10, 40)
    return np.unique(np.round([0, *early, *np.linspace(0, steps, 101)]).astype(int))


def _writing(model: ModularTransformer, loss: Any) -> FactoredMatrix:
    return model.circuits()["OV"]


def _head_spectra(model: ModularTransformer) -> Float[Array, "H e"]:
    return jax.vmap(singular_values)(model.circuits()["OV"])


class _HeadBases(eqx.Module):
    """The leading right singular vectors of OV of every head: the directions it writes to."""

    count: int = eqx.field(static=True)

    def __call__(self, model: ModularTransformer) -> Float[Array, "H k d"]:
        return jax.vmap(lambda head: head.right_svd(self.count)[1])(model.circuits()["OV"])


def _embedding_concentration(model: ModularTransformer) -> Float[Array, ""]:
    return fourier_concentration(model.embedding[:-1], FREQUENCIES)


def _unembedding_concentration(model: ModularTransformer) -> Float[Array, ""]:
    return fourier_concentration(model.unembedding.T, FREQUENCIES)


def _curves(run: dict[str, np.ndarray], preset: Preset) -> dict[str, Variable]:
    """Everything recorded, [seed, time]; measures of heads averaged over them."""
    found = {
        name: run[name] for name in ("train_loss", "test_loss", "train_accuracy", "test_accuracy")
    }
    final = FactoredMatrix(run["final_left"], run["final_right"])
    geometry = _geometry(run["singular_values"], run["bases"], final, preset.kept)
    found |= {name: np.asarray(values, float) for name, values in geometry.items()}
    norm = run["weight_norm"]
    found["weight_norm"] = norm / norm[:, :1]
    for name in ("embedding_concentration", "unembedding_concentration"):
        found[name] = run[name]
    about = {
        "train_loss": "training loss, nats", **MEASURES,
        "train_accuracy": "training accuracy", "test_accuracy": "test accuracy",
    }  # fmt: skip
    return {name: (("seed", "time"), values, about[name]) for name, values in found.items()}


@eqx.filter_jit
def _geometry(
    spectra: Any, bases: Any, final: FactoredMatrix, drop: int
) -> dict[str, Float[Array, "seeds T"]]:
    """Means over heads of ranks, relative to the start, and of distances to the end."""
    each = lambda f: jax.vmap(jax.vmap(jax.vmap(f)))  # noqa: E731  seeds, times, heads
    ranks = {
        "effective_rank": each(effective_rank)(spectra),
        "marginalised_rank": each(lambda v: marginalised_effective_rank(v, drop))(spectra),
    }
    ends = bases[:, -1]

    def along(distance: Any, goals: Any) -> Array:
        over_heads = jax.vmap(distance)
        return jax.vmap(lambda b, g: jax.vmap(lambda one: over_heads(g, one))(b))(bases, goals)

    distances = {
        "subspace_distance": along(unexplained, final),
        "projector_distance": along(projector_distance, ends),
    }
    found = {name: jnp.mean(values, axis=2) for name, values in {**ranks, **distances}.items()}
    relative = {name: jax.vmap(relative_to_start)(found[name]) for name in ranks}
    return {**found, **relative}


def _times(steps: np.ndarray, curves: dict[str, Variable]) -> dict[str, Variable]:
    """When a seed has memorised and when it has generalised; change times of the measures."""
    memorised = [first_step(steps, row, 1.0) for row in curves["train_accuracy"][1]]
    grokked = [first_step(steps, row, 0.95) for row in curves["test_accuracy"][1]]
    found: dict[str, Variable] = {
        "memorised": (("seed",), memorised, "first saved step with all training pairs right"),
        "grokked": (("seed",), grokked, "first saved step with 95% of test pairs right"),
    }
    for name, left in (("onset", 0.75), ("half_change", 0.5), ("settling", 0.25)):
        times = [
            [
                change_time(steps, row, since=begin, left=left) if np.isfinite(begin) else np.nan
                for row, begin in zip(curves[measure][1], memorised, strict=True)
            ]
            for measure in MEASURES
        ]
        about = f"step after which less than {left:.0%} of the change since memorising is left"
        found[name] = (("measure", "seed"), times, about)
    return found


def first_step(steps: np.ndarray, values: np.ndarray, level: float) -> float:
    """The first saved step at which a curve is at least at a level; NaN if never."""
    there = np.flatnonzero(np.asarray(values) >= level)
    return float(steps[there[0]]) if there.size else float("nan")


def _norm_curvature(steps: np.ndarray, norms: np.ndarray) -> dict[str, Variable]:
    """d²‖W‖/d(ln t)² of every seed, over its largest size.

    Without the ends, where the filter sees one side only.
    """
    inner = slice(WINDOW // 2, -(WINDOW // 2))
    found = [
        time_curvature(steps, np.nan_to_num(norm), points=POINTS, window=WINDOW) for norm in norms
    ]
    values = np.stack([curve.value[inner] for curve in found])
    whole = np.all(np.isfinite(norms), axis=1, keepdims=True)  # a run that failed has none
    size = np.where(whole, np.max(np.abs(values), axis=1, keepdims=True), np.nan)
    about = r"$d^2\|W\|/d(\ln t)^2$, over its largest size"
    return {
        "curvature_step": (("point",), found[0].time[inner], "training steps"),
        "norm_curvature": (("seed", "point"), values / size, about),
    }
