"""What commands share: options, made from the fields of an experiment, and what they write.

They write JSON on stdout, and files, which are checked before any work and never lost.
"""

import argparse
import dataclasses
import json
import math
import shutil
import sys
import typing
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from iclflow.results.files import MARK, read_bytes
from iclflow.study.fields import Fields, Option, described


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
LARGE = 2**28  # bytes: no picture of ours


def add_force(parser: argparse._ActionsContainer) -> None:
    """The option with which files are replaced that this program did not write."""
    parser.add_argument("--force", action="store_true", help="replace what --out and --plot name")


def check_outputs(
    args: argparse.Namespace, endings: tuple[str, ...], inputs: Iterable[Path | str] = ()
) -> None:
    """Refuse, before any work, what could not or should not be written after it.

    - `args`: the options of a command. Its `out` and `plot` are looked at where it has them.
    - `endings`: the endings that --out may have; --plot is a picture.
    - `inputs`: files that the command reads, and must not overwrite.
    """
    taken = {Path(path).resolve(): "is read" for path in inputs}
    for name, allowed in (("out", endings), ("plot", PICTURES)):
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


def typed(kind: Any, **bounds: Any) -> Callable[[str], Any]:
    """A type for argparse: a number or a list within bounds, as `Option` checks it.

    - `kind`: such as `int`, or `tuple[float, ...]` for a list.
    - `bounds`: `least`, `above` and `most`, as in `Option`.
    """
    return partial(_read, Option("", "", **bounds), "", kind)


def _read(about: Option, name: str, kind: Any, text: str) -> Any:
    try:
        return about.read(name, kind, text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).strip()) from None


positive = typed(int, least=1)
above_zero = typed(float, above=0)
floats = typed(tuple[float, ...])
names = typed(tuple[str, ...])
seed = typed(int, least=0, most=2**32 - 1)


def add_settings(
    parser: argparse.ArgumentParser,
    *groups: str,
    only: tuple[str, ...] = (),
    fields: type = Fields,
    dash: str = "-",
) -> None:
    """Options for the fields of an experiment; those that are not given are None.

    - `parser`: where they are added.
    - `groups`: whole groups of fields, each under its own heading.
    - `only`: single fields of other groups.
    - `fields`: the class whose fields they are.
    - `dash`: what stands between the words of a flag.
    """
    boxes: dict[str, Any] = {}
    defaults = {field.name: field.default for field in dataclasses.fields(fields)}
    for name, (kind, about) in described(fields).items():
        if about.group not in groups and name not in only:
            continue
        if about.group not in boxes:
            boxes[about.group] = parser.add_argument_group(about.group)
        add, default = boxes[about.group].add_argument, defaults[name]
        flags = [f"--{said.replace('_', dash)}" for said in (name, *about.aliases)]
        if kind is bool:
            flags = [f"--no-{name}"] if default else flags
            add(*flags, dest=name, action="store_const", const=not default, help=about.help)
            continue
        words = ", ".join(about.choices)
        text = f"{about.help}: {words}" if words else about.help
        text += "" if default is None or default == 0 else f" ({_shown(default)})"
        metavar = about.metavar or (None if typing.get_origin(kind) else kind.__name__.upper())
        metavar = "NAME" if about.choices else metavar
        again = {"action": "append"} if about.repeats else {}
        # Argparse names the option in its messages; a value that repeats says which one it is of.
        read = partial(_read, about, name if about.repeats else "", kind)
        add(*flags, dest=name, type=read, metavar=metavar, help=text, **again)


def _shown(default: Any) -> str:
    values = default if isinstance(default, tuple) else (default,)
    return ",".join(f"{x:g}" if isinstance(x, float) else str(x) for x in values)


def add_file(parser: Any) -> None:
    """The option --from of the commands that state an experiment; see `settings_of`."""
    parser.add_argument(
        "--from",
        dest="file",
        metavar="FILE",
        help="settings from a TOML file or a saved run; options override them",
    )


def given(args: argparse.Namespace, fields: type) -> dict[str, Any]:
    """The options of `add_settings` that were given."""
    names = described(fields)
    return {name: v for name, v in vars(args).items() if name in names and v is not None}


def settings_of(args: argparse.Namespace) -> Any:
    """The options that were given, over those of a settings file or a saved run."""
    from iclflow.study.study import Settings

    return Settings.read(getattr(args, "file", None), given(args, Fields))
