"""The population loss of any number of layers from draws of the context's covariance alone."""

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.linalg import packed_pairs
from iclflow.losses.base import AbstractLoss, misfit
from iclflow.losses.population import WhiteTask, beyond_white
from iclflow.losses.statistics import beyond_layers, layer_weights
from iclflow.models import AbstractModel
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.checks import require_memory, require_size
from iclflow.tasks.laws import AbstractInputs, Gaussian
from iclflow.tasks.task import Task

CONTROLLED = 4  # draws for each control variate at least


class Draws(AbstractLoss):
    """The population loss with the context's Λ̂ drawn and all the rest averaged exactly (D5).

    Given Λ̂ the loss is a trace, in which task vector, query and noise appear by their second
    moments only, so that M draws say more than M prompts do. The estimate is unbiased for any
    weights and any number of layers, and its error falls as M^(-1/2).

    With `controls` the draws are weighed by how far their Δ = W - I is from what Δ and its squares
    are on average, which is known: a regression of the loss on the diagonal of Δ and on all Δ_ij².
    These weights are those of the intercept of least squares and do not depend on the loss. The
    error is then that of what the regression leaves, at a bias of order 1/M.

    It is stochastic: every step of descent sees new draws, and the loss that is reported is that
    of the draws made at the start.

    - `white`: the task in white coordinates.
    - `inputs`: the law of the inputs; the draws of a Gaussian one do not grow with N.
    - `matrices`: M draws of W = Σ zzᵀ/n for each context length n.
    - `weights`: of each draw in the mean, 1/M without controls.
    - `sizes`: the context lengths n.
    """

    stochastic = True

    white: WhiteTask
    inputs: AbstractInputs
    matrices: Float[Array, "n M D D"]
    weights: Float[Array, "n M"]
    sizes: tuple[int, ...] = eqx.field(static=True)
    controls: bool = eqx.field(static=True, default=False)

    @classmethod
    def sample(
        cls, task: AbstractTask, draws: int, key: PRNGKeyArray, *, controls: bool = False
    ) -> Self:
        """Draw the matrices.

        - `task`: a linear regression with one output; any law of the inputs.
        - `draws`: how many for each context length, M.
        - `key`: what they are drawn with.
        - `controls`: whether the mean is corrected by control variates; Gaussian inputs, and at
          least four draws for each of the D(D + 3)/2 of them.

        >>> import iclflow as icl, jax
        >>> task = icl.Task([0.4, 0.3, 0.2, 0.1], context=31)
        >>> model = icl.Layers.initialiser(task, layers=3, heads=5, scale=0.1)(jax.random.key(0))
        >>> round(float(icl.Draws.sample(task, 1000, jax.random.key(1))(model)), 3)
        1.0
        """
        reason = beyond_white(task)
        if reason is not None:
            raise ValueError(f"Draws cannot take this task: {reason}; use Statistics or Sequences")
        assert isinstance(task, Task)
        draws = require_size("draws", draws)
        gaussian = isinstance(task.inputs, Gaussian)
        needed = CONTROLLED * task.size * (task.size + 3) // 2
        if controls and (not gaussian or draws < needed):
            raise ValueError(
                f"control variates need Gaussian inputs and at least {needed} draws at D = "
                f"{task.size}, got {type(task.inputs).__name__} and {draws}; leave controls out"
            )
        rows = task.size if gaussian else max(task.lengths)
        require_memory(
            8 * draws * len(task.lengths) * task.size * (6 * task.size + rows),
            f"{draws} draws of {task.size} x {task.size} numbers",
            "use fewer draws",
        )
        white = WhiteTask.of(task)
        assert white is not None
        found = _drawn(task.inputs, task.lengths, draws, task.size, key)
        weights = _mean_weights(found, task.lengths, controls)
        return cls(white, task.inputs, found, weights, task.lengths, controls)

    @property
    def count(self) -> int:
        """The number of draws M for each context length."""
        return self.matrices.shape[1]

    def draw(self, key: PRNGKeyArray) -> "Draws":
        size = self.matrices.shape[-1]
        found = _drawn(self.inputs, self.sizes, self.count, size, key)
        weights = _mean_weights(found, self.sizes, self.controls)
        return eqx.tree_at(lambda loss: (loss.matrices, loss.weights), self, (found, weights))

    def shown(self) -> dict[str, Any]:
        count, size = self.matrices.shape[-3:-1]
        return {"draws": f"{count:,}", "D": size, "context": self.sizes, "inputs": self.inputs}

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        mean = jnp.mean(jnp.sum(self.weights * self.each(model), axis=1))
        return mean + self.white.target_variance

    def each(self, model: AbstractModel) -> Float[Array, "n M"]:
        """The loss of every draw, without the noise on the target; its spread tells the error."""
        self.require(model)
        layers = self.white.whiten(layer_weights(model)[:, 0, 0])
        variance, tasks = self.white.label_variance, self.white.tasks
        identity = jnp.eye(tasks.shape[0])

        def one(w: Float[Array, "D D"], n: Array, share: Array) -> Float[Array, ""]:
            def through(
                read: Float[Array, "D D"], g: Float[Array, "D D"]
            ) -> tuple[Float[Array, "D D"], None]:
                return read + g @ (identity - w @ read), None

            read, _ = jax.lax.scan(through, jnp.zeros_like(identity), share * layers)  # P
            left = identity - read @ w  # Q = 1 - P W
            noise = variance / n * jnp.sum((read @ w) * read)
            return jnp.sum((left @ tasks) * left) + noise

        of_length = jax.vmap(one, (0, None, None))
        return jax.vmap(of_length)(self.matrices, self.white.lengths, self.white.shares)

    def admits(self, model: AbstractModel) -> str | None:
        reason = beyond_layers(model, self.matrices.nbytes)
        if reason is not None:
            return reason
        return misfit(model, *self.dims())

    def dims(self) -> tuple[int, int]:
        return self.matrices.shape[-1], 1

    def scratch(self) -> int:
        return 6 * self.matrices.nbytes


@eqx.filter_jit
def _mean_weights(
    matrices: Float[Array, "n M D D"], lengths: tuple[int, ...], controls: bool
) -> Float[Array, "n M"]:
    """The weight of each draw in the mean.

    With controls f it is 1/M - (f̄ - E f)ᵀ S⁻¹ (f - f̄), S = Σ (f - f̄)(f - f̄)ᵀ, the intercept of a
    regression on f - E f. E Δ = 0, E Δ_ij² = 1/n, and 2/n on the diagonal.
    """
    count, size = matrices.shape[1], matrices.shape[-1]
    uniform = jnp.full(matrices.shape[:2], 1.0 / count)
    if not controls:
        return uniform
    rows, columns = packed_pairs(size)
    identity = jnp.eye(size)

    def one(matrices: Float[Array, "M D D"], n: int) -> Float[Array, " M"]:
        delta = matrices - identity[None]
        squares = delta[:, rows, columns] ** 2 - (1.0 + (rows == columns))[None] / n
        known = jnp.concatenate([jnp.diagonal(delta, axis1=1, axis2=2), squares], axis=1)
        middle = jnp.mean(known, axis=0)
        centred = known - middle[None]
        return 1.0 / count - centred @ jnp.linalg.solve(centred.T @ centred, middle)

    return jnp.stack([one(matrices[i], n) for i, n in enumerate(lengths)])


@eqx.filter_jit
def _drawn(
    inputs: AbstractInputs, lengths: tuple[int, ...], draws: int, size: int, key: PRNGKeyArray
) -> Float[Array, "n M D D"]:
    """Draws of W = Σ zzᵀ/n for every context length n."""

    def one(key: PRNGKeyArray, n: int) -> Float[Array, "D D"]:
        normal_key, other_key = jax.random.split(key)
        if isinstance(inputs, Gaussian) and n > 2 * size:
            # Bartlett: n W = A Aᵀ, A lower triangular with A_ii² ~ χ² of n - i degrees, i from 0.
            below = jnp.tril(jax.random.normal(normal_key, (size, size)), -1)
            squares = 2 * jax.random.gamma(other_key, (n - jnp.arange(size)) / 2)
            factor = below + jnp.diag(jnp.sqrt(squares))
            return factor @ factor.T / n
        z = inputs.from_normals(jax.random.normal(normal_key, (n, size)), other_key)
        return z.T @ z / n

    keys = jax.random.split(key, (len(lengths), draws))
    each = [jax.vmap(lambda k, n=n: one(k, n))(keys[i]) for i, n in enumerate(lengths)]
    return jnp.stack(each)
