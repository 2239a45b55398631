"""How objects show themselves: with their numbers, where they are few."""

import dataclasses
import enum
import html
from collections.abc import Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

FEW = 8  # numbers of an array that is shown whole


def short(module: Any) -> str:
    """`Name(field=value, ...)`, small arrays as numbers and large ones by their shape."""
    fields = [f.name for f in dataclasses.fields(module) if f.repr]
    return f"{type(module).__name__}({', '.join(f'{n}={_shown(module, n)}' for n in fields)})"


def _shown(module: Any, name: str) -> str:
    value: Any = getattr(module, name, None)  # a module that is being made has not all of them
    if isinstance(value, enum.Enum):
        return str(value)
    if not is_concrete(value) or np.size(value) > FEW:
        return eqx.tree_pformat(value)
    return np.array2string(np.asarray(value), separator=", ", formatter={"float": "{:.6g}".format})


def is_concrete(value: Any) -> bool:
    """Whether an array has numbers to show: no tracer, no random key."""
    if not isinstance(value, jax.Array | np.ndarray) or isinstance(value, Tracer):
        return False
    return not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table for notebooks."""
    lines = ["".join(f"<th>{html.escape(name)}</th>" for name in header)]
    lines += ["".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows]
    inside = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<b>{html.escape(title)}</b><table>{inside}</table>"
