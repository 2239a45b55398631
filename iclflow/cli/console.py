"""What commands share: JSON on stdout."""

import json
import math
from typing import Any

import numpy as np


def print_json(result: dict[str, Any]) -> None:
    """One JSON object on stdout and nothing else; numbers that are not finite become null."""
    print(json.dumps(plain(result), allow_nan=False))


def plain(value: Any) -> Any:
    """Arrays and NumPy numbers as JSON values."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
