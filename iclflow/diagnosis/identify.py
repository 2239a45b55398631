"""Which in-context algorithm a model runs: its distance to each candidate, over training.

The candidates are the algorithms that a task suggests, by name. The distance of two predictors is
(E(ŷ - ŷ')²/E[y²])^(1/2) on prompts of the task. Between a linear model and a candidate that is
linear in the features S ⊗ x_q or in x_q alone it is exact: both are vectors in a space with the
norm of the population moments (`Space`). Everything else is compared on one set of sampled prompts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float
from scipy.optimize import linear_sum_assignment

from iclflow.linalg import gaussian_moment, packed_pairs
from iclflow.losses import FullFeatures, Population, ReducedFeatures, population_moments
from iclflow.losses.population import LengthMoments
from iclflow.models import AbstractLinearModel, AbstractModel, Blocks
from iclflow.models.layers import AbstractLayers
from iclflow.tasks.base import AbstractTask, Prompt
from iclflow.tasks.laws import Gaussian, Normal, Pool
from iclflow.tasks.prompts import PromptSet, StackedPrompts
from iclflow.tasks.task import ContextLabels, Task
from iclflow.theory import (
    AbstractPredictor,
    GradientSteps,
    InWeight,
    LinearPredictor,
    Modes,
    OrdinaryLeastSquares,
    Ridge,
    bayes_predictor,
    gradient_step,
    zero_predictor,
)
from iclflow.theory.depth import beyond_two_layers, step_algorithms

FULL_LIMIT = 4096  # features whose moments are worth the memory


class Space(eqx.Module):
    """Predictors linear in (φ, x_q) as vectors, with the population's E[(φ, x_q)(φ, x_q)ᵀ]."""

    gram: Float[Array, "F F"]
    map: FullFeatures | ReducedFeatures
    size: int = eqx.field(static=True)

    def vector(self, predictor: AbstractModel) -> Float[Array, " F"]:
        """The weights of a predictor on (φ, x_q)."""
        if isinstance(predictor, InWeight):
            zeros = jnp.zeros(self.gram.shape[0] - self.size, self.gram.dtype)
            return jnp.concatenate([zeros, predictor.task_matrix[0]])
        assert isinstance(predictor, AbstractLinearModel)
        weights = self.map.weights(predictor)[0].reshape(-1)
        return jnp.concatenate([weights, jnp.zeros(self.size, weights.dtype)])

    def squared_distances(
        self, models: AbstractModel, predictor: AbstractModel, moved: bool
    ) -> Float[np.ndarray, " T"]:
        """E(ŷ - ŷ')² of every model to a predictor (`moved`: one predictor for each model)."""
        return np.maximum(np.asarray(self._squares(models, predictor, moved)), 0.0)

    @eqx.filter_jit
    def _squares(
        self, models: AbstractModel, predictor: AbstractModel, moved: bool
    ) -> Float[Array, " T"]:
        ours = jax.vmap(self.vector)(models)
        theirs = jax.vmap(self.vector)(predictor) if moved else self.vector(predictor)[None]
        change = ours - jnp.broadcast_to(theirs, ours.shape)
        return jnp.sum((change @ self.gram) * change, axis=1)


def feature_space(models: AbstractModel, task: Task) -> Space | None:
    """The space in which the models and the linear candidates are vectors, if it is known."""
    if not isinstance(models, AbstractLinearModel):
        return None
    mean = task.tasks.mean
    full = models.blocks is Blocks.FULL
    count = (FullFeatures() if full else ReducedFeatures()).count(task)
    if count > FULL_LIMIT or (full and not isinstance(task.inputs, Gaussian)):
        return None
    if task.context_labels is ContextLabels.NOISE:
        mean = jnp.zeros_like(mean)
    if full:
        second, cross = population_moments(task).second, _full_cross(task, mean[0])
    else:
        population = Population(task)
        second = jnp.kron(population.second, population.covariance)
        correlation = LengthMoments.of(task).pairs * task.covariance @ mean[0]
        cross = jnp.kron(correlation[:, None], task.covariance)
    gram = jnp.block([[second, cross], [cross.T, task.covariance]])
    return Space(gram, FullFeatures() if full else ReducedFeatures(), task.size)


def _full_cross(task: Task, mean: Float[Array, " D"]) -> Float[Array, "F D"]:
    """`E[S_ab x_c x_d]`: the context's ⟨n/z⟩ E[C_ab] Λ_cd and the query token's fourth moment."""
    size, lengths, covariance = task.size, LengthMoments.of(task), task.covariance
    labels = jnp.einsum("ocod,cd->", task.second_moment(), covariance) + task.label_noise**2
    if task.context_labels is ContextLabels.NOISE:
        labels = jnp.ones_like(labels)
    row = (covariance @ mean)[None]
    token = jnp.block([[covariance, row.T], [row, labels[None, None]]])
    a, b = (jnp.asarray(i)[:, None, None] for i in packed_pairs(size + 1))
    c, d = jnp.arange(size)[None, :, None], jnp.arange(size)[None, None, :]
    padded = jnp.pad(covariance, ((0, 1), (0, 1)))  # the query's label slot is 0
    four = gaussian_moment(padded, jnp.zeros(size + 1), a, b, c, d)
    both = lengths.pairs * token[a, b] * covariance[c, d] + lengths.query * four
    return both.reshape(-1, size)


def shifted(
    task: Task,
    *,
    context: int | None = None,
    spectrum: Sequence[float] | Float[np.ndarray, " D"] | None = None,
    scale: float = 1.0,
) -> Task:
    """The task with another context length, other eigenvalues, or x multiplied by `scale`."""
    changes: dict[str, Any] = {} if context is None else {"context": context}
    if context is not None and task.lengths != (task.context,):
        changes["lengths"] = (context,)
    eigenvalues = np.asarray(task.spectrum if spectrum is None else spectrum, float)
    if eigenvalues.shape != task.spectrum.shape:
        raise ValueError(
            f"the shifted spectrum needs {task.size} eigenvalues (one for each eigenvector), "
            f"got {eigenvalues.size}"
        )
    return task.replace(spectrum=eigenvalues * scale**2, **changes)


def draw_prompts(task: AbstractTask, sequences: int, seed: int) -> StackedPrompts:
    """One set of independent prompts, on which predictors are compared."""
    drawn = PromptSet(task, jax.random.key(seed), sequences, exact=False)
    return StackedPrompts(drawn.prompts(), task.lengths)


def each(
    prompts: StackedPrompts, function: Callable[[Prompt], Float[Array, ""]]
) -> Float[Array, " P"]:
    """A function of every prefix of every prompt, in a row."""
    return prompts.prefixes(function, jnp.arange(prompts.count)).reshape(-1)


def targets_of(prompts: StackedPrompts) -> Float[np.ndarray, " P"]:
    """What the predictors should say."""
    return np.asarray(_targets(prompts))


@eqx.filter_jit
def _targets(prompts: StackedPrompts) -> Float[Array, " P"]:
    return each(prompts, lambda prompt: prompt.target[0])


@eqx.filter_jit
def predict(prompts: StackedPrompts, predictor: AbstractModel) -> Float[Array, " P"]:
    """The predictions of one predictor."""
    return each(prompts, lambda prompt: predictor(prompt)[0])


@eqx.filter_jit
def predict_stacked(prompts: StackedPrompts, models: AbstractModel) -> Float[Array, "T P"]:
    """The predictions of models with a leading axis, one after another."""
    return jax.lax.map(lambda model: predict(prompts, model), models)


@eqx.filter_jit
def own_predictions(
    models: AbstractModel, space: Space | None, prompts: StackedPrompts
) -> Float[Array, "T P"]:
    """Predictions of the models: a product with the features where they are linear in them."""
    if space is None:
        return predict_stacked(prompts, models)

    def features(prompt: Prompt) -> Float[Array, " F"]:
        return jnp.outer(space.map.statistic(prompt), prompt.query).reshape(-1)

    rows = prompts.prefixes(features, jnp.arange(prompts.count))
    weights = jax.vmap(space.vector)(models)[:, : rows.shape[-1]]
    return weights @ rows.reshape(-1, rows.shape[-1]).T


LEAST_SQUARES = "least squares (= PCR-D)"
DESCENT_STEPS = (2, 4, 8)
RIDGES = np.geomspace(1e-3, 1e1, 17)  # in units of N tr(Λ)/D
Model = TypeVar("Model", bound=AbstractModel)
ALIKE = 1e-5  # relative difference of eigenvalues that single precision may make
SAME = 1e-6  # relative distance below which two candidates are one


def candidates(task: Task, *, sequences: int = 2000, seed: int = 0) -> dict[str, AbstractPredictor]:
    """The in-context algorithms of a task by name; those that coincide are one candidate.

    PCR and least squares are those of the in-context part of a mixture with w*, where PCR-m is
    left out if it would split equal eigenvalues: one component along w* mimics w* itself. Where a
    task covariance reorders the components, names say which they are (`component_sets`). Ridge has
    the ρ, and steps of gradient descent the rate, with the least loss: no candidate is fitted to
    the model, since ridge with a free ρ passes from least squares to zero, near everything.
    """
    mixed = task.tasks.mixed()
    inside = task.in_context() if mixed else task
    modes = Modes.of(inside)
    found: dict[str, AbstractPredictor] = {"zero": zero_predictor(inside)}
    for name, chosen in component_sets(inside, modes).items():
        if not mixed or partial_group(modes, chosen) == ():
            found[name] = LinearPredictor(modes.weight(chosen)[None, None])
    if mixed:
        found["in-weight w*"] = InWeight.of(task)
    mean = task.tasks.mean
    if float(jnp.abs(mean).max()) > 0:
        shrunk = "in-weight w*, shrunk to E[w]" if "in-weight w*" in found else "in-weight E[w]"
        found[shrunk] = InWeight(mean)
    found["ordinary least squares"] = OrdinaryLeastSquares()
    if isinstance(task.tasks.in_context(), Normal | Pool):
        name = "dMMSE (= Bayes)" if isinstance(task.tasks.in_context(), Pool) else "Bayes"
        found[name] = bayes_predictor(task)
    found["gradient descent, 1 step"] = gradient_step(inside)
    prompts = draw_prompts(inside, sequences, seed)
    found["ridge"] = _best_ridge(inside, prompts)
    for steps in DESCENT_STEPS:
        found[f"gradient descent, {steps} steps"] = _best_descent(inside, steps, prompts)
    return merge_equal(found, prompts)


def component_sets(task: Task, modes: Modes) -> dict[str, tuple[int, ...]]:
    """The modes that each regression on components uses, by its name.

    The first m in the order of their drops in time (largest gain g), of their size (largest σ) and
    of the eigenvalues λ, which a task covariance may make three different orders. PCR-m has the m
    largest eigenvalues; other sets name their components, counted from the largest eigenvalue, in
    the order in which they drop. Without common eigenvectors there are modes instead of components.
    """
    every = range(modes.rank)
    if not modes.commuting:
        names = [f"regression on {m} mode{'s' * (m > 1)}" for m in range(1, modes.rank)]
        return {
            name: tuple(range(m))
            for m, name in enumerate([*names, LEAST_SQUARES][: modes.rank], start=1)
        }
    overlap = np.abs(np.asarray(task.largest_first().basis).T @ np.asarray(modes.right))
    component = linear_sum_assignment(-overlap.T)[1]
    gain, eigenvalue = np.asarray(modes.g), np.asarray(modes.eigenvalue)
    for group in map(list, modes.groups(ALIKE)):  # equal in all: any of them may be the first
        if np.ptp(eigenvalue[group]) <= ALIKE * eigenvalue[group[0]]:
            component[group] = np.sort(component[group])
    by_gain = sorted(every, key=lambda s: (-round(float(gain[s] / gain.max()) / ALIKE), s))
    by_eigenvalue = sorted(every, key=lambda s: component[s])
    sets: dict[str, tuple[int, ...]] = {}
    for order in (by_gain, list(every), by_eigenvalue):
        for m in range(1, modes.rank + 1):
            chosen = [s for s in by_gain if s in order[:m]]
            numbers = [int(component[s]) + 1 for s in chosen]
            name = f"PCR-{m}" if max(numbers) == m else _named(numbers)
            sets[LEAST_SQUARES if m == modes.rank else name] = tuple(sorted(chosen))
    return sets


def _named(numbers: list[int]) -> str:
    return f"regression on component{'s' * (len(numbers) > 1)} " + ", ".join(map(str, numbers))


def partial_group(modes: Modes, chosen: tuple[int, ...]) -> tuple[int, ...]:
    """The group of equal σ of which some modes are chosen and others not; () if there is none."""
    split = (g for g in modes.groups() if 0 < len(set(g) & set(chosen)) < len(g))
    return next(split, ())


def _best_descent(task: Task, steps: int, prompts: StackedPrompts) -> GradientSteps:
    """`steps` steps of plain descent at the rate with the least loss on the prompts."""
    largest = float(jnp.max(task.spectrum)) * LengthMoments.of(task).pairs
    rates = np.geomspace(0.05, 2.0, 40) / (largest if largest > 0 else 1.0)
    matrices = jnp.asarray(rates[:, None, None] * np.eye(task.size))
    stacked = jax.vmap(lambda matrix: GradientSteps(matrix, steps))(matrices)
    errors = np.asarray(predict_stacked(prompts, stacked)) - targets_of(prompts)
    return GradientSteps(matrices[int(np.argmin(np.mean(errors**2, axis=1)))], steps)


def ridges_of(task: Task) -> Float[np.ndarray, " K"]:
    """σ² first, which is best for w ~ N(0, I); then a grid."""
    scale = task.context * float(jnp.mean(task.spectrum))
    grid = RIDGES * (scale if scale > 0 else 1.0)
    return np.concatenate([[float(task.label_noise) ** 2], grid])


def _best_ridge(task: Task, prompts: StackedPrompts) -> Ridge:
    """Ridge regression at the ρ with the least loss on the prompts; σ² unless 1% is gained."""
    ridges = ridges_of(task)
    targets = targets_of(prompts)
    losses = [np.mean((np.asarray(predict(prompts, Ridge(r))) - targets) ** 2) for r in ridges]
    best = int(np.argmin(np.asarray(losses)))
    return Ridge(ridges[best if losses[best] < 0.99 * losses[0] else 0])


def merge_equal(found: Mapping[str, Model], prompts: StackedPrompts) -> dict[str, Model]:
    """One candidate for all that predict the same; the first gives the name."""
    kept: dict[str, Model] = {}
    seen: list[np.ndarray] = []
    size = np.sqrt(np.mean(targets_of(prompts) ** 2))
    for name, predictor in found.items():
        values = np.asarray(predict(prompts, predictor))
        gaps = [np.sqrt(np.mean((values - other) ** 2)) for other in seen]
        twin = int(np.argmin(gaps)) if gaps and min(gaps) <= SAME * size else None
        if twin is None:
            kept[name] = predictor
            seen.append(values)
            continue
        names = list(kept)
        both = f"{names[twin]} (= {name})" if "(=" not in names[twin] else names[twin]
        kept = {both if key == names[twin] else key: value for key, value in kept.items()}
    return kept


def identify(
    models: AbstractModel,
    task: Task,
    *,
    on: Task | None = None,
    among: Mapping[str, AbstractModel] | None = None,
    sequences: int = 2000,
    seed: int = 0,
) -> xr.Dataset:
    """Distances of models to each candidate, the best match and its margin.

    - `models`: one model whose weights have a leading axis of saved times.
    - `task`: what the model is trained on; the candidates are the algorithms for it.
    - `on`: the task whose prompts the comparison uses (see `shifted`); `task` if omitted.
    - `among`: the candidates, by name; `candidates(task)` if omitted, and for several layers the
      best one and two preconditioned steps of gradient descent (`theory.depth.step_algorithms`).

    Variables: `distance` [time, candidate]; `algorithm`, `margin` = 1 - best/second (1 for a
    perfect match, 0 for a tie; the second is of another kind, and NaN says that there is none:
    all candidates predict the same) [time]; `exact` [candidate]. Beside
    the contest, `ridge` and `ridge_distance` [time]: the ρ of the ridge regression nearest to the
    model, and its distance.
    """
    if task.outputs != 1:
        raise ValueError(f"algorithms are identified for one output, this task has {task.outputs}")
    test = task if on is None else on
    prompts = draw_prompts(test, sequences, seed)
    if among is None:
        given: Mapping[str, AbstractModel] = candidates(task, sequences=sequences, seed=seed)
        if isinstance(models, AbstractLayers) and not beyond_two_layers(task):
            given = merge_equal({**given, **step_algorithms(task)}, prompts)
    else:
        given = merge_equal(among, prompts)
    unit = float(Population(test).power) - float(test.target_noise) ** 2
    if unit <= 0:
        raise ValueError("all labels of this task are zero, so every algorithm is the same")
    mixed = task.tasks.mixed()  # towards w* any turn would look like in-weight
    inside = task.in_context() if mixed else task
    modes = Modes.of(inside)
    space = feature_space(models, test)
    own = np.asarray(own_predictions(models, space, prompts))
    components = component_sets(inside, modes) if among is None and not mixed else {}
    squared, exact = {}, {}
    for name, predictor in given.items():
        chosen = components.get(name, components.get(name.partition(" (= ")[0], ()))
        turned = _rotated_components(chosen, models, modes)
        exact[name] = space is not None and isinstance(predictor, LinearPredictor | InWeight)
        if exact[name]:
            assert space is not None
            squared[name] = space.squared_distances(models, turned or predictor, turned is not None)
        else:
            stacked = (
                predict_stacked(prompts, turned) if turned else predict(prompts, predictor)[None]
            )
            squared[name] = np.mean((own - np.asarray(stacked)) ** 2, axis=1)
    ridge_squared, ridge = _nearest_ridge(own, task, prompts)
    names = list(squared)
    distance = np.sqrt(np.stack([squared[name] for name in names], axis=1) / unit)
    best, margin = best_match(distance, names)
    label = {"long_name": r"distance $(E(\hat y-\hat y')^2/E[y^2])^{1/2}$", "units": "1"}
    return xr.Dataset(
        {
            "distance": (("time", "candidate"), distance, label),
            "algorithm": ("time", np.array([names[i] for i in best], str)),
            "margin": ("time", margin, {"long_name": "margin over the second best", "units": "1"}),
            "ridge": ("time", ridge, {"long_name": r"nearest ridge $\rho$", "units": "1"}),
            "ridge_distance": ("time", np.sqrt(ridge_squared / unit), label),
            "exact": ("candidate", np.array([exact[name] for name in names])),
        },
        coords={"candidate": names},
    )


def best_match(
    distance: Float[np.ndarray, "T C"], names: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """The nearest candidate of each row, and 1 - (its distance)/(that of the second).

    With names, the second is the nearest of another kind: w* and w* shrunk to E[w] are one kind.
    NaN where there is no other kind: such a match could not have been another.
    """
    kinds = np.array([name.split()[0] if name.startswith("in-weight") else name for name in names])
    if not names:
        kinds = np.arange(distance.shape[1]).astype(str)
    best = np.argmin(distance, axis=1)
    rivals = np.where(kinds[None, :] == kinds[best][:, None], np.inf, distance)
    second = rivals.min(axis=1)
    first = distance[np.arange(len(best)), best]
    margin = np.where(second > 0, 1 - first / np.where(second > 0, second, 1.0), 0.0)
    return best, np.where(np.isfinite(second), margin, np.nan)


def _nearest_ridge(
    own: Float[np.ndarray, "T P"], task: Task, prompts: StackedPrompts
) -> tuple[Float[np.ndarray, " T"], Float[np.ndarray, " T"]]:
    """The squared distance to the ridge regression nearest to each model, and its ρ."""
    ridges = ridges_of(task)
    theirs = [np.asarray(predict(prompts, Ridge(ridge))) for ridge in ridges]
    squared = np.stack([np.mean((own - row[None]) ** 2, axis=1) for row in theirs])
    best = np.argmin(squared, axis=0)
    return squared[best, np.arange(own.shape[0])], ridges[best]


def _rotated_components(
    chosen: tuple[int, ...], models: AbstractModel, modes: Modes
) -> LinearPredictor | None:
    """PCR inside a group of equal σ: for each model the rotation of the group nearest to it.

    None where the chosen modes are whole groups, which no rotation changes.
    """
    linear = isinstance(models, AbstractLinearModel)
    part = models if linear else jax.vmap(lambda m: m.as_attention())(models)
    group = partial_group(modes, chosen)
    if not group or not isinstance(part, AbstractLinearModel):
        return None
    index, count = list(group), len(set(group) & set(chosen))
    weights = np.asarray(jax.vmap(lambda m: m.reduced_weights()[0, 0])(part))
    keys, queries = (
        np.asarray(modes.key_vectors)[:, index],
        np.asarray(modes.query_vectors)[:, index],
    )
    left, right = np.asarray(modes.second) @ keys, np.asarray(modes.covariance) @ queries
    block = left.T @ weights @ right
    rotation = np.linalg.eigh((block + np.swapaxes(block, 1, 2)) / 2)[1][..., -count:]
    projector = rotation @ np.swapaxes(rotation, 1, 2)
    partial = float(modes.singular[group[0]]) * keys @ projector @ queries.T
    whole = np.asarray(modes.weight(set(chosen) - set(group)))
    return jax.vmap(lambda w: LinearPredictor(w[None, None]))(jnp.asarray(whole + partial))
