"""Memory: say what would be needed before trying to take it."""

from collections.abc import Iterator
from pathlib import Path

import jax

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
