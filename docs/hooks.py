"""What the documentation site has besides its pages: the explorer, made when the site is built."""

from mkdocs.structure.files import File, Files

from iclflow.explorer.explore import page


def on_files(files: Files, config) -> Files:
    """Add the explorer page."""
    files.append(File.generated(config, "explore.html", content=page()))
    return files
