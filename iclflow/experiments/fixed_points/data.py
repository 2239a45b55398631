"""The 2^D fixed points M(S) of separate attention, by exact computation (App. D.3, D.4, E.3).

The task of Fig. 3, in the population. Losses and gradients come from moments of all blocks by
Wick's theorem and from automatic differentiation, not from the theory's formulas.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from iclflow.experiments.four_inputs import (
    CONTEXT,
    QUICK_SEQUENCES,
    SEQUENCES,
    SPECTRUM,
    four_input_moments,
    four_input_population,
    four_input_task,
)
from iclflow.experiments.runs import Variable, at, finished, named
from iclflow.losses import Moments, Population
from iclflow.models import Merged, Separate
from iclflow.results.messages import Progress
from iclflow.tasks.task import Task
from iclflow.theory.fixed_points.modes import Modes
from iclflow.theory.fixed_points.points import FixedPoint, all_fixed_points, saddle_path
from iclflow.theory.fixed_points.stability import separate_stability, swap_index

HEADS, RANK, MERGED_HEADS = 6, 2, 3
DISTANCES = (0.01, 0.02, 0.04, 0.08)  # from a fixed point
CONTEXTS = (100, 1_000, 10_000, 100_000)


def compute(*, quick: bool = False, progress: Progress | None = None) -> xr.Dataset:
    """Levels, gradients, Hessians and ways out of all fixed points; long contexts."""
    report = progress or (lambda done, total: None)
    report(0, 3)
    modes = Modes.of(Population(four_input_task()))
    points = list(all_fixed_points(modes))
    variables = _at_rest(points) | _rates_of_change(quick)
    report(1, 3)
    variables |= _ways_out(points) | _merged_spectra(modes)
    report(2, 3)
    variables |= _long_contexts()
    report(3, 3)
    members = [[d in point.index_set for d in range(modes.rank)] for point in points]
    coordinates = {
        "learned": (("point", "component"), members, {"long_name": "modes in S"}),
        "visited": ("point", [point.visited for point in points]),
        "distance": ("distance", list(DISTANCES), {"long_name": "distance in weights"}),
        "context": ("context", list(CONTEXTS), {"long_name": "N"}),
        "rank": [1, RANK],
    }
    settings = {
        "figure": "fixed points",
        "quick": quick,
        "heads": HEADS,
        "pairs": CONTEXT,
        "sequences": QUICK_SEQUENCES if quick else SEQUENCES,
    }
    return finished(xr.Dataset(named(variables), coordinates), settings)


def fixed_weights(point: FixedPoint, rank: int, random: np.random.Generator) -> Separate:
    """Weights that meet (C1)-(C3), random otherwise; stored as rank `RANK`, empty pairs zero.

    Active heads: keys E X, queries E Y in the span of the learned modes, X diag(v) Yᵀ = diag(m).
    Heads with v = 0: a query in that span if R = 1 (C3), else Σ_r k_rᵀ A_S q_r = 0 (84).
    """
    size, count = point.modes.size, len(point.index_set)
    inside = np.asarray(point.modes.right)[:, list(point.index_set)]
    active = -(-count // rank)
    values = np.zeros(HEADS)
    values[:active] = random.normal(size=active) + np.sign(random.normal(size=active))
    keys, queries = np.zeros((2, HEADS, RANK, size))
    mix = random.normal(size=(count, active * rank))
    strengths = np.asarray(point.modes.m)[list(point.index_set), None]
    back = np.linalg.pinv(mix) @ (strengths * inside.T) / np.repeat(values[:active], rank)[:, None]
    keys[:active, :rank] = (inside @ mix).T.reshape(active, rank, size)
    queries[:active, :rank] = back.reshape(active, rank, size)
    residual = np.asarray(point.residual)
    for head in range(active, HEADS):
        k, q = random.normal(size=(2, rank, size))
        if rank == 1:
            q = q @ inside @ inside.T
        elif np.abs(residual).max() > 1e-12:
            back = residual.T @ k[-1]
            q[-1] -= np.sum((k @ residual) * q) * back / (back @ back)
        keys[head, :rank], queries[head, :rank] = k, q
    return _full(values[:, None, None], keys, queries)


def _full(values: Any, keys: Any, queries: Any, extra: Any = 0.0) -> Separate:
    """Weights with all blocks, the extra ones as given."""
    heads, rank, size = keys.shape
    both = np.zeros((heads, 1, size)) + extra, np.zeros((heads, rank, 1)) + extra
    found = (values, keys, queries, *both)
    names = ("values", "keys", "queries", "value_inputs", "key_labels")
    return Separate(**{n: jnp.asarray(a) for n, a in zip(names, found, strict=True)})


@eqx.filter_jit
def _value_and_gradient(loss: Moments, models: Separate) -> tuple[Array, Separate]:
    """Loss and its gradient at each of stacked weights."""
    return jax.vmap(eqx.filter_value_and_grad(loss.__call__))(models)


def _at_rest(points: list[FixedPoint]) -> dict[str, Variable]:
    """Loss and gradient at random weights of every M(S), heads of rank one and of rank R."""
    random = np.random.default_rng(0)
    chosen = [fixed_weights(p, rank, random) for p in points for rank in (1, RANK)]
    models = jax.tree.map(lambda *a: jnp.stack(a), *chosen)
    moved = eqx.tree_at(lambda m: m.keys, models, 1.01 * models.keys)
    variables: dict[str, Variable] = {}
    for name, stacked in (("", models), ("moved_", moved)):
        loss, gradient = _value_and_gradient(four_input_population(), stacked)
        leaves = [np.abs(a).reshape(len(chosen), -1).max(axis=1) for a in jax.tree.leaves(gradient)]
        found = {"loss": np.asarray(loss), "gradient": np.max(leaves, axis=0)}
        for what, values in found.items():
            about = f"{what} at random weights of M(S){', keys 1% longer' * bool(name)}"
            variables[name + what] = (("point", "rank"), values.reshape(-1, 2), about)
    spectrum = np.asarray(SPECTRUM)
    drops = spectrum / (1 + (1 + spectrum.sum() / spectrum) / CONTEXT)
    sets = [list(point.index_set) for point in points]
    formula, limit = ([spectrum.sum() - d[s].sum() for s in sets] for d in (drops, spectrum))
    return variables | {
        "formula": (("point",), formula, "L(M(S)) (59)"),
        "limit": (("point",), limit, "the same as N → ∞"),
    }


def _rates_of_change(quick: bool) -> dict[str, Variable]:
    """d/dt of what rank-R heads conserve (85), on P sequences, at random weights, all blocks."""
    random = np.random.default_rng(1)
    keys, queries = random.normal(size=(2, HEADS, RANK, len(SPECTRUM)))
    model = _full(random.normal(size=(HEADS, 1, 1)), keys, queries, extra=0.5)
    # As many copies as there were fixed points: the program is compiled already.
    stacked = jax.tree.map(lambda a: jnp.stack([a] * 2 ** (len(SPECTRUM) + 1)), model)
    gradient = at(_value_and_gradient(four_input_moments(quick), stacked)[1], 0)

    def growth(rows: Array, slopes: Array) -> np.ndarray:
        """d/dt of ⟨row_r, row_s⟩ for every head."""
        product = np.einsum("hrt,hst->hrs", np.asarray(rows), -np.asarray(slopes) / 2)
        return product + np.swapaxes(product, 1, 2)

    k = growth(model.key_rows(), gradient.key_rows())
    q = growth(model.queries, gradient.queries)
    v = growth(model.value_rows(), gradient.value_rows())[:, 0, 0]
    pairs = np.einsum("hrr->hr", k)
    return {
        "key_growth": (("head", "pair", "other"), k, "d⟨k_r, k_s⟩/dt at random weights"),
        "balance_growth": (("head", "pair", "other"), k - q, "d(⟨k_r, k_s⟩ - ⟨q_r, q_s⟩)/dt"),
        "value_growth": (("head",), pairs.sum(axis=1) - v, "d(Σ_r ‖k_r‖² - v²)/dt"),
        "pair_growth": (("head", "pair"), pairs - v[:, None], "d(‖k_r‖² - v²)/dt"),
    }


@eqx.filter_jit
def _hessians(loss: Population, models: Any) -> Array:
    """Hessians of L/2 at stacked weights by automatic differentiation."""

    def one(model: Any) -> Array:
        flat, build = ravel_pytree(model)
        return jax.hessian(lambda x: loss(build(x)) / 2)(flat)

    return jax.vmap(one)(models)


@eqx.filter_jit
def _losses(loss: Population, models: Separate, directions: Separate, far: Array) -> Array:
    """L at every distance along a direction, [point, distance]."""

    def one(model: Separate, direction: Separate, size: Array) -> Array:
        return loss(jax.tree.map(lambda a, d: a + size * d, model, direction))

    along = jax.vmap(one, (None, None, 0))
    return jax.vmap(along, (0, 0, None))(models, directions, far)


def _ways_out(points: list[FixedPoint]) -> dict[str, Variable]:
    """Hessian of every M(S) at weights of least norm, and the loss along a way out."""
    population = Population(four_input_task())
    found = [separate_stability(point, HEADS) for point in points]
    models = jax.tree.map(lambda *a: jnp.stack(a), *(s.model for s in found))
    values, vectors = np.linalg.eigh(_hessians(population, models))
    _, build = ravel_pytree(found[0].model)
    # Down the steepest curvature; where there is none, a dormant head along the largest gain.
    ways = [
        build(jnp.asarray(vector[:, 0]))
        if s.index or not s.gains.values.size
        else s.cubic_direction(HEADS - 1, 0)
        for s, vector in zip(found, vectors, strict=True)
    ]
    directions = jax.tree.map(lambda *a: jnp.stack(a), *ways)
    far = jnp.asarray((0.0, *DISTANCES))
    loss = np.asarray(_losses(population, models, directions, far))
    return {
        "eigenvalues": (("point", "weight"), values, "Hessian of L/2"),
        "swaps": (("point",), [swap_index(p) for p in points], "modes of larger drop left out"),
        "fall": (("point", "distance"), loss[:, :1] - loss[:, 1:], "fall of the loss"),
    }


def _merged_spectra(modes: Modes) -> dict[str, Variable]:
    """Hessians of merged attention at zero and at a random point of the minimum (14)."""
    random, size = np.random.default_rng(2), modes.size
    values = random.normal(size=(MERGED_HEADS, 1, 1))
    merged = random.normal(size=(MERGED_HEADS, size, size))
    rest = np.asarray(modes.weight(range(modes.rank))) - np.sum(values * merged, axis=0)
    merged += values * rest / np.sum(values**2)  # now Σ vᵢUᵢ = M*
    minimum = Merged(values=jnp.asarray(values), merged=jnp.asarray(merged))
    models = jax.tree.map(lambda a: jnp.stack([0 * a, a]), minimum)
    spectra = np.linalg.eigvalsh(_hessians(Population(four_input_task()), models))
    covariance = np.asarray(modes.covariance)
    rates = [np.linalg.norm(a) for a in (covariance @ covariance, covariance)]
    return {
        "merged_eigenvalues": (("place", "merged_weight"), spectra, "at zero, at the minimum"),
        "growth": (("power",), rates[::-1], "‖Λ‖ and ‖Λ²‖"),
    }


def _long_contexts() -> dict[str, Variable]:
    """How far losses on the path and final weights are from their limits, against N."""
    loss_of, losses, weights = eqx.filter_jit(lambda loss, model: loss(model)), [], []
    spectrum = np.asarray(SPECTRUM)
    for context in CONTEXTS:
        population = Population(Task(SPECTRUM, context))
        path = saddle_path(population)
        losses.append([float(loss_of(population, p.weights(HEADS))) for p in path])
        best = np.linalg.solve(population.second, population.cross[0])  # B⁻¹ G, times Λ⁻¹ below
        best = best @ np.diag(1 / spectrum)
        gap = np.linalg.norm(best - np.diag(1 / spectrum)) / np.linalg.norm(1 / spectrum)
        weights.append(gap)
    left = spectrum.sum() - np.concatenate([[0.0], np.cumsum(spectrum)])
    return {
        "path_loss": (("context", "level"), losses, "L(M_m) in contexts of N pairs"),
        "path_limit": (("level",), left, "Σ_{d>m} λ_d"),
        "weight_error": (("context",), weights, "‖M* - Λ⁻¹‖/‖Λ⁻¹‖"),
    }
