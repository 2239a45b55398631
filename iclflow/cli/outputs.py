"""What a command may write: checked before any work, and nothing replaced that is not ours."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from iclflow.results.files import MARK
from iclflow.results.reading import read_bytes

PICTURES = (".png", ".pdf", ".svg")
FILMS = (".mp4", ".gif")
LARGE = 2**28  # bytes: no picture of ours


def add_force(parser: argparse._ActionsContainer) -> None:
    """The option with which files are replaced that this program did not write."""
    parser.add_argument("--force", action="store_true", help="replace what --out and --plot name")


def check_outputs(
    args: argparse.Namespace, endings: tuple[str, ...], inputs: Iterable[Path | str] = ()
) -> None:
    """Refuse before any work what could not, or should not, be written after it.

    `endings` are those that --out may have; --plot and --history are pictures.
    """
    taken = {Path(path).resolve(): "is read" for path in inputs}
    for name, allowed in (("out", endings), ("plot", PICTURES), ("history", PICTURES)):
        path = getattr(args, name, None)
        if path is None:
            continue
        if path.suffix.lower() not in allowed:
            raise ValueError(f"--{name} {path.name}: the ending must be {' or '.join(allowed)}")
        if not path.parent.is_dir():
            raise ValueError(f"the folder {path.parent} does not exist; create it first")
        if path.resolve() in taken:
            raise ValueError(f"--{name} {path} {taken[path.resolve()]} by the same command")
        taken[path.resolve()] = "is written"
        if path.exists() and allowed != (".nc",) and not args.force and not ours(path):
            raise FileExistsError(
                f"{path} exists and iclflow did not draw it; choose another name, or --force"
            )


def ours(path: Path) -> bool:
    """Whether a picture or film carries our mark."""
    try:
        return MARK.encode() in read_bytes(path, LARGE)
    except (OSError, ValueError):
        return False
