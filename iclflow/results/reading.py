"""Files that others wrote: regular, of bounded size, and of the types that we expect.

A path may name anything: a link to an endless device, a FIFO that nobody writes to, a folder, an
archive that unpacks to more than the memory. Everything foreign that this package reads goes
through these functions, which refuse such a path at once, in one line that names it.
"""

import functools
import hashlib
import io
import json
import os
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from iclflow.results.choices import printable

SETTINGS = 2**24  # bytes of a file of settings; the index of a model of 10⁵ tensors has fewer
LOG = 2**30  # bytes of a log or a table
ARRAYS = 2**34  # bytes of the arrays in one .npz member
LARGE, RATIO = 2**26, 200  # a member that unpacks to more than both, in bytes and times, is a bomb
KINDS = {
    dict: "an object", list: "a list", str: "text", int: "a whole number", float: "a number",
    bool: "true or false",
}  # fmt: skip
Kind = TypeVar("Kind")


def require_regular(path: Path | str, most: int | None = None) -> Path:
    """The path, if it leads to a regular file of at most `most` bytes; else `ValueError`.

    - `path`: followed through links; the file at their end counts.
    - `most`: the largest size in bytes. None takes any size, for readers that map the file.

    Nothing is opened: opening a FIFO would wait for somebody to write to it.
    """
    path = Path(path)
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

    >>> from iclflow.results.reading import field
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


class Archive:
    """The arrays of an `.npz` file by name; the size of one is checked before it is read.

    Nothing is unpickled. A member's shape comes from its header alone.
    """

    def __init__(self, path: Path | str) -> None:
        """Read the list of members and their headers."""
        self.path = require_regular(path)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.kinds: dict[str, np.dtype] = {}
        self.sizes: dict[str, int] = {}
        try:
            with zipfile.ZipFile(self.path) as archive:
                for entry in archive.infolist():
                    if entry.filename.endswith(".npy"):
                        self._header(archive, entry)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        except Exception as error:  # damaged archives raise almost anything
            raise ValueError(f"{path}: truncated or not an .npz file ({error})") from None

    def _header(self, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
        name = entry.filename[:-4]
        with archive.open(entry) as file:
            shape, kind, _ = _npy_header(io.BytesIO(file.read(2**16)))
        needed = int(np.prod(shape, dtype=object)) * kind.itemsize
        if kind.hasobject:
            raise ValueError(f"array {name} holds Python objects, which need pickle: refused")
        if needed > entry.file_size:
            raise ValueError(f"array {name} claims {needed:,} bytes and holds fewer; it is damaged")
        if needed > LARGE and needed > RATIO * entry.compress_size:
            raise ValueError(
                f"array {name} unpacks {entry.compress_size:,} bytes to {needed:,}, which real "
                f"data never do; refused"
            )
        self.shapes[name], self.kinds[name], self.sizes[name] = shape, kind, needed

    def read(self, name: str, most: int = ARRAYS) -> np.ndarray:
        """One array, if it has at most `most` bytes."""
        if self.sizes[name] > most:
            raise ValueError(
                f"{self.path}: array {name} has {self.sizes[name]:,} bytes, needed at most {most:,}"
            )
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                return archive[name]
        except MemoryError:
            raise
        except Exception as error:  # damaged archives raise almost anything
            raise ValueError(f"{self.path}: array {name} cannot be read ({error})") from None

    def rows(self, name: str, size: int) -> Iterator[np.ndarray]:
        """The rows of one array, `size` of them at a time; only these are unpacked."""
        kind, (total, *inner) = self.kinds[name], self.shapes[name]
        row = int(np.prod(inner)) * kind.itemsize
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as file:
                if _npy_header(file)[2] and inner:  # pyright: ignore[reportArgumentType]
                    raise ValueError("it is stored by columns; save np.ascontiguousarray of it")
                for begin in range(0, total, size):
                    count = min(size, total - begin)
                    content = file.read(count * row)
                    yield np.frombuffer(content, kind).reshape(count, *inner)
        except MemoryError:
            raise
        except Exception as error:  # damaged archives raise almost anything
            raise ValueError(f"{self.path}: array {name} cannot be read ({error})") from None


def _npy_header(file: io.BytesIO | zipfile.ZipExtFile) -> tuple[tuple[int, ...], np.dtype, bool]:
    """Shape, type, and whether the numbers are stored by columns (Fortran's order)."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, columns, kind = np.lib.format.read_array_header_1_0(file)
    else:
        shape, columns, kind = np.lib.format.read_array_header_2_0(file)
    return shape, kind, columns


def map_array(path: Path | str) -> np.ndarray:
    """An `.npy` file as an array that is mapped, not read; nothing is unpickled."""
    require_regular(path)
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # damaged headers raise almost anything
        raise ValueError(f"{path}: truncated or not an .npy file ({error})") from None
    if not isinstance(found, np.ndarray):
        raise ValueError(f"{path}: not an .npy file")
    return found


def _said(value: Any) -> str:
    text = printable(repr(value))
    return text if len(text) <= 60 else f"{text[:60]}..."
