"""Data and training of the published code, at the cheapest exact level."""

import math
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from iclflow.dynamics import Descent
from iclflow.losses import AbstractLoss
from iclflow.losses.select import select
from iclflow.models import AbstractInitialiser, AbstractModel
from iclflow.published.weights import InitConvention, PublishedInitialiser, value_weights
from iclflow.results.messages import Progress
from iclflow.runs.record import OfModel
from iclflow.runs.sweep import sweep
from iclflow.study.flags import Options
from iclflow.tasks.base import Normaliser, Prompt
from iclflow.tasks.laws import Mixture, named_spectrum
from iclflow.tasks.prompts import AbstractPromptSet, PromptSet
from iclflow.tasks.task import ContextLabels, Task


def published_task(options: Options, key: PRNGKeyArray) -> Task:
    """Λ ∝ Q diag(1…D) Qᵀ or I, trace 1; w* ~ N(0, I) rescaled to norm √D.

    Attention is divided by nothing at fixed length and by the number of tokens at varying length.

    - `options`: of the published code; they say the sizes, Λ and the portion of random tasks.
    - `key`: draws Q and w*.

    >>> import jax, iclflow as icl
    >>> options = icl.published.Options(in_dim=3, seq_len=8)
    >>> task = icl.published.published_task(options, jax.random.key(0))
    >>> task.size, task.context
    (3, 7)
    """
    rotation, direction = jax.random.split(key)
    size = options.in_dim
    fixed = jax.random.normal(direction, (size,))
    return Task(
        named_spectrum("white" if options.white_cov else "linear", size),
        options.context,
        rotation=None if options.white_cov else rotation,
        tasks=Mixture(fixed=fixed * math.sqrt(size) / jnp.linalg.norm(fixed), fraction=0.0),
        lengths=options.lengths,
        normaliser=Normaliser.TOKENS if options.vary_len else Normaliser.NONE,
    )


def with_label_targets(prompt: Prompt) -> Prompt:
    """The prompt, whose shorter prefixes have the label itself as target, noise or not.

    That is what the published code does at varying length.
    """
    targets = jnp.concatenate([prompt.labels[..., :-1, :], prompt.targets[..., -1:, :]], axis=-2)
    return eqx.tree_at(lambda p: p.targets, prompt, targets)


def prompt_set(task: Task, icl: float, count: int, key: PRNGKeyArray) -> PromptSet:
    """`count` prompts with the portion `icl` of random task vectors; x is centred always.

    icl = 1: task vectors centred and whitened to covariance exactly I (with 1/(P-1)).
    0 < icl < 1: int(P icl) random ones, not whitened, and w* for the rest.
    icl = 0: context labels N(0, 1) noise, target w*ᵀx_q.

    - `task`: says the inputs and w*.
    - `key`: draws the prompts.

    >>> import jax, iclflow as icl
    >>> options = icl.published.Options(in_dim=3, seq_len=8)
    >>> task = icl.published.published_task(options, jax.random.key(0))
    >>> icl.published.prompt_set(task, 1.0, 20, jax.random.key(1)).count
    20
    """
    if icl == 1:
        drawn = PromptSet(task.in_context(), key, count, finish=with_label_targets).matched()
        unbiased = math.sqrt((count - 1) / count)  # `matched` divides by P
        whitener = drawn.matching.whitener * unbiased  # pyright: ignore
        return eqx.tree_at(lambda s: s.matching.whitener, drawn, whitener)
    if icl == 0:
        mixed = task.in_weight(ContextLabels.NOISE)
    else:
        fraction = jnp.asarray(1 - int(count * icl) / count)
        mixed = eqx.tree_at(lambda t: t.tasks.fraction, task, fraction)
    return PromptSet(mixed, key, count, finish=with_label_targets).centred()


def published_loss(
    prompts: AbstractPromptSet, model: AbstractModel, progress: Progress | None = None
) -> AbstractLoss:
    """The loss of given prompts at the cheapest level that is exact for the model.

    - `prompts`: what is trained or tested on.
    - `model`: any weights of the model.
    - `progress`: called while the prompts are read.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=7)
    >>> prompts = icl.published.prompt_set(task, 1.0, 20, jax.random.key(1))
    >>> model = icl.Merged.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> type(icl.published.published_loss(prompts, model)).__name__
    'Moments'
    """
    return select(prompts, model, prompts.count).of(prompts, progress)


def descend(
    loss: AbstractLoss,
    init: AbstractInitialiser,
    options: Options,
    tests: dict[str, AbstractLoss],
    settings: dict,
    progress: Progress | None = None,
    store: Path | None = None,
) -> xr.Dataset:
    """Full-batch descent with everything recorded before each of the `epoch` updates."""
    dataset = sweep(
        loss,
        init,
        Descent(options.lr),
        seeds=[options.seed],
        saveat=np.arange(options.epoch),  # the update after the last record shows nowhere
        record={"loss": "loss", "values": OfModel(value_weights), **tests},
        progress=progress,
        store=store,
        settings=settings,
    )
    return dataset.isel(seed=0)


def stated(options: Options, convention: InitConvention) -> dict[str, Any]:
    """What a run of `train` is stamped with."""
    return {"published": options, "init_convention": convention}


def train(
    options: Options,
    convention: InitConvention = InitConvention.FIGURES,
    *,
    sampling: Progress | None = None,
    progress: Progress | None = None,
    store: Path | None = None,
) -> xr.Dataset:
    """One run with the published conventions and this package's own random numbers.

    The Dataset has the training loss, the value weights and, with a test set, the in-weight and
    in-context test losses (whole sequences, at varying length too) before every update. The same
    call goes on from the folder `store`.

    - `options`: of the published code.
    - `convention`: how large its initial weights are.
    - `sampling`, `progress`: called while prompts are sampled, and while the run trains.

    >>> import iclflow as icl
    >>> sizes = {"in_dim": 2, "seq_len": 8, "trainset_size": 20, "epoch": 3}
    >>> runs = icl.published.train(icl.published.Options(model="attnM", **sizes))
    >>> dict(runs.loss.sizes)
    {'time': 3}
    """
    parts = jax.random.split(jax.random.fold_in(jax.random.key(options.seed), 1), 4)
    task_key, train_key, weight_key, context_key = parts
    task = published_task(options, task_key)
    init = PublishedInitialiser(options, convention)
    model = init(jax.random.key(options.seed))
    prompts = prompt_set(task, options.icl, options.trainset_size, train_key)
    loss = published_loss(prompts, model, sampling)
    tests = {}
    if options.testset_size > 0:
        kinds = (("in_weight_loss", 0.0, weight_key), ("in_context_loss", 1.0, context_key))
        for name, icl, key in kinds:
            whole = task.replace(lengths=(options.context,))
            tests[name] = published_loss(prompt_set(whole, icl, options.testset_size, key), model)
    dataset = descend(loss, init, options, tests, stated(options, convention), progress, store)
    if options.vary_len or (options.softmax and options.model != "mlp"):
        return dataset
    # E8: the paper divides by N, which is the same run at another rate.
    clock = 2 * options.lr * options.context ** (2 / options.factors)
    about = {"long_name": r"training time $t/\tau$ in the paper's normalisation", "units": "1"}
    return dataset.assign_coords(paper_time=("time", clock * dataset["step"].values, about))
