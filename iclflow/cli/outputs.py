"""What a command writes: JSON on stdout, and files, checked before any work and never lost."""

import argparse
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from iclflow.results.files import MARK, read_bytes


def print_json(result: dict[str, Any]) -> None:
    """One JSON object on stdout and nothing else; numbers that are not finite become null."""
    print(json.dumps(plain(result), allow_nan=False))


def plain(value: Any) -> Any:
    """Arrays and NumPy numbers as JSON values."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


PICTURES = (".png", ".pdf", ".svg")
FILMS = (".mp4", ".gif")
LARGE = 2**28  # bytes: no picture of ours


def add_force(parser: argparse._ActionsContainer) -> None:
    """The option with which files are replaced that this program did not write."""
    parser.add_argument("--force", action="store_true", help="replace what --out and --plot name")


def check_outputs(
    args: argparse.Namespace, endings: tuple[str, ...], inputs: Iterable[Path | str] = ()
) -> None:
    """Refuse, before any work, what could not or should not be written after it.

    - `args`: the options of a command. Its `out`, `plot` and `history` are looked at where it has
      them.
    - `endings`: the endings that --out may have; --plot and --history are pictures.
    - `inputs`: files that the command reads, and must not overwrite.
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


def finished(out: Path, key: str, *, force: bool) -> Any:
    """The runs in a file, if they are those that were asked for and ended; else None.

    - `out`: the file.
    - `key`: the content key of the settings.
    - `force`: whether to train anew, whatever is there.
    """
    from iclflow.results.netcdf import check_free, load
    from iclflow.runs.folder import PLAN

    if force:
        if (kept(out) / PLAN).is_file():
            shutil.rmtree(kept(out))
        return None
    try:
        check_free(out, key)
    except FileExistsError as error:
        raise FileExistsError(f"{error}, or give --force") from None
    runs = load(out) if out.exists() else None
    if runs is None or interrupted(runs):
        return None
    if not failed(runs):  # else the command has its own line to say
        print(f"iclflow: {out} has this run already; --force trains it anew", file=sys.stderr)
    return runs


def train_into(out: Path, train: Callable[[Path], Any]) -> Any:
    """Train, and write the runs to a file.

    The store of an unfinished run stays beside the file, so that the same command goes on from it.
    Of an interrupted run the file has the beginning, unless it holds a finished run.

    - `out`: the file.
    - `train`: takes the folder of the store and gives the runs.
    """
    from iclflow.results.netcdf import load, replace
    from iclflow.runs.folder import PLAN

    store = kept(out)
    on = f"the same command goes on from {store}"
    try:
        runs = train(store)
    except (ValueError, KeyboardInterrupt) as error:
        with suppress(OSError):
            store.rmdir()  # where nothing was kept
        if isinstance(error, KeyboardInterrupt) and (store / PLAN).is_file():
            raise KeyboardInterrupt(on) from None
        raise
    if not interrupted(runs):
        replace(runs, out)
        shutil.rmtree(store, ignore_errors=True)
    elif out.exists() and not interrupted(load(out)):
        raise KeyboardInterrupt(f"{out} is still the finished run; {on}")
    else:
        replace(runs, out)
    return runs


def kept(out: Path) -> Path:
    """The folder where a run that is not finished keeps what it needs to go on."""
    return out.with_name(f"{out.name}.unfinished")


def interrupted(runs: Any) -> bool:
    """Whether any of the runs was stopped before its end."""
    from iclflow.runs.record import INTERRUPTED

    return "result" not in runs or bool((runs["result"].values == INTERRUPTED).any())


def failed(runs: Any) -> bool:
    """Whether any of the runs diverged."""
    from iclflow.runs.record import FAILED, OUTCOMES

    return any(OUTCOMES[code] in FAILED for code in runs["result"].values.ravel())
