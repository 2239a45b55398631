"""The loss from moments of the features: a step costs the same whatever P and N are.

Moments are sums over a set of prompts. For all features they are also known in the population, the
limit P → ∞ with every weight block trained, which is beyond the paper: it stops at the reduced
model. Given the task matrix W, the context tokens t = (x, Wx + ε) are independent Gaussian vectors
with a covariance C(W) quadratic in (1, W), so the moments of S = (Σ ttᵀ + t_q t_qᵀ)/z follow from
Wick's theorem and the first four moments of W. This is what an in-weight mixture needs (87), where
the extra blocks do not stay zero.
"""

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from iclflow.linalg import gaussian_moment, is_concrete, packed_pairs
from iclflow.losses.base import AbstractPromptLoss
from iclflow.losses.features import (
    AbstractFeatureMap,
    FullFeatures,
    Sizes,
    extract,
    refusal,
    require_linear_in_labels,
)
from iclflow.losses.population import LengthMoments
from iclflow.models import AbstractModel
from iclflow.results.messages import Progress
from iclflow.tasks.averaged import TaskAverage
from iclflow.tasks.base import AbstractTask
from iclflow.tasks.checks import require_memory
from iclflow.tasks.laws import Gaussian
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.prompts import AbstractPromptSet, PromptSource, as_sets
from iclflow.tasks.task import ContextLabels, Task, require_task

CHUNK_BYTES = 64 * 2**20  # features of one chunk of prompts
BLOCK = 2048  # rows of E[φφᵀ] that are added to at once, from the diagonal on


@jax.custom_jvp
def quadratic_form(matrix: Float[Array, "F F"], weights: Float[Array, "O F"]) -> Float[Array, ""]:
    """Σ_o W_o C W_oᵀ for symmetric C, with a gradient that reuses the product W C."""
    return jnp.sum((weights @ matrix) * weights)


@quadratic_form.defjvp
def _quadratic_form_jvp(primals: tuple, tangents: tuple) -> tuple:
    (matrix, weights), (matrix_dot, weights_dot) = primals, tangents
    product = weights @ matrix
    tangent = 2 * jnp.sum(product * weights_dot) + jnp.sum((weights @ matrix_dot) * weights)
    return jnp.sum(product * weights), tangent


class Moments(AbstractPromptLoss):
    """L = E|y|² - 2 ⟨W, E[y φ]⟩ + ⟨W, W E[φφᵀ]⟩ for weights W on the features φ; exact.

    - `power`, `cross`, `second`: E|y|², E[y φ] and E[φφᵀ].
    - `map`: which features φ of a prompt these are.
    - `count`: the number of prompts P that the moments are the means of, where it is known. The
      loss does not depend on it.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> loss = icl.Moments.sample(task, 10, jax.random.key(0))
    >>> model = icl.Merged.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> loss.admits(model) is None
    True
    """

    power: Float[Array, ""]
    cross: Float[Array, "O F"]
    second: Float[Array, "F F"]
    map: AbstractFeatureMap
    count: Float[Array, ""] | None = None

    @classmethod
    def of(
        cls,
        prompts: PromptSource,
        *,
        lengths: tuple[int, ...] | None = None,
        features: AbstractFeatureMap | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """The loss of given prompts, of which only the moments are kept: bounded memory.

        - `prompts`: `Prompts`, a stacked `Prompt`, a prompt set, or an iterable of stacked batches.
        - `lengths`: pairs in the prefixes to average over; the set's own, or whole prompts.
        - `features`: whose moments; those of `FullFeatures()` if omitted.
        - `progress(done, total)` counts prompts; of an iterable the total is what is done.
        """
        map_, total = FullFeatures() if features is None else features, None
        before, rows = 0, 0
        count = prompts.count if isinstance(prompts, Prompts) else None
        for part in as_sets(prompts, lengths):
            cls.require_memory(part, features=map_)
            total = _empty(part, map_) if total is None else total
            row = map_.count(part) * len(part.lengths) * 8
            for index, mask, done in part.chunks(
                max(1, min(part.count, 16384, CHUNK_BYTES // row))
            ):
                total = _added((part, map_, index, mask, BLOCK), total)
                if progress is not None:
                    jax.block_until_ready(total)
                    progress(before + done, count or before + part.count)
            before, rows = before + part.count, rows + part.count * len(part.lengths)
        assert total is not None  # a set has prompts
        count = jax.device_put(np.asarray(before, total[0].dtype))
        return cls(*_means((jnp.asarray(rows), BLOCK), total), map_, count)

    @classmethod
    def of_average(cls, prompts: AbstractPromptSet, average: TaskAverage, **options: Any) -> Self:
        require_linear_in_labels(options.get("features"))
        found = super().of_average(prompts, average, **options)
        count = jax.device_put(np.asarray(prompts.count, found.power.dtype))
        return eqx.tree_at(lambda loss: loss.count, found, count)  # prompts, not their parts

    @classmethod
    def require_memory(
        cls,
        prompts: AbstractPromptSet | Prompts,
        *,
        features: AbstractFeatureMap | None = None,
        **options: Any,
    ) -> None:
        map_ = FullFeatures() if features is None else features
        require_memory(
            moments_bytes(prompts, map_),
            f"the moments of {map_.count(prompts)} features",
            "use Features or Sequences, which keep prompts instead, or freeze the zero blocks",
        )

    def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = {"features": self.cross.shape[-1], "map": self.map}
        if self.count is not None:
            one = is_concrete(self.count) and self.count.ndim == 0
            found = {"P": f"{float(self.count):,.0f}" if one else self.count, **found}
        return found | {"power": self.power}

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        self.require(model)
        weights = self.map.weights(model)
        weights = weights.reshape(weights.shape[0], -1)
        return self.power - 2 * jnp.sum(weights * self.cross) + quadratic_form(self.second, weights)

    def admits(self, model: AbstractModel) -> str | None:
        outputs, count = self.cross.shape[-2:]
        return refusal(self.map, model, self.map.input_size(count, outputs), outputs)

    def dims(self) -> tuple[int, int] | None:
        outputs, count = self.cross.shape[-2:]
        size = self.map.input_size(count, outputs)
        return None if size is None else (size, outputs)


def moments_bytes(sizes: Sizes, features: AbstractFeatureMap) -> int:
    """Memory for the moments, and for the sums of a block that are added to them."""
    count = features.count(sizes)
    return 8 * count * (count + 2 * min(count, BLOCK))


Sums = tuple[Float[Array, ""], Float[Array, "O F"], Float[Array, "F F"]]


def _empty(prompts: AbstractPromptSet, map_: AbstractFeatureMap) -> Sums:
    kind = eqx.filter_eval_shape(extract, prompts, map_, jnp.arange(1))[2].dtype
    shapes = (), (prompts.outputs, count := map_.count(prompts)), (count, count)
    power, cross, second = (jax.device_put(np.zeros(shape, kind)) for shape in shapes)
    return power, cross, second


def _blocks(count: int, rows: int) -> list[slice]:
    return [slice(i, min(i + rows, count)) for i in range(0, count, rows)]


@eqx.filter_jit(donate="all-except-first")  # the matrix is added to where it is
def _added(
    given: tuple[AbstractPromptSet, AbstractFeatureMap, Array, Array, int], total: Sums
) -> Sums:
    """|y|², y φ and the upper blocks of φφᵀ, summed over a chunk of prompts and their prefixes."""
    prompts, map_, index, mask, block = given
    statistic, query, target = extract(prompts, map_, index)
    phi = jnp.einsum("pnk,pnc->pnkc", statistic, query)
    phi = phi.reshape(phi.shape[0] * phi.shape[1], -1)
    y = target.reshape(phi.shape[0], -1)
    keep = jnp.repeat(mask, target.shape[1])[:, None]
    phi, y = jnp.where(keep, phi, 0.0), jnp.where(keep, y, 0.0)
    power, cross, second = total
    for rows in _blocks(phi.shape[1], block):
        right = slice(rows.start, None)
        second = second.at[rows, right].add(phi[:, rows].T @ phi[:, right])
    return power + jnp.sum(y**2), cross + y.T @ phi, second


@eqx.filter_jit(donate="all-except-first")
def _means(given: tuple[Int[Array, ""], int], total: Sums) -> Sums:
    """Sums over so many rows as means, the lower blocks of the matrix from the upper ones."""
    count, rows = given
    power, cross, second = jax.tree.map(lambda s: s / count, total)
    for block in _blocks(len(second), rows):
        below = slice(block.stop, None)
        second = second.at[below, block].set(second[block, below].T)
    return power, cross, second


def population_moments(task: AbstractTask) -> Moments:
    """The exact P → ∞ moments of the full features; Gaussian inputs, any law of the tasks.

    - `task`: with Gaussian inputs.

    >>> import iclflow as icl
    >>> round(float(icl.population_moments(icl.Task([0.6, 0.3], context=31)).power), 6)
    0.9
    """
    task = require_task(task, "population moments are")
    if not isinstance(task.inputs, Gaussian):
        raise ValueError(
            f"population moments of all blocks need Gaussian inputs, got "
            f"{type(task.inputs).__name__}; freeze the zero blocks, or sample sequences"
        )
    return _moments(task)


@eqx.filter_jit
def _moments(task: Task) -> Moments:
    size, outputs = task.size, task.outputs
    token = size + outputs
    covariance, lengths = task.covariance, LengthMoments.of(task)
    quadratic = _token_covariance(task)
    fourth = task.tasks.fourth_moment()

    # E[C_ab C_cd] and E[C_ab] over the tasks.
    pairs = jnp.einsum("abij,cdkl,ijkl->abcd", quadratic, quadratic, fourth, optimize="optimal")
    single = jnp.einsum("abij,ij->ab", quadratic, fourth[:, :, 0, 0])

    rows, columns = (jnp.asarray(i) for i in packed_pairs(token))
    inputs = jnp.arange(size)
    padded = jnp.pad(covariance, ((0, outputs), (0, outputs)))  # the query's label slot is 0
    a, b = rows[:, None, None, None], columns[:, None, None, None]
    a2, b2 = rows[None, :, None, None], columns[None, :, None, None]
    c, c2 = inputs[None, None, :, None], inputs[None, None, None, :]
    four = gaussian_moment(padded, None, a, b, c, c2)  # E[q_a q_b x_c x_c']
    six = gaussian_moment(padded, None, a, b, a2, b2, c, c2)
    four2 = jnp.swapaxes(four, 0, 1)

    across = lengths.pairs_squared * pairs[a, b, a2, b2]
    within = lengths.pairs_single * (pairs[a, a2, b, b2] + pairs[a, b2, b, a2])
    mixed = single[a, b] * four2 + single[a2, b2] * four
    second = (
        (across + within) * covariance[c, c2]
        + lengths.pairs_single * mixed
        + lengths.query_squared * six
    )
    count = rows.size * size
    second = jnp.transpose(second, (0, 2, 1, 3)).reshape(count, count)

    # E[y_o x_c S_ab] with y_o = W_o x_q: the context's share, then the query token's own.
    task_rows = fourth[1:, 0].reshape(outputs, size, *fourth.shape[2:])
    context = jnp.einsum("ci,oijk,abjk->oabc", covariance, task_rows, quadratic)
    mean = fourth[1:, 0, 0, 0].reshape(outputs, size)
    query = jnp.einsum("kci,oi->okc", four[:, 0], mean)
    cross = lengths.pairs * context[:, rows, columns, :] + lengths.query * query

    power = jnp.einsum("ocod,cd->", task.second_moment(), covariance)
    power = power + outputs * task.target_noise**2
    return Moments(power, cross.reshape(outputs, count), second, FullFeatures())


def _token_covariance(task: Task) -> Float[Array, "T T U U"]:
    """Coefficients of C(W)_ab = Σ A[a,b,i,j] u_i u_j with u = (1, vec W)."""
    size, outputs = task.size, task.outputs
    token, extended = size + outputs, 1 + outputs * size
    covariance: Array = task.covariance
    result = jnp.zeros((token, token, extended, extended))
    result = result.at[:size, :size, 0, 0].set(covariance)
    for o in range(outputs):
        label, block = size + o, slice(1 + o * size, 1 + (o + 1) * size)
        if task.context_labels is ContextLabels.NOISE:
            result = result.at[label, label, 0, 0].set(1.0)
            continue
        result = result.at[:size, label, 0, block].set(covariance)
        result = result.at[label, :size, 0, block].set(covariance)
        result = result.at[label, label, 0, 0].set(task.label_noise**2)
        for p in range(outputs):
            other = slice(1 + p * size, 1 + (p + 1) * size)
            result = result.at[label, size + p, block, other].set(covariance)
    return result
