"""Measurements on disk."""

from pathlib import Path
from typing import Any

from iclflow.results.reading import read_json

PARTS = {"date", "machine", "quick", "peak", "start", "sweep", "rows", "exponents", "seconds"}


def read(path: Path | str) -> dict[str, Any]:
    """A measurement that `iclflow bench --out` wrote."""
    try:
        found = read_json(path)
    except ValueError as error:
        raise ValueError(f"{error}; give one of iclflow bench --out") from None
    if not isinstance(found, dict) or set(found) != PARTS:
        raise ValueError(f"{path} holds no measurement; give one of iclflow bench --out")
    return found
