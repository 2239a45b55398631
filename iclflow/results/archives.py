"""Arrays in files that others wrote, `.npz` and `.npy`: looked at before anything is unpacked."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from iclflow.results.files import require_regular

ARRAYS = 2**34  # bytes of the arrays in one .npz member
LARGE, RATIO = 2**26, 200  # a member that unpacks to more than both, in bytes and times, is a bomb


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
