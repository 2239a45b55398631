"""What programs of this machine keep for the next call: compiled programs, hashes, measured speeds.

Everything here can be computed again, so nothing here is ever worth an error: a folder that cannot
be written, a damaged file or a full disk only cost the time that the cache would have saved.
"""

import contextlib
import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from iclflow.results.files import read_json, write_text

VARIABLE = "ICLFLOW_CACHE"
_OFF = {"0", "off", "no", "false"}
_LARGEST = 4 << 20  # bytes of a JSON file that is read


def cache_folder(name: str = "") -> Path | None:
    """The folder in which this user's programs keep `name`, made if it is not there.

    The variable `ICLFLOW_CACHE` names another folder, or switches the cache off with the word
    `off`. None if it is switched off, or if the folder cannot be made or written to.

    - `name`: of the part that is kept, a folder inside the user's folder.

    >>> from iclflow.results.cache import cache_folder
    >>> folder = cache_folder("speeds")
    >>> folder is None or folder.name == "speeds"
    True
    """
    said = os.environ.get(VARIABLE, "").strip()
    if said.lower() in _OFF:
        return None
    try:
        folder = (Path(said) if said else _home()) / name
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, no right to write, a file in the way
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def _home() -> Path:
    """Where the system wants caches: its own variable first, then its usual folder."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "iclflow"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "iclflow"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iclflow"


def recall(name: str) -> dict[str, Any]:
    """The entries that were kept under `name`; none if there are none, or if the file is damaged.

    - `name`: of the file, with its ending `.json`.
    """
    folder = cache_folder()
    if folder is None:
        return {}
    try:
        path = folder / name
        entries = read_json(path, _LARGEST)
    except (OSError, ValueError):
        return {}
    return entries if isinstance(entries, dict) else {}


def keep(name: str, entries: dict[str, Any]) -> None:
    """Keep plain JSON values under `name` for later calls of `recall`.

    Of two programs that write at once one wins, whole.

    - `name`: of the file, with its ending `.json`.
    - `entries`: all that the file shall hold. The caller bounds their number.
    """
    folder = cache_folder()
    if folder is not None:
        with contextlib.suppress(OSError):
            write_text(folder / name, json.dumps(entries))


def bound(folder: Path, size: int) -> None:
    """Delete files of a folder, those not used for longest first, until `size` bytes are left.

    - `folder`: whose files all belong to the cache.
    - `size`: in bytes.
    """
    with contextlib.suppress(OSError):
        files = [(path, path.stat()) for path in folder.iterdir() if path.is_file()]
        files.sort(key=lambda entry: max(entry[1].st_atime, entry[1].st_mtime), reverse=True)
        total = 0
        for path, state in files:
            total += state.st_size
            if total > size:
                path.unlink(missing_ok=True)


def processor() -> str:
    """A short name for the kind of processor, so that no program is loaded on another kind.

    A home folder is often shared by machines whose processors know different instructions.
    """
    about = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        about += sorted({line for line in lines if line.startswith(("flags", "model name"))})
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]
