"""One matrix on the label row of S and the query: attention with values that are fixed at 1."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.models.base import (
    AbstractInitialiser,
    AbstractLinearModel,
    Blocks,
    dims_of,
    require_scale,
)
from iclflow.tasks.base import Prompt
from iclflow.tasks.checks import require_size


class LabelRow(AbstractLinearModel):
    """ŷ = aᵀ Γ x_q with a = [β; mean y²], the label row of S; values are 1 and are not trained.

    This is the model of several studies of what a finite number of prompts and of tasks do to
    in-context learning: softmax-free attention with one head, in which everything that multiplies
    the same feature is written as one matrix Γ [D + 1, D]. Its rows 0 … D-1 meet β = Σ yₙ xₙ/z and
    its last row meets Σ yₙ²/z, where z is the prompt's divisor.

    - `left`: None where Γ itself is trained; else Γ = `left` @ `right`, a product of two matrices.
    - `right`: Γ, or the right factor of it.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> model = icl.LabelRow.initialiser(task, deviation=0.5)(jax.random.key(0))
    >>> model.matrix.shape, model(task.sample(jax.random.key(1))).shape
    ((3, 2), (1,))
    """

    left: Float[Array, "T R"] | None
    right: Float[Array, "R D"]

    def __check_init__(self) -> None:
        tokens = self.right.shape[-2] if self.left is None else self.left.shape[-2]
        inner = tokens if self.left is None else self.left.shape[-1]
        size = self.right.shape[-1]
        if tokens != size + 1 or inner != self.right.shape[-2]:
            left = "" if self.left is None else f"{self.left.shape} times "
            raise ValueError(
                f"the matrix of a label row has D + 1 rows and D columns, got "
                f"{left}{self.right.shape}"
            )

    @property
    def matrix(self) -> Float[Array, "T D"]:
        """Γ."""
        return self.right if self.left is None else self.left @ self.right

    @property
    def blocks(self) -> Blocks:
        return Blocks.FULL  # its last row reads mean y², which the reduced models do not have

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        size = prompt.query.shape[0]
        row = prompt.second_moment[size]
        return (row @ self.matrix @ prompt.query)[None]

    def effective_weights(self) -> Float[Array, "O T T D"]:
        size = self.right.shape[-1]
        full = jnp.zeros((1, size + 1, size + 1, size), self.right.dtype)
        return full.at[0, size].set(self.matrix)

    def reduced_weights(self) -> Float[Array, "O O D D"]:
        return self.matrix[None, None, :-1]

    def dims(self) -> tuple[int, int]:
        return self.right.shape[-1], 1

    @classmethod
    def initialiser(
        cls, source: Any, *, deviation: float | None = None, rank: int | None = None
    ) -> "LabelRowInitialiser":
        """key -> model, with independent normal entries.

        - `source`: says the sizes D and O (see `dims_of`); O must be 1.
        - `deviation`: the standard deviation of every entry; (D + 1)^(-1/2) if omitted, which is
          not small: this model has no plateau to start from.
        - `rank`: the inner size of the product of two matrices; Γ itself is trained if omitted.
        """
        size, outputs = dims_of(source)
        if outputs != 1:
            raise ValueError(f"a label row has one output, got {outputs}")
        scale = (size + 1) ** -0.5 if deviation is None else deviation
        inner = None if rank is None else require_size("rank", rank)
        return LabelRowInitialiser(require_scale("deviation", scale), size, inner)


class LabelRowInitialiser(AbstractInitialiser):
    """key -> `LabelRow` with entries N(0, deviation²).

    - `deviation`, `size`, `rank`: as in `LabelRow.initialiser`, with D for the source.
    """

    deviation: Float[Array, ""]
    size: int = eqx.field(static=True)
    rank: int | None = eqx.field(static=True)

    def __call__(self, key: PRNGKeyArray) -> LabelRow:
        first, second = jax.random.split(key)
        tokens = self.size + 1
        rows = tokens if self.rank is None else self.rank
        right = self.deviation * jax.random.normal(second, (rows, self.size))
        if self.rank is None:
            return LabelRow(None, right)
        return LabelRow(self.deviation * jax.random.normal(first, (tokens, self.rank)), right)
