"""The scorecard: every claim with what the paper states and what was measured."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from iclflow.experiments.base import Claim
from iclflow.results.files import write_text

Row = dict[str, Any]


def rows(claims: Mapping[str, Sequence[Claim]]) -> list[Row]:
    """Figure name -> claims, as rows in the figures' order.

    Keys: `id`, `claim`, `equation`, `expected`, `measured`, `tolerance`, `holds`, `reason`,
    `note`, `population`, `beyond`, `figure`. A number that is not finite becomes None (JSON null).
    """
    return [
        {**{k: _plain(v) for k, v in dataclasses.asdict(claim).items()}, "figure": figure}
        for figure, found in claims.items()
        for claim in found
    ]


def write(found: Sequence[Row], path: Path) -> Path:
    """The rows as a JSON list."""
    return write_text(path, json.dumps(list(found), indent=1, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):  # a NumPy number
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
