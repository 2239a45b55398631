"""What a public function asks first: whole sizes, real numbers, known words, enough memory.

Each check returns the argument in the form that the library computes with, or raises a
`ValueError` of one line with what was given and what is needed. Python converts too readily to
leave this to it: `int(2.5)` is 2, `int("5")` is 5, and a complex spectrum loses its imaginary part.
Memory is asked for before it is taken, because a process that takes too much is ended without a
word.
"""

import enum
import operator
from collections.abc import Iterator
from pathlib import Path
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
            plain = np.asarray(values)
            real = plain.dtype.kind in "fiu"
            if real:  # converted here, where nothing has to be compiled for it
                values = jax.device_put(plain.astype(jnp.result_type(float)))
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


RESERVE = 0.8  # of what is free
UNKNOWN = 4 * 2**30  # bytes that are taken to be free where the system tells nothing
UNLIMITED = 2**60  # bytes; the kernel writes larger numbers where a control group has no limit


def available_bytes(root: Path = Path("/")) -> int:
    """The memory that this process can still take: the least of what three authorities leave it.

    - The machine: `MemAvailable`, which counts the page cache, since the kernel gives it up.
    - The control groups (v1 and v2) of a container or a batch job: limit minus use.
    - `ulimit -v`, the address space: limit minus use.

    `root` is where `/proc` and `/sys` are found.
    """
    found = [*_machine(root), *_control_groups(root), *_address_space(root)]
    return max(0, min(found, default=UNKNOWN))


def _machine(root: Path) -> Iterator[int]:
    free = _entry(root / "proc/meminfo", "MemAvailable:")
    if free is not None:
        yield 1024 * free


def _control_groups(root: Path) -> Iterator[int]:
    """What each control group of this process, and each that holds it, leaves of its limit."""
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers == "":
            top, names = mount, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = mount / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = top / path.lstrip("/")
        # Inside a container the path may be one of the host, of which only the top is mounted.
        for group in [g for g in (own, *own.parents) if g == top or top in g.parents]:
            limit, used = (_number(_text(group / name)) for name in names[:2])
            if limit is not None and used is not None and limit < UNLIMITED:
                cache = _entry(group / "memory.stat", names[2]) or 0
                yield limit - max(0, used - cache)


def _address_space(root: Path) -> Iterator[int]:
    try:
        import resource
    except ImportError:  # not a Unix
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    used = _entry(root / "proc/self/status", "VmSize:")
    if limit != resource.RLIM_INFINITY and used is not None:
        yield limit - 1024 * used


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _entry(path: Path, name: str) -> int | None:
    """The number after a name in a file of the kernel: one name and number per line."""
    lines = (line.split() for line in _text(path).splitlines())
    return next((_number(line[1]) for line in lines if len(line) > 1 and line[0] == name), None)


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


def device_bytes() -> int:
    """Free memory where arrays live: of the accelerator if there is one."""
    found = jax.devices()[0].memory_stats()
    if not found or "bytes_limit" not in found:
        return available_bytes()
    return int(found["bytes_limit"] - found.get("bytes_in_use", 0))


def require_memory(needed: int, what: str, instead: str) -> None:
    """Raise `ValueError` if `needed` bytes are more than there are."""
    free = available_bytes()
    if needed > RESERVE * free:
        raise ValueError(
            f"{what} need {readable(needed)}, and {readable(free)} are free; {instead}"
        )


def readable(count: int | float) -> str:
    """A number of bytes in the largest fitting unit."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
