"""Loss curves of recorded runs as bytes for a page, and the script that draws them: for reports."""

import base64
import json
import zlib
from typing import Any

import numpy as np
import xarray as xr

from iclflow.explorer.bundle import glue, text
from iclflow.explorer.payload import shown

DIGITS = 5  # more than a screen shows


def curves(
    data: xr.Dataset, *, loss: str, theory: str, levels: str, times: str = ""
) -> dict[str, Any]:
    """What `web/page/figure.js` mounts: variables of a Dataset by name, the saves a page needs."""
    clock, losses = data["time"].values, data[loss].values
    kept = shown(clock, losses)
    found = {
        "time": clock[kept],
        "loss": losses[:, kept],
        "theory": data[theory].values[:, kept],
        "levels": data[levels].values,
        "rate": clock[-1] / (2 * data["step"].values[-1]),
    }
    if times:
        found["drops"] = data[times].values.reshape(len(losses), -1)
    return {name: _short(value) for name, value in found.items()}


def element(name: str, found: dict[str, Any]) -> str:
    """The curves as an element of the page, for the figure of that name."""
    packed = base64.b64encode(zlib.compress(json.dumps(found).encode(), 9)).decode()
    return f'<script type="text/plain" class="curves" data-figure="{name}">{packed}</script>'


def script() -> str:
    """What mounts all curves of a page."""
    return glue("page/figure.js")


def style() -> str:
    """How they look, given the page's own colours of paper and ink."""
    return text("plot.css")


def _short(values: Any) -> Any:
    """Numbers of a few digits, as JSON has them; null for what is not finite."""
    if np.ndim(values):
        return [_short(value) for value in values]
    return float(f"{values:.{DIGITS}g}") if np.isfinite(values) else None
