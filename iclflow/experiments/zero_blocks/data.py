"""The weight blocks that the theory sets to zero: what P sequences make of them (App. C.1, E.1).

They stay zero in the population. On P sequences they grow to P^(-1/2) and lower the training
loss by 1/P: measured at convergence, from the best weights without them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, PRNGKeyArray

from iclflow.dynamics import Descent
from iclflow.dynamics.sharpness import reference_minimum
from iclflow.experiments.runs import Variable, labelled
from iclflow.losses import Moments
from iclflow.models import Blocks, Merged, draw_model
from iclflow.results.progress import Progress
from iclflow.runs.simulate import simulate
from iclflow.tasks.prompts import PromptSet
from iclflow.tasks.task import Task

# A small task, so that many large datasets can be drawn: the powers of P need many.
SPECTRUM, CONTEXT = (0.5, 0.3, 0.2), 8
COUNTS = (500, 2_000, 8_000, 32_000)  # sequences
QUICK_COUNTS = (500, 2_000, 8_000)
DATASETS, QUICK_DATASETS = 32, 16
RATE, STEPS = 0.1, 4_000  # t/τ = 800: the slowest mode relaxes at about 0.05


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Size of the blocks and gain in loss at convergence against the number of sequences."""
    report = progress or (lambda done, total: None)
    task = Task(SPECTRUM, CONTEXT)
    counts, datasets = (QUICK_COUNTS, QUICK_DATASETS) if quick else (COUNTS, DATASETS)
    losses = []
    for dataset in range(datasets):
        losses.append(_moments(task, counts, jax.random.key(100 + dataset)))
        report(dataset + 1, datasets + 1)
    # Parallel heads are one head: what eight learn from small weights, one does too.
    init = Merged.initialiser(task, heads=1, scale=0.0, blocks=Blocks.FULL)
    like = draw_model(init, jax.random.key(0))
    assert isinstance(like, Merged)
    found = _relax(jax.tree.map(lambda *a: jnp.asarray(np.concatenate(a)), *losses), like)
    report(datasets + 1, datasets + 1)
    gap, size, loss = (np.asarray(a).reshape(datasets, len(counts)) for a in found)
    dims = ("dataset", "count")
    variables: dict[str, Variable] = {
        "gap": (dims, gap, "training loss gained by the extra blocks"),
        "blocks": (dims, size, "root mean square of the extra blocks"),
        "loss": (dims, loss, "training loss with all blocks"),
    }
    coordinates = {"count": ("count", list(counts), {"long_name": "training sequences P"})}
    settings = {"figure": "zero blocks", "quick": quick, "context": CONTEXT, "steps": STEPS}
    return labelled(variables, coordinates, settings)


@eqx.filter_jit
def _moments(task: Task, counts: tuple[int, ...], key: PRNGKeyArray) -> Moments:
    """Datasets of each size; the prompts of a smaller one are the first ones of the largest."""
    prompts = PromptSet.sample(task, counts[-1], key).prompts()
    found = [Moments.of(jax.tree.map(lambda a, n=count: a[:n], prompts)) for count in counts]
    return jax.tree.map(lambda *a: jnp.stack(a), *found)


@eqx.filter_jit
def _relax(losses: Moments, like: Merged) -> tuple[Array, Array, Array]:
    """Descend from each loss's best reduced weights: loss gained, size of blocks, loss."""

    def one(loss: Moments) -> tuple[Array, Array, Array]:
        start = reference_minimum(loss, like)
        run = simulate(loss, start, Descent(RATE), saveat=[0, STEPS])
        end = run.model
        blocks = jnp.concatenate([end.value_inputs.ravel(), end.key_labels.ravel()])
        return run.loss[0] - run.loss[1], jnp.sqrt(jnp.mean(blocks**2)), run.loss[1]

    return eqx.filter_vmap(one)(losses)
