"""Several layers of linear attention in a residual stream, tied (looped) or untied.

The equation numbers (D1), (D2), … are those of the page on depth.
"""

import abc
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from iclflow.models.base import (
    AbstractAttention,
    AbstractInitialiser,
    AbstractModel,
    Blocks,
    measured_scale,
)
from iclflow.models.merged import Merged
from iclflow.models.separate import Separate
from iclflow.tasks.base import Prompt
from iclflow.tasks.checks import require_kind, require_size


class AbstractLayers(AbstractModel):
    """L layers that rewrite the label slot of every token, known by their matrices Γ_l (D1).

    >>> import iclflow as icl
    >>> [issubclass(kind, icl.models.AbstractLayers) for kind in (icl.Layers, icl.Steps, icl.MLP)]
    [True, True, False]
    """

    layers: eqx.AbstractVar[int]
    tied: eqx.AbstractVar[bool]

    @abc.abstractmethod
    def dims(self) -> tuple[int, int]:
        """(D, O)."""

    @abc.abstractmethod
    def matrices(self) -> Float[Array, "L O O D D"]:
        """M_l[o, p, d, c] of every layer; with one output M_l = Γ_l."""

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        size = prompt.inputs.shape[1]
        tokens = prompt.tokens  # the query's label slot, and all of a hidden token, is 0
        query = prompt.context if prompt.length is None else prompt.length
        inputs, labels = tokens[:, :size], tokens[:, size:]
        in_context = (jnp.arange(len(tokens)) < query)[:, None]  # the query is masked

        def through(
            labels: Float[Array, "n O"], weights: Float[Array, "O O D D"]
        ) -> tuple[Float[Array, "n O"], None]:
            read = jnp.where(in_context, labels, 0.0).T @ inputs / prompt.divisor
            return labels - inputs @ jnp.einsum("opdc,pd->co", weights, read), None

        return -jax.lax.scan(through, labels, self.matrices())[0][query]


class Layers(AbstractLayers):
    """L layers that rewrite the label slot of every token, the query's included (D1).

    Token n holds (x_n, r_n), at first r_n = y_n, and the query holds (x_q, 0). Layer l does
    r_m ← r_m - (1/N) Σ_{n ≤ N} r_n x_nᵀ Γ_l x_m for m = 1 … N and the query, and the prediction
    is ŷ = - r_q after the last layer. Γ_l = Σᵢ vᵢ Uᵢ is that of the layer's heads.

    Two conventions are part of the model. The query is masked as key and value: without the
    mask layer 1 would also read what layer 0 wrote into the query's label slot. The minus sign
    makes a layer a step of gradient descent on the prompt's own least squares; with a plus the
    same weights would undo the step of the layer before. With one layer this is `Merged` or
    `Separate`, with the same sign.

    The blocks that `Blocks.FULL` trains do not exist here. That is a restriction and no
    consequence: from two layers on some of them have a gradient.

    - `stack`: `Merged` or `Separate` attention, every array with a leading axis of layers; a tied
      stack has one entry on it. `Layers.of` makes it of single layers.
    - `layers`: the number of layers L.
    - `tied`: whether all layers share one set of weights.
    """

    stack: AbstractAttention
    layers: int = eqx.field(static=True)
    tied: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        require_size("layers", self.layers)
        require_kind("tied", self.tied, bool, "True or False")
        if self.stack.value_inputs is not None:
            raise ValueError(
                "Layers have no trained zero blocks, got some; give layers with Blocks.FROZEN"
            )
        found, needed = self.stack.values.shape[0], 1 if self.tied else self.layers
        if self.stack.values.ndim != 4 or found != needed:
            kind = "tied" if self.tied else "untied"
            raise ValueError(
                f"{self.layers} {kind} layers need weights with a leading axis of {needed}, got "
                f"shape {self.stack.values.shape} of the values; use Layers.of([first, second])"
            )

    def dims(self) -> tuple[int, int]:
        return self.stack.dims()

    @classmethod
    def of(cls, layers: Sequence[AbstractAttention], *, tied: bool = False) -> "Layers":
        """The stack of given layers, first to last.

        - `layers`: `Merged` or `Separate` attention of one shape, without trained zero blocks.
        - `tied`: whether they share their weights from now on; they must be equal.

        >>> import iclflow as icl, jax
        >>> layer = icl.Merged.initialiser(icl.Task([0.6, 0.4], 9), heads=1, scale=0.5)
        >>> icl.Layers.of([layer(jax.random.key(s)) for s in range(3)]).layers
        3
        """
        layers = list(layers)
        if not layers:
            raise ValueError("a stack needs at least one layer, got none")
        for layer in layers:
            require_kind("layer", layer, AbstractAttention, "attention, such as icl.Merged")
        kinds = {type(layer).__name__ for layer in layers}
        shapes = {tuple(a.shape for a in jax.tree.leaves(layer)) for layer in layers}
        if len(kinds) > 1 or len(shapes) > 1 or not kinds <= {"Merged", "Separate"}:
            raise ValueError(
                f"the layers of a stack are Merged or Separate attention of one shape, got "
                f"{', '.join(sorted(kinds))} of {len(shapes)} shapes"
            )
        if tied:
            same = all(bool(eqx.tree_equal(layers[0], layer)) for layer in layers)
            if not same:
                raise ValueError(
                    "tied layers share one set of weights, and these are not equal; give equal "
                    "ones, or tied=False"
                )
        kept = layers[:1] if tied else layers
        stack = jax.tree.map(lambda *a: jnp.stack(a), *kept)
        return cls(stack=stack, layers=len(layers), tied=tied)

    def layer(self, index: int) -> AbstractAttention:
        """The attention of one layer, 0 … L-1, by itself; -1 is the last."""
        if not -self.layers <= index < self.layers:
            raise ValueError(f"the layers are numbered 0 to {self.layers - 1}, got {index}")
        return jax.tree.map(lambda a: a[0 if self.tied else index], self.stack)

    def matrices(self) -> Float[Array, "L O O D D"]:
        found = jax.vmap(lambda layer: layer.reduced_weights())(self.stack)
        return jnp.broadcast_to(found, (self.layers, *found.shape[1:])) if self.tied else found

    @classmethod
    def initialiser(
        cls,
        source: Any,
        *,
        layers: int = 2,
        heads: int = 5,
        rank: int | None = 1,
        tied: bool = False,
        scale: ArrayLike,
    ) -> "LayersInitialiser":
        """key -> `Layers`, each layer drawn as `Separate` or `Merged` attention draws it.

        Layer 0 is what the one-layer model of the same key is.

        - `source`: a task, prompts or a loss, whose sizes D and O these are, or (D, O) itself.
        - `layers`: the number of layers L.
        - `heads`: the number of heads H of each layer.
        - `rank`: the rank R of each head's key-query product; None merges key and query.
        - `tied`: whether all layers share one set of weights (a looped model).
        - `scale`: the init scale w of each layer.
        """
        if rank is None:
            inner = Merged.initialiser(source, heads=heads, scale=scale, blocks=Blocks.FROZEN)
        else:
            inner = Separate.initialiser(
                source, heads=heads, rank=rank, scale=scale, blocks=Blocks.FROZEN
            )
        return LayersInitialiser(inner, layers, tied)

    def weights(self) -> dict[str, Array]:
        return self.stack.weights()

    def shown(self) -> dict[str, Any]:
        """As every model; layers that share their weights are counted too."""
        found = super().shown()
        if "layers" in found:
            found["layers"] = self.layers
        return found | ({"tied": True} if self.tied else {})

    def axes(self) -> dict[str, tuple[str, ...]]:
        present = self.stack.weights()
        return {n: ("layer", *dims) for n, dims in self.stack.axes().items() if n in present}

    def as_attention(self) -> AbstractAttention | None:
        """The one layer of a stack of one; several layers are no single attention."""
        return self.layer(0) if self.layers == 1 else None

    def attention_layers(self) -> tuple[AbstractAttention, ...]:
        return tuple(self.layer(index) for index in range(self.layers))

    @property
    def depth(self) -> int:
        return self.layers

    def single(self) -> AbstractModel:
        return self.layer(0) if self.layers == 1 else self

    def as_initialiser(self) -> "LayersInitialiser":
        each: list[Any] = [layer.as_initialiser() for layer in self.attention_layers()]
        scale = measured_scale([inner.scale for inner in each])
        inner = eqx.tree_at(lambda one: one.scale, each[0], scale)
        return LayersInitialiser(inner, self.layers, self.tied)

    def at_minimum(self, weights: Float[Array, "O O D D"]) -> Self:
        """Every layer takes the best step of one layer.

        That is close to the best tied stack, whose steps are 0.97 (two layers) to 0.8 (eight) of
        it at D = 4, N = 31; no closed form is known for an untied one.
        """
        best = jax.vmap(lambda layer: layer.at_minimum(weights))(self.stack)
        return type(self)(stack=best, layers=self.layers, tied=self.tied)

    def conserved(self) -> dict[str, Array]:
        """What each layer by itself conserves, rows the layers; nothing couples two layers."""
        return jax.vmap(lambda layer: layer.conserved())(self.stack)

    def visits(self, modes: int) -> tuple[int, ...]:
        """Those of the one layer of a stack of one.

        From two layers on a plateau is a pair of ranks, and which are visited depends on the
        start.
        """
        return self.layer(0).visits(modes) if self.layers == 1 else ()


class LayersInitialiser(AbstractInitialiser):
    """See `Layers.initialiser`; `inner` draws one layer."""

    inner: AbstractInitialiser
    layers: int = eqx.field(static=True, converter=partial(require_size, "layers"))
    tied: bool = eqx.field(static=True)

    def __check_init__(self) -> None:
        require_kind("tied", self.tied, bool, "True or False")

    @eqx.filter_jit
    def __call__(self, key: PRNGKeyArray) -> Layers:
        # Layer 0 keeps the key itself, so that it is the one-layer model of the same seed.
        count = 1 if self.tied else self.layers
        keys = jnp.stack([key] + [jax.random.fold_in(key, index) for index in range(1, count)])
        stack = jax.vmap(self.inner)(keys)
        assert isinstance(stack, AbstractAttention)
        return Layers(stack=stack, layers=self.layers, tied=self.tied)
