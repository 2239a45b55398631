"""In-weight and in-context learning when a portion of the task vectors is fixed (Figs 5, 10).

Merged key and query, D = 4, Λ = I/D, eight heads. With a fixed task the zero blocks do not stay
zero (87), so all blocks are trained. Training and test losses are exact: the moments of all
features in the population, so that a test loss carries no sampling error.
"""

import functools

import equinox as eqx
import jax
import numpy as np
import xarray as xr
from jaxtyping import PRNGKeyArray

from iclflow.dynamics import Descent
from iclflow.experiments.four_inputs import CONTEXT, QUICK_SEQUENCES, SEQUENCES
from iclflow.experiments.runs import MARKS, Variable, clock, labelled, trained
from iclflow.losses import Moments, population_moments
from iclflow.models import AbstractInitialiser, Blocks, Merged, MergedInitialiser, draw_model
from iclflow.results.progress import Progress
from iclflow.tasks.task import ContextLabels, Task
from iclflow.tasks.task_vectors import Mixture
from iclflow.theory.drops.first_drop import first_drop, least_loss
from iclflow.theory.fixed_points.levels import plateau_losses

SIZE, HEADS = 4, 8
PORTIONS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
SHOWN = 0.6  # Fig. 5 (left)
SEED, DATA_KEY = 0, 1

# Two weights in a term: published weights times N^(1/2), its rate times N. Its init is the
# standard deviation of every entry, of v and of U, which is not (34): U is D times larger.
PUBLISHED_INIT, PUBLISHED_RATE, PUBLISHED_STEPS = 1e-6, 5e-4, 4_000
RATE = PUBLISHED_RATE * CONTEXT
SCALE = PUBLISHED_INIT * CONTEXT**0.5 * HEADS**0.5  # w of (34), from the value weights
STEPS = 8_000  # twice the paper's window, for the slow part after the drops
CONVERSION = (
    f"published init {PUBLISHED_INIT:g} per entry, attention not divided by N = {CONTEXT}: "
    f"{PUBLISHED_INIT * CONTEXT**0.5:.3g} per entry here, w = {SCALE:.3g} of (34) for the values; "
    f"rate {PUBLISHED_RATE:g} is {RATE:.4g}, so t/τ = {2 * RATE:.3g} a step"
)
TESTS = {
    "in_context": "in-context test loss: every task vector random",
    "in_weight": "in-weight test loss: every task vector the fixed one (the paper)",
    "in_weight_noise": (
        "in-weight test loss, context labels pure noise (the published code's test set)"
    ),
}


def compute_fig5(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Training and test losses at all portions of fixed task vectors (Fig. 5)."""
    data = _compute(quick)
    if progress is not None:
        progress(1, 1)
    return data


def compute_fig10(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """The same runs, of which Fig. 10 shows all losses."""
    return compute_fig5(quick=quick, progress=progress)


def portion_task(portion: float, context_labels: ContextLabels = ContextLabels.TASK) -> Task:
    """The training task; the fixed task vector has |w*|² = D."""
    return Task(
        np.full(SIZE, 1 / SIZE),
        CONTEXT,
        tasks=Mixture(fraction=portion),
        context_labels=context_labels,
    )


@functools.cache
def _compute(quick: bool) -> xr.Dataset:
    sequences = QUICK_SEQUENCES if quick else SEQUENCES
    tasks = [portion_task(portion) for portion in PORTIONS]
    populations = [population_moments(task) for task in tasks]
    # Beside them: "all fixed" as the published code trains it, and one portion on sequences.
    noisy = population_moments(portion_task(1.0, ContextLabels.NOISE))
    sampled = Moments.sample(portion_task(SHOWN), sequences, jax.random.key(DATA_KEY), matched=True)
    tests = {
        "in_context": population_moments(tasks[0].in_context()),
        "in_weight": population_moments(tasks[0].in_weight()),
        "in_weight_noise": population_moments(tasks[0].in_weight(ContextLabels.NOISE)),
    }
    init = PublishedStart(
        Merged.initialiser(tasks[0], heads=HEADS, scale=SCALE, blocks=Blocks.FULL)
    )
    model = draw_model(init, jax.random.key(SEED))
    assert isinstance(model, Merged)
    marks = np.round(np.linspace(0, STEPS, MARKS)).astype(int)
    losses = dict(enumerate([*populations, noisy, sampled]))
    what = {"loss": "loss", **tests}
    found = trained(losses, init, Descent(RATE), saveat=marks, seeds=[SEED], record=what)
    record = {name: found[name][:, 0] for name in what}
    times = 2 * RATE * marks
    theory = [first_drop(loss, model) for loss in populations]
    growth, level = (np.asarray([getattr(t, n) for t in theory]) for n in ("growth", "level"))
    least = [least_loss(loss) for loss in populations]
    levels = np.stack([[t.power for t in theory], level, least], axis=1)
    count = len(PORTIONS)
    runs, one = ("portion", "time"), ("time",)
    variables: dict[str, Variable] = {
        "training": (runs, record["loss"][:count], "training loss"),
        **{name: (runs, record[name][:count], about) for name, about in TESTS.items()},
        "published_training": (one, record["loss"][count], "all fixed, context labels noise"),
        "sampled_training": (one, record["loss"][count + 1], f"P = {sequences}, 60% fixed"),
        "predicted": (runs, [t.loss(times) for t in theory], "first drop, predicted"),
        "predicted_end": (("portion",), [t.time(0.9) for t in theory], "its end: 90% of the way"),
        "growth": (("portion",), growth, r"growth rate on the first plateau, $\sigma_1$"),
        "first_level": (("portion",), level, "predicted loss after the first drop"),
        "drop_time": (("portion",), [t.time() for t in theory], "its middle, t/τ"),
        "levels": (("portion", "level"), levels, "start, end of the first drop, least loss (87)"),
    }
    settings = {
        "inputs": SIZE, "context": CONTEXT, "heads": HEADS, "rate": RATE, "scale": SCALE,
        "paper_window": 2 * RATE * PUBLISHED_STEPS, "shown": SHOWN,
        "sampled_check_sequences": sequences,
        "final_in_context": float(plateau_losses(tasks[0])[-1]), "conversion": CONVERSION,
        "training": "gradient descent on population moments of all features, all blocks trained",
        "in_weight": "drawn: context labels of the fixed task, as the paper's appendix says; "
        "in_weight_noise has the published code's noise labels",
    }  # fmt: skip
    return labelled(variables, {"portion": list(PORTIONS), **clock(marks, RATE)}, settings)


class PublishedStart(AbstractInitialiser):
    """key -> entries of v and U with one standard deviation, as published."""

    inner: MergedInitialiser

    def __call__(self, key: PRNGKeyArray) -> Merged:
        model = self.inner(key)
        return eqx.tree_at(lambda m: m.merged, model, model.merged * SIZE)
