"""Published tables as files: a header of words and settings, and columns or arrays of numbers."""

import csv
import dataclasses
import io
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).with_name("tables")
WORDS = ("run", "tasks", "kind", "test", "curve", "inputs", "model")  # columns that are no numbers
NUMBER = r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"


@dataclasses.dataclass(frozen=True)
class PublishedTable:
    """One file.

    - `header`: its lines of words, one string.
    - `columns`: its columns, or the arrays of an archive, by name.
    """

    name: str
    header: str
    columns: dict[str, Any]

    def __getitem__(self, name: str) -> np.ndarray:
        """A column."""
        return self.columns[name]

    def __len__(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values())))

    def setting(self, name: str, otherwise: float | None = None) -> float:
        """The number that the header states as `name = number`.

        `ValueError` where it states none, unless `otherwise` is what it is then.
        """
        # also of a chain, alpha = tau = 80
        found = re.search(
            rf"(?<![\w.]){re.escape(name)}(?: = [a-z]+)* = {NUMBER}(?!\.\.)", self.header
        )
        if found is None:
            if otherwise is not None:
                return otherwise
            raise ValueError(
                f"the header of {self.name} states no {name}; a line such as "
                f"'# settings: {name} = 100' is needed"
            )
        return float(found[1])

    def number(self, pattern: str, what: str, otherwise: float | None = None) -> float:
        """The number in the first group of a pattern that the header matches.

        - `what`: what it is, in the words of the message if the header does not state it.
        - `otherwise`: what it is then; `ValueError` if omitted.
        """
        found = re.search(pattern, self.header, re.DOTALL)
        if found is None:
            if otherwise is not None:
                return otherwise
            raise ValueError(
                f"the header of {self.name} states no {what}; keep the header of the published "
                f"table and change its numbers only"
            )
        return float(found[1].replace(",", "").rstrip("."))

    def states(self, words: str) -> bool:
        """Whether the header has these words."""
        return words in self.header

    def groups(self, *names: str) -> list[tuple[tuple, np.ndarray]]:
        """Rows with equal values of some columns: the values, and the numbers of the rows."""
        found: dict[tuple, list[int]] = {}
        for row in range(len(self)):
            found.setdefault(tuple(self[n][row] for n in names), []).append(row)
        return [(key, np.asarray(rows)) for key, rows in found.items()]


def read_table(path: Path, needed: Iterable[str]) -> PublishedTable:
    """A file as a table; `ValueError` of one line for what cannot be compared.

    - `needed`: the columns or arrays that it must have.
    """
    try:
        if path.suffix == ".csv":
            table = _read_csv(path)
        elif path.suffix == ".npz":
            table = _read_archive(path)
        else:
            table = _read_json(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    missing = [name for name in needed if name not in table.columns]
    if missing:
        raise ValueError(
            f"{path} has no column {', '.join(missing)}; it has {', '.join(table.columns)[:200]}"
        )
    return table


def _read_csv(path: Path) -> PublishedTable:
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text file; a table is CSV in UTF-8") from None
    header = "\n".join(line.lstrip("# ") for line in lines if line.startswith("#"))
    body = [line for line in lines if line.strip() and not line.startswith("#")]
    rows = list(csv.reader(io.StringIO("\n".join(body))))
    if len(rows) < 2:
        raise ValueError(f"{path} has no rows; a line of column names and one per row are needed")
    names, rows = [name.strip() for name in rows[0]], rows[1:]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            raise ValueError(
                f"{path} has {len(row)} values in row {number} and {len(names)} columns"
            )
    columns: dict[str, np.ndarray] = {}
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        if name in WORDS:
            columns[name] = np.asarray(values)
            continue
        try:
            columns[name] = np.asarray([float(value) for value in values])
        except ValueError:
            raise ValueError(f"{path} has words in column {name}; numbers are needed") from None
        if not np.isfinite(columns[name]).all():
            row = int(np.flatnonzero(~np.isfinite(columns[name]))[0]) + 1
            raise ValueError(f"{path} has {columns[name][row - 1]} in column {name}, row {row}")
    return PublishedTable(path.stem, header, columns)


def _read_archive(path: Path) -> PublishedTable:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception:  # a damaged archive raises what it likes
        raise ValueError(f"{path} is no archive of numbers; save it by np.savez") from None
    header = str(arrays.pop("header", ""))
    for name, values in arrays.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ValueError(f"{path} has NaN or inf in {name}")
    return PublishedTable(path.stem, header, arrays)


def _read_json(path: Path) -> PublishedTable:
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError:
        raise ValueError(f"{path} is no JSON") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must be a JSON object, got {type(found).__name__}")
    words = {k: v for k, v in found.items() if isinstance(v, str)}
    columns: dict[str, Any] = {}
    for name, value in found.items():
        if name in words:
            continue
        try:
            columns[name] = np.asarray(value, float)
        except (TypeError, ValueError):
            raise ValueError(f"{path} needs numbers in {name}, in rows of one length") from None
        if not np.isfinite(columns[name]).all():
            raise ValueError(f"{path} has NaN or inf in {name}")
    return PublishedTable(path.stem, "\n".join(f"{k} {v}" for k, v in words.items()), columns)
