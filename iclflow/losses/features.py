"""Feature maps of a prompt, and the loss on per-prompt features (Section 5 of the theory page)."""

import abc
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclflow.linalg import pack_dual, pack_symmetric
from iclflow.losses.base import AbstractPromptLoss, misfit
from iclflow.models import AbstractLinearModel, AbstractModel, Blocks, LabelRow
from iclflow.models.base import once_a_kind
from iclflow.models.layers import AbstractLayers
from iclflow.results.messages import Progress
from iclflow.tasks.averaged import TaskAverage
from iclflow.tasks.base import AbstractTask, Prompt
from iclflow.tasks.checks import require_memory
from iclflow.tasks.own_prompts import Prompts
from iclflow.tasks.prompts import AbstractPromptSet, PromptSource, as_sets

CHUNK = 8192  # prompts at a time
Sizes = AbstractTask | AbstractPromptSet | Prompts  # what knows D, O and the lengths

# Of a model that is no AbstractLinearModel; `refusal` knows the sizes, checks, and says more.
NOT_LINEAR = (
    "it is no AbstractLinearModel, whose effective weights the features need; use Sequences"
)
LARGEST = 800  # features up to which linearity is checked by a fit
EXACT = 1e-6  # of a prediction: what a fit of exactly linear features leaves in double precision


def refusal(
    map_: "AbstractFeatureMap", model: AbstractModel, size: int | None, outputs: int
) -> str | None:
    """Why a loss on the features of prompts cannot take a model; None if it can.

    - `size`, `outputs`: D and O of the prompts; None where D is not known.
    """
    reason = map_.admits(model)
    if reason == NOT_LINEAR and size is not None:
        reason = (
            misfit(model, size, outputs) or f"{undeclared(model, size, outputs)}; use Sequences"
        )
    return reason or misfit(model, size, outputs)


def undeclared(model: AbstractModel, size: int, outputs: int) -> str:
    """What is true of a model that is no `AbstractLinearModel`, in words.

    - `size`, `outputs`: D and O of the prompts.
    """
    linear = is_linear(model, size, outputs)
    if linear is None:
        return NOT_LINEAR.partition(";")[0]
    if linear:
        return (
            "its prediction is linear in S ⊗ x_q (checked on random prompts), but it does not say "
            "so; subclass icl.AbstractLinearModel, with blocks, effective_weights and "
            "reduced_weights"
        )
    return "its prediction is not linear in S ⊗ x_q of the prompt (checked on random prompts)"


def is_linear(model: AbstractModel, size: int, outputs: int) -> bool | None:
    """Whether the predictions of models of a kind are linear in all features S ⊗ x_q.

    Random weights of this kind are tried on twice as many random prompts as there are features: a
    linear fit of the predictions must leave nothing. None where that cannot be tried.

    - `model`: the kind; its own weights do not matter.
    - `size`, `outputs`: D and O of the prompts.
    """
    return _is_linear(model, size, outputs)


@once_a_kind
def _is_linear(model: Any, size: int, outputs: int) -> bool | None:
    token = size + outputs
    count = token * (token + 1) // 2 * size
    if count > LARGEST:
        return None
    rng = np.random.default_rng(0)

    def drawn(leaf: Any) -> Any:
        if not (hasattr(leaf, "shape") and jnp.issubdtype(leaf.dtype, jnp.inexact)):
            return leaf
        return jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype)

    try:
        with jax.ensure_compile_time_eval():
            whole = jax.tree.map(drawn, model)
            points = rng.normal(size=(2 * count + 16, 2 * token + 1, token))
            inputs, labels = jnp.asarray(points[..., :size]), jnp.asarray(points[..., size:])
            prompts = Prompt(inputs, labels, labels)
            found = jax.vmap(lambda p: jnp.asarray(whole(p)).reshape(outputs))(prompts)
            maps = FullFeatures()
            phi = jax.vmap(lambda p: jnp.outer(maps.statistic(p), p.query).ravel())(prompts)
        values, rows = np.asarray(found, float), np.asarray(phi, float)
    except Exception:  # a model of the user's may raise anything on prompts that it is not made for
        return None
    weights = np.linalg.lstsq(rows, values, rcond=None)[0]
    left, scale = np.abs(rows @ weights - values).max(), np.abs(values).max()
    exact = EXACT if jnp.result_type(float) == jnp.float64 else 1e-2
    return bool(np.isfinite(scale) and left <= exact * scale)


class AbstractStatistic(eqx.Module):
    """Numbers that say all that a model takes from the context of a prompt.

    >>> import iclflow as icl
    >>> isinstance(icl.FullFeatures(), icl.AbstractStatistic)
    True
    """

    @abc.abstractmethod
    def statistic(self, prompt: Prompt) -> Float[Array, " K"]:
        """What is kept of the context."""


class AbstractFeatureMap(AbstractStatistic):
    """Features φ = statistic ⊗ x_q, in which linear models are linear: ŷ_o = Σ W[o,k,c] φ[k,c].

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> softmax = icl.Softmax.initialiser(task, heads=2, scale=0.1)(jax.random.key(0))
    >>> icl.FullFeatures().count(task), icl.FullFeatures().admits(softmax) is None
    (12, False)
    """

    @abc.abstractmethod
    def weights(self, model: AbstractModel) -> Float[Array, "O K D"]:
        """The weights on the features of a model that is admitted."""

    @abc.abstractmethod
    def count(self, sizes: Sizes) -> int:
        """How many features a prompt has, K·D."""

    def input_size(self, count: int, outputs: int) -> int | None:
        """The D of prompts with so many features and O = `outputs`; None where it is not known."""
        del count, outputs
        return None

    @abc.abstractmethod
    def admits(self, model: AbstractModel) -> str | None:
        """None, or why these features do not determine the model's prediction."""


class FullFeatures(AbstractFeatureMap):
    """The upper triangle of S = XXᵀ/N: (D+O)(D+O+1)/2 · D features, enough for all blocks.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> icl.Moments.sample(task, 10, jax.random.key(0), features=icl.FullFeatures()).cross.shape
    (1, 12)
    """

    def statistic(self, prompt: Prompt) -> Float[Array, " K"]:
        return pack_symmetric(prompt.second_moment)

    def weights(self, model: AbstractModel) -> Float[Array, "O K D"]:
        assert isinstance(model, AbstractLinearModel)
        return pack_dual(model.effective_weights())

    def count(self, sizes: Sizes) -> int:
        token = sizes.size + sizes.outputs
        return token * (token + 1) // 2 * sizes.size

    def input_size(self, count: int, outputs: int) -> int | None:
        # D³/2 <= count, so the largest candidate is the cube root of twice the count.
        sizes = range(1, round((2 * count) ** (1 / 3)) + 2)
        features = ((d + outputs) * (d + outputs + 1) // 2 * d for d in sizes)
        return next((d for d, n in zip(sizes, features, strict=True) if n == count), None)

    def admits(self, model: AbstractModel) -> str | None:
        return None if isinstance(model, AbstractLinearModel) else NOT_LINEAR


class ReducedFeatures(AbstractFeatureMap):
    """The correlation β alone: O·D² features z, enough when the zero blocks are frozen.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> icl.Moments.sample(task, 10, jax.random.key(0), features=icl.ReducedFeatures()).cross.shape
    (1, 4)
    """

    def statistic(self, prompt: Prompt) -> Float[Array, " K"]:
        return prompt.correlation.reshape(-1)

    def weights(self, model: AbstractModel) -> Float[Array, "O K D"]:
        assert isinstance(model, AbstractLinearModel)
        weights = model.reduced_weights()
        return weights.reshape(weights.shape[0], -1, weights.shape[-1])

    def count(self, sizes: Sizes) -> int:
        return sizes.outputs * sizes.size**2

    def input_size(self, count: int, outputs: int) -> int | None:
        return math.isqrt(count // outputs)

    def admits(self, model: AbstractModel) -> str | None:
        if not isinstance(model, AbstractLinearModel):
            return NOT_LINEAR
        if model.blocks is Blocks.FULL:
            return "the reduced features β x_qᵀ miss its trained zero blocks; use FullFeatures()"
        return None


class LabelFeatures(AbstractFeatureMap):
    """The label row [β; mean y²] of S: (D + 1) · D features, those of `LabelRow`; one output.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> icl.Moments.sample(task, 10, jax.random.key(0), features=icl.LabelFeatures()).cross.shape
    (1, 6)
    """

    def statistic(self, prompt: Prompt) -> Float[Array, " K"]:
        return prompt.second_moment[prompt.inputs.shape[1]]

    def weights(self, model: AbstractModel) -> Float[Array, "O K D"]:
        if isinstance(model, LabelRow):  # the one model that is this row and has no other weights
            return model.matrix[None]
        assert isinstance(model, AbstractLinearModel)
        weights = model.reduced_weights()[:, 0]
        return jnp.pad(weights, ((0, 0), (0, 1), (0, 0)))

    def count(self, sizes: Sizes) -> int:
        return (sizes.size + 1) * sizes.size

    def input_size(self, count: int, outputs: int) -> int | None:
        return math.isqrt(count)

    def admits(self, model: AbstractModel) -> str | None:
        if isinstance(model, LabelRow):
            return None
        if not isinstance(model, AbstractLinearModel):
            return NOT_LINEAR
        if model.blocks is Blocks.FULL:
            return "the label row misses its weights on Λ̂; use FullFeatures()"
        outputs = model.reduced_weights().shape[0]
        return None if outputs == 1 else f"the label row has one output, got {outputs}"


class TwoLayerFeatures(AbstractFeatureMap):
    """β and β ⊗ Λ̂, in which two layers are linear: ŷ = βᵀ(Γ₀ + Γ₁)x_q - βᵀΓ₀Λ̂Γ₁x_q (D4).

    There are D² + D³(D+1)/2 of them: 176 at D = 4, 2,368 at D = 8.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> loss = icl.Moments.sample(task, 100, jax.random.key(0), features=icl.TwoLayerFeatures())
    >>> layers = icl.Layers.initialiser(task, layers=2, heads=2, scale=0.1)(jax.random.key(1))
    >>> icl.TwoLayerFeatures().count(task), float(loss(layers)) > 0
    (16, True)
    """

    def statistic(self, prompt: Prompt) -> Float[Array, " K"]:
        correlation = prompt.correlation[0]
        products = jnp.outer(correlation, pack_symmetric(prompt.input_moment))
        return jnp.concatenate([correlation, products.reshape(-1)])

    def weights(self, model: AbstractModel) -> Float[Array, "O K D"]:
        assert isinstance(model, AbstractLayers | AbstractLinearModel)
        matrices = model.matrices()[:, 0, 0]
        first = matrices[0]
        second = matrices[1] if len(matrices) > 1 else jnp.zeros_like(first)
        products = pack_dual(-jnp.einsum("de,fc->defc", first, second))
        return jnp.concatenate([first + second, products.reshape(-1, len(first))])[None]

    def count(self, sizes: Sizes) -> int:
        return sizes.size**2 + sizes.size**3 * (sizes.size + 1) // 2

    def admits(self, model: AbstractModel) -> str | None:
        if isinstance(model, AbstractLayers):
            layers, outputs = model.layers, model.dims()[1]
            if (layers, outputs) == (2, 1):
                return None
            return (
                f"these features are those of two layers with one output, got {layers} with "
                f"{outputs}; use Statistics"
            )
        reason = ReducedFeatures().admits(model)
        if reason is None and isinstance(model, AbstractLinearModel):
            outputs = model.reduced_weights().shape[0]
            return None if outputs == 1 else f"these features are of one output, got {outputs}"
        return reason


class Features(AbstractPromptLoss):
    """Mean squared error from per-prompt features; exact, cost independent of N.

    - `statistic`, `query`, `target`: what is kept of P prompts at n context lengths. `sample` and
      `of` make them.
    - `map`: the features.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> icl.Features.sample(task, 10, jax.random.key(0)).target.shape
    (10, 1, 1)
    """

    statistic: Float[Array, "P n K"]
    query: Float[Array, "P n D"]
    target: Float[Array, "P n O"]
    map: AbstractFeatureMap

    @classmethod
    def of(
        cls,
        prompts: PromptSource,
        *,
        lengths: tuple[int, ...] | None = None,
        features: AbstractFeatureMap | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """The loss of given prompts, of which the features are kept.

        - `prompts`: `Prompts`, a stacked `Prompt`, a prompt set, or an iterable of stacked batches.
        - `lengths`: pairs in the prefixes to average over; the set's own, or whole prompts.
        - `features`: what to keep; `FullFeatures()` if omitted.
        - `progress(done, total)` counts prompts; of an iterable the total is what is done.
        """
        map_ = FullFeatures() if features is None else features
        require = functools.partial(cls.require_memory, features=map_)
        count = None
        if isinstance(prompts, Prompts):
            require(prompts)
            count = prompts.count
        sets = as_sets(prompts, lengths)
        statistic, query, target = gather(sets, map_, require, progress, count)
        return cls(statistic, query, target, map_)

    @classmethod
    def of_average(cls, prompts: AbstractPromptSet, average: TaskAverage, **options: Any) -> Self:
        require_linear_in_labels(options.get("features"))
        return super().of_average(prompts, average, **options)

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
            features_bytes(prompts, prompts.count, map_),
            f"the features of {prompts.count} sequences",
            "use Moments, whose memory does not depend on them, or fewer sequences",
        )

    def shown(self) -> dict[str, Any]:
        return {"P": f"{len(self.target):,}", "D": self.query.shape[-1], "map": self.map}

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        self.require(model)
        weights = self.map.weights(model)
        prediction = jnp.einsum("pnk,okc,pnc->pno", self.statistic, weights, self.query)
        return jnp.mean(jnp.sum((self.target - prediction) ** 2, axis=-1))

    def admits(self, model: AbstractModel) -> str | None:
        return refusal(self.map, model, *self.dims())

    def dims(self) -> tuple[int, int]:
        return self.query.shape[-1], self.target.shape[-1]

    def scratch(self) -> int:
        return 2 * (self.statistic.nbytes + self.query.nbytes + self.target.nbytes)

    @property
    def count(self) -> int:
        """The number of sequences P."""
        return self.target.shape[0]

    def take(self, index: Array) -> Self:
        """The same loss on some of the sequences."""
        return type(self)(self.statistic[index], self.query[index], self.target[index], self.map)


def require_linear_in_labels(map_: AbstractFeatureMap | None) -> None:
    """Raise `ValueError` where the mean over tasks is no sum over made-up tasks."""
    if map_ is None or isinstance(map_, FullFeatures):
        raise ValueError(
            "averaged needs features that are linear in the labels, and those of all blocks are "
            "not; give features=icl.ReducedFeatures()"
        )


def features_bytes(sizes: Sizes, sequences: int, features: AbstractFeatureMap) -> int:
    """Memory for the features, and for the copies a training step makes of them."""
    row = features.count(sizes) // sizes.size + sizes.size + sizes.outputs
    return 3 * 8 * sequences * len(sizes.lengths) * row


Kept = tuple[Float[Array, "P n K"], Float[Array, "P n D"], Float[Array, "P n O"]]


def gather(
    sets: Iterable[AbstractPromptSet],
    map_: AbstractStatistic,
    require: Callable[[AbstractPromptSet], None],
    progress: Progress | None = None,
    count: int | None = None,
) -> Kept:
    """Statistic, query and target of every prefix of every prompt, chunk by chunk.

    - `sets`: the prompts.
    - `map_`: what is kept of the context.
    - `require`: refuses a set that does not fit, before it is drawn.
    - `progress(done, total)` counts prompts.
    - `count`: how many there are, where it is known.
    """
    parts, before = [], 0
    for part in sets:
        require(part)
        size = min(part.count, CHUNK)
        for index, _, done in part.chunks(size):
            inside = (done - 1) % size + 1
            found = extract(part, map_, index)
            parts.append(jax.tree.map(lambda a, n=inside: a[:n], found))
            if progress is not None:
                progress(before + done, count or before + part.count)
        before += part.count
    return jax.tree.map(lambda *a: jnp.concatenate(a), *parts)


@eqx.filter_jit
def extract(
    prompts: AbstractPromptSet, map_: AbstractStatistic, index: Array
) -> tuple[Float[Array, "C n K"], Float[Array, "C n D"], Float[Array, "C n O"]]:
    """Statistic, query and target of every prefix of a chunk of prompts."""
    return prompts.prefixes(lambda p: (map_.statistic(p), p.query, p.target), index)
