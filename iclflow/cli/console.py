"""What commands share: progress on stderr, JSON on stdout."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def progress(label: str, *, quiet: bool = False) -> Iterator[Callable[[float, float], None]]:
    """A Rich progress bar on stderr; gives a function (done, total) to call."""
    if quiet or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), "{task.percentage:>3.0f}%")
    bar = Progress(
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(label, total=None)

        def update(done: float, total: float) -> None:
            bar.update(task, completed=done, total=total)

        yield update


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
