"""Measurements on disk."""

import json
from pathlib import Path
from typing import Any

PARTS = {"date", "machine", "quick", "peak", "start", "sweep", "rows", "exponents", "seconds"}


def read(path: Path | str) -> dict[str, Any]:
    """A measurement that `iclflow bench --out` wrote."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a text file; give one of iclflow bench --out") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}); give one of iclflow bench --out") from None
    if not isinstance(found, dict) or set(found) != PARTS:
        raise ValueError(f"{path} holds no measurement; give one of iclflow bench --out")
    return found
