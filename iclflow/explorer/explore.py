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
    - `settings`: options of `iclflow simulate` by name, which the page opens with. With `prompts`
      among them, a file of your own prompts, the runs are trained here and recorded in the page,
      beside the theory of these very prompts.
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
    if settings and settings.get("prompts") is not None:
        return page([trained_on_prompts(settings)])
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


def trained_on_prompts(settings: Mapping[str, Any]) -> "xr.Dataset":
    """Runs on given prompts, trained as `iclflow simulate` does, with their weights."""
    import dataclasses

    from iclflow.explorer.payload import require_prompts
    from iclflow.results.progress import progress_bar
    from iclflow.study.fields import from_names
    from iclflow.study.settings import Settings
    from iclflow.study.study import Study

    given = Settings.read(given=dict(from_names(settings, "the settings")))
    wanted = dataclasses.replace(given, record=("loss", "weights"))
    require_prompts(wanted)
    with progress_bar("training", None) as report:
        return Study.of(wanted).run(progress=report)
