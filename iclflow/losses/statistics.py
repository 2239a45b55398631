"""The loss from what linear layers take of a prompt: its Λ̂ and β, whatever N was."""

import functools
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.linalg import pack_symmetric, packed_pairs
from iclflow.losses.base import AbstractPromptLoss, misfit
from iclflow.losses.features import NOT_LINEAR, AbstractStatistic, Sizes, gather
from iclflow.models import AbstractLinearModel, AbstractModel, Blocks
from iclflow.models.layers import AbstractLayers
from iclflow.results.messages import Progress
from iclflow.tasks.base import Prompt
from iclflow.tasks.checks import device_bytes, readable, require_memory
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.prompts import AbstractPromptSet, PromptSource, as_sets


class ContextStatistic(AbstractStatistic):
    """The upper triangle of Λ̂, then β: enough for any number of linear layers (D2)."""

    def statistic(self, prompt: Prompt) -> Float[Array, " K"]:
        packed = pack_symmetric(prompt.input_moment)
        return jnp.concatenate([packed, prompt.correlation.reshape(-1)])


class Statistics(AbstractPromptLoss):
    """Mean squared error from Λ̂ and β of each prompt; exact, cost independent of N.

    The label slots of the context enter a layer by u = Σ r_n x_n/N alone, which starts at β and
    becomes u - Λ̂ A_l u in layer l, with A_l = Γ_lᵀ, and ŷ = Σ_l x_qᵀ A_l u_l (D2). So a step of L
    layers costs 4 L D² operations per prompt.

    - `statistic`: Λ̂, packed, and β of every prompt and context length.
    - `query`, `target`: x_q and y_q.
    """

    statistic: Float[Array, "P n K"]
    query: Float[Array, "P n D"]
    target: Float[Array, "P n O"]

    @classmethod
    def of(
        cls,
        prompts: PromptSource,
        *,
        lengths: tuple[int, ...] | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """The loss of given prompts, of which Λ̂, β, x_q and y_q are kept.

        - `prompts`: `Prompts`, a stacked `Prompt`, a prompt set, or an iterable of stacked batches.
        - `lengths`: pairs in the prefixes to average over; the set's own, or whole prompts.
        - `progress(done, total)` counts prompts; of an iterable the total is what is done.

        >>> import iclflow as icl, jax
        >>> task = icl.Task([0.6, 0.4], context=31)
        >>> loss = icl.Statistics.sample(task, 100, jax.random.key(0))
        >>> loss.statistic.shape  # three numbers of Λ̂ and two of β, whatever the context is
        (100, 1, 5)
        """
        count = None
        if isinstance(prompts, Prompts):
            cls.require_memory(prompts)
            count = prompts.count
        sets = as_sets(prompts, lengths)
        return cls(*gather(sets, ContextStatistic(), cls.require_memory, progress, count))

    @classmethod
    def require_memory(cls, prompts: AbstractPromptSet | Prompts, **options: Any) -> None:
        require_memory(
            statistics_bytes(prompts, prompts.count),
            f"Λ̂ and β of {prompts.count} sequences",
            "use fewer sequences, or Draws, which are as exact with fewer",
        )

    def shown(self) -> dict[str, Any]:
        return {"P": f"{len(self.target):,}", "D": self.query.shape[-1]}

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        self.require(model)
        size, outputs = self.query.shape[-1], self.target.shape[-1]
        moments = self.statistic[..., _unpacked(size)]
        start = self.statistic[..., size * (size + 1) // 2 :]
        start = start.reshape(*self.query.shape[:-1], outputs, size)

        def through(
            state: tuple[Float[Array, "P n O D"], Float[Array, "P n O D"]],
            weights: Float[Array, "O O D D"],
        ) -> tuple[tuple[Float[Array, "P n O D"], Float[Array, "P n O D"]], None]:
            read, total = state
            step = jnp.einsum("opdc,...pd->...oc", weights, read)
            return (read - step @ moments, total + step), None

        (_, total), _ = jax.lax.scan(through, (start, jnp.zeros_like(start)), layer_weights(model))
        prediction = jnp.einsum("...oc,...c->...o", total, self.query)
        return jnp.mean(jnp.sum((self.target - prediction) ** 2, axis=-1))

    def admits(self, model: AbstractModel) -> str | None:
        reason = beyond_layers(model, self.query.nbytes)
        return reason or misfit(model, *self.dims())

    def dims(self) -> tuple[int, int]:
        return self.query.shape[-1], self.target.shape[-1]

    def scratch(self) -> int:
        return 4 * self.statistic.nbytes + 8 * self.query.nbytes

    @property
    def count(self) -> int:
        """The number of sequences P."""
        return self.target.shape[0]

    def take(self, index: Array) -> Self:
        """The same loss on some of the sequences."""
        return type(self)(self.statistic[index], self.query[index], self.target[index])


def statistics_bytes(sizes: Sizes, sequences: int) -> int:
    """Memory for the statistics, and for the copies a training step makes of them."""
    size, outputs = sizes.size, sizes.outputs
    row = size * (size + 1) // 2 + 3 * size**2 + (4 * outputs + 1) * size + outputs
    return 8 * sequences * len(sizes.lengths) * row


def layer_weights(model: AbstractModel) -> Float[Array, "L O O D D"]:
    """M_l of every layer of a model that `beyond_layers` admits."""
    assert isinstance(model, AbstractLayers | AbstractLinearModel)
    return model.matrices()


def beyond_layers(model: AbstractModel, layer: int) -> str | None:
    """None if Λ̂ and β say all that the model takes from a context, else the reason why not.

    - `layer`: bytes that the gradient keeps of each layer of a stack.
    """
    if isinstance(model, AbstractLayers):  # the gradient of one layer alone keeps nothing
        needed, free = model.layers * layer, device_bytes()
        if needed <= free:
            return None
        return (
            f"the gradient of {model.layers:,} layers keeps {readable(needed)}, and "
            f"{readable(free)} are free; take fewer layers or prompts"
        )
    if not isinstance(model, AbstractLinearModel):
        return NOT_LINEAR
    if model.blocks is Blocks.FULL:
        return "Λ̂ and β miss what its trained zero blocks read; freeze them, or use Features"
    return None


@functools.cache
def _unpacked(size: int) -> np.ndarray:
    """Where each entry of a symmetric matrix is in its packed upper triangle."""
    rows, columns = packed_pairs(size)
    found = np.zeros((size, size), int)
    found[rows, columns] = found[columns, rows] = np.arange(len(rows))
    return found
