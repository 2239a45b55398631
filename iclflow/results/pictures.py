"""Figures on disk, whole or not at all."""

from pathlib import Path

from matplotlib.figure import Figure

from iclflow.plots.style import STYLE, style
from iclflow.results.files import MARK, replacing


def save_figure(figure: Figure, path: Path | str, *, dpi: float | None = None) -> Path:
    """Write a figure in the style of the plots; the ending says the format."""
    path = Path(path)
    if path.suffix.lstrip(".").lower() not in figure.canvas.get_supported_filetypes():
        raise ValueError(f"cannot draw {path.name!r}: the ending must be one of png, pdf, svg")
    fields = {".png": "Software", ".pdf": "Creator", ".svg": "Creator"}
    field = fields.get(path.suffix.lower())
    about = None if field is None else {field: MARK}
    with replacing(path) as partial, style():
        figure.savefig(partial, dpi=dpi or STYLE["savefig.dpi"], metadata=about)
    return path
