"""Memory: say what would be needed before trying to take it."""

import os

import jax

RESERVE = 0.8  # of what is free


def available_bytes() -> int:
    """Free memory of this machine, as far as the system tells."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 4 * 2**30


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
