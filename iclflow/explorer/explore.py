"""Write the page, with runs or settings inside, and open it."""

import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iclflow.explorer.bundle import bundle
from iclflow.results.files import write_text

if TYPE_CHECKING:
    import xarray as xr

HEAD = "</head>"


def explore(
    *runs: "xr.Dataset | Path | str",
    settings: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    browser: bool = True,
) -> Path:
    """Write the explorer page and open it; nothing is left running.

    - `runs`: recorded runs to show, Datasets or files of `iclflow simulate --out`; without any the
      page trains its own.
    - `settings`: options of `iclflow simulate` by name, which the page opens with.
    - `out`: the file; a temporary one if omitted.
    - `browser`: whether to open it.
    """
    path = Path(tempfile.mkdtemp(prefix="iclflow-")) / "explorer.html" if out is None else Path(out)
    write_text(path, page(runs, settings))
    if browser:
        webbrowser.open(path.resolve().as_uri())
    return path


def page(
    runs: "Sequence[xr.Dataset | Path | str]" = (), settings: Mapping[str, Any] | None = None
) -> str:
    """The page as text, with recorded runs or the settings that it opens with."""
    if runs and settings:
        raise ValueError("recorded runs have their own settings; give runs or settings, not both")
    inside = ""
    if runs:
        from iclflow.explorer.payload import packed

        inside = "".join(
            f'<script type="text/plain" class="recorded">{packed(run)}</script>\n' for run in runs
        )
    elif settings:
        from iclflow.explorer.address import address

        inside = f'<script type="text/plain" id="opens">{address(settings)}</script>\n'
    return bundle().replace(HEAD, inside + HEAD, 1)
