"""Which in-context algorithm a model runs: its distance to each candidate, over training.

The distance of two predictors is (E(ŷ - ŷ')²/E[y²])^(1/2) on prompts of a task. Between a linear
model and a candidate that is linear in the features S ⊗ x_q or in x_q alone it is exact, from
population moments; everything else is compared on one set of sampled prompts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from iclflow.distributions import Gaussian, NormalTasks, TaskPool
from iclflow.linalg import gaussian_moment, packed_pairs
from iclflow.losses import FullFeatures, Population, ReducedFeatures, population_moments
from iclflow.losses.population import LengthMoments
from iclflow.models import AbstractLinearModel, AbstractModel, Blocks, Softmax
from iclflow.prompt import Prompt, map_prefixes
from iclflow.task import ContextLabels, Task
from iclflow.theory import (
    AbstractPredictor,
    GradientDescent,
    InWeight,
    LinearPredictor,
    Modes,
    OrdinaryLeastSquares,
    Ridge,
    bayes_predictor,
    gradient_step,
    principal_component_regression,
    zero_predictor,
)
from iclflow.theory.algorithms import mean_task

LEAST_SQUARES = "least squares (= PCR-D)"
DESCENT_STEPS = (2, 4, 8)
RIDGES = np.geomspace(1e-3, 1e1, 17)  # in units of N tr(Λ)/D
SAME = 1e-6  # relative distance below which two candidates are one
FULL_LIMIT = 4096  # features whose moments are worth the memory


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


def candidates(task: Task, *, sequences: int = 2000, seed: int = 0) -> dict[str, AbstractPredictor]:
    """The in-context algorithms of a task by name; those that coincide are one candidate.

    PCR and least squares are those of the in-context part of a mixture with w*. Ridge has the ρ,
    and steps of gradient descent the rate, with the least loss: no candidate is fitted to the
    model, since ridge with a free ρ passes from least squares to zero and is near everything.
    """
    inside = task.in_context() if float(task.fixed_fraction) > 0 else task
    modes = Modes.of(inside)
    found: dict[str, AbstractPredictor] = {"zero": zero_predictor(inside)}
    for m in range(1, modes.rank + 1):
        name = LEAST_SQUARES if m == modes.rank else f"PCR-{m}"
        found[name] = principal_component_regression(modes, m)
    if float(task.fixed_fraction) > 0:
        found["in-weight w*"] = InWeight.of(task)
    mean = _mean(task)
    if mean is not None and float(jnp.abs(mean).max()) > 0:
        shrunk = "in-weight w*, shrunk to E[w]" if "in-weight w*" in found else "in-weight E[w]"
        found[shrunk] = InWeight(mean)
    found["ordinary least squares"] = OrdinaryLeastSquares()
    if isinstance(task.tasks, NormalTasks | TaskPool):
        name = "dMMSE (= Bayes)" if isinstance(task.tasks, TaskPool) else "Bayes"
        found[name] = bayes_predictor(task)
    found["gradient descent, 1 step"] = gradient_step(inside)
    prompts = _Prompts.of(inside, sequences, seed)
    found["ridge"] = _best_ridge(inside, prompts)
    for steps in DESCENT_STEPS:
        found[f"gradient descent, {steps} steps"] = _best_descent(inside, steps, prompts)
    return _merge(found, prompts)


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
    - `among`: the candidates, by name; `candidates(task)` if omitted.

    Variables: `distance` [time, candidate]; `algorithm`, `margin` = 1 - best/second (1 for a
    perfect match, 0 for a tie) [time]; `exact` [candidate]. Beside the contest, `ridge` and
    `ridge_distance` [time]: the ρ of the ridge regression nearest to the model, and its distance.
    """
    if task.outputs != 1:
        raise ValueError(f"algorithms are identified for one output, this task has {task.outputs}")
    test = task if on is None else on
    given = candidates(task, sequences=sequences, seed=seed) if among is None else dict(among)
    prompts = _Prompts.of(test, sequences, seed)
    unit = float(Population(test).power) - float(test.target_noise) ** 2
    if unit <= 0:
        raise ValueError("all labels of this task are zero, so every algorithm is the same")
    modes = Modes.of(task.in_context() if float(task.fixed_fraction) > 0 else task)
    space = _features(models, test)
    own = np.asarray(_own_predictions(models, space, prompts))
    squared, exact = {}, {}
    for name, predictor in given.items():
        turned = None
        if among is None and name.startswith("PCR-"):
            turned = _rotated_components(int(name[4:].partition(" ")[0]), models, modes)
        exact[name] = space is not None and isinstance(predictor, LinearPredictor | InWeight)
        if exact[name]:
            assert space is not None
            squared[name] = space.squared_distances(models, turned or predictor, turned is not None)
        else:
            stacked = (
                prompts.predict_stacked(turned) if turned else prompts.predict(predictor)[None]
            )
            squared[name] = np.mean((own - np.asarray(stacked)) ** 2, axis=1)
    ridge_squared, ridge = _nearest_ridge(own, task, prompts)
    names = list(squared)
    distance = np.sqrt(np.stack([squared[name] for name in names], axis=1) / unit)
    best, margin = best_match(distance)
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


def best_match(distance: Float[np.ndarray, "T C"]) -> tuple[np.ndarray, np.ndarray]:
    """The nearest candidate of each row, and 1 - (its distance)/(that of the second)."""
    best = np.argmin(distance, axis=1)
    if distance.shape[1] == 1:
        return best, np.ones(len(best))
    ordered = np.sort(distance, axis=1)
    second = np.where(ordered[:, 1] > 0, ordered[:, 1], 1.0)
    return best, np.where(ordered[:, 1] > 0, 1 - ordered[:, 0] / second, 0.0)


class _Space(eqx.Module):
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


def _features(models: AbstractModel, task: Task) -> _Space | None:
    """The space in which the models and the linear candidates are vectors, if it is known."""
    if not isinstance(models, AbstractLinearModel):
        return None
    mean = _mean(task)
    full = models.blocks is Blocks.FULL
    count = (FullFeatures() if full else ReducedFeatures()).count(task)
    if mean is None or count > FULL_LIMIT or (full and not isinstance(task.inputs, Gaussian)):
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
    return _Space(gram, FullFeatures() if full else ReducedFeatures(), task.size)


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


def _mean(task: Task) -> Float[Array, "O D"] | None:
    try:
        return mean_task(task)
    except ValueError:
        return None


class _Prompts(eqx.Module):
    """One set of sampled prompts, on which predictors are compared."""

    drawn: Prompt
    lengths: tuple[int, ...] = eqx.field(static=True)

    @classmethod
    @eqx.filter_jit
    def of(cls, task: Task, sequences: int, seed: int) -> "_Prompts":
        """Draw the prompts."""
        keys = jax.random.split(jax.random.key(seed), sequences)
        return cls(jax.vmap(task.sample)(keys), task.lengths)

    def each(self, function: Callable[[Prompt], Float[Array, ""]]) -> Float[Array, " P"]:
        """A function of every prefix of every prompt, in a row."""
        return jax.vmap(lambda p: map_prefixes(function, p, self.lengths))(self.drawn).reshape(-1)

    @eqx.filter_jit
    def predict(self, predictor: AbstractModel) -> Float[Array, " P"]:
        """The predictions of one predictor."""
        return self.each(lambda prompt: predictor(prompt)[0])

    @eqx.filter_jit
    def predict_stacked(self, models: AbstractModel) -> Float[Array, "T P"]:
        """The predictions of models with a leading axis, one after another."""
        return jax.lax.map(self.predict, models)


@eqx.filter_jit
def _own_predictions(
    models: AbstractModel, space: _Space | None, prompts: _Prompts
) -> Float[Array, "T P"]:
    """Predictions of the models: a product with the features where they are linear in them."""
    if space is None:
        return prompts.predict_stacked(models)

    def features(prompt: Prompt) -> Float[Array, " F"]:
        return jnp.outer(space.map.statistic(prompt), prompt.query).reshape(-1)

    rows = jax.vmap(lambda p: map_prefixes(features, p, prompts.lengths))(prompts.drawn)
    weights = jax.vmap(space.vector)(models)[:, : rows.shape[-1]]
    return weights @ rows.reshape(-1, rows.shape[-1]).T


def _best_descent(task: Task, steps: int, prompts: _Prompts) -> GradientDescent:
    """`steps` steps of plain descent at the rate with the least loss on the prompts."""
    largest = float(task.spectrum[0]) * LengthMoments.of(task).pairs
    rates = jnp.geomspace(0.05, 2.0, 40) / (largest if largest > 0 else 1.0)
    identity = jnp.eye(task.size)
    stacked = jax.vmap(lambda rate: GradientDescent(rate * identity, steps))(rates)
    targets = prompts.each(lambda prompt: prompt.target[0])
    losses = jnp.mean((prompts.predict_stacked(stacked) - targets[None]) ** 2, axis=1)
    return GradientDescent(rates[jnp.argmin(losses)] * identity, steps)


def _ridges(task: Task) -> Float[np.ndarray, " K"]:
    """σ² first, which is best for w ~ N(0, I); then a grid."""
    scale = task.context * float(jnp.mean(task.spectrum))
    grid = RIDGES * (scale if scale > 0 else 1.0)
    return np.concatenate([[float(task.label_noise) ** 2], grid])


def _best_ridge(task: Task, prompts: _Prompts) -> Ridge:
    """Ridge regression at the ρ with the least loss on the prompts; σ² unless 1% is gained."""
    ridges = _ridges(task)
    targets = np.asarray(prompts.each(lambda prompt: prompt.target[0]))
    losses = [np.mean((np.asarray(prompts.predict(Ridge(r))) - targets) ** 2) for r in ridges]
    best = int(np.argmin(losses))
    return Ridge(ridges[best if losses[best] < 0.99 * losses[0] else 0])


def _nearest_ridge(
    own: Float[np.ndarray, "T P"], task: Task, prompts: _Prompts
) -> tuple[Float[np.ndarray, " T"], Float[np.ndarray, " T"]]:
    """The squared distance to the ridge regression nearest to each model, and its ρ."""
    ridges = _ridges(task)
    theirs = [np.asarray(prompts.predict(Ridge(ridge))) for ridge in ridges]
    squared = np.stack([np.mean((own - row[None]) ** 2, axis=1) for row in theirs])
    best = np.argmin(squared, axis=0)
    return squared[best, np.arange(own.shape[0])], ridges[best]


def _merge(found: dict[str, AbstractPredictor], prompts: _Prompts) -> dict[str, AbstractPredictor]:
    """One candidate for all that predict the same; the first gives the name."""
    kept: dict[str, AbstractPredictor] = {}
    seen: list[np.ndarray] = []
    size = float(jnp.sqrt(jnp.mean(prompts.each(lambda prompt: prompt.target[0]) ** 2)))
    for name, predictor in found.items():
        values = np.asarray(prompts.predict(predictor))
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


def _rotated_components(
    components: int, models: AbstractModel, modes: Modes
) -> LinearPredictor | None:
    """PCR inside a group of equal σ: for each model the rotation of the group nearest to it.

    None where the first `components` modes are whole groups, which no rotation changes.
    """
    part = models.attention if isinstance(models, Softmax) else models
    group = next((g for g in modes.groups() if g[0] < components <= g[-1]), ())
    if not group or not isinstance(part, AbstractLinearModel):
        return None
    index, count = list(group), components - group[0]
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
    whole = np.asarray(modes.weight(range(group[0])))
    return jax.vmap(lambda w: LinearPredictor(w[None, None]))(jnp.asarray(whole + partial))
