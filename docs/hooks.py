"""What the documentation site has besides its pages, and that it loads nothing from a network."""

import sys
from pathlib import Path

from mkdocs.structure.files import File, Files

from iclflow.explorer.page import page as explorer

sys.path.insert(0, str(Path(__file__).parent))
import equations
import offline


def on_files(files: Files, config) -> Files:
    """Add the explorer page."""
    files.append(File.generated(config, "explore.html", content=explorer()))
    return files


def on_page_markdown(markdown: str, page, config, files: Files) -> str:
    """Write the tables of equations, from the docstrings as they are now."""
    return equations.write(markdown) if page.file.src_path == "equations.md" else markdown


def on_post_build(config) -> None:
    """Fail where a page would fetch something from elsewhere."""
    offline.check(Path(config.site_dir))
