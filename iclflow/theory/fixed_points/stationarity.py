"""Is a model at a fixed point, and which is nearest? Exact conditions for given weights (E4).

And what does the flow conserve on its way there? That follows from symmetries of the function, as
the scale of a head can move between its layers. It holds for every loss on a linear model, full
blocks and several outputs included. Which quantities they are, a model says itself.
"""

from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from iclflow.losses import Population
from iclflow.models import AbstractLinearModel, AbstractModel, Blocks, Merged, Separate
from iclflow.tasks.task import Task
from iclflow.theory.fixed_points.modes import Modes
from iclflow.theory.fixed_points.points import FixedPoint

Attention = TypeVar("Attention", bound=Merged | Separate)


def function_weights(model: AbstractLinearModel) -> Float[Array, "D D"]:
    """M = Σ v k qᵀ (or Σ v U) of a model with one output and no zero blocks."""
    weights = model.reduced_weights()
    if weights.shape[0] != 1:
        raise ValueError(f"the theory covers one output, this model has {weights.shape[0]}")
    if model.blocks is Blocks.FULL:
        raise ValueError("the theory covers frozen zero blocks; use `model.reduce()`")
    return weights[0, 0]


def residual_matrix(
    model: AbstractLinearModel, source: Task | Population | Modes
) -> Float[Array, "D D"]:
    """A = G - B M Λ at given weights, the error signal of every layer (13)(19).

    - `model`: any linear model.
    - `source`: the task, its population or its modes.

    >>> import jax, numpy as np, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> zero = icl.Merged.initialiser(task, heads=2, scale=0.0)(jax.random.key(0))
    >>> bool(np.allclose(icl.theory.residual_matrix(zero, task), np.diag([0.36, 0.09])))
    True
    """
    modes = Modes.of(source)
    return modes.cross - modes.second @ function_weights(model) @ modes.covariance


def descent_direction(model: Attention, source: Task | Population | Modes) -> Attention:
    """-½ ∂L/∂W, the right-hand side of gradient flow: (13) merged, (19)(80) separate.

    - `model`: merged or separate attention.
    - `source`: the task, its population or its modes.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> point = icl.theory.FixedPoint.of(task, [0]).weights(heads=2)
    >>> slope = icl.theory.descent_direction(point, task)
    >>> max(float(abs(leaf).max()) for leaf in jax.tree.leaves(slope)) < 1e-12
    True
    """
    a = residual_matrix(model, source)
    v = model.values[:, 0, 0]
    if isinstance(model, Merged):
        return type(model)(
            values=jnp.einsum("hdc,dc->h", model.merged, a)[:, None, None],
            merged=v[:, None, None] * a[None],
        )
    return type(model)(
        values=jnp.einsum("hrd,dc,hrc->h", model.keys, a, model.queries)[:, None, None],
        keys=v[:, None, None] * jnp.einsum("dc,hrc->hrd", a, model.queries),
        queries=v[:, None, None] * jnp.einsum("dc,hrd->hrc", a, model.keys),
    )


def gradient_residual(
    model: Merged | Separate, source: Task | Population | Modes
) -> Float[Array, ""]:
    """The Euclidean norm of ½ ∂L/∂W, zero exactly at a fixed point.

    - `model`: merged or separate attention.
    - `source`: the task, its population or its modes.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> point = icl.theory.FixedPoint.of(task, [0])
    >>> bool(icl.theory.gradient_residual(point.weights(heads=2), task) < 1e-6)
    True
    """
    leaves = jax.tree.leaves(descent_direction(model, source))
    return jnp.sqrt(sum((jnp.sum(leaf**2) for leaf in leaves), jnp.zeros(())))


class Conditions(eqx.Module):
    """What has to vanish at a fixed point, head by head (E4).

    The terms of (57): a head with v ≠ 0 needs A q_r = 0 and Aᵀk_r = 0 (C2) (merged: A = 0); a head
    with v = 0 needs only the one number Σ_r k_rᵀ A q_r (84) (merged: ⟨U, A⟩). The paper's (C3) and
    W₁ = 0 are sufficient.
    """

    active: Bool[Array, " H"]  # v ≠ 0
    value: Float[Array, " H"]  # |Σ_r k_rᵀ A q_r|
    key: Float[Array, "H R"]  # ‖A q_r‖
    query: Float[Array, "H R"]  # ‖Aᵀ k_r‖
    scale: Float[Array, ""]  # ‖G‖, the size of A at zero weights

    @property
    def violation(self) -> Float[Array, ""]:
        """The largest of the numbers that should vanish."""
        of_active = jnp.max(jnp.maximum(self.key, self.query), axis=1)
        return jnp.max(jnp.where(self.active, of_active, self.value))

    def satisfied(self, tolerance: float = 1e-9) -> bool:
        """Whether all vanish, relative to ‖G‖."""
        return bool(self.violation <= tolerance * jnp.where(self.scale > 0, self.scale, 1.0))


def conditions(
    model: Merged | Separate, source: Task | Population | Modes, *, silent: float = 0.0
) -> Conditions:
    """The stationarity conditions at given weights; heads with |v| ≤ `silent` count as v = 0.

    - `model`: merged or separate attention.
    - `source`: the task, its population or its modes.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> point = icl.theory.FixedPoint.of(task, [0])
    >>> bool(icl.theory.conditions(point.weights(heads=2), task).satisfied(1e-6))
    True
    """
    modes = Modes.of(source)
    a = residual_matrix(model, modes)
    active = jnp.abs(model.values[:, 0, 0]) > silent
    scale = jnp.linalg.norm(modes.cross)
    if isinstance(model, Merged):
        size = jnp.full((active.shape[0], 1), jnp.linalg.norm(a))
        value = jnp.abs(jnp.einsum("hdc,dc->h", model.merged, a))
        return Conditions(active, value, size, size, scale)
    seen = jnp.einsum("dc,hrc->hrd", a, model.queries)
    back = jnp.einsum("dc,hrd->hrc", a, model.keys)
    value = jnp.abs(jnp.sum(model.keys * seen, axis=(1, 2)))
    key, query = jnp.linalg.norm(seen, axis=2), jnp.linalg.norm(back, axis=2)
    return Conditions(active, value, key, query, scale)


class Nearest(eqx.Module):
    """The fixed point nearest to a model, and how far it is.

    - `point`: the fixed point.
    """

    point: FixedPoint
    distance: Float[Array, ""]  # (E(ŷ - ŷ_S)²)^(1/2), of the predictions
    loss_gap: Float[Array, ""]  # L(model) - L(M(S))


def nearest_fixed_point(model: AbstractLinearModel, source: Task | Population | Modes) -> Nearest:
    """Which saddle a model is near: the M(S) whose predictions differ least from the model's.

    ‖B^(1/2)(M - M(S))Λ^(1/2)‖² is a sum over modes, so the best S is found mode by mode: s is in
    S where u_sᵀ B^(1/2) M Λ^(1/2) w_s > σ_s/2. Modes of equal σ are rotated to fit the model
    best. Merged attention has the empty and the full S only; H·R pairs hold at most H·R modes.

    - `model`: any linear model.
    - `source`: the task, its population or its modes.

    >>> import iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> point = icl.theory.FixedPoint.of(task, [0])
    >>> icl.theory.nearest_fixed_point(point.weights(heads=2), task).point.index_set
    (0,)
    """
    modes = Modes.of(source)
    m = np.asarray(function_weights(model))  # on the host: sizes of S are values here
    second, covariance = np.asarray(modes.second), np.asarray(modes.covariance)
    keys, queries = np.asarray(modes.key_vectors), np.asarray(modes.query_vectors)
    seen = (second @ keys).T @ m @ (covariance @ queries)
    for group in modes.groups():
        block = seen[np.ix_(group, group)]
        block = (block + block.T) / 2
        off = np.abs(block - np.diag(np.diagonal(block))).max(initial=0.0)
        if off > 1e-12 * np.abs(block).max(initial=0.0):
            rotation = np.linalg.eigh(block)[1][:, ::-1].copy()
            modes = modes.rotated(group, jnp.asarray(rotation))
            index = list(group)
            seen[:, index] = seen[:, index] @ rotation
            seen[index, :] = rotation.T @ seen[index, :]
    sigma = np.asarray(modes.singular)
    benefit = sigma * (2 * np.diagonal(seen) - sigma)
    counts = model.visits(modes.rank) or range(modes.rank + 1)
    if tuple(counts) == (0, modes.rank):  # all modes or none
        chosen = list(range(modes.rank)) if benefit.sum() > 0 else []
    else:
        best = np.argsort(-benefit, kind="stable")[: counts[-1]]
        chosen = [int(s) for s in best if benefit[s] > 0]
    point = FixedPoint(modes, modes.members(chosen))
    change = m - np.asarray(point.weight)
    squared = max(float(np.sum(change * (second @ change @ covariance))), 0.0)
    curved = second @ m @ covariance - 2 * np.asarray(modes.cross)
    gap = float(modes.power) + float(np.sum(m * curved)) - float(point.loss)
    dtype = modes.covariance.dtype
    return Nearest(point, jnp.asarray(squared**0.5, dtype), jnp.asarray(gap, dtype))


def conserved_quantities(model: AbstractModel) -> dict[str, Array]:
    """What gradient flow conserves of a model, whatever the data, by name (17)(79)(85), E7.

    See `conserved` of its class.

    - `model`: any of them; the dictionary is empty where nothing is known to be conserved.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> start = icl.Separate.initialiser(task, heads=3, scale=0.01)(jax.random.key(0))
    >>> sorted(icl.theory.conserved_quantities(start))
    ['key_query', 'key_value']
    """
    found = model.conserved()
    if not found:
        raise ValueError(
            f"no conserved quantity is known for {type(model).__name__}; known for Merged, "
            f"Separate, MLP, ConvNet and softmax of Separate"
        )
    return found


def conservation_drift(series: dict[str, Array]) -> dict[str, Float[Array, " T"]]:
    """max |C(t) - C(0)| of each recorded quantity (time first): 0 under flow, O(η) in descent.

    - `series`: name -> what should be conserved, [T, ...].

    >>> import jax.numpy as jnp, iclflow as icl
    >>> found = icl.theory.conservation_drift({"C": jnp.asarray([1.0, 1.5, 1.25])})
    >>> found["C"].tolist()
    [0.0, 0.5, 0.25]
    """
    drift = {}
    for name, values in series.items():
        moved = jnp.abs(values - values[:1])
        drift[name] = jnp.max(moved.reshape(moved.shape[0], -1), axis=1)
    return drift
