"""The linear transformer with all its blocks, and the times at which its modes escape.

p₁ and q₂, which the theory sets to zero, start at zero, smaller than p₂ and q₁, or larger; in the
population, and on a fixed set of tasks that is not symmetric. Then escape times against the size
of the start, in the exact mean flow. Times are t/τ; d = 2 and N = 50 are enough for the blocks.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.dynamics import Descent
from iclflow.experiments.linear_transformer_runs import SCALE, transformer_task
from iclflow.experiments.linear_transformer_stages.data import CONTEXT, SPECTRUM
from iclflow.experiments.runs import Variable, labelled, trained
from iclflow.losses import Moments, population_moments
from iclflow.measures import first_crossing
from iclflow.models import Blocks, Merged
from iclflow.models.base import AbstractInitialiser
from iclflow.results.progress import Progress
from iclflow.tasks.commuting import Commuting
from iclflow.theory.linear_transformer import CoupledFlow, DecoupledFlow, TransformerModes

BLOCK_SPECTRUM, BLOCK_CONTEXT = (1.5, 1.0), 50
EXTRA = (0.0, 0.5, 2.0)  # p₁ and q₂ over p₂ and q₁ at the start
TASKS = 8  # of the fixed set
SEEDS, CLOCK, END, EVERY = 4, 0.02, 40.0, 20  # t/τ of a step, of the run; steps between marks
STARTS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # a₀


class BlocksInitialiser(AbstractInitialiser):
    """p₂ = q₁ = SCALE · I beside p₁ and q₂ of `extra` times the size, diagonal and some noise."""

    extra: Float[Array, ""]
    whole: AbstractInitialiser

    def __call__(self, key: PRNGKeyArray) -> Merged:
        model = self.whole(key)
        assert isinstance(model, Merged)
        shape = model.merged.shape
        noise = 0.5 * jax.random.normal(key, (2, *shape))
        blocks = self.extra * SCALE * (jnp.eye(shape[-1])[None, None] + noise)
        pair = (blocks[0], blocks[1])
        return eqx.tree_at(lambda m: (m.value_inputs, m.key_labels), model, pair)


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Norms of all blocks over training, and escape times against the start."""
    report = progress or (lambda done, total: None)
    report(0, 2)
    task = transformer_task(BLOCK_SPECTRUM, BLOCK_CONTEXT)
    assert isinstance(task.tasks, Commuting)
    pool = task.replace(tasks=task.tasks.pool(TASKS, jax.random.key(1)))
    whole = Merged.linear_transformer(task, scale=SCALE, blocks=Blocks.FULL)
    init = BlocksInitialiser(jnp.asarray(0.0), whole)
    marks = np.arange(0, round(END / CLOCK) + 1, EVERY)
    variables: dict[str, Variable] = {}
    for name, source in (("", task), ("pool_", pool)):
        norms = _norms(population_moments(source), init, marks)
        where = "on a fixed set of tasks" if name else "in the population"
        about = f"Frobenius norms of p₂, q₁, p₁, q₂ {where}"
        variables[f"{name}norms"] = (("extra", "seed", "time", "block"), norms, about)
    report(1, 2)
    variables |= _escapes()
    report(2, 2)
    coordinates = {
        "time": ("time", CLOCK * marks, {"long_name": r"training time $t/\tau$"}),
        "extra": ("extra", list(EXTRA), {"long_name": "p₁, q₂ over p₂, q₁ at the start"}),
        "block": ["p2", "q1", "p1", "q2"],
        "begin": ("begin", list(STARTS), {"long_name": "a₀"}),
        "eigenvalue": ("mode", list(SPECTRUM), {"long_name": "s"}),
    }
    settings = {
        "figure": "null blocks and escape times",
        "quick": quick,
        "scale": SCALE,
        "tasks": TASKS,
        "escape_context": CONTEXT,
        "block_context": BLOCK_CONTEXT,
    }
    return labelled(variables, coordinates, settings)


def _norms(loss: Moments, init: BlocksInitialiser, marks: np.ndarray) -> np.ndarray:
    """Norms [extra, seed, mark, block]."""
    how: dict[str, Any] = {"saveat": marks, "axes": {"extra": EXTRA}, "record": ["weights"]}
    found = trained(loss, init, Descent(CLOCK / 2), seeds=SEEDS, **how)
    names = ("values", "merged", "value_inputs", "key_labels")
    size = len(BLOCK_SPECTRUM)
    shape = (len(EXTRA), SEEDS, len(marks), size, size)
    return np.stack([np.linalg.norm(found[n].reshape(shape), axis=(3, 4)) for n in names], axis=-1)


def _escapes() -> dict[str, Variable]:
    """When each mode is half learned in the exact mean flow, and t*, for every a₀."""
    modes = TransformerModes.given(SPECTRUM, CONTEXT)
    paper, exact = DecoupledFlow(modes), CoupledFlow(modes)
    halves, escapes = [], []
    for begin in STARTS:
        start = np.full(modes.size, np.sqrt(begin))
        escapes.append(paper.escape_times(start**2))
        time = np.linspace(0, 1.3 * float(escapes[-1].max()), 20_001)
        products = exact.solve(time, start, start, tolerance=1e-9).products
        ends = paper.fixed_point / 2
        halves.append(
            [first_crossing(time, -row, -end) for row, end in zip(products.T, ends, strict=True)]
        )
    return {
        "half_time": (("begin", "mode"), halves, "t/τ at which a = a∞/2, exact mean flow"),
        "escape": (("begin", "mode"), escapes, "t* = (τ_α/2) ln(1/(s∞a₀))"),
        "timescale": (("mode",), paper.timescales, "τ_α/τ"),
    }
