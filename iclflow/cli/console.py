"""What commands share: progress on stderr, JSON on stdout, options with the same meaning."""

import argparse
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
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), "{task.percentage:>3.0f}%")
    bar = Progress(
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
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


def positive_int(text: str) -> int:
    """A whole number of at least one, for argparse."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs a whole number, got {text!r}") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def positive_float(text: str) -> float:
    """A finite number above zero, for argparse."""
    number = finite_float(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return number


def finite_float(text: str) -> float:
    """A finite number, for argparse."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"needs a number, got {text!r}") from None
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be finite, got {text}")
    return number


def numbers(text: str) -> list[float]:
    """A comma-separated list of finite numbers, for argparse."""
    parts = [part for part in text.replace(" ", "").split(",") if part]
    if not parts:
        raise argparse.ArgumentTypeError("needs at least one number, got an empty list")
    return [finite_float(part) for part in parts]
