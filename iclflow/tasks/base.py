"""What a task is, and its prompts: context pairs and a query, as a model sees them (1)."""

import abc
import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from iclflow.results.display import Displayed

Result = TypeVar("Result")


class Normaliser(enum.Enum):
    """What linear attention divides its sum over tokens by, for a context of n pairs.

    The paper writes 1/N with the query not counted (`PAIRS`). The published code divides by
    nothing at fixed length (`NONE`) and by the number of tokens at varying length (`TOKENS`).
    With one fixed length the choices are rescalings of one another (E8); with varying length
    they are different models (E3).

    >>> import iclflow as icl
    >>> [what.value for what in icl.Normaliser]
    ['pairs', 'tokens', 'context', 'none']
    """

    PAIRS = "pairs"  # n
    TOKENS = "tokens"  # n + 1, the query counted
    CONTEXT = "context"  # the longest context N, whatever n is
    NONE = "none"  # 1


class Prompt(eqx.Module):
    """A sequence of N + 1 points and the prefix of it that is shown.

    A prefix of length n is n labelled pairs followed by point n as the query; its label slot is
    0 and its target is `targets[n]`. `length = None` is the whole sequence, n = N. Many prompts
    are one with a leading axis on every array; properties are those of a single one.

    - `inputs`: x, of the context and then of the query.
    - `labels`: y as the context shows it.
    - `targets`: y as the loss asks for it.
    - `normaliser`: what linear attention divides by.

    >>> import jax, iclflow as icl
    >>> prompt = icl.Task([0.6, 0.3], context=31).sample(jax.random.key(0))
    >>> prompt.inputs.shape, prompt.labels.shape
    ((32, 2), (32, 1))
    """

    inputs: Float[Array, "*P n D"]
    labels: Float[Array, "*P n O"]
    targets: Float[Array, "*P n O"]
    length: Int[Array, "*P"] | None = None
    normaliser: Normaliser = eqx.field(static=True, default=Normaliser.PAIRS)

    @property
    def context(self) -> int:
        """The longest context N this sequence has."""
        return self.inputs.shape[0] - 1

    def prefix(self, length: Int[Array, ""] | int) -> "Prompt":
        """The same sequence, cut after `length` pairs and one query."""
        return Prompt(self.inputs, self.labels, self.targets, jnp.asarray(length), self.normaliser)

    @property
    def query(self) -> Float[Array, " D"]:
        """The query's input x_q."""
        return self.inputs[-1 if self.length is None else self.length]

    @property
    def target(self) -> Float[Array, " O"]:
        """The label y_q the model should predict."""
        return self.targets[-1 if self.length is None else self.length]

    @property
    def visible(self) -> Bool[Array, " n"] | None:
        """Which tokens exist in this prefix, the query included; None when all do."""
        if self.length is None:
            return None
        return jnp.arange(self.context + 1) <= self.length

    @property
    def tokens(self) -> Float[Array, "n T"]:
        """Rows (x_j, y_j); the query's label slot, and every hidden token, is 0."""
        points = jnp.arange(self.context + 1)[:, None]
        length = self.context if self.length is None else self.length
        labels = jnp.where(points < length, self.labels, 0.0)
        inputs = self.inputs
        if self.length is not None:
            inputs = jnp.where(points <= length, inputs, 0.0)
        return jnp.concatenate([inputs, labels], axis=1)

    @property
    def divisor(self) -> Int[Array, ""] | int:
        """The number linear attention divides by under this prompt's convention."""
        pairs = self.context if self.length is None else self.length
        match self.normaliser:
            case Normaliser.PAIRS:
                return pairs
            case Normaliser.TOKENS:
                return pairs + 1
            case Normaliser.CONTEXT:
                return self.context
            case Normaliser.NONE:
                return 1

    @property
    def second_moment(self) -> Float[Array, "T T"]:
        """S = X Xᵀ / divisor, the query token included (29); its first block holds Λ̂ (28)."""
        tokens = self.tokens
        return tokens.T @ tokens / self.divisor

    @property
    def input_moment(self) -> Float[Array, "D D"]:
        """Λ̂ = Σ xₙ xₙᵀ / divisor over the context alone, the query left out (28)."""
        pairs = self.context if self.length is None else self.length
        inside = (jnp.arange(self.context + 1) < pairs)[:, None]
        inputs = jnp.where(inside, self.inputs, 0.0)
        return inputs.T @ inputs / self.divisor

    @property
    def correlation(self) -> Float[Array, "O D"]:
        """β = Σ yₙ xₙ / divisor, one row per output (8); Λ̂ w without noise (30)."""
        size = self.inputs.shape[1]
        tokens = self.tokens
        return tokens[:, size:].T @ tokens[:, :size] / self.divisor


def map_prefixes(
    function: Callable[[Prompt], Result], prompt: Prompt, lengths: tuple[int, ...]
) -> Result:
    """`function` of every prefix of one prompt, stacked along a new leading axis."""
    if lengths == (prompt.context,):  # no masks when the whole sequence is the one prefix
        return jax.tree.map(lambda a: a[None], function(prompt))
    return jax.vmap(lambda n: function(prompt.prefix(n)))(jnp.asarray(lengths))


Values = ArrayLike | Sequence[Any]  # what a constructor turns into an array


class Place(NamedTuple):
    """Prompt number `index` of a set of `count`, for laws with exact proportions over a set."""

    index: Int[Array, "*batch"]
    count: int


class AbstractTask(Displayed):
    """A law of prompts; `sample` and four sizes are all that sampled losses need of it.

    - `size`: the input dimension D.
    - `outputs`: the number of outputs O.
    - `context`: the number of labelled pairs N, the query not counted.
    - `lengths`: the loss is the mean over prefixes of these many pairs; `(context,)` for whole
      prompts.

    >>> import iclflow as icl
    >>> isinstance(icl.Task([0.6, 0.3], context=31), icl.AbstractTask)
    True
    """

    size: eqx.AbstractVar[int]
    outputs: eqx.AbstractVar[int]
    context: eqx.AbstractVar[int]
    lengths: eqx.AbstractVar[tuple[int, ...]]

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray) -> Prompt:
        """Draw one prompt of full length; `vmap` over keys for many."""

    def sample_at(self, key: PRNGKeyArray, place: Place) -> Prompt:
        """Draw the prompt at a place of a set; it matters to mixtures with exact proportions."""
        return self.sample(jax.random.fold_in(key, place.index))
