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

from iclflow.experiments.four_inputs import four_input_task
from iclflow.experiments.runs import Variable, labelled
from iclflow.experiments.saddle_to_saddle.data import (
    RATE,
    SCALE,
    SHOWN_SEED,
    drop_times,
    learners,
    population_runs,
)
from iclflow.losses import Population
from iclflow.results.progress import Progress
from iclflow.theory.drops.alignment import aligned_weights
from iclflow.theory.fixed_points.levels import plateau_losses
from iclflow.theory.fixed_points.modes import Modes

EARLY, LATE = 0.1, 0.8  # of a plateau: what is compared (the first from its start)
POINTS = 40  # of a curve that is drawn


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Keys and queries of all heads early and late on every plateau, and the theory of them."""
    report = progress or (lambda done, total: None)
    report(0, 2)
    modes, runs = Modes.of(Population(four_input_task())), population_runs()
    report(1, 2)
    time, gain = 2 * RATE * runs.marks, np.asarray(modes.g)
    values = runs.population["values"]
    weights = np.stack(  # [seed, time, head, side, component], along the eigenvectors
        [runs.population[n][..., 0, :] @ np.asarray(modes.right) for n in ("keys", "queries")], 3
    )
    drops = drop_times(time, runs.population["loss"], np.asarray(plateau_losses(modes)))
    heads = learners(values, time, drops)
    shape = (*drops.shape, values.shape[2])
    found = {name: np.zeros((*shape, 2, gain.size)) for name in ("start", "end", "theory")}
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
        found["start"][place], found["end"][place] = weights[seed, first], weights[seed, last]
        found["theory"][place] = _later(
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
    sums = found["start"].sum(axis=3, keepdims=True)
    printed = np.where(learned[:, None, None], sums, found["theory"])
    dims = ("seed", "plateau", "head")
    whole = (*dims, "side", "component")
    curves = ("plateau", "point", "half", "component")
    variables: dict[str, Variable] = {
        "start": (whole, found["start"], "k·e_d and q·e_d early on a plateau"),
        "end": (whole, found["end"], "the same late on it"),
        "theory": (whole, found["theory"], "(63)(70), learned components frozen one by one"),
        "printed": (whole, printed, "(70) as printed"),
        "phase": (dims, phases, "∫ v dt/τ in between"),
        "dormant": (dims, dormant, "heads that have not learned anything yet"),
        "gain": (("component",), gain, "λ²"),
        "shown_phase": (curves[:2], shown["phase"], r"phase $\int |v|\,dt/\tau$"),
        "shown_halves": (
            curves,
            shown["halves"],
            "(k ± q)·e_d/2 of the head that leaves the plateau",
        ),
        "shown_theory": (curves, shown["halves_theory"], "the same by (63)(70)"),
    }
    report(2, 2)
    settings = {"figure": "alignment on plateaus", "quick": quick, "scale": SCALE, "rate": RATE}
    return labelled(variables, {"side": ["key", "query"], "half": ["grows", "decays"]}, settings)


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
