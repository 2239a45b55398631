"""The transformers that most work on in-context regression trains: layers, norm, MLP, positions."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, PRNGKeyArray

from iclflow.models.base import AbstractInitialiser, AbstractModel, dims_of, require_scale
from iclflow.tasks.base import Prompt
from iclflow.tasks.checks import require_kind, require_size

EPSILON = 1e-5  # in the layer norm


class Transformer(AbstractModel):
    """L layers of softmax attention over the tokens of a prompt, and a linear reading of the query.

    A token is embedded by one matrix into a stream of width d. Each layer does
    x ← x + Σ_h softmax(q_h k_hᵀ/√e) v_h W_O, and x ← x + gelu(x W + b) W' + b' if there is an MLP.
    With `norm`, attention, MLP and the reading take the layer norm of the stream without
    parameters. ŷ is the reading of the query's token.

    There are two layouts. Without positions a token is a pair (x_n, y_n), the query is (x_q, 0),
    and all attend to all: the order of the pairs does not matter. With positions the tokens are
    x_1, y_1, x_2, y_2, …, and each attends to itself and to those before: the stream of
    language models. It predicts y_n at every x_n, so that one pass has the predictions after
    0, 1, …, N pairs (`along`), which a loss over several `lengths` uses.

    It computes in the precision of its weights, single unless said otherwise.

    - `embedding`: rows are the D inputs, then the O labels.
    - `query`, `key`, `value`, `output`: of every layer and head.
    - `reading`: stream to prediction.
    - `positions`: what is added to the tokens 1 … 2N + 1; None for pairs.
    - `up`, `up_bias`, `down`, `down_bias`: of the MLP of every layer; None without it.
    - `norm`: whether there is a layer norm.

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=8)
    >>> init = icl.Transformer.initialiser(task, layers=2, width=16, mlp=2, causal=True)
    >>> model = init(jax.random.key(0))
    >>> model(task.sample(jax.random.key(1))).shape, model.reading.dtype
    ((1,), dtype('float32'))
    """

    embedding: Float[Array, "T d"]
    query: Float[Array, "L H d e"]
    key: Float[Array, "L H d e"]
    value: Float[Array, "L H d e"]
    output: Float[Array, "L H e d"]
    reading: Float[Array, "d O"]
    positions: Float[Array, "n d"] | None = None
    up: Float[Array, "L d m"] | None = None
    up_bias: Float[Array, "L m"] | None = None
    down: Float[Array, "L m d"] | None = None
    down_bias: Float[Array, "L d"] | None = None
    norm: bool = eqx.field(static=True, default=True)

    @property
    def reads_causally(self) -> bool:
        return self.positions is not None

    def dims(self) -> tuple[int, int]:
        outputs = self.reading.shape[-1]
        return self.embedding.shape[-2] - outputs, outputs

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        length = prompt.context if prompt.length is None else prompt.length
        if self.reads_causally:
            return self.along(prompt)[length]
        visible = jnp.arange(prompt.context + 1) <= length
        tokens = prompt.tokens.astype(self.embedding.dtype)
        return self._run(tokens, jnp.broadcast_to(visible[None, :], (len(visible),) * 2))[length]

    def along(self, prompt: Prompt) -> Float[Array, "n O"]:
        """The predictions after 0, 1, …, N pairs, of a model that reads causally."""
        if self.positions is None:
            raise ValueError(
                "a transformer over pairs has one prediction per prompt; make it with causal=True"
            )
        points, (size, outputs) = len(prompt.inputs), self.dims()
        count = 2 * points - 1  # the label of the query is never seen
        if count > len(self.positions):
            raise ValueError(
                f"{points - 1} pairs are {count} tokens, more than the {len(self.positions)} "
                f"positions of this model; make it for a longer context"
            )
        kind = self.embedding.dtype
        inputs = jnp.pad(prompt.inputs.astype(kind), ((0, 0), (0, outputs)))
        labels = jnp.pad(prompt.labels.astype(kind), ((0, 0), (size, 0)))
        tokens = jnp.stack([inputs, labels], axis=1).reshape(2 * points, -1)[:count]
        return self._run(tokens, jnp.tril(jnp.ones((count, count), bool)))[::2]

    def _run(self, tokens: Float[Array, "n T"], visible: Bool[Array, "n n"]) -> Float[Array, "n O"]:
        """The reading of every token."""
        stream = tokens @ self.embedding
        if self.positions is not None:
            stream = stream + self.positions[: len(tokens)]
        normal = layer_norm if self.norm else lambda stream: stream
        for layer in range(self.query.shape[0]):
            seen = normal(stream)
            query, key, value = (
                jnp.einsum("nd,hde->hne", seen, weights[layer])
                for weights in (self.query, self.key, self.value)
            )
            scores = jnp.einsum("hne,hme->hnm", query, key) * self.query.shape[-1] ** -0.5
            pattern = jax.nn.softmax(jnp.where(visible[None], scores, -jnp.inf), axis=-1)
            mixed = jnp.einsum("hnm,hme->hne", pattern, value)
            stream = stream + jnp.einsum("hne,hed->nd", mixed, self.output[layer])
            if self.up is not None:
                assert self.up_bias is not None
                assert self.down is not None
                assert self.down_bias is not None
                inner = jax.nn.gelu(normal(stream) @ self.up[layer] + self.up_bias[layer][None])
                stream = stream + inner @ self.down[layer] + self.down_bias[layer][None]
        return normal(stream) @ self.reading

    def axes(self) -> dict[str, tuple[str, ...]]:
        inward = ("layer", "head", "stream", "unit")
        found = {
            "embedding": ("slot", "stream"),
            **dict.fromkeys(("query", "key", "value"), inward),
            "output": ("layer", "head", "unit", "stream"),
            "reading": ("stream", "output"),
            "positions": ("position", "stream"),
            "up": ("layer", "stream", "hidden"),
            "up_bias": ("layer", "hidden"),
            "down": ("layer", "hidden", "stream"),
            "down_bias": ("layer", "stream"),
        }
        present = self.weights()
        return {name: dims for name, dims in found.items() if name in present}

    @classmethod
    def initialiser(
        cls,
        source: Any,
        *,
        layers: int = 2,
        heads: int = 2,
        width: int = 32,
        mlp: int = 0,
        norm: bool = True,
        causal: bool = False,
        scale: ArrayLike = 1.0,
        precision: str = "float32",
    ) -> "TransformerInitialiser":
        """key -> `Transformer` with Gaussian weights of variance scale²/(inputs of the matrix).

        - `source`: a task, prompts or a loss, which says the sizes D and O (see `dims_of`), and,
          for `causal`, the context: a task or prompts.
        - `layers`, `heads`: L, and H of each layer.
        - `width`: d of the stream, a multiple of the heads.
        - `mlp`: the hidden units of each layer's MLP over the width; 0 for none.
        - `norm`: whether there is a layer norm.
        - `causal`: x and y as tokens of their own, with positions; else pairs.
        - `scale`: times the usual standard deviations. W_O and W' have a further 1/√(2L).
        - `precision`: "float32" or "float64", of weights and computation.
        """
        norm, causal = (
            require_kind(name, value, bool, "True or False")
            for name, value in (("norm", norm), ("causal", causal))
        )
        context = 0
        if causal:
            context = getattr(source, "context", 0)
            if not context:
                raise ValueError(
                    "a causal transformer has a position for every token, so that it needs the "
                    "context; give its initialiser the task or the prompts"
                )
        if precision not in ("float32", "float64"):
            raise ValueError(f"the precision is float32 or float64, got {precision!r}")
        size, outputs = dims_of(source)
        found = TransformerInitialiser(
            scale=require_scale("scale", scale),
            size=size,
            outputs=outputs,
            layers=require_size("layers", layers),
            heads=require_size("heads", heads),
            width=require_size("width", width),
            mlp=require_size("mlp", mlp, 0),
            context=context,
            norm=norm,
            precision=precision,
        )
        if found.width % found.heads:
            raise ValueError(
                f"the width must be a multiple of the heads, got {found.width} and {found.heads}"
            )
        return found


class TransformerInitialiser(AbstractInitialiser):
    """See `Transformer.initialiser`; `context` is 0 for pairs."""

    scale: Float[Array, ""]
    size: int = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    layers: int = eqx.field(static=True)
    heads: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    mlp: int = eqx.field(static=True)
    context: int = eqx.field(static=True)
    norm: bool = eqx.field(static=True)
    precision: str = eqx.field(static=True)

    @eqx.filter_jit
    def __call__(self, key: PRNGKeyArray) -> Transformer:
        layers, heads, width, hidden = self.layers, self.heads, self.width, self.mlp * self.width
        tokens, outward = self.size + self.outputs, (2 * layers) ** -0.5
        inward = (width**-0.5, (layers, heads, width, width // heads))
        shapes = {
            "embedding": (tokens**-0.5, (tokens, width)),
            **dict.fromkeys(("query", "key", "value"), inward),
            "output": (outward * width**-0.5, (layers, heads, width // heads, width)),
            "reading": (width**-0.5, (width, self.outputs)),
        }
        if self.context:
            shapes["positions"] = (0.3, (2 * self.context + 1, width))
        if hidden:
            shapes["up"] = (width**-0.5, (layers, width, hidden))
            shapes["down"] = (outward * hidden**-0.5, (layers, hidden, width))
        counts = [math.prod(shape) for _, shape in shapes.values()]
        # One draw for all: several would take several times as long to compile.
        normal = jax.random.normal(key, (sum(counts),), self.precision)
        scale, found, start = self.scale.astype(self.precision), {}, 0
        for (name, (deviation, shape)), count in zip(shapes.items(), counts, strict=True):
            found[name] = scale * deviation * normal[start : start + count].reshape(shape)
            start += count
        if hidden:
            found["up_bias"] = jnp.zeros((layers, hidden), self.precision)
            found["down_bias"] = jnp.zeros((layers, width), self.precision)
        return Transformer(**found, norm=self.norm)


def layer_norm(stream: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """(x - mean)/√(variance + ε) along the width, without gain and bias."""
    centred = stream - jnp.mean(stream, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + EPSILON)
