"""Files: written whole or not at all, and read as if a stranger had written them.

A path may name anything: a link to an endless device, a FIFO that nobody writes to, a folder, an
archive that unpacks to more than the memory. Everything foreign that this package reads goes
through these functions, which refuse such a path at once, in one line that names it.

The last part is a cache: what programs of this machine keep for the next call. It can be computed
again, so nothing there is ever worth an error: a folder that cannot be written, a damaged file or a
full disk only cost the time that the cache would have saved.
"""

import contextlib
import errno
import functools
import hashlib
import json
import os
import platform
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from iclflow.results.messages import printable

MARK = "drawn by iclflow"  # in pictures and films of ours, which may be drawn again
_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """A temporary path beside `path` to write to; when the block ends well, it takes its place.

    Whatever ends the program, the file under `path` is the old one or the new one. The temporary
    name has the same ending, by which some writers choose the format. What a killed program left
    goes with the next write to the same path. A full disk is an `OSError` that says so.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist; create it first")
    _sweep(path)
    partial = path.with_name(f".{path.stem}.{platform.node()}-{os.getpid()}{path.suffix}")
    try:
        with saying_full(path):
            yield partial
            _flush(partial)
            os.replace(partial, path)
            if os.name == "posix":  # the rename too outlasts a power cut; elsewhere no folder opens
                _flush(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def saying_full(path: Path | str) -> Iterator[None]:
    """A full disk inside the block is an `OSError` that says so."""
    try:
        yield
    except Exception as error:
        # HDF5 and safetensors wrap the error of the system in classes of their own.
        if getattr(error, "errno", None) in _FULL or os.strerror(errno.ENOSPC) in str(error):
            raise OSError(f"{path} was not written: the disk is full; free some space") from None
        raise


def write_text(path: Path | str, text: str) -> Path:
    """Write a text file whole or not at all."""
    path = Path(path)
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def _sweep(path: Path) -> None:
    """Delete partial files left by processes of this machine that no longer exist."""
    if os.name != "posix":  # where signal 0 does not ask but kill
        return
    ours = f".{path.stem}.{platform.node()}-"
    for found in path.parent.glob(f".*{path.suffix}"):
        owner = re.fullmatch(re.escape(ours) + r"(\d+)" + re.escape(path.suffix), found.name)
        if owner is not None and not _runs(int(owner[1])):
            found.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is another user's
    return True


def _flush(path: Path) -> None:
    """Have the system write a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


SETTINGS = 2**24  # bytes of a file of settings; the index of a model of 10⁵ tensors has fewer
LOG = 2**30  # bytes of a log or a table
KINDS = {
    dict: "an object", list: "a list", str: "text", int: "a whole number", float: "a number",
    bool: "true or false",
}  # fmt: skip
Kind = TypeVar("Kind")


def require_path(name: str, path: Any) -> Path:
    """The path; `ValueError` for what names no file or folder, such as a number or no text."""
    if not isinstance(path, str | os.PathLike) or not str(path):  # Path("") is this folder
        raise ValueError(
            f"{name} must be the name of a file or folder, got {printable(repr(path))[:60]}"
        )
    return Path(path)


def require_regular(path: Path | str, most: int | None = None) -> Path:
    """The path, if it leads to a regular file of at most `most` bytes; else `ValueError`.

    - `path`: followed through links; the file at their end counts.
    - `most`: the largest size in bytes. None takes any size, for readers that map the file.

    Nothing is opened: opening a FIFO would wait for somebody to write to it.
    """
    path = require_path("path", path)
    try:
        found = path.stat()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:  # a loop of links, a name too long, a null character
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path} cannot be read ({reason})") from None
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for name, test in _OTHERS.items() if test(found.st_mode)), "no file")
        raise ValueError(f"{path} is {kind}; needed a regular file")
    if most is not None and found.st_size > most:
        raise ValueError(f"{path} has {found.st_size:,} bytes, needed at most {most:,}")
    return path


_OTHERS = {
    "a folder": stat.S_ISDIR, "a FIFO": stat.S_ISFIFO, "a device": stat.S_ISCHR,
    "a block device": stat.S_ISBLK, "a socket": stat.S_ISSOCK,
}  # fmt: skip


def digest(paths: Sequence[Path | str]) -> str:
    """A name for the content of some files: sixteen digits of a SHA-256 over all of them."""
    found = hashlib.sha256()
    for path in paths:
        state = require_regular(str(path).strip()).stat()
        found.update(_sha256(str(path).strip(), state.st_size, state.st_mtime_ns))
    return found.hexdigest()[:16]


@functools.lru_cache(maxsize=64)
def _sha256(path: str, size: int, changed: int) -> bytes:
    """The SHA-256 of a file; its size and time of change say whether it is still the same one."""
    del size, changed
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def read_bytes(path: Path | str, most: int = SETTINGS) -> bytes:
    """The content of a regular file of at most `most` bytes; else `ValueError`."""
    require_regular(path, most)
    # Without waiting: what was a file a moment ago may be a FIFO by now.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path} is no regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} grew beyond {most:,} bytes while it was read")
    return content


def read_text(path: Path | str, most: int = SETTINGS) -> str:
    """The text of a regular file in UTF-8, with or without a byte-order mark."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text in UTF-8 ({error.reason})") from None


def read_json(path: Path | str, most: int = SETTINGS) -> Any:
    """What a JSON file holds; `ValueError` in one line that names the file if it is none."""
    return parse_json(read_text(path, most), path)


def parse_json(text: str, where: Path | str) -> Any:
    """What a JSON text holds; `where` names it in the message."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{where}: not JSON (too deeply nested)") from None
    except ValueError as error:
        raise ValueError(f"{where}: not JSON ({error})") from None


def read_object(path: Path | str, most: int = SETTINGS) -> dict[str, Any]:
    """The JSON object in a file; anything else in it is a `ValueError`."""
    found = read_json(path, most)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: needed a JSON object, got {_said(found)}")
    return found


def field(found: Mapping[str, Any], key: str, kind: type[Kind], where: Path | str) -> Kind:
    """One entry of an object, of the type asked for; the message names the key.

    - `found`: the object.
    - `key`: the name of the entry, which must be there.
    - `kind`: its type. Truth values are no numbers; a whole number counts as `float`.
    - `where`: the file, for the message.

    >>> from iclflow.results.files import field
    >>> field({"n_head": 12}, "n_head", int, "config.json")
    12
    """
    if key not in found:
        raise ValueError(f"{where}: {key!r} is missing; needed {KINDS[kind]}")
    value = found[key]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)  # pyright: ignore[reportReturnType]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where}: {key!r} must be {KINDS[kind]}, got {_said(value)}")
    return value


def require_count(value: Any, key: str, where: Path | str) -> int:
    """A whole number of at least 1, as sizes are; the message names the key."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{where}: {key!r} must be a whole number from 1 on, got {_said(value)}")
    return value


def inside(folder: Path, name: Any, where: Path | str) -> Path:
    """The path of a file that an index names, which must lie in the folder of the index.

    An absolute path, or one with `..`, would read a file that the user did not name.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}: needed the name of a file, got {_said(name)}")
    parts = re.split(r"[/\\]", name)
    if ".." in parts or Path(name).is_absolute() or parts[0] == "" or "\0" in name:
        raise ValueError(f"{where}: {name!r} leaves the folder; an index names files beside it")
    return folder / name


def _said(value: Any) -> str:
    text = printable(repr(value))
    return text if len(text) <= 60 else f"{text[:60]}..."


VARIABLE = "ICLFLOW_CACHE"
_OFF = {"0", "off", "no", "false"}
_LARGEST = 4 << 20  # bytes of a JSON file that is read


def cache_folder(name: str = "") -> Path | None:
    """The folder in which this user's programs keep `name`, made if it is not there.

    The variable `ICLFLOW_CACHE` names another folder, or switches the cache off with the word
    `off`. None if it is switched off, or if the folder cannot be made or written to.

    - `name`: of the part that is kept, a folder inside the user's folder.

    >>> from iclflow.results.files import cache_folder
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
