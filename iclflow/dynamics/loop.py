"""The loop of descent: so many times the same step, with a gradient, fast on CPU and GPU."""

from collections.abc import Callable
from typing import Any

import equinox.internal as eqxi
import jax
from jaxtyping import Array, Int

CHECKPOINTS = 64  # states kept for the backward pass
BLOCK = 3  # on a GPU, 2^BLOCK steps between two looks at the counter; more are longer in compiling
SMALL = 8192  # numbers in a state, up to which a look costs more than a step


def repeat(step: Callable[[Any], Any], state: Any, count: Int[Array, ""]) -> Any:
    """`step` applied `count` times.

    A loop of unknown length has no reverse-mode gradient in JAX; Equinox's checkpointed one, the
    loop behind Diffrax, has, and is as fast. On a GPU each look at its counter waits for the
    device, longer than a step of a small model takes there: the loop goes over blocks of known
    length, and what is left over over the bits of its count.
    """
    numbers = sum(leaf.size for leaf in jax.tree.leaves(state))
    if jax.default_backend() != "gpu" or numbers > SMALL:
        return _while(step, state, count)
    state = _while(_steps(step, 2**BLOCK), state, count >> BLOCK)
    for bit in range(BLOCK):
        state = jax.lax.cond((count >> bit) & 1, _steps(step, 2**bit), lambda s: s, state)
    return state


def _steps(step: Callable[[Any], Any], count: int) -> Callable[[Any], Any]:
    return lambda s: jax.lax.scan(lambda s, _: (step(s), None), s, None, count, unroll=count)[0]


def _while(step: Callable[[Any], Any], state: Any, count: Int[Array, ""]) -> Any:
    return eqxi.while_loop(
        lambda carry: carry[1] < count,
        lambda carry: (step(carry[0]), carry[1] + 1),
        (state, count * 0),
        kind="checkpointed",
        checkpoints=CHECKPOINTS,
    )[0]
