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
from matplotlib.axes import Axes

from iclflow.dynamics import Descent
from iclflow.dynamics.descent import reference_minimum
from iclflow.experiments.base import Claim, near
from iclflow.experiments.runs import finished, named
from iclflow.losses import Moments
from iclflow.models import Blocks, Merged, draw_model
from iclflow.plots.style import COLOURS, COLUMN, THEORY, Picture, style
from iclflow.results.messages import Progress
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
    data = xr.Dataset(
        named(
            {
                "gap": (dims, gap, "training loss gained by the extra blocks"),
                "blocks": (dims, size, "root mean square of the extra blocks"),
                "loss": (dims, loss, "training loss with all blocks"),
            }
        ),
        {"count": ("count", list(counts), {"long_name": "training sequences P"})},
    )
    settings = {"figure": "zero blocks", "quick": quick, "context": CONTEXT, "steps": STEPS}
    return finished(data, settings)


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


def slope(data: xr.Dataset, name: str) -> tuple[float, float]:
    """Mean over datasets of d ln(quantity)/d ln P, and its standard error."""
    logs = np.log(data[name].values)
    x = np.log(data["count"].values.astype(float))
    x = x - x.mean()
    slopes = logs @ x / (x @ x)
    return float(slopes.mean()), float(slopes.std(ddof=1) / np.sqrt(len(slopes)))


def claims(data: xr.Dataset) -> list[Claim]:
    """The two powers of P."""
    found = []
    for name, power, id_, statement in (
        ("blocks", -0.5, "zero-blocks-size", "On P sequences the extra blocks grow to P^(-1/2)"),
        ("gap", -1.0, "zero-blocks-loss", "They lower the training loss by an amount ~ 1/P"),
    ):
        measured, error = slope(data, name)
        found.append(
            near(
                id_,
                f"{statement}: slope at convergence",
                "App. C.1, E.1",
                power,
                measured,
                3 * error,
                f"three standard errors over {data.sizes['dataset']} datasets",
                f"P from {int(data['count'][0]):,} to {int(data['count'][-1]):,}; loss gained "
                f"times P at the largest: "
                f"{float(data['gap'].isel(count=-1).mean() * data['count'][-1]):.3g}"
                if name == "gap"
                else "",
                beyond=True,
            )
        )
    return found


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim the power of the other one."""
    return {
        "zero-blocks-size": data.assign(blocks=data["gap"]),
        "zero-blocks-loss": data.assign(gap=data["blocks"]),
    }


def draw(data: xr.Dataset) -> Picture:
    """Two panels with the powers P^(-1/2) and 1/P beside."""
    with style():
        figure = Picture(figsize=(1.6 * COLUMN, 0.75 * COLUMN))
        left, right = figure.subplots(1, 2)
        _power(left, data, "blocks", -0.5, "size of the extra blocks", r"$\propto P^{-1/2}$")
        _power(right, data, "gap", -1.0, "training loss gained", r"$\propto 1/P$")
    return figure


def _power(axes: Axes, data: xr.Dataset, name: str, power: float, label: str, theory: str) -> None:
    counts = data["count"].values.astype(float)
    values = data[name].values
    axes.plot(counts, values.T, "o", color=COLOURS[5], markersize=2.5, alpha=0.6)
    typical = np.exp(np.log(values).mean(axis=0))
    axes.plot(counts, typical, "o-", color=COLOURS[0], markersize=4, label="geometric mean")
    axes.plot(counts, typical[-1] * (counts / counts[-1]) ** power, label=theory, **THEORY)
    axes.set_xscale("log")
    axes.set_xticks(counts, [f"{int(count):,}" for count in counts])
    axes.set_xticks([], minor=True)
    axes.set_yscale("log")
    axes.set_xlabel("training sequences $P$")
    axes.set_ylabel(label)
    axes.legend(loc="lower left")
