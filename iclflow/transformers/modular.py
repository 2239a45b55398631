"""The transformer that groks: one layer with an MLP, on the tokens a, b, = of modular arithmetic.

Width d, H heads of size e = d/H, m hidden units with ReLU, learned positions, no layer norm. Only
the token = gives an answer, and it is the same in every example; the batched form uses that. The
full-batch cross-entropy is over the pairs that are trained on.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from iclflow.linalg import FactoredMatrix
from iclflow.losses import AbstractLoss
from iclflow.models import AbstractInitialiser, AbstractModel
from iclflow.tasks.checks import require_size


class ModularTransformer(AbstractModel):
    """x ← x + Σ_h softmax(mask(q_h k_hᵀ)/√e) v_h W_O; x ← x + relu(x W_in + b) W_out + c; x W_U.

    x starts as W_E[token] + W_pos[position]; q, k, v are x times W_Q, W_K, W_V. Numbers are the
    tokens 0 … p - 1, and = is the token p.
    """

    embedding: Float[Array, "V d"]  # V = p + 1
    positions: Float[Array, "3 d"]
    query: Float[Array, "H d e"]
    key: Float[Array, "H d e"]
    value: Float[Array, "H d e"]
    output: Float[Array, "H e d"]
    hidden: Float[Array, "d m"]  # W_in
    hidden_bias: Float[Array, " m"]
    readout: Float[Array, "m d"]  # W_out
    readout_bias: Float[Array, " d"]
    unembedding: Float[Array, "d p"]

    @property
    def modulus(self) -> int:
        """The number of numbers p."""
        return self.unembedding.shape[-1]

    def __call__(self, prompt: Int[Array, " 3"]) -> Float[Array, " p"]:
        """Logits at the last of three tokens: the definition, token by token."""
        x = self.embedding[prompt] + self.positions
        query, key, value = (
            jnp.einsum("nd,hde->hne", x, weights) for weights in (self.query, self.key, self.value)
        )
        scores = jnp.einsum("hne,hke->hnk", query, key) * self.query.shape[-1] ** -0.5
        visible = jnp.tril(jnp.ones(scores.shape[1:], bool))
        pattern = jax.nn.softmax(jnp.where(visible[None], scores, -jnp.inf), axis=-1)
        x = x + jnp.einsum("hnk,hke,hed->nd", pattern, value, self.output)
        active = jax.nn.relu(x @ self.hidden + self.hidden_bias[None])
        x = x + active @ self.readout + self.readout_bias[None]
        return x[-1] @ self.unembedding

    def logits(self, first: Int[Array, " n"], second: Int[Array, " n"]) -> Float[Array, "n p"]:
        """Logits of n examples (a, b, =): the same function at a fraction of the work.

        The query of = is one vector, so scores and values are tables over the p numbers; what
        leads from the heads to the hidden units, and from these to the logits, is multiplied out
        once. That is m(d + p) + 3dp products an example, against 12d² + 6dm + dp by definition.
        """
        heads, width, size = self.value.shape
        last = self.embedding[-1] + self.positions[2]
        query = jnp.einsum("d,hde->he", last, self.query) * size**-0.5
        sought = jnp.einsum("hde,he->dh", self.key, query)
        values = self.value.transpose(1, 0, 2).reshape(width, -1)
        reads = jnp.concatenate([sought, values], axis=1)  # [d, H + He]
        tables = [(self.embedding[:-1] + self.positions[i][None]) @ reads for i in (0, 1)]
        seen = (_rows(tables[0], first), _rows(tables[1], second), (last @ reads)[None])
        # The softmax by hand: with the three stacked in one array a step takes twice as long.
        scores = [x[:, :heads] for x in seen]
        top = jax.lax.stop_gradient(functools.reduce(jnp.maximum, scores))
        weights = [jnp.exp(score - top) for score in scores]
        total = weights[0] + weights[1] + weights[2]
        parts = [
            (weight / total)[..., None] * x[:, heads:].reshape(-1, heads, size)
            for weight, x in zip(weights, seen, strict=True)
        ]
        mixed = (parts[0] + parts[1] + parts[2]).reshape(-1, heads * size)
        output = self.output.reshape(-1, width)
        bias = last @ self.hidden + self.hidden_bias
        active = jax.nn.relu(mixed @ (output @ self.hidden) + bias[None])
        direct = mixed @ (output @ self.unembedding)
        constant = (last + self.readout_bias) @ self.unembedding
        return active @ (self.readout @ self.unembedding) + direct + constant[None]

    def circuits(self) -> dict[str, FactoredMatrix]:
        """QK = W_Q W_Kᵀ and OV = W_V W_O as factors, a batch [H] each."""
        factored = jax.vmap(FactoredMatrix)
        return {
            "QK": factored(self.query, jnp.swapaxes(self.key, -1, -2)),
            "OV": factored(self.value, self.output),
        }

    def weight_norm(self) -> Float[Array, ""]:
        """The root of the sum of all squared weights."""
        return jnp.linalg.norm(
            jnp.stack([jnp.linalg.norm(w.ravel()) for w in jax.tree.leaves(self)])
        )

    def tensors(self) -> Mapping[str, Array | np.ndarray]:
        """The weights under the names of TransformerLens."""
        attention = {"Q": self.query, "K": self.key, "V": self.value, "O": self.output}
        return {
            "embed.W_E": self.embedding,
            "pos_embed.W_pos": self.positions,
            **{f"blocks.0.attn.W_{name}": weights for name, weights in attention.items()},
            "blocks.0.mlp.W_in": self.hidden,
            "blocks.0.mlp.b_in": self.hidden_bias,
            "blocks.0.mlp.W_out": self.readout,
            "blocks.0.mlp.b_out": self.readout_bias,
            "unembed.W_U": self.unembedding,
        }


def _rows(table: Float[Array, "p k"], index: Int[Array, " n"]) -> Float[Array, "n k"]:
    """Rows of a table, by a product: its gradient adds in a fixed order on every device."""
    return jax.nn.one_hot(index, table.shape[0], dtype=table.dtype) @ table


class ModularInitialiser(AbstractInitialiser):
    """key -> `ModularTransformer` with Gaussian weights, biases zero; the standard set-up.

    The standard deviation is d^(-1/2) throughout, whatever the inputs of a matrix, and p^(-1/2) in
    the unembedding. Single precision unless said otherwise.
    """

    modulus: int = eqx.field(static=True, default=113)
    width: int = eqx.field(static=True, default=128)
    heads: int = eqx.field(static=True, default=4)
    hidden: int = eqx.field(static=True, default=512)
    precision: str = eqx.field(static=True, default="float32")

    def __check_init__(self) -> None:
        sizes = ("modulus", "width", "heads", "hidden")
        for name in sizes:
            require_size(name, getattr(self, name))
        if self.width % self.heads:
            raise ValueError(
                f"the width must be a multiple of the heads, got {self.width} and {self.heads}"
            )

    def __call__(self, key: PRNGKeyArray) -> ModularTransformer:
        keys = jax.random.split(key, 9)
        d, m, p, h = self.width, self.hidden, self.modulus, self.heads

        def draw(*places: int, numbers: int) -> Array:
            """As many for each of some keys: weights of one size share a draw, and compile once."""
            normal = lambda one: jax.random.normal(one, (numbers,), self.precision)  # noqa: E731
            return d**-0.5 * jax.vmap(normal)(keys[np.asarray(places)])

        [embedding], [positions] = draw(0, numbers=(p + 1) * d), draw(1, numbers=3 * d)
        query, key_, value, output = draw(2, 3, 4, 5, numbers=d * d)
        hidden, readout = draw(6, 7, numbers=d * m)
        unembedding = p**-0.5 * jax.random.normal(keys[8], (d, p), self.precision)
        inward = (h, d, d // h)
        return ModularTransformer(
            embedding=embedding.reshape(p + 1, d),
            positions=positions.reshape(3, d),
            query=query.reshape(inward),
            key=key_.reshape(inward),
            value=value.reshape(inward),
            output=output.reshape(h, d // h, d),
            hidden=hidden.reshape(d, m),
            hidden_bias=jnp.zeros((m,), self.precision),
            readout=readout.reshape(m, d),
            readout_bias=jnp.zeros((d,), self.precision),
            unembedding=unembedding,
        )


OPERATIONS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "addition": np.add,
    "subtraction": np.subtract,
    "multiplication": np.multiply,
}


class ModularArithmetic(AbstractLoss):
    """The mean cross-entropy of the answers mod p over a set of pairs (a, b), in nats.

    - `first`, `second`: the numbers a and b.
    - `answers`: the number to be answered, such as a + b mod p.
    - `modulus`: p.
    """

    first: Int[Array, " n"]
    second: Int[Array, " n"]
    answers: Int[Array, " n"]
    modulus: int = eqx.field(static=True)

    def __call__(self, model: AbstractModel) -> Float[Array, ""]:
        return jnp.mean(cross_entropies(self._logits(model), self.answers))

    def accuracy(self, model: AbstractModel) -> Float[Array, ""]:
        """The share of pairs whose answer has the largest logit."""
        return jnp.mean(jnp.argmax(self._logits(model), axis=1) == self.answers)

    def admits(self, model: AbstractModel) -> str | None:
        if not isinstance(model, ModularTransformer):
            return "modular arithmetic needs a model of its three tokens, a ModularTransformer"
        if model.modulus != self.modulus:
            return f"the model answers modulo {model.modulus}, the pairs are modulo {self.modulus}"
        return None

    def _logits(self, model: Any) -> Float[Array, "n p"]:
        return model.logits(self.first, self.second)


def split_pairs(
    modulus: int, fraction: float, key: PRNGKeyArray, operation: str = "addition"
) -> tuple[ModularArithmetic, ModularArithmetic]:
    """Training and test loss: a random ⌊fraction p²⌋ of the p² ordered pairs, and the others.

    - `modulus`: p.
    - `fraction`: the share of the pairs that are trained on.
    - `key`: of the draw.
    - `operation`: what is answered: "addition", "subtraction" or "multiplication".

    >>> import jax
    >>> from iclflow.transformers.modular import split_pairs
    >>> train, test = split_pairs(5, 0.4, jax.random.key(0), "subtraction")
    >>> train.first.size, test.first.size
    (10, 15)
    >>> bool(((train.first - train.second - train.answers) % 5 == 0).all())
    True
    """
    if modulus < 2 or not 0 < fraction < 1:
        raise ValueError(
            f"a split needs a modulus of at least 2 and a fraction between 0 and 1, got {modulus} "
            f"and {fraction}; the standard set-up has 113 and 0.3"
        )
    if operation not in OPERATIONS:
        raise ValueError(f"the operation is one of {', '.join(OPERATIONS)}, got {operation!r}")
    count = int(fraction * modulus**2)
    if count == 0:
        raise ValueError(f"{fraction:g} of {modulus**2} pairs is none; take a larger fraction")
    order = np.asarray(jax.random.permutation(key, modulus**2))

    def loss(pairs: np.ndarray) -> ModularArithmetic:
        first, second = np.divmod(np.sort(pairs).astype(np.int32), modulus)
        answers = np.mod(OPERATIONS[operation](first, second), modulus)
        one, two, answered = map(jnp.asarray, (first, second, answers))
        return ModularArithmetic(one, two, answered, modulus)

    return loss(order[:count]), loss(order[count:])


def cross_entropies(logits: Float[Array, "n p"], answers: Int[Array, " n"]) -> Float[Array, " n"]:
    """-ln softmax(l)_y as softplus(ln Σ_{j≠y} exp l_j - l_y), for every example.

    The usual difference l_y - ln Σ_j exp l_j has an absolute error of one rounding: below 1e-7
    the loss in single precision is then noise and its gradient does not sum to zero, which sets
    off spikes late in training. This form keeps the relative precision of loss and gradient
    however small they are, in either precision.
    """
    right: Bool[Array, "n p"] = jnp.arange(logits.shape[1])[None] == answers[:, None]
    others = jax.nn.logsumexp(jnp.where(right, -jnp.inf, logits), axis=1)
    return jax.nn.softplus(others - jnp.sum(jnp.where(right, logits, 0), axis=1))
