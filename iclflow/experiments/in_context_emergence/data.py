"""In-context learning emerges in attention-only transformers of two and more layers (Figs 5, 6).

Figure numbers are those of Mainali & Teixeira (2025). Two corpora: repeated tokens, where the
period is drawn for each sequence, for the figures' depths; and Markov chains, each with its own
transition probabilities, where the best possible loss is known, for one and two layers.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from iclflow.dynamics import Adam, Descent
from iclflow.dynamics.base import log_steps
from iclflow.experiments.runs import Variable, checkpointed, labelled, trained
from iclflow.measures import find_stages
from iclflow.results.messages import Progress
from iclflow.runs.compute import final_models
from iclflow.runs.folder import own_folder
from iclflow.transformers import (
    CIRCUITS,
    AbstractCorpus,
    AttentionOnly,
    AttentionOnlyInitialiser,
    FreshTokens,
    Markov,
    NextToken,
    Repeated,
    distances_to_end,
    effective_ranks,
    in_context_score,
    late_loss,
    prefix_matching,
    previous_token,
    repeated_accuracy,
    spectrum,
)

WEIGHT_DECAY = 0.01
RANK = 8  # leading right singular vectors that make the subspaces
LEARNED = 0.25  # of ln V: a late loss below this is in-context learning
SETTLED = (0.5, 0.9)  # of its way from start to end: halfway, and stabilised
MARKOV_TOKENS, MARKOV_CONCENTRATION = 8, 0.5
EVALUATION_KEY, TRAINING_KEY = 2**20, 2**20 + 1  # beside the seeds of the weights


Run = dict[str, np.ndarray]  # what a sweep recorded, by name


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the models and of their training."""

    vocabulary: int
    context: int
    width: int
    heads: int
    batch: int
    steps: int
    markov_steps: int
    rate: float
    layers: tuple[int, ...]
    seeds: int
    marks: int
    sequences: int  # kept for evaluation


FULL = Sizes(64, 64, 128, 4, 64, 20_000, 5_000, 1e-3, (1, 2, 3, 4), 1, 90, 256)
QUICK = Sizes(32, 32, 64, 4, 32, 700, 400, 2e-3, (1, 2), 1, 60, 128)


def compute(
    *, quick: bool = False, progress: Progress | None = None, folder: Path | str | None = None
) -> xr.Dataset:
    """Losses, scores and circuits of every depth over training; goes on from `folder`."""
    preset = QUICK if quick else FULL
    folder = own_folder(folder, __name__, preset)
    repeated = Repeated(preset.vocabulary, preset.context)
    chains = Markov(MARKOV_TOKENS, preset.context, MARKOV_CONCENTRATION)
    jobs = [
        (f"repeated-{layers}", repeated, layers, preset.steps, _measures)
        for layers in preset.layers
    ]
    jobs += [(f"markov-{n}", chains, n, preset.markov_steps, _losses) for n in (1, 2)]
    # The work of a step grows with the layers, and with what is around them.
    work = [(layers + 1) * steps for _, _, layers, steps, _ in jobs]
    done: dict[str, Run] = {}
    for i, (name, corpus, layers, steps, measure) in enumerate(jobs):
        report = _part(progress, sum(work[:i]), work[i], sum(work))
        place = None if folder is None else folder / name
        done[name] = _train(preset, corpus, layers, steps, measure, place, report)
    settings = {
        **dataclasses.asdict(preset), "weight_decay": WEIGHT_DECAY, "rank": RANK,
        "learned": LEARNED, "markov_tokens": MARKOV_TOKENS,
        "markov_concentration": MARKOV_CONCENTRATION, "optimiser": "AdamW", "quick": quick,
    }  # fmt: skip
    variables = _repeated_variables(preset, [done[f"repeated-{n}"] for n in preset.layers])
    variables |= _markov_variables(preset, chains, [done["markov-1"], done["markov-2"]])
    coordinates = {
        "layers": list(preset.layers),
        "markov_layers": [1, 2],
        "circuit": list(CIRCUITS),
        "share": list(SETTLED),
        "seed": np.arange(preset.seeds),
        "step": ("step", _marks(preset, preset.steps), {"long_name": "training steps"}),
        "markov_step": _marks(preset, preset.markov_steps),
    }
    return labelled(variables, coordinates, settings)


def _marks(preset: Sizes, steps: int) -> np.ndarray:
    return log_steps(steps, preset.marks)


def _part(
    progress: Progress | None, before: float, work: float, total: float
) -> Callable[[float, float], None] | None:
    if progress is None:
        return None
    return lambda done, steps: progress(before + work * done / steps, total)


def _train(
    preset: Sizes,
    corpus: AbstractCorpus,
    layers: int,
    steps: int,
    measure: Callable[[Any, Any], Any],
    folder: Path | None,
    progress: Callable[[float, float], None] | None,
) -> Run:
    init = _initialiser(preset, corpus, layers)
    sequences = NextToken.sample(corpus, preset.sequences, jax.random.key(EVALUATION_KEY))
    return trained(
        FreshTokens(corpus, sequences, preset.batch),
        init,
        Descent(preset.rate, Adam(weight_decay=WEIGHT_DECAY)),
        saveat=_marks(preset, steps),
        seeds=preset.seeds,
        record={"measures": measure},
        final=["weights"],
        key=jax.random.key(TRAINING_KEY),
        progress=progress,
        **checkpointed(folder, AttentionOnly.tensors),
    )


def _initialiser(preset: Sizes, corpus: AbstractCorpus, layers: int) -> AttentionOnlyInitialiser:
    return AttentionOnlyInitialiser(
        corpus.vocabulary, corpus.context, layers, preset.width, preset.heads
    )


def _losses(model: AttentionOnly, loss: FreshTokens) -> dict[str, Array]:
    return {"position_loss": jnp.mean(loss.evaluation.by_position(model)[0], axis=0)}


def _measures(model: AttentionOnly, loss: FreshTokens) -> dict[str, Any]:
    tokens = loss.evaluation.tokens
    losses, correct = loss.evaluation.by_position(model)
    return {
        "position_loss": jnp.mean(losses, axis=0),
        "accuracy": repeated_accuracy(correct, tokens),
        "prefix_matching": prefix_matching(model, tokens),
        "previous_token": previous_token(model, tokens),
        "spectrum": spectrum(model, RANK),
    }


def _repeated_variables(preset: Sizes, runs: Sequence[Run]) -> dict[str, Variable]:
    """Everything about the repeated corpus, [layers, seed, step, ...]."""
    losses = np.stack([run["position_loss"] for run in runs])
    late = _late(losses)
    run_dims, head_dims = ("layers", "seed", "step"), ("circuit", "layer", "head")
    measured = [
        _circuits(run, _initialiser(preset, Repeated(preset.vocabulary, preset.context), layers))
        for run, layers in zip(runs, preset.layers, strict=True)
    ]
    ranks, distances = (_padded([part[i] for part in measured], 4) for i in range(2))
    variables: dict[str, Variable] = {
        "position_loss": ((*run_dims, "position"), losses, "loss of the next token"),
        "late_loss": (run_dims, late, "loss in the last quarter of the context"),
        "in_context_score": (run_dims, _score(losses), "loss late minus loss early"),
        "accuracy": (
            run_dims, np.stack([run["accuracy"] for run in runs]),
            "accuracy where the segment has been seen",
        ),
        "effective_rank": ((*run_dims, *head_dims), ranks, "effective rank (15)"),
        "subspace_distance": (
            (*run_dims, *head_dims), distances, "subspace distance (16) to the end"
        ),
    }  # fmt: skip
    for name in ("prefix_matching", "previous_token"):
        values = _padded([run[name] for run in runs], 3)
        variables[name] = ((*run_dims, "layer", "head"), values, f"{name.replace('_', '-')} score")
    steps = _marks(preset, preset.steps)
    score = variables["in_context_score"][1]
    window = np.full((*late.shape[:2], 2), np.nan)
    for index in np.ndindex(*late.shape[:2]):
        if late[index][-1] < LEARNED * np.log(preset.vocabulary):
            window[index] = emergence_window(steps, score[index])
    mean = np.nanmean(distances, axis=(4, 5))
    settled = np.stack([settling_times(steps, mean, share) for share in SETTLED])
    return variables | {
        "window": (("layers", "seed", "edge"), window, "steps in which the in-context score drops"),
        "settled": (
            ("share", "layers", "seed", "circuit"),
            settled,
            "step at which subspaces are there",
        ),
    }


def _late(losses: np.ndarray) -> np.ndarray:
    return np.asarray(late_loss(jnp.asarray(losses)))


def _score(losses: np.ndarray) -> np.ndarray:
    return np.asarray(in_context_score(jnp.asarray(losses)))


def emergence_window(steps: np.ndarray, score: np.ndarray) -> tuple[float, float]:
    """Where the largest drop found by the stage detector is 10% and 90% done; NaN without one.

    Of the in-context score rather than of the loss, which also falls by what needs no context.
    """
    drops = find_stages(steps, score, resamples=0).drops
    if not drops:
        return float("nan"), float("nan")
    largest = max(drops, key=lambda drop: drop.size)
    return largest.start, largest.end


def settling_times(steps: np.ndarray, curves: np.ndarray, share: float) -> np.ndarray:
    """From when on each curve [layers, seed, step, circuit] has gone `share` of its whole way."""
    first, last = curves[:, :, :1], curves[:, :, -1:]
    there = np.abs(curves - last) <= (1 - share) * np.abs(first - last)
    missing = np.where(there, -1, np.arange(len(steps))[None, None, :, None]).max(axis=2)
    return steps[missing + 1].astype(float)


def _circuits(run: Run, init: AttentionOnlyInitialiser) -> tuple[np.ndarray, np.ndarray]:
    """Effective ranks and distances to the end, [seed, step, circuit, layer, head]."""
    spectra = (run["spectrum.values"], run["spectrum.basis"])
    found = _circuit_measures(spectra, final_models(run, init))
    return np.asarray(found[0]), np.asarray(found[1])


@eqx.filter_jit
def _circuit_measures(
    spectra: Any, models: Any
) -> tuple[Float[Array, "S T C L H"], Float[Array, "S T C L H"]]:
    values, basis = jax.tree.map(jnp.asarray, tuple(spectra))
    return effective_ranks(values), eqx.filter_vmap(distances_to_end)(basis, models)


def _padded(arrays: Sequence[np.ndarray], depth_axis: int) -> np.ndarray:
    """Stacked along a new first axis; models with fewer layers have NaN in the others."""
    axis, most = depth_axis - 1, max(a.shape[depth_axis - 1] for a in arrays)
    out = []
    for a in arrays:
        widths = [(0, most - a.shape[axis] if i == axis else 0) for i in range(a.ndim)]
        out.append(np.pad(a, widths, constant_values=np.nan))
    return np.stack(out)


def _markov_variables(preset: Sizes, corpus: Markov, runs: Sequence[Run]) -> dict[str, Variable]:
    """Losses of one and two layers on Markov chains, and what could be had from the same text."""
    losses = np.stack([run["position_loss"] for run in runs])
    tokens = NextToken.sample(corpus, preset.sequences, jax.random.key(EVALUATION_KEY)).tokens
    read = np.asarray(tokens)
    dims = ("markov_layers", "seed", "markov_step")
    best, single = corpus.optimal_losses(read), corpus.unigram_losses(read)
    return {
        "markov_late_loss": (dims, _late(losses), "loss, last quarter"),
        "markov_loss": ((*dims[:2], "position"), losses[:, :, -1], "loss after training"),
        "markov_optimal": (("position",), best, "loss of the Bayes-optimal predictor"),
        "markov_unigram": (("position",), single, "loss of token frequencies"),
    }
