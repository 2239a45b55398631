"""Write the page, with runs inside and settings in its address, and open it."""

import tempfile
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from iclflow.explorer.bundle import bundle
from iclflow.results.files import write_text


def explore(
    runs: xr.Dataset | Path | str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    browser: bool = True,
) -> Path:
    """Write the explorer page and open it; nothing is left running.

    - `runs`: recorded runs to show, a Dataset or a file of `iclflow simulate --out`; without any
      the page trains its own.
    - `settings`: options of `iclflow simulate` by name, which the page opens with.
    - `out`: the file; a temporary one if omitted.
    - `browser`: whether to open it.
    """
    from iclflow.explorer.address import address
    from iclflow.explorer.payload import embed

    if runs is not None and settings:
        raise ValueError("recorded runs have their own settings; give runs or settings, not both")
    fragment = address(settings) if settings else ""
    page = bundle() if runs is None else embed(bundle(), runs)
    if out is None:
        out = Path(tempfile.mkdtemp(prefix="iclflow-")) / "explorer.html"
    path = write_text(out, page)
    if browser:
        webbrowser.open(path.resolve().as_uri() + (f"#{fragment}" if fragment else ""))
    return path
