"""How a long computation says how far it is."""

from collections.abc import Callable

Progress = Callable[[float, float], None]  # (done, total), in whatever unit; now and then
