"""The folder a report is written into: nothing in it that is not ours is ever replaced."""

import json
from collections.abc import Sequence
from pathlib import Path

from iclflow.results.files import write_text
from iclflow.results.reading import read_json

MANIFEST = "manifest.json"
_MAKER = "iclflow reproduce"


def prepare(out: Path, files: Sequence[str]) -> None:
    """Make the folder and claim `files` (paths inside it), or raise `FileExistsError`.

    What an earlier report wrote is listed in the manifest and may be replaced; any other file of
    the same name is somebody's and stops us before work begins. Other files are left alone.
    """
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; --out needs a folder")
    ours = claimed(out)
    for name in (*files, MANIFEST):
        path = out / name
        if path.exists() and (name not in ours or not path.is_file()):
            raise FileExistsError(
                f"{path} was not written by an earlier report; move it away or choose another --out"
            )
    out.mkdir(parents=True, exist_ok=True)
    for name in files:
        (out / name).parent.mkdir(exist_ok=True)
    # Written before any of the files, so that a run that is killed leaves none unclaimed.
    manifest = {"made_by": _MAKER, "files": sorted(ours.union(files))}
    write_text(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def claimed(out: Path) -> set[str]:
    """The files that earlier reports wrote."""
    try:
        found = read_json(out / MANIFEST)
        if found["made_by"] != _MAKER:
            return set()
        return {MANIFEST, *(str(name) for name in found["files"])}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
