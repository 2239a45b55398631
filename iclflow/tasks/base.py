"""What a task is: a law of prompts."""

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
from jaxtyping import Array, ArrayLike, Int, PRNGKeyArray

from iclflow.results.display import Displayed
from iclflow.tasks.prompt import Prompt

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
