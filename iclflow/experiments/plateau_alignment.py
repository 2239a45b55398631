"""Alignment on plateaus: keys and queries of small heads against (62), (63) and (70).

From the population runs of Fig. 3. Early on a plateau the weights of every small head are read
off, late on it they are compared with what the phase s = ∫ v dt/τ in between makes of them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from iclflow.experiments.base import Claim, below
from iclflow.experiments.four_inputs import four_input_task
from iclflow.experiments.runs import finished, named
from iclflow.experiments.saddle_to_saddle.data import (
    RATE,
    SCALE,
    SHOWN_SEED,
    drop_times,
    learners,
    population_runs,
)
from iclflow.losses import Population
from iclflow.plots.style import COLOURS, THEORY, mode_colour, side_by_side
from iclflow.results.messages import Progress
from iclflow.theory.drops.dormant import aligned_weights
from iclflow.theory.fixed_points.modes import Modes, plateau_losses

EARLY, LATE = 0.1, 0.8  # of a plateau: what is compared (the first from its start)
POINTS = 40  # of a curve that is drawn


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Keys and queries of all heads early and late on every plateau, and the theory of them."""
    report = progress or (lambda done, total: None)
    report(0, 2)
    modes, runs = Modes.of(Population(four_input_task())), population_runs()
    report(1, 2)
    found = runs.population.isel(pair=0)
    time, values, gain = found["time"].values, found["values"].values, np.asarray(modes.g)
    weights = np.stack(  # [seed, time, head, side, component], along the eigenvectors
        [found[name].values @ np.asarray(modes.right) for name in ("keys", "queries")], 3
    )
    drops = drop_times(time, found["loss"].values, np.asarray(plateau_losses(modes)))
    heads = learners(values, time, drops)
    shape = (*drops.shape, values.shape[2])
    read = {name: np.zeros((*shape, 2, gain.size)) for name in ("start", "end", "theory")}
    phases, dormant = np.zeros(shape), np.ones(shape, bool)
    shown: dict[str, list] = {"phase": [], "halves": [], "halves_theory": []}
    for seed, plateau in np.ndindex(drops.shape):
        begin = drops[seed, plateau - 1] if plateau else 0.0
        lasts = drops[seed, plateau] - begin
        first, last = np.searchsorted(
            time, [begin + EARLY * lasts * (plateau > 0), begin + LATE * lasts]
        )
        left = np.where(np.arange(gain.size) >= plateau, gain, 0.0)  # gains of A_S
        window = slice(first, last + 1)
        phase = _phase(time[window], values[seed, window], weights[seed, window], left)
        place = (seed, plateau)
        read["start"][place], read["end"][place] = weights[seed, first], weights[seed, last]
        read["theory"][place] = _later(
            *(jnp.asarray(a) for a in (weights[seed, first], np.diag(left), phase[-1]))
        )
        phases[place] = phase[-1]
        dormant[seed, plateau, heads[seed, :plateau]] = False
        if seed == SHOWN_SEED:
            chosen = np.linspace(0, last - first, POINTS).round().astype(int)
            head = heads[seed, plateau]
            curve = _halves(weights[seed, window, head][chosen], values[seed, last, head])
            steps = phase[chosen, head] * np.sign(values[seed, last, head])
            growth = np.exp(steps[:, None, None] * np.array([[1.0], [-1.0]]) * left)
            shown["phase"].append(steps)
            shown["halves"].append(curve)
            shown["halves_theory"].append(curve[:1] * growth)
    learned = np.arange(gain.size) < np.arange(drops.shape[1])[:, None]  # [plateau, component]
    sums = read["start"].sum(axis=3, keepdims=True)
    printed = np.where(learned[:, None, None], sums, read["theory"])
    dims = ("seed", "plateau", "head")
    whole = (*dims, "side", "component")
    curves = ("plateau", "point", "half", "component")
    data = xr.Dataset(
        named({
            "start": (whole, read["start"], "k·e_d and q·e_d early on a plateau"),
            "end": (whole, read["end"], "the same late on it"),
            "theory": (whole, read["theory"], "(63)(70), learned components frozen one by one"),
            "printed": (whole, printed, "(70) as printed"),
            "phase": (dims, phases, "∫ v dt/τ in between"),
            "dormant": (dims, dormant, "heads that have not learned anything yet"),
            "gain": (("component",), gain, "λ²"),
            "shown_phase": (curves[:2], shown["phase"], r"phase $\int |v|\,dt/\tau$"),
            "shown_halves": (
                curves, shown["halves"], "(k ± q)·e_d/2 of the head that leaves the plateau",
            ),
            "shown_theory": (curves, shown["halves_theory"], "the same by (63)(70)"),
        }),
        {"side": ["key", "query"], "half": ["grows", "decays"]},
    )  # fmt: skip
    report(2, 2)
    settings = {"figure": "alignment on plateaus", "quick": quick, "scale": SCALE, "rate": RATE}
    return finished(data, settings)


def _phase(
    time: np.ndarray, values: np.ndarray, weights: np.ndarray, gain: np.ndarray
) -> np.ndarray:
    """∫ v dt from the first time on, [time, head]: trapezoids with the slopes that (62) gives."""
    slopes = np.einsum("thd,d,thd->th", weights[:, :, 0], gain, weights[:, :, 1])
    step = np.diff(time)[:, None]
    areas = step * (values[1:] + values[:-1]) / 2 + step**2 * (slopes[:-1] - slopes[1:]) / 12
    return np.concatenate([np.zeros((1, values.shape[1])), np.cumsum(areas, axis=0)])


@eqx.filter_jit
def _later(
    weights: Float[Array, "H 2 D"], residual: Float[Array, "D D"], phases: Float[Array, " H"]
) -> Float[Array, "H 2 D"]:
    """(63)(70) for every head."""
    one = jax.vmap(lambda pair, s: jnp.stack(aligned_weights(pair[0], pair[1], residual, s)))
    return one(weights, phases)


def _halves(weights: np.ndarray, value: float) -> np.ndarray:
    """(k + q)/2 and (k - q)/2, [point, half, component]; the one that grows first."""
    both = np.stack([weights[:, 0] + weights[:, 1], weights[:, 0] - weights[:, 1]], 1) / 2
    return both if value > 0 else both[:, ::-1]


def errors(data: xr.Dataset, theory: str) -> xr.DataArray:
    """|(k, q) - theory|/|(k, q)| late on every plateau, by head; NaN of those that have learned."""
    axes = ("side", "component")
    square = ((data["end"] - data[theory]) ** 2).sum(axes) / (data["end"] ** 2).sum(axes)
    return (square**0.5).where(data["dormant"])


def claims(data: xr.Dataset) -> list[Claim]:
    """The first plateau, the later ones as printed, and with the third term corrected."""
    scale = float(data.attrs["scale"])
    first = errors(data, "theory").isel(plateau=0)
    later, printed, still = (
        errors(data, name).isel(plateau=slice(1, None)) for name in ("theory", "printed", "start")
    )
    frozen = errors(data, "start").isel(plateau=0)
    reason = "(62) leaves out terms of higher order in the size w of small heads; w"
    return [
        below(
            "plateau-alignment",
            "On the first plateau k ± q of every head grow and decay as e^{±λ² ∫v dt} along each "
            "eigenvector", "(62)(63)", float(first.max()), scale, reason,
            f"relative error of (k, q) at four fifths of the plateau from its start, largest over "
            f"{first.count():d} heads of six seeds; if nothing moved "
            f"{float(frozen.max()):.2g}", population=True,
        ),
        below(
            "plateau-alignment-later", "On later plateaus they do so along the unlearned "
            "eigenvectors, and are frozen along the others: median error of the printed form",
            "(70)", float(printed.median()), scale, reason,
            "the third term as printed gives key and query the same components, their sum, along "
            "learned eigenvectors", population=True,
        ),
        below(
            "plateau-alignment-frozen", "each of key and query by itself: median error with "
            "(k·e)[e; 0] + (q·e)[0; e] for the third term", "E6", float(later.median()), scale,
            reason, f"heads that learned nothing before, {later.count():d} of them; largest "
            f"{float(later.max()):.2g}, where two drops nearly coincide; if nothing moved "
            f"{float(still.median()):.2g}", population=True, beyond=True,
        ),
    ]  # fmt: skip


def controls(data: xr.Dataset) -> dict[str, xr.Dataset]:
    """For each claim another theory that turns its verdict round.

    - `plateau-alignment` and `plateau-alignment-frozen`: heads that stay as they were.
    - `plateau-alignment-later`: the corrected form E6 in place of the printed one.
    """
    return {
        "plateau-alignment": data.assign(theory=data["start"]),
        "plateau-alignment-later": data.assign(printed=data["theory"]),
        "plateau-alignment-frozen": data.assign(theory=data["start"]),
    }


def draw(data: xr.Dataset) -> Figure:
    """(a) the first plateau, (b) the third, (c) prediction against measurement."""
    first, third = (lambda axes, d, m=m: _plateau(axes, d, m) for m in (0, 2))
    return side_by_side(data, first, third, _all_heads, height=0.95)


def _plateau(axes: Axes, data: xr.Dataset, plateau: int) -> None:
    """|k ± q|/2 along each eigenvector against the phase, with (63) or (70) dashed."""
    run = data.isel(plateau=plateau)
    phase = run["shown_phase"].values
    for d in range(data.sizes["component"]):
        for half, width in enumerate((2.2, 1.0)):
            values, theory = (
                np.abs(run[name].values[:, half, d]) for name in ("shown_halves", "shown_theory")
            )
            axes.plot(
                phase, values, color=mode_colour(d), linewidth=width, alpha=0.75,
                label=rf"$\mathbf{{e}}_{d + 1}$" if half == 0 else None,
            )  # fmt: skip
            axes.plot(phase, theory, **{**THEORY, "linewidth": 0.7})
    axes.set_yscale("log")
    axes.set_xlabel(r"phase $\int |v|\,\mathrm{d}t/\tau$")
    number = ("first", "second", "third", "fourth")[plateau]
    axes.set_title(f"({'a' if plateau == 0 else 'b'}) {number} plateau", loc="left")
    if plateau == 0:
        axes.set_ylabel(r"$|\mathbf{e}_d\cdot(k \pm q)|/2$; wide: growing half")
        axes.legend(loc="best", ncols=2, handlelength=1.2, columnspacing=0.8)


def _all_heads(axes: Axes, data: xr.Dataset) -> None:
    """Every component late on a plateau, predicted against measured."""
    dormant = data["dormant"].broadcast_like(data["end"]).values
    measured = data["end"].values
    learned = np.arange(data.sizes["component"]) < np.arange(data.sizes["plateau"])[:, None]
    learned = np.broadcast_to(learned[None, :, None, None, :], measured.shape) & dormant
    reach = 1.1 * float(np.abs(measured[dormant]).max())
    axes.plot([-reach, reach], [-reach, reach], color="0.6", linewidth=0.8, zorder=0)
    axes.plot(
        measured[learned], data["printed"].values[learned], "x", color=COLOURS[1], markersize=3,
        markeredgewidth=0.6, label="(70), third term as printed",
    )  # fmt: skip
    axes.plot(
        measured[dormant], data["theory"].values[dormant], "o", color=COLOURS[0], markersize=2,
        label="(63), (70) with it corrected",
    )  # fmt: skip
    axes.set_xscale("symlog", linthresh=0.03)
    axes.set_yscale("symlog", linthresh=0.03)
    ticks = (-1, -0.1, 0, 0.1, 1)
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks([], minor=True)
    axes.set_xlabel("measured late on a plateau")
    axes.set_ylabel("predicted from early on it")
    axes.set_title("(c) all small heads", loc="left")
    axes.legend(loc="upper left", handletextpad=0.2, borderaxespad=0.0)
