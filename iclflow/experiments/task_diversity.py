"""How many tasks a transformer needs before it learns regression, and when in its training.

A transformer trains on prompts whose tasks come from a pool of K, the setting of Raventós, Paul,
Chen and Ganguli (2023). The best predictor on the pool, dMMSE, knows its K tasks; the best one on
new tasks is ridge regression. Along training the transformer is compared with both. The mean of
each pool is zero and its second moment is the identity. Linear attention sees nothing else of the
tasks, so it trains on every pool as on infinitely many tasks.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.ticker import NullFormatter, NullLocator

from iclflow.dynamics import Adam, Descent, Flow
from iclflow.dynamics.base import log_steps
from iclflow.experiments.base import Claim, at_least, at_most, below
from iclflow.experiments.runs import Variable, finished, named, train
from iclflow.losses import Fresh, Population, Sequences
from iclflow.models import AbstractModel, Merged, Transformer
from iclflow.plots.style import COLOURS, THEORY, TIME, Picture, side_by_side
from iclflow.results.messages import Progress
from iclflow.runs.folder import own_folder
from iclflow.runs.simulate import simulate
from iclflow.tasks.base import Prompt
from iclflow.tasks.laws import Pool
from iclflow.tasks.task import Task
from iclflow.theory import Ridge, bayes_predictor

ON, TO = ("new tasks", "the pool"), ("dMMSE", "ridge")
POOL_SEED, TEST_KEYS, REPORT_KEY = 1, (7, 8), 9
LINEAR_HEADS, LINEAR_SCALE, LINEAR_END, LINEAR_MARKS = 2, 0.05, 100.0, 60


@dataclasses.dataclass(frozen=True)
class DiversitySizes:
    """What is trained, on what, and for how long.

    - `pools`: the numbers of tasks K, each a multiple of 2 `inputs`.
    - `causal`: x and y as tokens of their own, and a loss over all lengths; else pairs.
    - `rate`: the largest rate of Adam, reached after the share `warmup` of the steps; it rises and
      falls linearly.
    - `marks`: save points, spread evenly in the logarithm.
    - `prompts`: how many are kept for the distances.
    """

    inputs: int
    context: int
    pools: tuple[int, ...]
    layers: int
    heads: int
    width: int
    mlp: int
    causal: bool
    batch: int
    steps: int
    rate: float
    warmup: float
    seeds: int
    marks: int = 60
    prompts: int = 512
    noise: float = 0.5


QUICK = DiversitySizes(
    2, 8, (4, 16), 2, 2, 32, 4, False, 64, 3_000, 3e-3, 0.05, 1, marks=30, prompts=256
)
SMALL = DiversitySizes(2, 8, (4, 8, 16, 64), 2, 2, 32, 4, False, 64, 8_000, 3e-3, 0.05, 2)
# The sizes and the schedule of the published code, for a GPU. Its loss also has the empty context.
PUBLISHED = DiversitySizes(
    8, 16, tuple(2**n for n in range(4, 21, 2)), 8, 2, 128, 4, True, 256, 500_000, 1e-3, 0.5, 1,
    prompts=4096,
)  # fmt: skip


def compute(
    *, quick: bool = False, progress: Progress | None = None, folder: Path | str | None = None
) -> xr.Dataset:
    """Distances of transformers to dMMSE and to ridge, in minutes on two cores."""
    return train_pools(QUICK if quick else SMALL, progress, folder)


def compute_published(
    *, quick: bool = False, progress: Progress | None = None, folder: Path | str | None = None
) -> xr.Dataset:
    """The same at the published size, which needs a GPU; the quick form is that of `compute`."""
    return train_pools(QUICK if quick else PUBLISHED, progress, folder)


def draw_pool(tasks: int, size: int, seed: int = POOL_SEED, *, white: bool = True) -> np.ndarray:
    """Tasks w and -w of a pool [K, D], Gaussian, or moved to the second moment I where `white`."""
    half = np.random.default_rng([seed, tasks]).normal(size=(tasks // 2, size))
    if white:
        left, _, right = np.linalg.svd(half, full_matrices=False)
        half = left @ right * np.sqrt(len(half))
    return np.concatenate([half, -half])


def train_pools(
    sizes: DiversitySizes, progress: Progress | None = None, folder: Path | str | None = None
) -> xr.Dataset:
    """Train on each pool, and measure how far predictions are from both predictors.

    - `sizes`: one of the presets, or others.
    - `progress`: called with (done, total) in pools.
    - `folder`: where a run of hours keeps its state, to go on from it.
    """
    report = progress or (lambda done, total: None)
    folder = own_folder(folder, __name__, sizes)
    lengths = range(1, sizes.context + 1) if sizes.causal else None
    world = Task([1.0] * sizes.inputs, sizes.context, lengths=lengths, label_noise=sizes.noise)
    members = {tasks: draw_pool(tasks, sizes.inputs) for tasks in sizes.pools}
    init = Transformer.initialiser(
        world, layers=sizes.layers, heads=sizes.heads, width=sizes.width, mlp=sizes.mlp,
        causal=sizes.causal,
    )  # fmt: skip
    marks = log_steps(sizes.steps, sizes.marks)
    descent = Descent(_triangle(sizes), Adam())
    total = len(sizes.pools) * (sizes.seeds + 1)
    found: dict[str, list[np.ndarray]] = {}
    for number, (tasks, rows) in enumerate(members.items()):
        pool = world.replace(tasks=Pool(rows))
        tests, apart = references(world, pool, sizes.prompts)
        # Repeated to one size, so that all pools share a compiled program.
        repeated = np.tile(rows, (max(sizes.pools) // tasks, 1)) if len(rows) < 1e5 else rows
        even = world.replace(tasks=Pool(repeated))
        loss = Fresh(even, Sequences.sample(even, 64, jax.random.key(REPORT_KEY)), sizes.batch)
        store = None if folder is None else folder / f"{tasks}"
        runs = train(
            loss, init, descent, saveat=marks, seeds=sizes.seeds, test=tests, store=store,
            progress=False,
        )  # fmt: skip
        kept = {
            "distance": runs["test_loss"].transpose("seed", "time", "test").values,
            "apart": np.array(apart),
            **_linear(world, pool, rows, tests),
        }
        for name, values in kept.items():
            found.setdefault(name, []).append(values)
        report((number + 1) * (sizes.seeds + 1), total)
    shape = (len(sizes.pools), sizes.seeds, len(marks), len(ON), len(TO))
    linear = (len(sizes.pools), LINEAR_MARKS, len(ON), len(TO))
    variables: dict[str, Variable] = {
        "distance": (
            ("tasks", "seed", "step", "on", "to"), np.reshape(found["distance"], shape),
            "mean squared difference of the transformer's predictions",
        ),
        "apart": (("tasks", "on"), found["apart"], "mean squared difference of dMMSE and ridge"),
        "linear_distance": (
            ("tasks", "linear_time", "on", "to"), np.reshape(found["linear_distance"], linear),
            "mean squared difference of linear attention's predictions",
        ),
        "linear_loss": (
            ("tasks", "linear_time"), found["linear_loss"], "loss of linear attention on the pool",
        ),
        "linear_drawn": (
            ("tasks", "linear_time"), found["linear_drawn"], "the same on pools as drawn",
        ),
        "linear_world": (
            ("linear_time",), found["linear_world"][0], "the same on infinitely many tasks",
        ),
    }  # fmt: skip
    coordinates = {
        "tasks": list(sizes.pools), "seed": np.arange(sizes.seeds), "on": list(ON), "to": list(TO),
        "step": ("step", marks, {"long_name": "training steps"}),
        "linear_time": ("linear_time", _linear_marks(), {"long_name": TIME, "units": "1"}),
    }  # fmt: skip
    settings = {
        "figure": "task diversity", "optimiser": "Adam",
        **{name: int(v) if isinstance(v, bool) else v for name, v in _plain(sizes).items()},
        "data": "transformer: fresh prompts; linear attention: population",
    }  # fmt: skip
    return finished(xr.Dataset(named(variables), coordinates), settings)


def _plain(sizes: DiversitySizes) -> dict[str, Any]:
    return dataclasses.asdict(sizes) | {"pools": ", ".join(map(str, sizes.pools))}


def _triangle(sizes: DiversitySizes) -> Any:
    """The rate of each step: up to the largest and down to zero, both linear."""
    corners = jnp.array([0.0, sizes.warmup * sizes.steps, sizes.steps])
    heights = jnp.array([0.0, sizes.rate, 0.0])
    return lambda step: jnp.interp(step, corners, heights)


def references(
    world: Task, pool: Task, prompts: int
) -> tuple[Mapping[str, Sequences], list[float]]:
    """Losses that are mean squared differences to dMMSE and to ridge, and those of the two.

    They are named "on, to". Their prompts are of new tasks and of the pool, and what is asked for
    is a predictor's answer in the place of the label.
    """
    predictors = (bayes_predictor(pool), Ridge(world.label_noise**2))
    tests, apart = {}, []
    for on, task, key in zip(ON, (world, pool), TEST_KEYS, strict=True):
        drawn = Sequences.sample(task, prompts, jax.random.key(key))
        answers = [_answers(predictor, drawn) for predictor in predictors]
        for to, values in zip(TO, answers, strict=True):
            asked = eqx.tree_at(lambda s: s.prompts.targets, drawn, values)
            tests[f"{on}, {to}"] = asked
        chosen = jnp.asarray(world.lengths)
        apart.append(float(jnp.mean((answers[0] - answers[1])[:, chosen] ** 2)))
    return tests, apart


@eqx.filter_jit
def _answers(predictor: AbstractModel, drawn: Sequences) -> Any:
    """The predictions for all prefixes that the loss asks for, where their labels are."""

    def of(prompt: Prompt) -> Any:
        def at(length: Any) -> Any:
            return predictor(prompt.prefix(length))

        chosen = jnp.asarray(drawn.lengths)
        return jnp.zeros_like(prompt.targets).at[chosen].set(jax.lax.map(at, chosen))

    return jax.lax.map(of, drawn.prompts, batch_size=256)


def _linear_marks() -> np.ndarray:
    return np.concatenate([[0.0], np.geomspace(0.5, LINEAR_END, LINEAR_MARKS - 1)])


def _linear(world: Task, pool: Task, rows: np.ndarray, tests: Any) -> dict[str, np.ndarray]:
    """Linear attention in the population of the pool, of a pool as drawn, and of all tasks."""
    size = world.size
    drawn = world.replace(tasks=Pool(draw_pool(len(rows), size, white=False)))
    init = Merged.initialiser(world, heads=LINEAR_HEADS, scale=LINEAR_SCALE)
    model, found = init(jax.random.key(0)), {}
    for name, task in (("linear_loss", pool), ("linear_drawn", drawn), ("linear_world", world)):
        run = simulate(
            Population(task), model, Flow(1e-10), saveat=_linear_marks(),
            test=tests if task is pool else None,
        )  # fmt: skip
        found[name] = np.asarray(run.loss)
        if task is pool:
            found["linear_distance"] = np.asarray(run["test_loss"])
    return found


def preference(distance: xr.DataArray, apart: xr.DataArray) -> xr.DataArray:
    """Which predictor is nearer: 1 at dMMSE, -1 at ridge, linear on the line between the two.

    What the predictions have beside this line does not count.
    """
    return (distance.sel(to="ridge") - distance.sel(to="dMMSE")) / apart


def share_of_training(data: xr.Dataset) -> xr.DataArray:
    """The share of the steps with predictions on the pool nearer to dMMSE, [tasks, seed]."""
    nearer = preference(data["distance"], data["apart"]).sel(on="the pool") > 0
    steps = data["step"].values.astype(float)
    return nearer.astype(float).assign_coords(step=steps).integrate("step") / steps[-1]


def claims(data: xr.Dataset) -> list[Claim]:
    """Few tasks are memorised, many are not, in between it is a matter of time; the contrast."""
    last = preference(data["distance"], data["apart"]).sel(on="the pool").isel(step=-1)
    counts, share = data["tasks"].values, share_of_training(data)
    ends = ", ".join(f"{float(last.sel(tasks=k).mean('seed')):+.2f} at K = {k}" for k in counts)
    spent = ", ".join(f"{float(share.sel(tasks=k).mean('seed')):.2f} at K = {k}" for k in counts)
    linear = preference(data["linear_distance"], data["apart"]).isel(linear_time=-1)
    on_pool, on_new = (linear.sel(on=on) for on in ON[::-1])
    elsewhere = ", ".join(f"{float(on_new.sel(tasks=k)):+.2f} at K = {k}" for k in counts)
    off = np.abs(data["linear_loss"] / data["linear_world"] - 1)
    middle = "the middle between the two"
    return [
        at_least(
            "diversity-few", f"Trained on {counts[0]} tasks a transformer ends nearer to dMMSE "
            "than to ridge: least preference, 1 is dMMSE and -1 ridge", "",
            float(last.isel(tasks=0).min()), 0.0, middle, f"on prompts of the pool {ends}",
            beyond=True,
        ),
        at_most(
            "diversity-many", f"Trained on {counts[-1]} tasks it ends nearer to ridge: largest "
            "preference", "", float(last.isel(tasks=-1).max()), 0.0, middle, beyond=True,
        ),
        at_least(
            "diversity-time", "The more tasks, the later it leaves ridge for dMMSE: share of the "
            f"training spent nearer to dMMSE, K = {counts[0]} less K = {counts[1]}, least over "
            "seeds", "", float((share.isel(tasks=0) - share.isel(tasks=1)).min()), 0.05,
            "a twentieth of the training", f"means {spent}", beyond=True,
        ),
        below(
            "diversity-linear-same", "Linear attention trains on every pool with second moment I "
            "as on infinitely many tasks: largest relative difference of the loss", "(D23)",
            float(off.max()), 1e-7, "a flow at tolerance 1e-10", population=True, beyond=True,
        ),
        at_most(
            "diversity-linear-none", "Linear attention has no transition, on the prompts of every "
            "pool it ends nearer to ridge: largest preference", "(D23)", float(on_pool.max()), 0.0,
            middle, f"on new tasks, where many tasks bring dMMSE and ridge together, {elsewhere}",
            population=True, beyond=True,
        ),
    ]  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim other data that turn its verdict round.

    - `diversity-few`, `diversity-many`, `diversity-time`: the pools in the other order.
    - `diversity-linear-same`: pools as they were drawn, with other second moments.
    - `diversity-linear-none`: the transformer on the fewest tasks.
    """
    turned = data.isel(tasks=slice(None, None, -1))
    few = data[["distance", "apart"]].isel(tasks=[0] * data.sizes["tasks"])
    last = few["distance"].isel(seed=0, step=-1).expand_dims(linear_time=data["linear_time"])
    last = last.transpose(*data["linear_distance"].dims).values
    return {
        **dict.fromkeys(("diversity-few", "diversity-many", "diversity-time"), turned),
        "diversity-linear-same": data.assign(linear_loss=data["linear_drawn"]),
        "diversity-linear-none": data.assign(
            linear_distance=data["linear_distance"].copy(data=last),
            apart=data["apart"].copy(data=few["apart"].values),
        ),
    }


def draw(data: xr.Dataset) -> Picture:
    """The preference over time, the distances at the end, and linear attention."""
    return side_by_side(data, _over_time, _ends, _linear_losses, height=0.9)


def _colour(index: int, count: int) -> tuple[float, ...]:
    """From the colour of few tasks to that of many."""
    share = index / max(1, count - 1)
    first, last = np.array(to_rgb(COLOURS[1])), np.array(to_rgb(COLOURS[0]))
    return tuple((1 - share) * first + share * last)


def _over_time(axes: Axes, data: xr.Dataset) -> None:
    nearer = preference(data["distance"], data["apart"]).sel(on="the pool")
    kept = nearer.sel(step=nearer["step"] >= nearer["step"][-1] / 50)  # before, both are far
    for index, tasks in enumerate(data["tasks"].values):
        colour = _colour(index, data.sizes["tasks"])
        for row in kept.sel(tasks=tasks).transpose("seed", "step"):
            axes.plot(row["step"], row, color=colour)
        axes.plot([], [], color=colour, label=f"K = {tasks}")
    for level, name in ((1, "dMMSE"), (-1, "ridge")):
        axes.axhline(level, **THEORY)
        axes.annotate(
            name, (1, level), xycoords=("axes fraction", "data"), xytext=(-2, 3), ha="right",
            textcoords="offset points", fontsize=7,
        )  # fmt: skip
    axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.set(xscale="log", xlabel="training steps", ylabel="nearer to ridge or to dMMSE")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(ylim=(-2.6, 2.2), yticks=[-1, 0, 1])
    axes.set_title("prompts of the pool", loc="left")
    axes.legend(loc="upper left", ncols=2)


def _ends(axes: Axes, data: xr.Dataset) -> None:
    last = data["distance"].sel(on="new tasks").isel(step=-1)
    linear = data["linear_distance"].sel(on="new tasks").isel(linear_time=-1)
    for to, colour in zip(TO, (COLOURS[1], COLOURS[0]), strict=True):
        axes.plot(data["tasks"], last.sel(to=to), color=colour, linestyle="", marker="o", ms=3.5)
        axes.plot(data["tasks"], last.sel(to=to).mean("seed"), color=colour, label=f"to {to}")
        axes.plot(data["tasks"], linear.sel(to=to), color=colour, linestyle="--")
    axes.plot(data["tasks"], data["apart"].sel(on="new tasks"), label="dMMSE to ridge", **THEORY)
    axes.plot([], [], color="0.4", linestyle="--", label="linear attention")
    axes.set(xscale="log", yscale="log", xlabel="tasks in the pool, $K$")
    axes.set(ylabel="mean squared difference at the end")
    axes.set_xticks(data["tasks"].values, [f"{k}" for k in data["tasks"].values])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0.5 * float(last.min()))  # room for the legend
    axes.set_title("new tasks", loc="left")
    axes.legend(loc="lower left")


def _linear_losses(axes: Axes, data: xr.Dataset) -> None:
    time = data["linear_time"].values
    for index, tasks in enumerate(data["tasks"].values):
        colour = _colour(index, data.sizes["tasks"])
        axes.plot(time, data["linear_loss"].sel(tasks=tasks), color=colour, linewidth=2.0)
        axes.plot(time, data["linear_drawn"].sel(tasks=tasks), color=colour, linestyle=":")
    axes.plot(time, data["linear_world"], label="all tasks", **THEORY)
    axes.plot([], [], color="0.4", linewidth=2.0, label="moment $I$")
    axes.plot([], [], color="0.4", linestyle=":", label="as drawn")
    axes.set(xscale="log", xlabel=TIME, ylabel="loss on the pool")
    axes.set_title("linear attention", loc="left")
    axes.legend(title="pools", loc="upper right")
