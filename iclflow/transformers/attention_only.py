"""Attention-only transformers: layers of causal softmax attention over a residual stream.

The spectra and subspaces of their QK and OV circuits are taken on the device, as factors.
"""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from iclflow.linalg import FactoredMatrix
from iclflow.measures import effective_rank, unexplained
from iclflow.models import AbstractInitialiser, AbstractModel
from iclflow.models.transformer import layer_norm
from iclflow.tasks.checks import require_size


class AttentionOnly(AbstractModel):
    """x ← x + Σ_h softmax(mask(q_h k_hᵀ)/√e) v_h W_O, L times; logits = norm(x) W_U.

    x starts as W_E[token] + W_pos[position]; q, k, v are norm(x) times W_Q, W_K, W_V. The norm is
    the layer norm without parameters, and nothing has a bias, so that all that is learned is in
    QK = W_Q W_Kᵀ and OV = W_V W_O of each head and in the (un)embedding. Works on ONE sequence.

    - `embedding`, `positions`: what the stream starts as, by token and by position.
    - `query`, `key`, `value`: W_Q, W_K and W_V of every layer and head.
    - `output`: W_O, from a head back to the stream.
    - `unembedding`: from the stream to the logits.

    >>> import jax, jax.numpy as jnp
    >>> from iclflow.transformers import AttentionOnlyInitialiser
    >>> model = AttentionOnlyInitialiser(8, 6, layers=2, width=4, heads=2)(jax.random.key(0))
    >>> model(jnp.array([3, 1, 3])).shape
    (3, 8)
    """

    embedding: Float[Array, "V d"]
    positions: Float[Array, "T d"]
    query: Float[Array, "L H d e"]
    key: Float[Array, "L H d e"]
    value: Float[Array, "L H d e"]
    output: Float[Array, "L H e d"]
    unembedding: Float[Array, "d V"]

    def __check_init__(self) -> None:
        # Also for stacked models: a seed axis may be in front.
        (*_, vocabulary, width), (*_, size, _) = self.embedding.shape, self.output.shape
        shapes = {
            "positions": (self.context, width),
            "key": self.query.shape[-4:],
            "value": self.query.shape[-4:],
            "output": (*self.query.shape[-4:-2], size, width),
            "unembedding": (width, vocabulary),
        }
        for name, needed in shapes.items():
            found = getattr(self, name).shape
            if tuple(found[-len(needed) :]) != tuple(needed):
                raise ValueError(f"{name} must have shape {needed}, got {found}")

    @property
    def vocabulary(self) -> int:
        """The number of tokens V."""
        return self.embedding.shape[-2]

    @property
    def context(self) -> int:
        """The longest sequence T."""
        return self.positions.shape[-2]

    @property
    def depth(self) -> int:
        """The number of layers L."""
        return self.query.shape[-4]

    def __call__(self, prompt: Int[Array, " n"]) -> Float[Array, "n V"]:
        return self.run(prompt)[0]

    def attention(self, tokens: Int[Array, " n"]) -> Float[Array, "L H n n"]:
        """The attention of every position (row) to every other, layer by layer."""
        return self.run(tokens)[1]

    def run(self, tokens: Int[Array, " n"]) -> tuple[Float[Array, "n V"], Float[Array, "L H n n"]]:
        """Logits for the next token at every position, and the attention on the way."""
        length = tokens.shape[0]
        if length > self.context:
            raise ValueError(f"{length} tokens are more than the {self.context} positions learned")
        # A product rather than a look-up: its gradient adds in a fixed order on every device.
        chosen = jax.nn.one_hot(tokens, self.vocabulary, dtype=self.embedding.dtype)
        stream = chosen @ self.embedding + self.positions[:length]
        visible = jnp.tril(jnp.ones((length, length), bool))
        patterns = []
        for layer in range(self.depth):
            stream, pattern = self._layer(layer, stream, visible)
            patterns.append(pattern)
        return layer_norm(stream) @ self.unembedding, jnp.stack(patterns)

    def _layer(self, layer: int, stream: Array, visible: Array) -> tuple[Array, Array]:
        normal = layer_norm(stream)
        query, key, value = (
            jnp.einsum("nd,hde->hne", normal, weights[layer])
            for weights in (self.query, self.key, self.value)
        )
        scores = jnp.einsum("hne,hme->hnm", query, key) * self.query.shape[-1] ** -0.5
        pattern = jax.nn.softmax(jnp.where(visible[None], scores, -jnp.inf), axis=-1)
        mixed = jnp.einsum("hnm,hme->hne", pattern, value)
        return stream + jnp.einsum("hne,hed->nd", mixed, self.output[layer]), pattern

    def circuits(self) -> dict[str, FactoredMatrix]:
        """QK = W_Q W_Kᵀ and OV = W_V W_O as factors, a batch [L, H] each."""
        factored = jax.vmap(jax.vmap(FactoredMatrix))
        return {
            "QK": factored(self.query, jnp.swapaxes(self.key, -1, -2)),
            "OV": factored(self.value, self.output),
        }

    def tensors(self) -> Mapping[str, Array | np.ndarray]:
        """The weights under the names of TransformerLens."""
        named = {"embed.W_E": self.embedding, "pos_embed.W_pos": self.positions}
        for layer in range(self.depth):
            stem = f"blocks.{layer}.attn."
            named |= {
                stem + "W_Q": self.query[layer],
                stem + "W_K": self.key[layer],
                stem + "W_V": self.value[layer],
                stem + "W_O": self.output[layer],
            }
        return {**named, "unembed.W_U": self.unembedding}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Array | np.ndarray], where: str = "weights") -> Self:
        """The model whose `tensors()` these are; `where` names them in the error.

        >>> import jax
        >>> from iclflow.transformers import AttentionOnly, AttentionOnlyInitialiser
        >>> model = AttentionOnlyInitialiser(8, 8, layers=2, width=4, heads=2)(jax.random.key(0))
        >>> AttentionOnly.of_tensors(model.tensors()).depth
        2
        """
        depth = len({name for name in tensors if re.fullmatch(r"blocks\.\d+\.attn\.W_Q", name)})
        parts = {f"W_{letter}": [f"blocks.{i}.attn.W_{letter}" for i in range(depth)]
                 for letter in "QKVO"}  # fmt: skip
        ends = ("embed.W_E", "pos_embed.W_pos", "unembed.W_U")
        needed = [*ends, *(name for names in parts.values() for name in names)]
        differs = [f"it lacks {name}" for name in needed if name not in tensors]
        differs += [f"it also has {name}" for name in tensors if name not in needed]
        if differs or not depth:
            raise ValueError(
                f"{where} is not an attention-only transformer under the names of TransformerLens: "
                f"{(differs or ['it has no layer'])[0]}; score other models by their own attention "
                f"(measures.prefix_matching_score)"
            )
        embedding, positions, unembedding = (jnp.asarray(tensors[name]) for name in ends)
        query, key, value, output = (
            jnp.stack([jnp.asarray(tensors[name]) for name in names]) for names in parts.values()
        )
        return cls(embedding, positions, query, key, value, output, unembedding)


class AttentionOnlyInitialiser(AbstractInitialiser):
    """key -> `AttentionOnly` with Gaussian weights of variance 1/(inputs of the matrix).

    W_O has a further 1/(2L), so that deeper streams start no larger. Single precision unless said
    otherwise, also where the program's default is double: training gains nothing from more.

    - `vocabulary`, `context`: the number of tokens V and the longest sequence T.
    - `layers`, `heads`, `width`: L, H and the width d of the stream, a multiple of H.
    - `embedding_scale`: the standard deviation of the rows of tokens and of positions.
    - `precision`: the type of the weights.

    >>> import jax
    >>> from iclflow.transformers import AttentionOnlyInitialiser
    >>> init = AttentionOnlyInitialiser(8, 6, layers=2, width=4, heads=2)
    >>> init(jax.random.key(0)).depth
    2
    """

    vocabulary: int = eqx.field(static=True)
    context: int = eqx.field(static=True)
    layers: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    heads: int = eqx.field(static=True)
    embedding_scale: float = eqx.field(static=True, default=0.3)  # of tokens and of positions
    precision: str = eqx.field(static=True, default="float32")

    def __check_init__(self) -> None:
        sizes = ("vocabulary", "context", "layers", "width", "heads")
        for name in sizes:
            require_size(name, getattr(self, name))
        if self.width % self.heads:
            raise ValueError(
                f"the width must be a multiple of the heads, got {self.width} and {self.heads}"
            )

    def __call__(self, key: PRNGKeyArray) -> AttentionOnly:
        size, spread = self.width // self.heads, self.width**-0.5
        inward = (self.layers, self.heads, self.width, size)
        weights = {
            "embedding": (self.embedding_scale, (self.vocabulary, self.width)),
            "positions": (self.embedding_scale, (self.context, self.width)),
            "query": (spread, inward),
            "key": (spread, inward),
            "value": (spread, inward),
            "output": (
                spread * (2 * self.layers) ** -0.5,
                (self.layers, self.heads, size, self.width),
            ),
            "unembedding": (spread, (self.width, self.vocabulary)),
        }
        # One draw for all: seven would take seven times as long to compile.
        counts = [math.prod(shape) for _, shape in weights.values()]
        normal = jax.random.normal(key, (sum(counts),), self.precision)
        parts = jnp.split(normal, np.cumsum(counts)[:-1])
        return AttentionOnly(
            **{
                name: scale * part.reshape(shape)
                for (name, (scale, shape)), part in zip(weights.items(), parts, strict=True)
            }
        )


CIRCUITS = ("QK", "OV")


class Spectrum(NamedTuple):
    """Of each head of a model, [circuit, layer, head, ...]: enough for every measure later on.

    - `values`: the singular values, largest first.
    - `basis`: the leading right singular vectors, as rows.
    """

    values: Float[Array, "*batch C L H e"]
    basis: Float[Array, "*batch C L H k d"]


def spectrum(model: AttentionOnly, rank: int) -> Spectrum:
    """Singular values of QK and OV, and their `rank` leading right singular vectors.

    - `model`: whose circuits they are.
    - `rank`: how many vectors are kept.

    >>> import jax
    >>> from iclflow.transformers import AttentionOnlyInitialiser, spectrum
    >>> model = AttentionOnlyInitialiser(8, 6, layers=2, width=4, heads=2)(jax.random.key(0))
    >>> spectrum(model, 1).basis.shape  # circuits, layers, heads, vectors, width
    (2, 2, 2, 1, 4)
    """
    # All heads of both circuits in one batch: a device calls each factorisation once.
    both = jax.tree.map(lambda *parts: jnp.stack(parts), *model.circuits().values())
    leading = jax.vmap(jax.vmap(jax.vmap(lambda matrix: matrix.right_svd(rank))))
    return Spectrum(*leading(both))


def effective_ranks(values: Float[Array, "*batch e"]) -> Float[Array, "*batch"]:
    """exp(-Σ σ̂ ln σ̂) of every head, (15) of Mainali & Teixeira (2025).

    - `values`: the singular values, whose shares of their sum are σ̂.

    >>> import jax.numpy as jnp
    >>> from iclflow.transformers import effective_ranks
    >>> [round(float(rank), 3) for rank in effective_ranks(jnp.array([[2.0, 2.0], [1.0, 0.0]]))]
    [2.0, 1.0]
    """
    flat = jax.vmap(effective_rank)(values.reshape(-1, values.shape[-1]))
    return flat.reshape(values.shape[:-1])


def distances_to_end(
    basis: Float[Array, "T C L H k d"], final: AttentionOnly
) -> Float[Array, "T C L H"]:
    """‖M∞ (I - V Vᵀ)‖_F / ‖M∞‖_F, (16) of Mainali & Teixeira (2025), at each time.

    - `basis`: V, the leading right singular vectors at each time, as `spectrum` gives them.
    - `final`: the model whose circuits are M∞.

    >>> import jax
    >>> from iclflow.transformers import AttentionOnlyInitialiser, distances_to_end, spectrum
    >>> model = AttentionOnlyInitialiser(8, 6, layers=1, width=4, heads=2)(jax.random.key(0))
    >>> whole = distances_to_end(spectrum(model, 2).basis[None], model)  # heads have rank 2
    >>> bool((whole < 1e-5).all())
    True
    """
    of_heads = jax.vmap(jax.vmap(unexplained))
    of_times = jax.vmap(of_heads, in_axes=(None, 0))
    ends = final.circuits()
    return jnp.stack([of_times(ends[name], basis[:, c]) for c, name in enumerate(CIRCUITS)], axis=1)
