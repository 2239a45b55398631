"""What a monitor reads and where it writes: arrays by name, one line on the terminal."""

import math
from collections.abc import Mapping
from typing import Any

import jax


def named_arrays(weights: Any) -> Mapping[str, Any]:
    """Arrays by name from a mapping, a pytree, or a function that returns one."""
    if callable(weights):
        weights = weights()
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
            f"weights hold no arrays, got {type(weights).__name__}; pass a state_dict, a pytree or "
            f"named arrays"
        )
    return named


def scalar_loss(step: int, loss: Any) -> Any:
    """The loss as it is, without its graph; refused unless it is one number."""
    shape = tuple(getattr(loss, "shape", ()))
    if math.prod(shape) != 1 or not hasattr(loss, "__float__"):
        what = f"shape {shape}" if shape else type(loss).__name__
        raise ValueError(f"the loss of step {step} must be one number, got {what}; take its mean")
    # a graph must not be kept alive, and reading a device's number at once would stall it
    return loss.detach() if hasattr(loss, "detach") else loss


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
