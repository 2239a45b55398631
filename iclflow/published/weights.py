"""Weights of the published code: its initialisation, its layout, its missing 1/N."""

import enum
from collections.abc import Mapping
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from iclflow.models import (
    MLP,
    AbstractAttention,
    AbstractInitialiser,
    AbstractModel,
    Merged,
    Separate,
    Softmax,
)
from iclflow.study.flags import Options
from iclflow.tasks.base import Prompt

Model = TypeVar("Model", bound=AbstractModel)


class DividedSoftmax(AbstractModel):
    """Softmax attention divided by the prompt's divisor besides.

    The published code divides by the number of tokens at varying length, softmax or not.

    - `attention`: the attention whose softmax is taken.
    """

    attention: AbstractAttention

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        return Softmax(self.attention)(prompt) / prompt.divisor


class InitConvention(enum.Enum):
    """Standard deviations of the separate model's initial weights.

    `FIGURES`: values `init`, keys and queries init/√(R(D+1)), when the figures were made.
    `NEWEST`: values init/(√H(D+1)), keys and queries init/√(HR(D+1)), since heads are stacked;
    the D = 8 runs then no longer leave the first plateau. Merged and MLP: `init` in both.
    """

    FIGURES = "figures"
    NEWEST = "newest"

    def deviations(self, options: Options) -> tuple[float, float]:
        """Of the value weights, and of the keys and queries (merged, MLP: the first layer)."""
        if options.model != "attnS":
            return options.init, options.init
        token = options.in_dim + 1
        entries = options.rank * token
        if self is InitConvention.FIGURES:
            return options.init, options.init / entries**0.5
        heads = options.head_num
        return options.init / (heads**0.5 * token), options.init / (heads * entries) ** 0.5


class PublishedInitialiser(AbstractInitialiser):
    """key -> the model of the published options; the extra blocks start at 0 and are trained.

    - `options`: of the published code.
    - `convention`: how large its initial weights are.
    """

    scale: Float[Array, ""]  # of the value weights: their standard deviation
    other: Float[Array, ""]  # of the other layer(s)
    options: Options = eqx.field(static=True)

    def __init__(
        self, options: Options, convention: InitConvention = InitConvention.FIGURES
    ) -> None:
        """What to draw, and with which of the two conventions."""
        values, other = convention.deviations(options)
        self.scale, self.other = jnp.asarray(values, float), jnp.asarray(other, float)
        self.options = options

    def __call__(self, key: PRNGKeyArray) -> AbstractModel:
        options = self.options
        heads, rank, size = options.head_num, options.rank, options.in_dim
        keys = jax.random.split(key, 3)
        values = self.scale * jax.random.normal(keys[0], (heads, 1, 1))
        if options.model == "mlp":
            first = self.other * jax.random.normal(keys[1], (heads, size * size))
            return MLP(first, values)
        inputs = jnp.zeros((heads, 1, size))
        if options.model == "attnM":
            merged = self.other * jax.random.normal(keys[1], (heads, size, size))
            return wrapped(Merged(values, merged, inputs, inputs), options)
        shape = (heads, rank, size)
        key_rows = self.other * jax.random.normal(keys[1], shape)
        queries = self.other * jax.random.normal(keys[2], shape)
        labels = jnp.zeros((heads, rank, 1))
        return wrapped(Separate(values, key_rows, queries, inputs, labels), options)


def wrapped(attention: AbstractAttention, options: Options) -> AbstractModel:
    """The attention itself, or a softmax of it."""
    if not options.softmax:
        return attention
    return DividedSoftmax(attention) if options.vary_len else Softmax(attention)


def from_published(weights: Mapping[str, np.ndarray], options: Options) -> AbstractModel:
    """The model with the published weights, in double precision.

    Published blocks are stacked over heads. Rows of `kq` are the query's side, so U = kqᵀ; the
    last row of `value` is (𝐯, v). What never reaches the prediction (the other value rows, the
    query's label slot) is dropped.

    - `weights`: the arrays of the published code, by their names there.
    - `options`: of that run; they say the model.

    >>> import jax, iclflow as icl
    >>> model = icl.Merged.initialiser(4, heads=2, scale=0.1)(jax.random.key(0))
    >>> weights = icl.published.to_published(model)
    >>> options = icl.published.Options(model="attnM", head_num=2)
    >>> again = icl.published.from_published(weights, options)
    >>> bool((again.merged == model.merged).all())
    True
    """
    heads, rank, size = options.head_num, options.rank, options.in_dim
    arrays = {name: jnp.asarray(value, float) for name, value in weights.items()}
    if options.model == "mlp":
        # z[a D + b] = β[a] x_q[b] there; here columns of β x_qᵀ are stacked.
        first = jnp.swapaxes(arrays["fc1"].reshape(heads, size, size), 1, 2)
        return MLP(first.reshape(heads, -1), arrays["fc2"].reshape(heads, 1, 1))
    rows = arrays["value"].reshape(heads, size + 1, size + 1)[:, -1]
    values, inputs = rows[:, -1].reshape(heads, 1, 1), rows[:, None, :size]
    if options.model == "attnM":
        kq = arrays["kq"].reshape(heads, size + 1, size + 1)[:, :size]
        merged = jnp.swapaxes(kq[:, :, :size], 1, 2)
        return wrapped(Merged(values, merged, inputs, kq[:, None, :, size]), options)
    key_rows = arrays["key"].reshape(heads, rank, size + 1)
    queries = arrays["query"].reshape(heads, rank, size + 1)[:, :, :size]
    keys, labels = key_rows[:, :, :size], key_rows[:, :, size:]
    return wrapped(Separate(values, keys, queries, inputs, labels), options)


def to_published(model: AbstractModel) -> dict[str, np.ndarray]:
    """The weights in the published layout; entries that reach no prediction are 0.

    - `model`: merged or separate attention, softmax of these, or the MLP.

    >>> import jax, iclflow as icl
    >>> model = icl.Merged.initialiser(4, heads=2, scale=0.1)(jax.random.key(0))
    >>> {name: array.shape for name, array in icl.published.to_published(model).items()}
    {'kq': (10, 5), 'value': (10, 5)}
    """
    if isinstance(model, MLP):
        heads, squared = model.first.shape
        size = round(squared**0.5)
        first = np.swapaxes(np.asarray(model.first).reshape(heads, size, size), 1, 2)
        return {"fc1": first.reshape(heads, -1), "fc2": np.asarray(model.second).reshape(1, heads)}
    attention = model.attention if isinstance(model, Softmax | DividedSoftmax) else model
    assert isinstance(attention, Merged | Separate)
    heads, size = attention.values.shape[0], attention.input_size
    value = np.zeros((heads, size + 1, size + 1))
    value[:, -1] = np.asarray(attention.value_rows())[:, 0]
    value = value.reshape(heads * (size + 1), size + 1)
    if isinstance(attention, Merged):
        kq = np.zeros((heads, size + 1, size + 1))
        kq[:, :size] = np.swapaxes(np.asarray(attention.key_query()), 1, 2)
        return {"kq": kq.reshape(heads * (size + 1), size + 1), "value": value}
    rows = np.asarray(attention.key_rows()).reshape(-1, size + 1)
    queries = np.zeros_like(rows)
    queries[:, :size] = np.asarray(attention.queries).reshape(-1, size)
    return {"key": rows, "query": queries, "value": value}


def value_weights(model: AbstractModel) -> Float[Array, " H"]:
    """v_h, the label-to-output entry of every head (MLP: the second layer)."""
    if isinstance(model, MLP):
        return model.second[:, 0, 0]
    attention = model.attention if isinstance(model, Softmax | DividedSoftmax) else model
    assert isinstance(attention, AbstractAttention)
    return attention.values[:, 0, 0]


def normalised(model: Model, rate: float, divisor: float | int) -> tuple[Model, float]:
    """Weights and rate that give, with S divided by F = `divisor`, the same loss at every step.

    Three factors in a prediction (separate): weights times F^(1/3), rate times F^(2/3). Two
    (merged, MLP): F^(1/2) and F. All blocks scale alike. Plain gradient descent on linear models
    of one fixed length only (E8). The paper's formulas with N pairs need F = N.

    - `model`, `rate`: weights and rate where S is not divided.

    >>> import jax, iclflow as icl
    >>> model = icl.Merged.initialiser(4, heads=2, scale=0.1)(jax.random.key(0))
    >>> other, rate = icl.published.normalised(model, rate=0.001, divisor=31)
    >>> round(rate, 6)
    0.031
    """
    if not isinstance(model, Merged | Separate | MLP):
        raise ValueError(
            f"only linear attention and the MLP can be rescaled, got {type(model).__name__}"
        )
    factors = 3 if isinstance(model, Separate) else 2
    scaled = jax.tree.map(lambda w: w * divisor ** (1 / factors), model)
    return scaled, rate * divisor ** (2 / factors)
