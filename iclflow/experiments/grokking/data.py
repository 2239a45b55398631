"""Grokking in modular arithmetic: the losses, and when each measure moves (2nd paper, Figs 3B, 7).

A transformer of one layer on a + b mod p memorises its training pairs and, long after, answers
the others too; so does one on a - b. The standard set-up at full scale; the quick one is smaller in
p and width and has a larger rate, so that it groks within seconds. The seeds of a task share one
split and train together.

A measure has made half of its change at a step that depends on where the change is taken to end.
Every half-change is therefore given for several ends: the step of 95% test accuracy, somewhat
later, and the end of the run, which includes the clean-up of the weights after generalisation.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from iclflow.dynamics import Adam, Descent
from iclflow.experiments.runs import Variable, called, checkpointed, finished, named, train
from iclflow.linalg import FactoredMatrix
from iclflow.measures import (
    change_time,
    effective_rank,
    fourier_concentration,
    marginalised_effective_rank,
    projector_distance,
    relative_to_start,
    time_curvature,
    unexplained,
)
from iclflow.measures.subspace import consecutive_distances, log_intervals
from iclflow.results.messages import Progress
from iclflow.runs.folder import own_folder
from iclflow.runs.record import OfModel
from iclflow.transformers.modular import ModularInitialiser, ModularTransformer, split_pairs


@dataclasses.dataclass(frozen=True)
class Preset:
    """A size at which grokking was seen: model, tasks with the share of pairs, AdamW, length.

    Subtraction wants a larger share of the pairs than addition, where (a, b) and (b, a) have the
    same answer. The `seeds` of the standard set-up took no part in the choice of anything.
    """

    modulus: int
    width: int
    heads: int
    hidden: int
    tasks: tuple[tuple[str, float], ...]
    rate: float
    steps: int
    seeds: tuple[int, ...]
    weight_decay: float = 1.0
    b2: float = 0.98

    @property
    def kept(self) -> int:
        """k of the subspaces, a quarter of a head's size."""
        return max(1, self.width // self.heads // 4)


STANDARD = Preset(
    113, 128, 4, 512, (("addition", 0.3), ("subtraction", 0.4)), 1e-3, 14_000, tuple(range(8, 16))
)
SMALL = Preset(53, 48, 4, 128, (("addition", 0.4),), 5e-3, 3_500, (0, 1, 2))
SPLIT_KEYS, TRAINING_KEY = {"addition": 0, "subtraction": 1}, 1
FREQUENCIES = 5  # of the Fourier concentration
POINTS, WINDOW = 400, 21  # of the norm curvature
ENDS = {"1": 1.0, "1.1": 1.1, "1.2": 1.2, "run": np.inf}  # times the step of 95% test accuracy
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
    count, parts = len(preset.tasks), []
    for number, (task, fraction) in enumerate(preset.tasks):

        def report(done: float, total: float, number: int = number) -> None:
            if progress is not None:
                progress(number * total + done, count * total)

        parts.append(_measured(run_preset(preset, task, fraction, report, folder), preset))
    names = [task for task, _ in preset.tasks]
    over = xr.DataArray(names, dims="task", name="task")
    data: Any = xr.concat(parts, over, data_vars="all")
    plain = {k: v for k, v in dataclasses.asdict(preset).items() if k not in ("tasks", "seeds")}
    settings = {
        "figure": "grokking", "quick": quick, **plain,
        "tasks": ", ".join(f"{task} ({share:.0%} of the pairs)" for task, share in preset.tasks),
        "seeds": ", ".join(map(str, preset.seeds)),
        "subspace_size": preset.kept, "frequencies": FREQUENCIES,
        "training": "AdamW on all training pairs at once, weights in single precision; the "
        "cross-entropy in a form that keeps its relative precision",
    }  # fmt: skip
    return finished(data, settings)


def _measured(run: xr.Dataset, preset: Preset) -> xr.Dataset:
    """The curves of one task, when they change, and how the weight norm bends."""
    curves, bases = _curves(run, preset), run["bases"].values
    data = curves.assign_coords(measure=list(MEASURES), end=list(ENDS))
    data = data.assign(
        named(_times(curves, lambda seed, last: np.asarray(_distances_to(bases[seed], last))))
    )
    return data.assign(named(_norm_curvature(curves)))


def run_preset(
    preset: Preset,
    task: str = "addition",
    fraction: float = 0.3,
    progress: Progress | None = None,
    folder: Path | str | None = None,
) -> xr.Dataset:
    """Train all seeds of a preset on one task and record at its marks.

    - `preset`: sizes and seeds.
    - `task`: an operation of `split_pairs`.
    - `fraction`: the share of the pairs that are trained on.
    - `progress`: called with the steps done and all steps.
    - `folder`: where checkpoints are kept, to go on from them.
    """
    split = jax.random.key(SPLIT_KEYS[task])
    loss, test = split_pairs(preset.modulus, fraction, split, task)
    init = ModularInitialiser(preset.modulus, preset.width, preset.heads, preset.hidden)
    optimiser = Adam(b2=preset.b2, weight_decay=preset.weight_decay)
    record = {
        "train_loss": loss,
        "test_loss": test,
        "train_accuracy": loss.accuracy,
        "test_accuracy": test.accuracy,
        "weight_norm": ModularTransformer.weight_norm,
        "heads": _HeadSpectra(preset.kept),
        "embedding_concentration": _embedding_concentration,
        "unembedding_concentration": _unembedding_concentration,
    }
    # In single precision, also on devices whose default for products is less than that.
    with jax.default_matmul_precision("highest"):
        return train(
            loss,
            init,
            Descent(preset.rate, optimiser),
            saveat=marks(preset.steps),
            seeds=list(preset.seeds),
            record={name: OfModel(measure) for name, measure in record.items()},
            final={"writing": _writing},
            key=jax.random.key(TRAINING_KEY),
            progress=progress,
            **checkpointed(
                own_folder(folder, __name__, (preset, task)), ModularTransformer.tensors
            ),
        )


def marks(steps: int) -> np.ndarray:
    """Steps 0 to the last: every hundredth part, and evenly in the logarithm in the first tenth."""
    early = np.geomspace(1, steps / 10, 40)
    return np.unique(np.round([0, *early, *np.linspace(0, steps, 101)]).astype(int))


def _writing(model: ModularTransformer, loss: Any) -> FactoredMatrix:
    return model.circuits()["OV"]


class _HeadSpectra(eqx.Module):
    """Singular values of OV of every head, and its leading right singular vectors.

    The vectors are the directions that a head writes to. One factorisation gives both.
    """

    count: int = eqx.field(static=True)

    def __call__(self, model: ModularTransformer) -> dict[str, Array]:
        values, basis = jax.vmap(lambda head: head.right_svd(self.count))(model.circuits()["OV"])
        return {"singular_values": values, "bases": basis}


def _embedding_concentration(model: ModularTransformer) -> Float[Array, ""]:
    return fourier_concentration(model.embedding[:-1], FREQUENCIES)


def _unembedding_concentration(model: ModularTransformer) -> Float[Array, ""]:
    return fourier_concentration(model.unembedding.T, FREQUENCIES)


ABOUT = {
    "train_loss": "training loss, nats",
    **MEASURES,
    "train_accuracy": "training accuracy",
    "test_accuracy": "test accuracy",
    "subspace_speed": "subspace speed of OV per unit of ln(step)",
}


def _curves(run: xr.Dataset, preset: Preset) -> xr.Dataset:
    """Everything recorded, [seed, time]; measures of heads averaged over them."""
    spectra, bases, left, right = (
        run[name].values for name in ("singular_values", "bases", "final_left", "final_right")
    )
    geometry = _geometry(spectra, bases, FactoredMatrix(left, right), preset.kept)
    found = {name: np.asarray(values, float) for name, values in geometry.items()}
    found["subspace_speed"] = np.full_like(found["subspace_distance"], np.nan)
    steps = run["step"].values.astype(float)
    found["subspace_speed"][:, 1:] = found.pop("moved") / log_intervals(steps)
    data = run.assign({name: (("seed", "time"), values) for name, values in found.items()})
    data["weight_norm"] = run["weight_norm"] / run["weight_norm"].isel(time=0)
    data = data[list(ABOUT)]
    return data.assign({name: called(data[name], about) for name, about in ABOUT.items()})


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
    moved = jax.vmap(jax.vmap(consecutive_distances, 1, 1))(bases)
    return {**found, **relative, "moved": jnp.mean(moved, axis=2)}


def _times(
    curves: xr.Dataset,
    projector_distances: Callable[[int, np.ndarray], np.ndarray],
) -> dict[str, Variable]:
    """When a seed has memorised and when it has generalised; change times of the measures.

    - `projector_distances`: seed and save point to the distances to the subspaces there.
    """
    steps, values = curves["step"].values, {name: curves[name].values for name in MEASURES}
    memorised = [first_step(steps, row, 1.0) for row in curves["train_accuracy"].values]
    grokked = [first_step(steps, row, 0.95) for row in curves["test_accuracy"].values]
    found: dict[str, Variable] = {
        "memorised": (("seed",), memorised, "first saved step with all training pairs right"),
        "grokked": (("seed",), grokked, "first saved step with 95% of test pairs right"),
    }
    for name, left in (("onset", 0.75), ("half_change", 0.5), ("settling", 0.25)):
        times = np.full((len(ENDS), len(MEASURES), len(memorised)), np.nan)
        for e, factor in enumerate(ENDS.values()):
            for seed, (begin, learned) in enumerate(zip(memorised, grokked, strict=True)):
                end = steps[-1] if np.isinf(factor) else factor * learned
                if not np.isfinite(begin + end):
                    continue
                last = int(np.argmin(np.abs(steps - end)))
                for m, measure in enumerate(MEASURES):
                    curve = values[measure][seed]
                    if measure == "projector_distance":
                        curve = projector_distances(seed, np.asarray(last))
                    shown = slice(last + 1)
                    times[e, m, seed] = change_time(
                        steps[shown], curve[shown], since=begin, left=left
                    )
        about = f"step after which less than {left:.0%} of the change since memorising is left"
        found[name] = (("end", "measure", "seed"), times, about)
    return found


@eqx.filter_jit
def _distances_to(bases: Float[Array, "T H k d"], last: Any) -> Float[Array, " T"]:
    """The projector distance of every subspace to that at one save point, mean over heads."""
    over_heads = jax.vmap(projector_distance)
    return jnp.mean(jax.vmap(over_heads, (None, 0))(bases[last], bases), axis=1)


def first_step(steps: np.ndarray, values: np.ndarray, level: float) -> float:
    """The first saved step at which a curve is at least at a level; NaN if never."""
    there = np.flatnonzero(np.asarray(values) >= level)
    return float(steps[there[0]]) if there.size else float("nan")


def _norm_curvature(curves: xr.Dataset) -> dict[str, Variable]:
    """d²‖W‖/d(ln t)² of every seed, over its largest size.

    Without the ends, where the filter sees one side only.
    """
    steps, norms = curves["step"].values, curves["weight_norm"].values
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
