"""Data and training of the published code, at the cheapest exact level."""

import math
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Int, PRNGKeyArray

from iclflow.dynamics import Descent
from iclflow.losses import AbstractFeatureMap, AbstractLoss, Features, Moments, Sequences
from iclflow.losses.select import select
from iclflow.models import AbstractInitialiser, AbstractModel
from iclflow.published.options import Options
from iclflow.published.weights import InitConvention, PublishedInitialiser, value_weights
from iclflow.results.progress import Progress
from iclflow.runs.sweep import sweep
from iclflow.tasks.prompt import Normaliser, Prompt
from iclflow.tasks.prompts import PromptSet
from iclflow.tasks.spectra import named_spectrum
from iclflow.tasks.task import ContextLabels, Task

CHUNK_BYTES = 64 * 2**20  # features of one chunk of prompts


def published_task(options: Options, key: PRNGKeyArray) -> Task:
    """Λ ∝ Q diag(1…D) Qᵀ or I, trace 1; w* ~ N(0, I) rescaled to norm √D.

    Attention is divided by nothing at fixed length and by the number of tokens at varying length.
    """
    rotation, direction = jax.random.split(key)
    size = options.in_dim
    fixed = jax.random.normal(direction, (size,))
    return Task(
        named_spectrum("white" if options.white_cov else "linear", size),
        options.context,
        rotation=None if options.white_cov else rotation,
        fixed_task=fixed * math.sqrt(size) / jnp.linalg.norm(fixed),
        lengths=options.lengths,
        normaliser=Normaliser.TOKENS if options.vary_len else Normaliser.NONE,
    )


def prompt_set(task: Task, icl: float, count: int, key: PRNGKeyArray) -> PromptSet:
    """`count` prompts with the portion `icl` of random task vectors; x is centred always.

    icl = 1: task vectors centred and whitened to covariance exactly I (with 1/(P-1)).
    0 < icl < 1: int(P icl) random ones, not whitened, and w* for the rest.
    icl = 0: context labels N(0, 1) noise, target w*ᵀx_q.
    """
    if icl == 1:
        matched = PromptSet.sample(task.in_context(), count, key, matched=True)
        unbiased = math.sqrt((count - 1) / count)  # `matched` divides by P
        whitener = matched.matching.whitener * unbiased  # pyright: ignore
        return eqx.tree_at(lambda s: s.matching.whitener, matched, whitener)
    if icl == 0:
        return PromptSet.centred(task.in_weight(ContextLabels.NOISE), count, key)
    fixed = 1 - int(count * icl) / count
    return PromptSet.centred(task.replace(fixed_fraction=fixed), count, key)


@eqx.filter_jit
def _prompts(prompts: PromptSet, index: Int[Array, " P"]) -> Prompt:
    return with_label_targets(jax.vmap(prompts.prompt)(index))


def with_label_targets(prompts: Prompt) -> Prompt:
    """Prompts whose shorter prefixes have the label itself as target, noise or not.

    That is what the published code does at varying length.
    """
    targets = jnp.concatenate([prompts.labels[:, :-1], prompts.targets[:, -1:]], axis=1)
    return eqx.tree_at(lambda p: p.targets, prompts, targets)


def published_loss(
    prompts: PromptSet | Prompt,
    task: Task,
    model: AbstractModel,
    lengths: tuple[int, ...],
    progress: Progress | None = None,
) -> AbstractLoss:
    """The loss of given prompts at the cheapest level that is exact for the model."""
    count = prompts.inputs.shape[0] if isinstance(prompts, Prompt) else prompts.count
    choice = select(task.replace(lengths=lengths), model, count)

    def batches(size: int) -> Iterator[Prompt]:
        for begin in range(0, count, size):
            index = jnp.arange(begin, min(begin + size, count))
            if isinstance(prompts, Prompt):
                yield jax.tree.map(lambda a, i=index: a[i], prompts)
            else:
                yield _prompts(prompts, index)
            if progress is not None:
                progress(float(min(begin + size, count)), float(count))

    if choice.features is None or choice.level == "sequences":
        (batch,) = batches(count)
        return Sequences(batch, lengths)
    row = 8 * len(lengths) * choice.features.count(task)
    # Chunks of one size, so that all but perhaps the last compile once.
    chunks = math.ceil(count / max(1, min(16384, CHUNK_BYTES // row)))
    return _accumulate(batches(math.ceil(count / chunks)), lengths, choice.features, choice.level)


def _accumulate(
    batches: Iterator[Prompt], lengths: tuple[int, ...], map_: AbstractFeatureMap, level: str
) -> AbstractLoss:
    if level == "features":
        parts = [Features.from_prompts(batch, lengths, map_) for batch in batches]
        return jax.tree.map(lambda *a: jnp.concatenate(a), *parts)
    total, count = None, 0
    for batch in batches:
        size = batch.inputs.shape[0]
        part = jax.tree.map(lambda a, n=size: a * n, _moments(batch, lengths, map_))
        total = part if total is None else jax.tree.map(jnp.add, total, part)
        count += size
    return jax.tree.map(lambda a: a / count, total)


@eqx.filter_jit
def _moments(batch: Prompt, lengths: tuple[int, ...], map_: AbstractFeatureMap) -> Moments:
    return Moments.from_features(Features.from_prompts(batch, lengths, map_))


def descend(
    loss: AbstractLoss,
    init: AbstractInitialiser,
    options: Options,
    tests: dict[str, AbstractLoss],
    settings: dict,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Full-batch descent with everything recorded before each of the `epoch` updates."""
    dataset = sweep(
        loss,
        init,
        Descent(options.lr, options.epoch - 1),  # the update after the last record shows nowhere
        seeds=[options.seed],
        also={"values": value_weights, **tests},
        saveat=np.arange(options.epoch),
        progress=progress,
        settings=settings,
    )
    return dataset.isel(seed=0)


def train(
    options: Options,
    convention: InitConvention = InitConvention.FIGURES,
    *,
    sampling: Progress | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """One run with the published conventions and this package's own random numbers.

    The Dataset has the training loss, the value weights and, with a test set, the in-weight and
    in-context test losses (whole sequences, at varying length too) before every update.
    """
    parts = jax.random.split(jax.random.fold_in(jax.random.key(options.seed), 1), 4)
    task_key, train_key, weight_key, context_key = parts
    task = published_task(options, task_key)
    init = PublishedInitialiser(options, convention)
    model = init(jax.random.key(options.seed))
    prompts = prompt_set(task, options.icl, options.trainset_size, train_key)
    loss = published_loss(prompts, task, model, options.lengths, sampling)
    tests = {}
    if options.testset_size > 0:
        kinds = (("in_weight_loss", 0.0, weight_key), ("in_context_loss", 1.0, context_key))
        for name, icl, key in kinds:
            prompts = prompt_set(task, icl, options.testset_size, key)
            tests[name] = published_loss(prompts, task, model, (options.context,))
    settings = {"published": options, "init_convention": convention}
    dataset = descend(loss, init, options, tests, settings, progress)
    if options.vary_len or (options.softmax and options.model != "mlp"):
        return dataset
    # E8: the paper divides by N, which is the same run at another rate.
    clock = 2 * options.lr * options.context ** (2 / options.factors)
    about = {"long_name": r"training time $t/\tau$ in the paper's normalisation", "units": "1"}
    return dataset.assign_coords(paper_time=("time", clock * dataset["step"].values, about))
