"""What a model is: a pytree of weights that predicts from one input, and answers for itself.

Recording, the default rate, conservation, diagnosis, film and command line ask the model and
nothing else, so a new model is one file.
"""

import abc
import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from iclflow.linalg import contract, is_concrete
from iclflow.results.display import Displayed
from iclflow.tasks.base import Prompt
from iclflow.tasks.checks import require_kind, require_real, require_size, require_within, shown

ARRAYS = (jax.Array, np.ndarray, np.generic)


def once_a_kind(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, called once for all arguments of the same structure, shapes and types.

    It is given `jax.ShapeDtypeStruct` for arrays, as `eqx.filter_eval_shape` takes them.
    """

    @functools.lru_cache(maxsize=64)
    def found(tree: Any, leaves: tuple[Any, ...], *_: Any) -> Any:
        return function(*jax.tree.unflatten(tree, leaves))

    @functools.wraps(function)
    def answer(*arguments: Any) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        kinds = tuple(
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if isinstance(leaf, ARRAYS) else leaf
            for leaf in leaves
        )
        # 1, 1.0 and True are equal, and different things; the precision can be another later.
        return found(tree, kinds, tuple(map(type, kinds)), jnp.result_type(float))

    return answer


Pairs = tuple[Float[Array, " H"], Float[Array, "H R D"], Float[Array, "H R D"]]  # v, k, q


class Blocks(enum.Enum):
    """Which weight blocks exist.

    The blocks 𝐯ᵢ and 𝐮ᵢ (separate: the last entry of each key) start at zero and, in the
    population, stay there, for they have no gradient (39)(40). `FROZEN` leaves them out, the
    reduced models (M) and (S). `FULL` trains them, as the published code does: with P sequences
    they grow to P^(-1/2).

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> full = icl.Merged.initialiser(task, heads=2, scale=0.1, blocks=icl.Blocks.FULL)
    >>> sorted(full(jax.random.key(0)).weights())
    ['key_labels', 'merged', 'value_inputs', 'values']
    """

    FROZEN = "frozen"
    FULL = "full"


SHOWN_AXES = {"layer": "layers", "head": "heads", "pair": "rank"}  # axes whose sizes are shown
MANY_WEIGHTS = 6  # arrays of weights, above which only their numbers are counted


class AbstractModel(Displayed):
    """A model predicts on ONE input; batches come from `jax.vmap`.

    The input is a `Prompt` and the output its ŷ_q; a transformer maps tokens to logits. Which of
    them a loss can take, its `admits` says. What a model does not know of itself it leaves out:
    the defaults below claim nothing.

    >>> import iclflow as icl
    >>> issubclass(icl.Softmax, icl.AbstractModel)
    True
    """

    @abc.abstractmethod
    def __call__(self, prompt: Any) -> Array:
        """The prediction."""

    def weights(self) -> dict[str, Array]:
        """The trained arrays by name, as a run records them; nested ones as `outer.inner`."""
        arrays = eqx.filter(self, eqx.is_inexact_array)
        found = jax.tree_util.tree_flatten_with_path(arrays)[0]
        return {jax.tree_util.keystr(p, simple=True, separator="."): leaf for p, leaf in found}

    def with_weights(self, weights: dict[str, Array]) -> Self:
        """The same model with other arrays under these names; all of them must be given."""
        arrays, static = eqx.partition(self, eqx.is_inexact_array)
        leaves, shape = jax.tree.flatten(arrays)
        del leaves
        return eqx.combine(jax.tree.unflatten(shape, [weights[n] for n in self.weights()]), static)

    def axes(self) -> dict[str, tuple[str, ...]]:
        """The names of the axes of each of the `weights`; those left out are numbered."""
        return {}

    def shown(self) -> dict[str, Any]:
        """D, the numbers of layers and heads, the rank, and the norm of every weight.

        The norms are what the init scale w sets: it is their root mean square at the start.
        """
        weights, axes, dims = self.weights(), self.axes(), self.dims()
        found: dict[str, Any] = {} if dims is None else {"D": dims[0]}
        for name, array in weights.items():
            known = axes.get(name.rpartition(".")[2], ())
            if len(known) != array.ndim:  # many models at once, or axes that are not named
                continue
            sizes = zip(known, array.shape, strict=True)
            found |= {SHOWN_AXES[axis]: size for axis, size in sizes if axis in SHOWN_AXES}
        if len(weights) > MANY_WEIGHTS:
            return found | {"weights": sum(array.size for array in weights.values())}
        return found | {
            f"|{name.rpartition('.')[2]}|" if is_concrete(array) else name: (
                f"{np.linalg.norm(np.asarray(array)):.4g}" if is_concrete(array) else array
            )
            for name, array in weights.items()
        }

    def as_attention(self) -> "AbstractAttention | None":
        """The attention layer that has these weights, if there is one."""
        return None

    def attention_layers(self) -> "tuple[AbstractAttention, ...]":
        """The attention layers that the weights are those of, first to last; empty without any."""
        found = self.as_attention()
        return () if found is None else (found,)

    @property
    def depth(self) -> int:
        """How many attention layers those are. Nothing is computed for models of the library."""
        return len(self.attention_layers())

    def single(self) -> "AbstractModel":
        """The one layer of a stack of one, by itself; every other model as it is."""
        return self

    def as_initialiser(self) -> "AbstractInitialiser | None":
        """What draws models of this kind and these sizes; None where the model does not say.

        Its scale is measured: the root of the mean squared norm of the layers, which is w for a
        start that was drawn at init scale w.
        """
        return None

    def dims(self) -> tuple[int, int] | None:
        """(D, O), the inputs and outputs of the prompts that it predicts on, where it knows them.

        A loss of prompts of other sizes then refuses the model with both numbers.
        """
        return None

    def label_weights(self, prompt: Prompt) -> tuple[Float[Array, " O"], Float[Array, "O n O"]]:
        """b and c of ŷ_o = b_o + Σ c[o, n, p] y_n[p], which no label changes.

        Of a model that is not linear in the labels, this is its tangent at labels of zero.
        """

        def predict(labels: Float[Array, "n O"]) -> Float[Array, " O"]:
            return self(eqx.tree_at(lambda p: p.labels, prompt, labels))

        constant, pull = jax.vjp(predict, jnp.zeros_like(prompt.labels))
        rows = jnp.eye(len(constant), dtype=constant.dtype)
        return constant, jax.vmap(lambda row: pull(row)[0])(rows)

    @property
    def reads_causally(self) -> bool:
        """Whether one pass over a prompt has the predictions of all its prefixes (`along`)."""
        return False

    def along(self, prompt: Prompt) -> Float[Array, "n O"]:
        """The predictions after 0, 1, …, N pairs: one per prefix of the prompt."""
        lengths = jnp.arange(prompt.context + 1)
        return jax.vmap(lambda n: self(prompt.prefix(n)))(lengths)

    def pairs(self) -> Pairs | None:
        """v, k and q, if they are all weights, in this order, and M = Σ v k qᵀ for one output."""
        return None

    def at_minimum(self, weights: Float[Array, "O O D D"]) -> "AbstractModel | None":
        """A model of this kind whose attention has the effective weights M, balanced, if known.

        Where M is least squares, this is where training from small weights ends (E9), so its
        sharpness tells the stable rate beforehand.
        """
        del weights
        return None

    def conserved(self) -> dict[str, Array]:
        """What gradient flow on any loss conserves, by name; empty where nothing is known."""
        return {}

    def visits(self, modes: int) -> tuple[int, ...]:
        """How many of a task's modes are learned on each plateau of the staircase, in order.

        Empty where the theory has no plateaus for the model.
        """
        del modes
        return ()


class AbstractLinearModel(AbstractModel):
    """A model whose prediction is linear in S ⊗ x_q: ŷ_o = Σ T[o,a,b,c] S[a,b] x_q[c] (7).

    Token indices a, b run over the D inputs, then the O labels.

    >>> import iclflow as icl
    >>> [issubclass(kind, icl.AbstractLinearModel) for kind in (icl.Merged, icl.MLP, icl.Softmax)]
    [True, True, False]
    """

    @abc.abstractmethod
    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        """The prediction ŷ_q."""

    @property
    @abc.abstractmethod
    def blocks(self) -> Blocks:
        """Which weight blocks this model has."""

    @abc.abstractmethod
    def effective_weights(self) -> Float[Array, "O T T D"]:
        """T, the weights on S ⊗ x_q, all blocks."""

    @abc.abstractmethod
    def reduced_weights(self) -> Float[Array, "O O D D"]:
        """M[o, p, d, c], the weights on β_p[d] x_q[c]: T with only the label blocks kept."""

    def matrices(self) -> Float[Array, "L O O D D"]:
        """`reduced_weights` of every layer, as a stack of layers has them; here of the one."""
        return self.reduced_weights()[None]

    def reduce(self) -> Self:
        """The same weights without trained zero blocks; the model itself if it has none."""
        return self


class AbstractAttention(AbstractLinearModel):
    """One layer of multi-head attention without softmax.

    >>> import iclflow as icl
    >>> issubclass(icl.Separate, icl.AbstractAttention)
    True
    """

    values: eqx.AbstractVar[Float[Array, "H O O"]]
    value_inputs: eqx.AbstractVar[Float[Array, "H O D"] | None]

    @abc.abstractmethod
    def scores(self, tokens: Float[Array, "n T"], query: Float[Array, " D"]) -> Float[Array, "H n"]:
        """Attention of the query token to every token, each head: its row of XᵀW^{KQ}X."""

    @abc.abstractmethod
    def key_query(self) -> Float[Array, "H T D"]:
        """The left D columns of each W^{KQ}: [U; 𝐮ᵀ]."""

    @abc.abstractmethod
    def score_balance(self) -> dict[str, Array]:
        """What gradient flow conserves inside the scores, whatever is made of them (softmax)."""

    @abc.abstractmethod
    def at_minimum(self, weights: Float[Array, "O O D D"]) -> Self:
        """A layer of this kind with the effective weights M, balanced."""

    def as_attention(self) -> "AbstractAttention":
        return self

    @property
    def depth(self) -> int:
        return 1

    def dims(self) -> tuple[int, int]:
        return self.input_size, self.values.shape[-1]

    @property
    def blocks(self) -> Blocks:
        return Blocks.FROZEN if self.value_inputs is None else Blocks.FULL

    def value_rows(self) -> Float[Array, "H O T"]:
        """The bottom rows [𝐯ᵀ v] of each value matrix."""
        if self.value_inputs is None:
            heads, outputs, _ = self.values.shape
            inputs = jnp.zeros((heads, outputs, self.input_size), self.values.dtype)
        else:
            inputs = self.value_inputs
        return jnp.concatenate([inputs, self.values], axis=2)

    @property
    @abc.abstractmethod
    def input_size(self) -> int:
        """The input dimension D."""

    def __call__(self, prompt: Prompt) -> Float[Array, " O"]:
        tokens = prompt.tokens
        return self.read(self.scores(tokens, prompt.query) / prompt.divisor, tokens)

    def read(
        self, attention: Float[Array, "H n"], tokens: Float[Array, "n T"]
    ) -> Float[Array, " O"]:
        """Σ over heads and tokens of attention times value: the bottom-right entry of (5)."""
        return jnp.einsum("hoa,ha->o", self.value_rows(), attention @ tokens)

    def label_weights(self, prompt: Prompt) -> tuple[Float[Array, " O"], Float[Array, "O n O"]]:
        if self.blocks is Blocks.FULL:
            return super().label_weights(prompt)
        return self.value_labels(self.scores(prompt.tokens, prompt.query) / prompt.divisor, prompt)

    def value_labels(
        self, attention: Float[Array, "H n"], prompt: Prompt
    ) -> tuple[Float[Array, " O"], Float[Array, "O n O"]]:
        """`label_weights` of an attention map that no label is in: c = Σ v_h · its row."""
        pairs = prompt.context if prompt.length is None else prompt.length
        shown = jnp.where((jnp.arange(attention.shape[1]) < pairs)[None, :], attention, 0.0)
        outputs = self.values.shape[1]
        return jnp.zeros(outputs, shown.dtype), jnp.einsum("hop,hn->onp", self.values, shown)

    def effective_weights(self) -> Float[Array, "O T T D"]:
        return contract("hoa,hbc->oabc", self.value_rows(), self.key_query())

    def reduced_weights(self) -> Float[Array, "O O D D"]:
        return contract("hop,hdc->opdc", self.values, self.key_query()[:, : self.input_size])


class AbstractInitialiser(Displayed):
    """key -> model.

    The linear models start at init scale w: every layer's expected squared norm is w²,
    (34)-(37).

    >>> import jax, iclflow as icl
    >>> task = icl.Task([0.6, 0.3], context=31)
    >>> init = icl.Merged.initialiser(task, heads=2, scale=0.1)
    >>> isinstance(init, icl.AbstractInitialiser), type(init(jax.random.key(0))).__name__
    (True, 'Merged')
    """

    @abc.abstractmethod
    def __call__(self, key: PRNGKeyArray) -> AbstractModel:
        """Draw the initial weights."""


@eqx.filter_jit
def draw_model(init: AbstractInitialiser, key: PRNGKeyArray) -> AbstractModel:
    """`init(key)`, compiled once for all keys.

    >>> import jax, iclflow as icl
    >>> init = icl.Merged.initialiser(4, heads=2, scale=0.1)
    >>> icl.models.draw_model(init, jax.random.key(0)).merged.shape
    (2, 4, 4)
    """
    return init(key)


def draw_models(
    init: AbstractInitialiser, seeds: Sequence[int] | np.ndarray, axis: Any = None
) -> AbstractModel:
    """The models of the seeds, stacked along a new first axis.

    This is how every sweep draws its initial weights, so a model drawn here is the one that is
    trained there.

    - `init`: the initialiser; where each seed has its own, their arrays are stacked.
    - `seeds`: seed s draws `init(jax.random.key(s))`.
    - `axis`: None where all seeds share one initialiser, `eqx.if_array(0)` for a stack of them.

    >>> import iclflow as icl
    >>> init = icl.Merged.initialiser(4, heads=2, scale=0.1)
    >>> icl.models.draw_models(init, range(3)).merged.shape
    (3, 2, 4, 4)
    """
    return _draw_models(init, jax.device_put(np.asarray(seeds, np.uint32)), axis)


@eqx.filter_jit
def _draw_models(init: AbstractInitialiser, seeds: UInt32[Array, " S"], axis: Any) -> AbstractModel:
    def one(init: AbstractInitialiser, seed: UInt32[Array, ""]) -> AbstractModel:
        return init(jax.random.key(seed))

    return eqx.filter_vmap(one, in_axes=(axis, 0))(init, seeds)


@once_a_kind
def empty_model(init: AbstractInitialiser) -> AbstractModel:
    """A model as `init` draws it with zeros for weights: its kind, shapes and types.

    >>> import iclflow as icl
    >>> icl.models.empty_model(icl.Merged.initialiser(4, heads=2, scale=0.1)).merged.shape
    (2, 4, 4)
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    shapes = eqx.filter_eval_shape(draw_model, init, key)  # compiles nothing
    zeros = lambda a: jax.device_put(np.zeros(a.shape, a.dtype))  # noqa: E731
    kind = jax.ShapeDtypeStruct
    return jax.tree.map(lambda a: zeros(a) if isinstance(a, kind) else a, shapes)


def dims_of(source: Any) -> tuple[int, int]:
    """(D, O) of what a model is made for; `ValueError` where that does not say them.

    - `source`: a task, prompts or a set of them (whatever has `size` and `outputs`); a loss, or
      another model (whatever has `dims`); D alone, for one output; or the pair (D, O).

    >>> import iclflow as icl
    >>> icl.Merged.initialiser(4, heads=2, scale=0.1).size
    4
    """
    known = getattr(source, "dims", None)
    if callable(known):
        found = known()
    elif isinstance(source, tuple):
        found = source if len(source) == 2 else None
    elif hasattr(source, "size") and hasattr(source, "outputs"):
        found = (source.size, source.outputs)
    else:
        found = (source, 1) if isinstance(source, int | np.integer) else None
    if isinstance(found, tuple):
        return require_size("the number of inputs D", found[0]), require_size("O", found[1])
    said = shown(source) if not callable(known) else f"a {type(source).__name__} that has none"
    raise ValueError(
        f"an initialiser needs the sizes of a task, of prompts or of a loss, or (D, O), got {said}"
    )


def require_model(model: Any) -> None:
    """Raise `ValueError` with what to give unless this is a model."""
    require_kind("model", model, AbstractModel, "a model, such as init(jax.random.key(0))")


def require_blocks(blocks: Any) -> Blocks:
    """The word that says whether the zero blocks are trained."""
    return require_kind("blocks", blocks, Blocks, "")


def measured_scale(layers: Sequence[Array]) -> Float[Array, ""]:
    """The init scale that weights have: the root of the mean squared norm of the layers.

    >>> import jax.numpy as jnp
    >>> from iclflow.models.base import measured_scale
    >>> float(measured_scale([jnp.asarray([3.0, 4.0]), jnp.asarray([[5.0]])]))
    5.0
    """
    return jnp.sqrt(sum(jnp.sum(layer**2) for layer in layers) / len(layers))


def require_scale(name: str, scale: Any) -> Float[Array, ""]:
    """An init scale as an array: one real number that is finite and at least 0.

    A scale of 0 is allowed: it is the start at zero weights, from which nothing is learned.
    """
    found = require_real(name, scale, ndim=0)
    require_within(name, found, lower=0.0)
    return found


def require_initialiser(init: Any) -> None:
    """Refuse what draws no models; a model is one start, and seeds need many."""
    example = "an initialiser, such as icl.Merged.initialiser(task, heads=4, scale=0.1)"
    require_kind("init", init, AbstractInitialiser, example)
