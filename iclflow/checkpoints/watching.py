"""What a monitor reads and where it writes: arrays by name, one line on the terminal."""

import math
import sys
from collections.abc import Mapping
from typing import Any

import jax


def named_arrays(weights: Any) -> Mapping[str, Any]:
    """Arrays by name from a module (PyTorch, Equinox, NNX), a mapping, a pytree, or a function.

    A function returns one of the others, and is called.
    """
    if hasattr(weights, "state_dict"):
        weights = weights.state_dict()
    elif not any(hasattr(leaf, "shape") for leaf in jax.tree.leaves(weights)):
        nnx = sys.modules.get("flax.nnx")
        if nnx is not None and isinstance(weights, nnx.Module):  # before NNX had pytrees
            weights = nnx.state(weights)
        elif callable(weights):
            return named_arrays(weights())
    plain = isinstance(weights, Mapping) and all(hasattr(v, "shape") for v in weights.values())
    if plain and weights:
        return {str(name): value for name, value in weights.items()}
    leaves = jax.tree_util.tree_flatten_with_path(weights)[0]
    named = {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in leaves
        if hasattr(leaf, "shape")
    }
    if not named:
        raise ValueError(
            f"weights hold no arrays, got {type(weights).__name__}; pass a module, a state_dict, a "
            f"pytree or named arrays"
        )
    if all(name.endswith(".value") for name in named):  # the variables of NNX
        named = {name.removesuffix(".value"): leaf for name, leaf in named.items()}
    return named


def settings_of(weights: Any) -> Mapping[str, Any]:
    """The settings that a model of transformers carries; nothing of others."""
    settings = getattr(getattr(weights, "config", None), "to_dict", None)
    return {} if settings is None else settings()


def scalar_loss(step: int, loss: Any) -> Any:
    """A copy of the loss, which no later step overwrites; refused unless it is one number.

    A number on a device is not waited for.
    """
    shape = tuple(getattr(loss, "shape", ()))
    if math.prod(shape) != 1 or not hasattr(loss, "__float__"):
        what = f"shape {shape}" if shape else type(loss).__name__
        raise ValueError(f"the loss of step {step} must be one number, got {what}; take its mean")
    loss = loss.reshape(()) if shape else loss
    if isinstance(loss, jax.Array):
        return loss.copy()
    if hasattr(loss, "detach"):
        loss = loss.detach()
        return float(loss) if loss.device.type == "cpu" else loss.clone()
    return float(loss)


class Line:
    """One line that is rewritten in place, at most twice a second."""

    def __init__(self) -> None:
        from rich.live import Live  # only when asked for

        self.live = Live("", auto_refresh=False)
        self.shown: float | None = None

    def stale(self, now: float) -> bool:
        """Whether it is time for a new text."""
        if self.shown is None or now - self.shown > 0.5:
            self.shown = now
            return True
        return False

    def show(self, text: str) -> None:
        """Put a text in place of the last."""
        if not self.live.is_started:
            self.live.start()
        self.live.update(text, refresh=True)

    def close(self) -> None:
        """Leave the line as it is."""
        self.live.stop()
