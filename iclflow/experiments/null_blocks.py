"""The linear transformer with all its blocks, and the times at which its modes escape.

p₁ and q₂, which the theory sets to zero, start at zero, smaller than p₂ and q₁, or larger; in the
population, and on a fixed set of tasks that is not symmetric. Then escape times against the size
of the start, in the exact mean flow. Times are t/τ; d = 2 and N = 50 are enough for the blocks.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float, PRNGKeyArray
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from iclflow.dynamics import Descent
from iclflow.experiments.base import Claim, below
from iclflow.experiments.linear_transformer_runs import SCALE, transformer_task
from iclflow.experiments.linear_transformer_stages.data import CONTEXT, SPECTRUM
from iclflow.experiments.runs import Variable, called, finished, named, train
from iclflow.losses import population_moments
from iclflow.measures import first_crossing
from iclflow.models import Blocks, Merged
from iclflow.models.base import AbstractInitialiser
from iclflow.plots.style import COLOURS, THEORY, TIME, mode_colour, side_by_side
from iclflow.results.messages import Progress
from iclflow.tasks.laws import Commuting
from iclflow.theory.linear_transformer import CoupledFlow, DecoupledFlow, TransformerModes

BLOCK_SPECTRUM, BLOCK_CONTEXT = (1.5, 1.0), 50
EXTRA = (0.0, 0.5, 2.0)  # p₁ and q₂ over p₂ and q₁ at the start
TASKS = 8  # of the fixed set
SEEDS, CLOCK, END, EVERY = 4, 0.02, 40.0, 20  # t/τ of a step, of the run; steps between marks
BLOCKS = {"p2": "values", "q1": "merged", "p1": "value_inputs", "q2": "key_labels"}
STARTS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # a₀


class NullBlocksInitialiser(AbstractInitialiser):
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
    init = NullBlocksInitialiser(jnp.asarray(0.0), whole)
    runs = train(
        {"population": population_moments(task), "pool": population_moments(pool)},
        init,
        Descent(CLOCK / 2),
        saveat=np.arange(0, round(END / CLOCK) + 1, EVERY),
        seeds=SEEDS,
        axes={"extra": EXTRA},
        record=["weights"],
    )
    report(1, 2)
    norms = xr.concat([_norm(runs[name]) for name in BLOCKS.values()], "block")
    norms = norms.transpose(..., "block").assign_coords(block=list(BLOCKS))
    runs["extra"].attrs["long_name"] = "p₁, q₂ over p₂, q₁ at the start"
    data = xr.Dataset({"norms": called(norms, "Frobenius norms of the blocks")})
    data = data.assign(named(_escapes())).assign_coords(
        begin=("begin", list(STARTS), {"long_name": "a₀"}),
        eigenvalue=("mode", list(SPECTRUM), {"long_name": "s"}),
    )
    report(2, 2)
    settings = {
        "figure": "null blocks and escape times",
        "quick": quick,
        "scale": SCALE,
        "tasks": TASKS,
        "escape_context": CONTEXT,
        "block_context": BLOCK_CONTEXT,
    }
    return finished(data, settings)


def _norm(weights: xr.DataArray) -> xr.DataArray:
    """The Frobenius norm of a block of every run at every time."""
    inside = [dim for dim in weights.dims if dim not in ("source", "extra", "seed", "time")]
    return (weights**2).sum(inside) ** 0.5


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


LEFT = 1e-3  # of its start: driven to zero


def claims(data: xr.Dataset) -> list[Claim]:
    """Blocks that stay zero, blocks that are driven to zero, escape times."""
    norms, pooled = (data["norms"].sel(source=name) for name in ("population", "pool"))
    start, end = norms.isel(time=0), norms.isel(time=-1)
    extra, own = (end.sel(block=list(names)) for names in (("p1", "q2"), ("p2", "q1")))
    began = start.sel(block=["p1", "q2"])
    shares = (extra / began.where(began > 0)).max(("seed", "block"))
    small, large = data["extra"].values[1:]
    still = float(norms.sel(extra=0.0, block=["p1", "q2"]).max())
    pool = float(pooled.sel(extra=0.0, block=["p1", "q2"]).isel(time=-1).max())
    other = (own / start.sel(block=["p2", "q1"])).sel(extra=large)
    after = f"at t/τ = {float(data['time'][-1]):g}, largest of {data.sizes['seed']} seeds"
    return [
        below(
            "lt-null-blocks", "p₁ and q₂ stay zero if they start there", "2nd paper, (8)", still,
            1e-12, "rounding", f"largest norm over training; on a fixed set of "
            f"{int(data.attrs['tasks'])} tasks they grow to {pool:.2g}", population=True,
        ),
        below(
            "lt-null-blocks-driven", f"p₁ and q₂ that start at {small:g} times p₂ and q₁ are "
            "driven to zero", "2nd paper, (8)", float(shares.sel(extra=small)), LEFT,
            "a thousandth of where they start; they decay exponentially once p₂q₁ is learned",
            f"norm over that of the start, {after}", population=True,
        ),
        below(
            "lt-null-blocks-any-start", f"and those that start at {large:g} times p₂ and q₁ too",
            "2nd paper, (8)", float(shares.sel(extra=large)), LEFT, "as from a smaller start",
            f"they grow by this factor, and p₂ and q₁ shrink to {float(other.max()):.1g} of their "
            "start: p₁ Σ̂W q₂ predicts as well as p₂ WΣ̂ q₁, and the larger pair wins",
            population=True,
        ),
        _escape(data),
    ]  # fmt: skip


def _escape(data: xr.Dataset) -> Claim:
    logs = np.log(1 / data["begin"].values)
    slopes = np.polyfit(logs, data["half_time"].values, 1)[0]
    s, context = data["eigenvalue"].values, int(data.attrs["escape_context"])
    error = np.abs(slopes / (data["timescale"].values / 2) - 1)
    whole = abs(data["escape"] / data["half_time"] - 1).max("mode").values
    return below(
        "lt-escape-times", "The time to leave the plateau grows by τ_α/2 for each factor e in 1/a₀",
        "2nd paper, t* after (13)", float(error.max()), float(s.sum() / (s.min() * context)),
        "tr S/(s N): the others slow the growth of a mode by (T_q/s + T_p)/2N",
        f"largest relative error over the modes, N = {context}, half-times of the exact mean flow; "
        f"of t* itself {whole[0]:.2g} at a₀ = {float(data['begin'][0]):g} and {whole[-1]:.2g} at "
        f"{float(data['begin'][-1]):g}", population=True,
    )  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """A lopsided set of tasks, larger and smaller starts, and a clock of ln(1/p₀)."""
    norms, (small, large) = data["norms"], data["extra"].values[1:]
    pooled = norms.sel(source=["pool", "pool"]).assign_coords(source=norms["source"])
    exchanged = norms.assign_coords(extra=[0.0, large, small]).sel(extra=data["extra"])
    return {
        "lt-null-blocks": data.assign(norms=pooled),
        "lt-null-blocks-driven": data.assign(norms=exchanged),
        "lt-null-blocks-any-start": data.assign(norms=exchanged),
        "lt-escape-times": data.assign_coords(begin=np.sqrt(data["begin"])),
    }


# Label, colour, line, width of every block.
_LOOKS = {
    "p2": ("$p_2$", COLOURS[0], "-", 2.0),
    "q1": ("$q_1$", COLOURS[5], "--", 0.9),
    "p1": ("$p_1$", COLOURS[1], "-", 2.0),
    "q2": ("$q_2$", COLOURS[4], "--", 0.9),
}


def draw(data: xr.Dataset) -> Figure:
    """(a) extra blocks that start smaller, (b) larger, (c) escape times."""
    small, large = (lambda axes, d, i=i: _draw_norms(axes, d, i) for i in (1, 2))
    return side_by_side(data, small, large, _draw_escapes, height=0.85)


def _draw_norms(axes: Axes, data: xr.Dataset, index: int) -> None:
    """Norm of every block over training, all seeds."""
    run = data["norms"].sel(source="population").isel(extra=index)
    for block, (label, colour, line, width) in _LOOKS.items():
        look = {"color": colour, "linestyle": line, "linewidth": width}
        axes.plot(data["time"], run.sel(block=block).values.T, **look)
        axes.plot([], [], label=label, **look)
    axes.set_yscale("log")
    axes.set_ylim(1e-7, 10)
    axes.set_xlabel(TIME)
    axes.set_title(
        f"({' ab'[index]}) $p_1, q_2$ start {'smaller' if index == 1 else 'larger'}", loc="left"
    )
    if index == 1:
        axes.set_ylabel("norm of a block")
        axes.legend(loc="lower left", ncols=2, handlelength=1.6, columnspacing=0.8)


def _draw_escapes(axes: Axes, data: xr.Dataset) -> None:
    """Half-times against 1/a₀, each over its own time scale, and t*."""
    begin, scale = 1 / data["begin"].values, data["timescale"].values
    for mode in range(data.sizes["mode"]):
        times, theory = (data[n].values[:, mode] / scale[mode] for n in ("half_time", "escape"))
        label = f"$s$ = {float(data['eigenvalue'][mode]):g}"
        axes.plot(begin, times, "o", color=mode_colour(mode), markersize=3.5, label=label)
        axes.plot(begin, theory, **THEORY)
    axes.plot([], [], label="$t^*$", **THEORY)
    axes.set_xscale("log")
    axes.set_xlabel("$1/a_0$")
    axes.set_ylabel(r"$t/\tau_\alpha$ at which $a_\alpha = a_\infty/2$")
    axes.set_title("(c) escape times", loc="left")
    axes.legend(loc="upper left", handlelength=1.4, fontsize=6)
