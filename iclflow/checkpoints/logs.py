"""Loss curves as others log them: tables, JSON, text, a Trainer's state, TensorBoard, MLflow.

TensorBoard's event files are read without TensorBoard. Such a file is a row of records: length
(8 bytes), checksum (4 bytes), an `Event` message of protobuf, checksum. Of an `Event` we need
field 2, the step, and field 5, the summary: a list of values with a tag, field 1, and a number, as
a float in field 2 or inside a tensor in field 8.
"""

import csv
import fnmatch
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from iclflow.results.files import (
    LOG,
    parse_json,
    read_bytes,
    read_json,
    read_text,
    require_regular,
)
from iclflow.results.messages import nearest

FIXED = {1: 8, 5: 4}  # bytes of the wire types of fixed size


def _table(polynomial: int) -> tuple[int, ...]:
    """The remainders of all bytes, by which a checksum goes a byte at a time."""
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (polynomial if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


CASTAGNOLI = _table(0x82F63B78)  # of CRC-32C, bits reversed
TYPES = {1: np.dtype("<f4"), 2: np.dtype("<f8")}  # of a tensor: DT_FLOAT, DT_DOUBLE


def read_events(path: Path | str) -> dict[str, list[tuple[int, float]]]:
    """Tag -> (step, value) in the order written; a record that is still being written ends it."""
    found: dict[str, list[tuple[int, float]]] = {}
    content = read_bytes(path, LOG)
    place = 0
    while place + 12 <= len(content):
        length, checked = struct.unpack_from("<QI", content, place)
        if masked_crc(content[place : place + 8]) != checked:
            raise ValueError(
                f"{path}: damaged, or not an event file of TensorBoard: the checksum of a length "
                f"at byte {place} does not fit"
            )
        record = content[place + 12 : place + 12 + length]
        if len(content) < place + 16 + length:
            break
        (checked,) = struct.unpack_from("<I", content, place + 12 + length)
        if masked_crc(record) != checked:
            raise ValueError(
                f"{path}: damaged: the checksum of the record at byte {place} does not fit"
            )
        place += 16 + length
        try:
            for tag, step, value in _scalars(record):
                found.setdefault(tag, []).append((step, value))
        except (IndexError, struct.error, UnicodeDecodeError, ValueError) as error:
            raise ValueError(f"{path}: not an event file of TensorBoard ({error})") from None
    return found


def masked_crc(data: bytes) -> int:
    """The checksum of TensorBoard's records: CRC-32C, rotated by 15 bits, plus a constant.

    The mask is there because a checksum of data that hold checksums is weak.
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CASTAGNOLI[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _scalars(event: bytes) -> Iterator[tuple[str, int, float]]:
    fields = list(_fields(event))
    step = next((value for number, value in fields if number == 2), 0)
    for number, summary in fields:
        if number != 5 or not isinstance(summary, bytes):
            continue
        for inner, value in _fields(summary):
            if inner == 1 and isinstance(value, bytes):
                tag, number_found = _value(value)
                if number_found is not None:
                    yield tag, int(step), number_found  # pyright: ignore[reportArgumentType]


def _value(message: bytes) -> tuple[str, float | None]:
    tag, found = "", None
    for number, value in _fields(message):
        if number == 1 and isinstance(value, bytes):
            tag = value.decode()
        elif number == 2 and isinstance(value, bytes):
            (found,) = struct.unpack("<f", value)
        elif number == 8 and isinstance(value, bytes):
            found = _tensor(value)
    return tag, found


def _tensor(message: bytes) -> float | None:
    """The one number of a tensor; None if it is no number, or several."""
    fields = dict(_fields(message))
    kind = TYPES.get(fields.get(1))  # pyright: ignore[reportArgumentType, reportCallIssue]
    if kind is None:
        return None
    # as bytes (4), or in a list of floats (5) or doubles (6)
    content = next((fields[n] for n in (4, 5, 6) if isinstance(fields.get(n), bytes)), b"")
    values = np.frombuffer(content, kind)  # pyright: ignore[reportArgumentType, reportCallIssue]
    return float(values[0]) if values.size == 1 else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and content of every field: a whole number, or bytes."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _varint(message, place)
        elif kind in FIXED:
            size = FIXED[kind]
        else:
            raise ValueError(f"field of type {kind}")
        if place + size > len(message):
            raise ValueError("a field is longer than its message")
        yield key >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


STEPS = ("step", "global_step", "_step", "trainer/global_step", "iteration", "iter", "steps",
         "epoch")  # fmt: skip
# what a training loss is called, the surest name first
LOSSES = (
    r"loss",
    r"train(?:ing)?[/_ -]loss",
    r"loss[/_ -]train(?:ing)?",
    r"train(?:ing)?[/_ -]loss[/_ -]step",
    r"loss[/_ -]step",
    r"train(?:ing)?[/_ -]loss[/_ -]epoch",
    r"value",  # the one column of an export of a single metric
)
OTHER = r"(?<![a-z])(val|valid|validation|eval|test|dev)(?![a-z])|__(min|max)$"  # not of training
DEPTH = 8  # records inside records, of which names are made
LINE = 2000  # characters of a line of a text log
JSON = (".json", ".jsonl", ".ndjson")
TEXT = (".log", ".txt", ".out")
# A step at the start of a line of a text log, and a name with its number, as nanoGPT writes them:
# "step 250: train loss 1.23, val loss 1.34" and "iter 10: loss 2.3, time 31.5ms".
STEP = re.compile(r"^\W*(?:global[ _]?)?(?:step|iter|iteration|epoch)\s*[:=#]?\s*(\d+)\b\W*", re.I)
NUMBER = r"[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?|nan|inf(?:inity)?)"
NAMED = re.compile(rf"\W*([a-z][\w/ .-]*?)\s*[:= ]\s*({NUMBER})(?![\w.])", re.I)
Points = list[tuple[float, float]]


PATTERNS = (
    "*tfevents*", "metrics.csv", "metrics/loss", "metrics/train_loss", "wandb-history.jsonl",
    "history.jsonl", "metrics.jsonl", "log.txt", "train.log", "*.wandb",
)  # fmt: skip


def is_log(path: Path | str) -> bool:
    """Whether a file is a log of losses, by its name."""
    path = Path(path)
    return (
        path.suffix.lower() in (".csv", ".tsv", *JSON, *TEXT, ".wandb")
        or "tfevents" in path.name
        or _of_mlflow(path)
    )


def _of_mlflow(path: Path) -> bool:
    """A file of timestamp, value and step, in the folder `metrics` of a run."""
    return path.suffix == "" and "metrics" in path.parts[:-1] and path.is_file()


def find_log(folder: Path | str) -> Path | None:
    """The log in a folder of a training: a Trainer's state, or else events or a table.

    - `folder`: of the training; None is returned where it has no log.

    >>> import pathlib, tempfile, iclflow as icl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = pathlib.Path(folder, "trainer_state.json").write_text("{}")
    ...     icl.checkpoints.find_log(folder).name
    'trainer_state.json'
    """
    folder = Path(folder)
    states = [*folder.glob("trainer_state.json"), *folder.glob("checkpoint-*/trainer_state.json")]
    if states:  # each has all that came before
        return max(states, key=lambda state: _number_of_steps(_state(state)))
    for pattern in PATTERNS:
        found = sorted(folder.rglob(pattern))
        if found:
            return found[-1]
    return None


def _state(path: Path) -> Any:
    """A Trainer's state; nothing where it cannot be read: the reader of the curve will say so."""
    try:
        return read_json(path, LOG)
    except (OSError, ValueError):
        return None


def _number_of_steps(state: Any) -> int:
    found = state.get("global_step") if isinstance(state, Mapping) else None
    return found if isinstance(found, int) else 0


def read_curve(path: Path | str, column: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    r"""Steps and losses of a log, in order; of a step that is there twice, the last one written.

    - a table (`.csv`, `.tsv`) with a header: ours, exports of TensorBoard, W&B, MLflow, Lightning;
    - `trainer_state.json` of the Hugging Face Trainer; a list or lines of JSON objects, in which
      a last line that was cut is left out and an entry inside another is `outer/inner`; an object
      of columns; the history of W&B's API, as objects or as texts of objects;
    - a text with steps and named numbers in its lines, as nanoGPT prints it;
    - an event file of TensorBoard, a metric's file of MLflow, or a folder that holds a log.

    `column` names the loss where it cannot be told: a column, a field or a tag. Cells that are
    empty are left out. Where there is no step, the epoch is the step.

    - `path`: the file or folder.

    >>> import pathlib, tempfile, iclflow as icl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "log.csv")
    ...     written = path.write_text("step,loss\n0,1.0\n10,0.5\n20,0.25\n")
    ...     steps, losses = icl.checkpoints.read_curve(path)
    >>> steps.tolist(), losses.tolist()
    ([0.0, 10.0, 20.0], [1.0, 0.5, 0.25])
    """
    (steps, losses), *_ = _read(path, lambda names, found: [_chosen(names, column, found)])
    return steps, losses


def read_columns(
    path: Path | str, columns: Sequence[str]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Several columns of one log: the steps of all of them, and the values of each by name.

    - `path`: a log as for `read_curve`.
    - `columns`: their names. A name with a `*` stands for all columns that match it, in the order
      of the numbers in their names: `"loss_*"` for losses by position.

    A column without a value at a step has NaN there.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from iclflow.checkpoints import read_columns
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "log.csv")
    ...     _ = path.write_text(chr(10).join(["step,loss_50,loss_500", "1,9,9", "2,8,5", "3,8,4"]))
    ...     steps, values = read_columns(path, ["loss_*"])
    >>> values["loss_500"].tolist()
    [9.0, 5.0, 4.0]
    """
    if _of_mlflow(Path(path)):
        raise ValueError(f"{path} holds one metric alone; several need a table, events or JSON")
    chosen: list[str] = []

    def choose(names: list[str], found: Path) -> list[str]:
        chosen.clear()
        for column in columns:
            if "*" not in column:
                chosen.append(_chosen(names, column, found))
                continue
            several = sorted(fnmatch.filter(names, column), key=_by_number)
            if len(several) < 2:
                raise ValueError(
                    f"{found}: {len(several)} columns match {column!r}, and positions need two or "
                    f"more; {_list(names)}"
                )
            chosen.extend(several)
        return chosen

    curves = _read(path, choose)
    steps = np.unique(np.concatenate([times for times, _ in curves]))
    found = {}
    for name, (times, values) in zip(chosen, curves, strict=True):
        found[name] = np.full(steps.size, np.nan)
        found[name][np.searchsorted(steps, times)] = values
    return steps, found


def _by_number(name: str) -> tuple[list[int], str]:
    """Columns in the order of the numbers in their names: loss_9 is before loss_10."""
    return [int(number) for number in re.findall(r"\d+", name)], name


Choice = Callable[[list[str], Path], list[str]]  # names of a log's columns, its path -> those read


def _read(path: Path | str, choose: Choice) -> list[tuple[np.ndarray, np.ndarray]]:
    """Steps and values of the chosen columns, each in order of its own steps."""
    path = Path(path)
    whole = path.is_dir()
    if whole:
        found = find_log(path)
        if found is None:
            raise ValueError(f"{path}: no trainer_state.json, TensorBoard events or metrics.csv")
        path = found
    require_regular(path, LOG)
    files = [path]
    if whole and "tfevents" in path.name:  # a run that was taken up again has several
        files = sorted(path.parent.glob("*tfevents*"))
    columns = [_points(file, choose) for file in files]
    return [
        _in_order(path, [p for one in same for p in one]) for same in zip(*columns, strict=True)
    ]


def _in_order(path: Path, points: Points) -> tuple[np.ndarray, np.ndarray]:
    if len(points) < 3:
        raise ValueError(f"{path}: a loss curve needs at least 3 points, got {len(points)}")
    ordered = dict(sorted(dict(points).items()))  # dict: a later point takes the place of another
    if len(ordered) < 3:
        raise ValueError(f"{path}: a loss curve needs at least 3 steps, got {len(ordered)}")
    return np.array(list(ordered), float), np.array(list(ordered.values()), float)


def _points(path: Path, choose: Choice) -> list[Points]:
    """The points of the chosen columns of one file."""
    if "tfevents" in path.name:
        events = {tag: points for tag, points in read_events(path).items() if points}
        if not events:
            raise ValueError(f"{path}: no scalars among the events")
        names = choose(list(events), path)
        return [[(float(s), v) for s, v in events[name]] for name in names]
    if _of_mlflow(path):
        rows = [line.split() for line in read_text(path, LOG).splitlines() if line.strip()]
        return [_numbers(((row[2], row[1]) for row in rows if len(row) == 3), path)]
    if path.suffix.lower() == ".wandb":
        raise ValueError(
            f"{path}: the offline format of W&B, which only its own library reads; wandb sync it, "
            f"then export the history as CSV, or save run.history() as JSON"
        )
    if path.suffix.lower() in JSON:
        return _from_records(_records(path), choose, path)
    if path.suffix.lower() in TEXT:
        return _from_records(_from_lines(path), choose, path)
    return _from_table(path, choose)


def _from_table(path: Path, choose: Choice) -> list[Points]:
    text = read_text(path, LOG)
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    try:
        rows = list(csv.reader(text.splitlines(), delimiter=separator))
    except csv.Error as error:
        raise ValueError(f"{path} is not a text file of columns ({error})") from None
    header = [name.strip() for name in rows[0]] if rows else []
    steps = _step_name(header, path)
    chosen = choose([name for name in header if name != steps], path)
    found = []
    for name in chosen:
        places = header.index(steps), header.index(name)
        cells = ([row[place] if place < len(row) else "" for place in places] for row in rows[1:])
        found.append(_numbers(cells, path))
    return found


def _from_records(records: list[Mapping[str, Any]], choose: Choice, path: Path) -> list[Points]:
    names = list(dict.fromkeys(name for record in records for name in record))
    steps = _step_name(names, path)
    numeric = [n for n in names if n != steps and any(_number(r.get(n)) for r in records)]
    return [
        _numbers(((r.get(steps, ""), r.get(name, "")) for r in records), path)
        for name in choose(numeric, path)
    ]


def _records(path: Path) -> list[Mapping[str, Any]]:
    if path.suffix.lower() == ".json":
        found = read_json(path, LOG)
        for wrapper in ("log_history", "history"):  # of a Trainer's state, of W&B's API
            found = found.get(wrapper, found) if isinstance(found, Mapping) else found
        if isinstance(found, list) and all(isinstance(row, str) for row in found):
            found = [parse_json(row, f"{path}, row {i}") for i, row in enumerate(found, start=1)]
        found = _rows(found) if isinstance(found, Mapping) else found
    else:
        found = _lines_of_json(path)
    if not isinstance(found, list) or not all(isinstance(r, Mapping) for r in found) or not found:
        raise ValueError(f"{path}: needed log_history, or a list of objects with step and loss")
    return [_flat(record) for record in found]


def _lines_of_json(path: Path) -> list[Any]:
    """An object per line; the last line is left out where the program died while it wrote it."""
    lines = [line for line in read_text(path, LOG).splitlines() if line.strip()]
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(parse_json(line, f"{path}, line {number}"))
        except ValueError:
            if number < len(lines) or number == 1:
                raise
    return found


def _rows(columns: Mapping[str, Any]) -> Any:
    """Records from an object of columns, as pandas writes a table; anything else as it is."""
    lists = {
        name: list(column.values()) if isinstance(column, Mapping) else column
        for name, column in columns.items()
    }
    if len({len(c) if isinstance(c, list) else -1 for c in lists.values()}) != 1:
        return columns
    if not all(isinstance(column, list) for column in lists.values()):
        return columns
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _flat(record: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """A record without records inside: {"train": {"loss": 1}} has the entry `train/loss`."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping) and depth < DEPTH:
            inner = _flat(value, depth + 1)
            found |= {f"{name}/{key}": entry for key, entry in inner.items()}
        else:
            found[str(name)] = value
    return found


def _from_lines(path: Path) -> list[Mapping[str, Any]]:
    """The lines of a text log that begin with a step, as records of their named numbers."""
    found: list[Mapping[str, Any]] = []
    for line in read_text(path, LOG).splitlines():
        step = STEP.match(line[:LINE])
        if step is None:
            continue
        pieces = re.split(r"[,;|\t]", line[step.end() : LINE])
        named = [match for piece in pieces if (match := NAMED.match(piece))]
        if named:
            found.append({"step": int(step[1])} | {m[1].strip(): float(m[2]) for m in named})
    if not found:
        raise ValueError(
            f"{path}: no line like 'step 250: train loss 1.23' or 'iter 10: loss 2.3'; a text log "
            f"needs them, other logs are read as .csv, .json or .jsonl"
        )
    return found


def _step_name(names: list[str], path: Path) -> str:
    for wanted in STEPS:
        for name in names:
            if name.lower() == wanted:
                return name
    if not any(names):
        raise ValueError(f"{path}: no columns; a log needs a first row with their names")
    shown = ", ".join(names[:8])
    raise ValueError(f"{path}: no column for the step ({', '.join(STEPS[:4])}) among {shown}")


def _chosen(names: Iterable[str], column: str | None, path: Path) -> str:
    """The name of the loss: the one asked for, or the surest; where several are alike, ask."""
    names = list(names)
    if column is not None:
        if column not in names:
            raise ValueError(
                f"{path}: no column {column!r}{nearest(column, names)}; {_list(names)}"
            )
        return column
    ours = [name for name in names if not re.search(OTHER, name, flags=re.I)]
    for pattern in LOSSES:
        # W&B puts the name of the run before that of the metric
        found = [n for n in ours if re.fullmatch(rf"(.* - )?{pattern}", n.strip(), flags=re.I)]
        if len(found) == 1:
            return found[0]
        if found:
            raise ValueError(
                f"{path}: {len(found)} columns may be the loss ({', '.join(found[:4])}); "
                f"choose one: --column {found[0]!r}"
            )
    loose = [name for name in ours if "loss" in name.lower()]
    if len(loose) == 1:
        return loose[0]
    raise ValueError(f"{path}: which column is the loss? Choose one with --column; {_list(names)}")


def _list(names: list[str]) -> str:
    return "there are " + ", ".join(names[:12])


def _number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _numbers(cells: Iterable[Iterable[Any]], path: Path) -> Points:
    """Pairs of numbers; a pair with an empty cell is left out."""
    points = []
    for number, (step, loss) in enumerate(cells, start=2):
        if step is None or loss is None or not str(step).strip() or not str(loss).strip():
            continue
        try:
            pair = float(step), float(loss)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{path}, line {number}: step and loss must be numbers") from None
        if math.isfinite(pair[0]):
            points.append(pair)
    return points
