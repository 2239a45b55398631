"""Several linear layers as a loss of one matrix, so that the one staircase engine covers them.

A head of layer l adds v k qᵀ to Γ_l and feels A^{(l)} = -½ ∂L/∂Γ_l, which depends on all layers.
Put the Γ_l into the blocks of one block-diagonal matrix M and the A^{(l)} into those of R. A head
of layer l has k and q in block l, where the flow τ dk/dt = v R q keeps them. So the layers are one
layer of L·D inputs whose loss is not quadratic. Dormant heads keep their closed form, since that
asks for a constant R and nothing else.

Tied layers share their heads: M = Γ is D × D and R = -½ dL(Γ, …, Γ)/dΓ.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from iclflow.losses import AbstractLoss, Population
from iclflow.models import AbstractModel, Layers, Merged, Separate
from iclflow.tasks.base import AbstractTask
from iclflow.theory.drops.quadratic import AbstractMatrixLoss, Weights, rank, separate_weights

PORTION = 64  # matrices whose losses are computed together


@functools.partial(jax.jit, static_argnums=(2, 3))
def _loss(loss: AbstractLoss, matrices: Float[Array, "T l D D"], layers: int, tied: bool) -> Array:
    return jax.vmap(lambda m: _of_layers(loss, m, layers, tied))(matrices)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _slope(loss: AbstractLoss, matrices: Float[Array, "T l D D"], layers: int, tied: bool) -> Array:
    return jax.vmap(jax.grad(lambda m: _of_layers(loss, m, layers, tied)))(matrices)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _hessian(loss: AbstractLoss, matrix: Float[Array, "l D D"], layers: int, tied: bool) -> Array:
    found = jax.hessian(lambda m: _of_layers(loss, m, layers, tied))(matrix)
    return found.reshape(matrix.size, matrix.size)


def _of_layers(
    loss: AbstractLoss, matrices: Float[Array, "l D D"], layers: int, tied: bool
) -> Float[Array, ""]:
    """The loss of given Γ_l: of one merged head per layer whose value weight is 1."""
    one = jnp.ones((1, 1, 1), matrices.dtype)
    stack = jax.vmap(lambda matrix: Merged(values=one, merged=matrix[None]))(matrices)
    return loss(Layers(stack=stack, layers=layers, tied=tied))


def not_stacked(source: object, model: AbstractModel) -> str | None:
    """Why the staircase of layers on a source is not known; None if it is."""
    if not isinstance(model, Layers) or model.layers == 1:
        return f"it predicts two layers or more, got {type(model).__name__}"
    if not isinstance(model.stack, Separate):
        return f"the staircase covers separate key and query, got {type(model.stack).__name__}"
    if isinstance(source, AbstractTask):
        try:
            source = Population(source)
        except ValueError as error:
            return str(error)
    if not isinstance(source, AbstractLoss):
        return f"the theory of layers is of a Task or a loss, got {type(source).__name__}"
    if source.stochastic:
        return f"{type(source).__name__} draws a batch per step: give the loss it draws from"
    if model.dims()[1] != 1:
        return f"the theory covers one output, got {model.dims()[1]}"
    return source.admits(model)


@dataclasses.dataclass(frozen=True)
class Stack(AbstractMatrixLoss):
    """The loss of L layers of one output as a function of a block-diagonal M.

    - `source`: any loss without fresh batches that admits such layers.
    - `inputs`: D.
    - `layers`: L.
    - `tied`: whether they share their weights.
    - `offset`: what is added to M first.
    """

    source: AbstractLoss
    inputs: int
    layers: int
    tied: bool
    offset: Float[np.ndarray, "l D D"] | None = None

    @classmethod
    def of(cls, source: object, model: AbstractModel) -> "Stack":
        """The loss of a task's population, or a given one, for layers like those of a model.

        - `source`: a `Task` whose population has a closed form, or a loss that admits the model.
        - `model`: says the number of layers, their inputs, and whether they are tied.
        """
        reason = not_stacked(source, model)
        if reason is not None:
            raise ValueError(reason)
        loss = Population(source) if isinstance(source, AbstractTask) else source
        assert isinstance(loss, AbstractLoss)
        assert isinstance(model, Layers)
        numbers = jax.tree.map(jnp.asarray, loss)
        return cls(numbers, model.dims()[0], model.layers, model.tied)

    @functools.cached_property
    def power(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The loss at M = 0."""
        return float(self.loss(np.zeros((self.size, self.size))))

    @property
    def blocks(self) -> int:
        """The number of blocks of M: L, or one of tied layers."""
        return 1 if self.tied else self.layers

    @property
    def size(self) -> int:
        """The number of rows of M: D per block."""
        return self.blocks * self.inputs

    @functools.cached_property
    def modes(self) -> int:
        """The rank of R at M = 0: one mode per input and block, less where Λ is singular."""
        return rank(self.residual(np.zeros((self.size, self.size))))

    def residual(self, matrices: np.ndarray) -> np.ndarray:
        """R with A^{(l)} = -½ ∂L/∂Γ_l in its blocks."""
        found = _slope(self.source, self._split(matrices), self.layers, self.tied)
        return self._joined(-np.asarray(found) / 2).reshape(matrices.shape)

    def loss(self, matrices: np.ndarray) -> np.ndarray:
        """L of matrices [..., D, D], so many at a time that few programs are compiled."""
        rows, portion = matrices.reshape(-1, self.size, self.size), PORTION
        found = np.empty(len(rows))
        for i in range(0, len(rows), portion):
            part = rows[i : i + portion]
            wide = np.zeros((1 if len(rows) == 1 else portion, *part.shape[1:]))
            wide[: len(part)] = part
            losses = _loss(self.source, self._split(wide), self.layers, self.tied)
            found[i : i + portion] = np.asarray(losses)[: len(part)]
        return found.reshape(matrices.shape[:-2])

    def hessian(self, at: np.ndarray) -> np.ndarray:
        """Half the Hessian at M, between its blocks; zero elsewhere."""
        matrix = self._split(at)[0]
        half = np.asarray(_hessian(self.source, matrix, self.layers, self.tied)) / 2
        entries = matrix.size
        rows = self._joined(half.reshape(entries, *matrix.shape)).reshape(entries, -1)
        blocks = self._joined(rows.T.reshape(-1, *matrix.shape))
        return blocks.reshape((self.size,) * 4)

    def beside(self, others: np.ndarray) -> "Stack":
        """The same loss with what the others add to M put first."""
        moved = self._diagonal(others)[0] + (0.0 if self.offset is None else self.offset)
        return dataclasses.replace(self, offset=moved)

    def end(self, rest: np.ndarray) -> np.ndarray:
        """The rest itself: layers have several minima, and none is known in closed form."""
        return rest

    def _diagonal(self, matrices: np.ndarray) -> np.ndarray:
        """The blocks [T, l, D, D] of matrices [..., n, n]."""
        count, size = self.blocks, self.inputs
        parts = matrices.reshape(-1, count, size, count, size)
        return np.stack([parts[:, block, :, block] for block in range(count)], axis=1)

    def _split(self, matrices: np.ndarray) -> Float[Array, "T l D D"]:
        found = self._diagonal(matrices)
        return jax.device_put(found if self.offset is None else found + self.offset)

    def _joined(self, blocks: np.ndarray) -> np.ndarray:
        """Matrices [T, n, n] of their blocks [T, l, D, D]."""
        count, size = self.blocks, self.inputs
        result = np.zeros((len(blocks), count, size, count, size))
        for block in range(count):
            result[:, block, :, block] = blocks[:, block]
        return result.reshape(len(blocks), self.size, self.size)

    def weights(self, model: AbstractModel) -> tuple[Weights, Int[np.ndarray, " H"] | None]:
        """v, k and q of all heads, layer after layer, and the block of each."""
        parts = [separate_weights(layer) for layer in model.attention_layers()[: self.blocks]]
        v, k, q = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        block = np.repeat(np.arange(self.blocks), len(parts[0][0]))
        return (v, k, q), None if self.tied else block
