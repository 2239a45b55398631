"""What a public function asks of its arguments: whole sizes, real numbers, known words.

Each check returns the argument in the form that the library computes with, or raises a
`ValueError` of one line with what was given and what is needed. Python converts too readily to
leave this to it: `int(2.5)` is 2, `int("5")` is 5, and a complex spectrum loses its imaginary part.
"""

import enum
import operator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

Kind = TypeVar("Kind")
LARGEST = 2**63  # sizes are below: arrays and files count by integers of 64 bits


def shown(value: Any) -> str:
    """An argument as an error message shows it: on one line, and cut where it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def require_size(name: str, value: Any, least: int = 1) -> int:
    """The size as an `int`; `ValueError` unless it is a whole number of at least `least`.

    NumPy's integers are sizes, too. A bool, a string, and a float with or without a fraction are
    none: what they stand for is a guess.
    """
    try:
        size = None if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        size = None
    if (
        size is None
        or not least <= size < LARGEST
        or (isinstance(value, jax.Array) and value.dtype == bool)
    ):
        most = "" if size is None or size < LARGEST else " and below 2^63"
        raise ValueError(
            f"{name} must be a whole number of at least {least}{most}, got {shown(value)}"
        )
    return size


def require_lengths(lengths: Any) -> tuple[int, ...]:
    """Context lengths as a tuple of `int`; `ValueError` unless they are a list of sizes."""
    if not np.iterable(lengths) or isinstance(lengths, str | bytes):
        raise ValueError(f"lengths must be a list of whole numbers, got {shown(lengths)}")
    return tuple(require_size("a context length", n) for n in lengths)


def require_real(name: str, values: Any, ndim: int | None = None) -> Array:
    """The values as an array of floats; `ValueError` unless all of them are real numbers.

    - `ndim`: how many axes the array has; any number if omitted.
    """
    if isinstance(values, jax.Array):
        real = jnp.issubdtype(values.dtype, np.floating) or jnp.issubdtype(values.dtype, np.integer)
    else:
        try:
            real = np.asarray(values).dtype.kind in "fiu"
        except jax.errors.TracerArrayConversionError:
            real = True  # a list of traced numbers
        except (TypeError, ValueError):  # rows of different lengths
            real = False
    if not real:
        raise ValueError(f"the {name} must be real numbers, got {shown(values)}")
    found = jnp.asarray(values, dtype=float)
    if ndim is not None and found.ndim != ndim:
        need = "one number" if ndim == 0 else "a list" if ndim == 1 else f"an array of {ndim} axes"
        raise ValueError(f"the {name} must be {need}, got shape {found.shape}")
    return found


def require_within(name: str, values: Array, lower: float = -np.inf, upper: float = np.inf) -> None:
    """Raise `ValueError` unless all values are finite and within bounds (skipped while tracing)."""
    if isinstance(values, Tracer):
        return
    found = np.asarray(values)
    bad = found[~(np.isfinite(found) & (found >= lower) & (found <= upper))]
    if bad.size:
        need = f" and at least {lower:g}" if np.isfinite(lower) else ""
        need = need if np.isinf(upper) else f" and between {lower:g} and {upper:g}"
        raise ValueError(f"the {name} must be finite{need}, got {bad.flat[0]:g}")


def require_kind(name: str, value: Any, kind: type[Kind], example: str) -> Kind:
    """The value; `ValueError` unless it is of this class, or one of the words of this `Enum`.

    - `example`: what the user writes instead; the words of an `Enum` are added by themselves.
    """
    if isinstance(value, kind):
        return value
    if issubclass(kind, enum.Enum):
        example = " or ".join(f"{kind.__name__}.{word.name}" for word in kind)
    raise ValueError(f"{name} must be {example}, got {shown(value)}")


def require_key(key: Any) -> None:
    """Refuse what is no key of JAX; a whole number is told to become one."""
    if key is None:
        return
    dtype = getattr(key, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and key.shape == ():
        return
    if dtype == jnp.uint32 and key.ndim == 1:  # the keys of jax.random.PRNGKey
        return
    raise ValueError(f"key must be one key, such as jax.random.key(0), got {shown(key)}")
