"""Files written whole or not at all."""

import errno
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
