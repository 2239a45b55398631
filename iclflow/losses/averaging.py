"""Whether the mean over tasks can be taken exactly for a model: is it linear in the labels?"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from iclflow.losses.features import EXACT
from iclflow.models import AbstractModel
from iclflow.models.base import once_a_kind
from iclflow.tasks.base import Prompt

PAIRS = 4  # of the prompt on which linearity is tried


def beyond_average(model: AbstractModel, size: int, outputs: int) -> str | None:
    """None if the mean over tasks can be taken exactly for a model, else the reason why not.

    - `size`, `outputs`: D and O of the prompts.
    """
    linear = _is_linear_in_labels(model, size, outputs)
    if linear:
        return None
    found = "is not linear" if linear is not None else "could not be seen to be linear"
    return (
        f"the mean over tasks is exact where a prediction is linear in the labels, and this one "
        f"{found} (tried on random prompts); freeze the zero blocks, or leave averaged out"
    )


@once_a_kind
def _is_linear_in_labels(model: Any, size: int, outputs: int) -> bool | None:
    """Whether predictions of models of a kind are linear in the labels, plus a constant."""
    rng = np.random.default_rng(0)

    def drawn(leaf: Any) -> Any:
        if not (hasattr(leaf, "shape") and jnp.issubdtype(leaf.dtype, jnp.inexact)):
            return leaf
        return jnp.asarray(rng.normal(size=leaf.shape) / 2, leaf.dtype)

    try:
        with jax.ensure_compile_time_eval():
            whole = jax.tree.map(drawn, model)
            inputs = jnp.asarray(rng.normal(size=(PAIRS + 1, size)))
            first, second = jnp.asarray(rng.normal(size=(2, PAIRS + 1, outputs)))
            labels = jnp.stack([jnp.zeros_like(first), first, second, first + 2 * second])
            predict = lambda y: whole(Prompt(inputs, y, y))  # noqa: E731
            found = np.asarray(jax.vmap(predict)(labels), float)
    except Exception:  # a model of the user's may raise anything on prompts that it is not made for
        return None
    off = np.abs(found[3] - found[1] - 2 * found[2] + 2 * found[0]).max()
    scale = np.abs(found).max()
    exact = EXACT if jnp.result_type(float) == jnp.float64 else 1e-2
    return bool(np.isfinite(scale) and off <= exact * scale)
