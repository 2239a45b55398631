"""The values of a setting in a sweep: a list, a range, even in the logarithm, or random."""

import math
import types
import typing
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from iclflow.results.choices import require_choice
from iclflow.runs.cells import Axis
from iclflow.runs.store import LABEL
from iclflow.study.fields import FIELDS, MANY, short

# Words of a table of values, with what they need; those of a law are drawn, one value a draw.
RANGES = {"range": "[FIRST, LAST] or [FIRST, LAST, STEP]", "linear": "[FIRST, LAST]"}
RANGES |= {"log": "[FIRST, LAST], both above 0"}
LAWS = {
    "uniform": "[LOW, HIGH]",
    "loguniform": "[LOW, HIGH], both above 0",
    "normal": "[MEAN, STD]",
    "choice": "a list",
}
DRAW = "draw"  # the dimension of a random design
CASE = "case"  # that of cases stated one by one


def varies(name: str, value: Any) -> bool:
    """Whether a value of a design file stands for several values of a field."""
    if FIELDS[name][1].repeats:
        return False
    if isinstance(value, Mapping):
        return True
    if not isinstance(value, list | tuple):
        return False
    of_lists = any(typing.get_origin(k) is tuple for k in _kinds(name))
    # One spectrum is a list of numbers; several are a list of lists, or of names.
    words = str in _kinds(name)
    return not of_lists or any(
        isinstance(item, list | tuple) or (words and isinstance(item, str)) for item in value
    )


def is_law(value: Any) -> bool:
    """Whether a value of a design file is a distribution."""
    return isinstance(value, Mapping) and any(word in LAWS for word in value)


def values_of(name: str, value: Any) -> tuple[Any, ...]:
    """The values that a list or a range of a design file stands for, checked as the field's own.

    - `name`: the field.
    - `value`: a list, or a table such as `{"log": [0.01, 1], "count": 5}`.
    """
    found = list(_range(name, value) if isinstance(value, Mapping) else value)
    if not 0 < len(found) <= MANY:
        raise ValueError(f"{name} needs 1 to {MANY} values, got {len(found)}")
    checked = tuple(_check(name, one) for one in found)
    if len(set(checked)) < len(checked):
        twice = next(one for one in checked if checked.count(one) > 1)
        raise ValueError(f"{name} has the value {short(twice)} twice; leave one out")
    return checked


def drawn(name: str, law: Mapping[str, Any], draws: int, seed: int) -> tuple[Any, ...]:
    """Draw values of a distribution. The first of them do not depend on how many are drawn.

    - `name`: the field that they are values of.
    - `law`: the word of the distribution and its numbers, such as `{"uniform": [0, 1]}`.
    - `draws`: how many values.
    - `seed`: of the random numbers.
    """
    word, ends = _one(name, law, LAWS, ())
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if word == "choice":
        if not isinstance(ends, list) or not ends:
            raise ValueError(f"{name}: choice needs {LAWS[word]}, got {short(ends)}")
        return tuple(_check(name, ends[i]) for i in rng.integers(len(ends), size=draws))
    low, high = _pair(name, word, ends, LAWS[word], above=0 if word == "loguniform" else None)
    if word != "normal" and not low < high:
        raise ValueError(f"{name}: {word} needs LOW below HIGH, got {short(ends)}")
    law_of: dict[str, Callable[[], np.ndarray]] = {
        "uniform": lambda: rng.uniform(low, high, draws),
        "loguniform": lambda: np.exp(rng.uniform(math.log(low), math.log(high), draws)),
        "normal": lambda: low + high * rng.standard_normal(draws),
    }
    found = law_of[word]()
    whole = int in _kinds(name) and float not in _kinds(name)
    return tuple(_check(name, round(float(x)) if whole else float(x)) for x in found)


def cases_of(tables: Any) -> Axis:
    """The dimension of cases that are stated one by one, each with fields of its own.

    - `tables`: a list of tables, field -> value; the word `label` names a case.
    """
    ok = isinstance(tables, list) and tables and all(isinstance(t, Mapping) for t in tables)
    if not ok or len(tables) > MANY:
        raise ValueError(f"cases needs a list of tables, [{{scale = 0.1}}], got {short(tables)}")
    names = dict.fromkeys(name for table in tables for name in table if name != LABEL)
    for name in names:
        require_choice("setting in cases", name, list(FIELDS))
    fields = {
        name: tuple(_check(name, t[name]) if name in t else None for t in tables) for name in names
    }
    labels = tuple(str(table.get(LABEL, "")) for table in tables)
    if not names or len(set(zip(*fields.values(), strict=True))) < len(tables):
        raise ValueError("cases: two of them have the same settings; leave one out")
    return Axis(CASE, fields, labels)


def _range(name: str, table: Mapping[str, Any]) -> list[Any]:
    word, ends = _one(name, table, RANGES, ("count",))
    if word == "range":
        whole = isinstance(ends, list) and all(isinstance(x, int) for x in ends)
        if not whole or len(ends) not in (2, 3) or (len(ends) == 3 and ends[2] < 1):
            raise ValueError(f"{name}: range needs {RANGES[word]}, got {short(ends)}")
        return list(range(ends[0], ends[1] + 1, *ends[2:]))
    low, high = _pair(name, word, ends, RANGES[word], above=0 if word == "log" else None)
    count = table.get("count")
    if not isinstance(count, int) or not 2 <= count <= MANY:
        raise ValueError(f"{name}: {word} needs a count of at least 2, got {short(count)}")
    spread = np.geomspace if word == "log" else np.linspace
    points = spread(low, high, count)
    if int in _kinds(name) and float not in _kinds(name):
        return [int(x) for x in np.unique(np.round(points))]
    return [float(f"{x:.12g}") for x in points]  # 0.3, not 0.30000000000000004


def _one(
    name: str, table: Mapping[str, Any], words: Mapping[str, str], more: tuple[str, ...]
) -> tuple[str, Any]:
    for said in table:
        require_choice(f"word for the values of {name}", said, [*RANGES, *LAWS, "count"])
    said = [word for word in table if word in words]
    if len(said) != 1 or set(table) - {*words, *more}:
        raise ValueError(f"{name} needs one of {', '.join(words)}, got {short(dict(table))}")
    return said[0], table[said[0]]


def _pair(name: str, word: str, ends: Any, needed: str, above: float | None) -> tuple[float, float]:
    numbers = isinstance(ends, list | tuple) and len(ends) == 2
    numbers = numbers and all(isinstance(x, int | float) and math.isfinite(x) for x in ends)
    if not numbers or (above is not None and min(ends) <= above):
        raise ValueError(f"{name}: {word} needs {needed}, got {short(ends)}")
    return float(ends[0]), float(ends[1])


def _check(name: str, value: Any) -> Any:
    kind, about = FIELDS[name]
    if value is None:
        raise ValueError(f"{name}: a sweep needs values, got None; leave the field out")
    return about.check(name, kind, value)


def _kinds(name: str) -> tuple[Any, ...]:
    kind = FIELDS[name][0]
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
