"""How far a model is from the nearest fixed point of a task, at every moment of a run."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.losses import AbstractLoss, Population
from iclflow.models import AbstractLinearModel, AbstractModel
from iclflow.tasks.task import Task


class FixedPointDistance(eqx.Module):
    """model ↦ (E(ŷ - ŷ_S)²)^(1/2) for the nearest M(S): `nearest_fixed_point`, compiled in a run.

    Of a model with trained zero blocks only the reduced weights count; the others, of the size
    P^(-1/2), belong to no fixed point of the population.
    """

    modes: Any  # `theory.Modes`: theory is loaded when it is asked
    groups: tuple[tuple[int, ...], ...] = eqx.field(static=True)  # modes of equal σ

    @classmethod
    def of(cls, source: Task | Population | Any) -> "FixedPointDistance":
        """The distance to the fixed points of a task, its population or its `theory.Modes`.

        The numbers of the source are concrete: groups of equal σ are part of the program.
        """
        from iclflow.theory import Modes

        if isinstance(source, Task) and source.tasks.mixed():
            raise ValueError(
                "the fixed points are those of a task without w*, this one has a mixture with it; "
                "leave fixed_point_distance out"
            )
        modes = Modes.of(source)
        return cls(modes, modes.groups())

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        if not isinstance(model, AbstractLinearModel):
            raise ValueError(f"the fixed points are those of linear models, not {_name(model)}")
        modes, weights = self.modes, model.reduced_weights()[0, 0]
        keys, queries, sigma = modes.key_vectors, modes.query_vectors, modes.singular
        seen = (modes.second @ keys).T @ weights @ (modes.covariance @ queries)
        for group in self.groups:
            if len(group) > 1:  # equal σ leave a basis open: the one that fits the model best
                index = jnp.asarray(group)
                block = seen[index[:, None], index[None, :]]
                rotation = jnp.linalg.eigh((block + block.T) / 2)[1][:, ::-1]
                keys = keys.at[:, index].set(keys[:, index] @ rotation)
                queries = queries.at[:, index].set(queries[:, index] @ rotation)
                seen = seen.at[:, index].set(seen[:, index] @ rotation)
                seen = seen.at[index, :].set(rotation.T @ seen[index, :])
        benefit = sigma * (2 * jnp.diagonal(seen) - sigma)
        counts = model.visits(modes.rank) or range(modes.rank + 1)
        if tuple(counts) == (0, modes.rank):  # all modes or none
            chosen = jnp.broadcast_to(jnp.sum(benefit) > 0, benefit.shape)
        else:
            rank = jnp.argsort(jnp.argsort(-benefit))
            chosen = (benefit > 0) & (rank < counts[-1])
        point = (keys * jnp.where(chosen, sigma, 0.0)[None, :]) @ queries.T
        change = weights - point
        squared = jnp.sum(change * (modes.second @ change @ modes.covariance))
        return jnp.sqrt(jnp.maximum(squared, 0.0))


class PlateauDistance(eqx.Module):
    """model ↦ (E(ŷ - ŷ_m)²)^(1/2) for the nearest plateau of given prompts, their mean for E.

    Prompts have no index sets of modes. The plateaus are those of heads that come one by one from
    vanishing weights (Q4), the last of them least squares; a model is compared with those that it
    visits. Of a model with trained zero blocks only the reduced weights count.

    - `plateaus`: their effective weights, vec M.
    - `operator`: 𝓗 on vec M.

    >>> import jax, iclflow as icl
    >>> from iclflow.runs.record import PlateauDistance
    >>> loss = icl.Moments.sample(icl.Task([0.6, 0.3], context=31), 500, jax.random.key(0))
    >>> start = icl.Separate.initialiser(loss, heads=3, scale=1e-3)(jax.random.key(0))
    >>> bool(PlateauDistance.of(loss)(start) < 1e-8)  # the first plateau is M = 0
    True
    """

    plateaus: Float[Array, "n E"]
    operator: Float[Array, "E E"]

    @classmethod
    def of(cls, loss: AbstractLoss) -> "PlateauDistance":
        """The distance to the plateaus of a loss of prompts with one output."""
        from iclflow.theory.drops.quadratic import Quadratic
        from iclflow.theory.drops.staircase import saddle_weights

        quadratic = Quadratic.of(loss).dense()
        found = saddle_weights(quadratic)
        if len(found) <= quadratic.size:
            found = np.concatenate([found, quadratic.least_squares[None]])
        assert quadratic.operator is not None
        return cls(jnp.asarray(found.reshape(len(found), -1)), jnp.asarray(quadratic.operator))

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        if not isinstance(model, AbstractLinearModel):
            raise ValueError(f"the plateaus are those of linear models, not {_name(model)}")
        last = len(self.plateaus) - 1
        visited = jnp.asarray(model.visits(last) or range(last + 1))
        change = model.reduced_weights()[0, 0].reshape(1, -1) - self.plateaus[visited]
        squares = jnp.sum(change * (change @ self.operator), axis=1)
        return jnp.sqrt(jnp.maximum(jnp.min(squares), 0.0))


def _name(model: AbstractModel) -> str:
    return type(model).__name__
