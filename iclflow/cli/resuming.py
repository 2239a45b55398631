"""Runs that go to a file: given back where finished, kept where not, and taken up again."""

import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def finished(out: Path, key: str, *, force: bool) -> Any:
    """The runs in a file if they are those of the key and came to their end; else None."""
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
    """The runs that `train(store)` gives, written to a file; to go on, the store stays beside it.

    Of an interrupted run the file has the beginning, unless it has a finished one.
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
    from iclflow.runs.labels import INTERRUPTED

    return "result" not in runs or bool((runs["result"].values == INTERRUPTED).any())


def failed(runs: Any) -> bool:
    """Whether any of the runs diverged."""
    from iclflow.runs.labels import FAILED, OUTCOMES

    return any(OUTCOMES[code] in FAILED for code in runs["result"].values.ravel())
