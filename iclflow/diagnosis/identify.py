"""Which in-context algorithm a model runs: its distance to each candidate, over training.

The distance of two predictors is (E(ŷ - ŷ')²/E[y²])^(1/2) on prompts of a task. Between a linear
model and a candidate that is linear in the features S ⊗ x_q or in x_q alone it is exact, from
population moments; everything else is compared on one set of sampled prompts.
"""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float

from iclflow.diagnosis.candidates import (
    candidates,
    component_sets,
    draw_prompts,
    feature_space,
    merge_equal,
    own_predictions,
    partial_group,
    predict,
    predict_stacked,
    ridges_of,
)
from iclflow.losses import Population
from iclflow.models import AbstractLinearModel, AbstractModel
from iclflow.models.layers import AbstractLayers
from iclflow.tasks.prompts import StackedPrompts
from iclflow.tasks.task import Task
from iclflow.theory import InWeight, LinearPredictor, Modes, Ridge
from iclflow.theory.depth import beyond_two_layers, step_algorithms


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
