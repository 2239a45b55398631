"""One option: its type, bounds and words, how a text states it, and how a value is checked.

Nothing heavy is imported here: `iclflow COMMAND --help` is made from options.
"""

import dataclasses
import functools
import math
import numbers
import types
import typing
from typing import Any, ClassVar

from iclflow.results.choices import require_choice

MANY = 1_000_000  # values in a list


@dataclasses.dataclass(frozen=True)
class Option:
    """What may be said about an option, besides its name, type and default.

    The shell, settings files, the flags of the published code and the page are all made from it.

    - `group`, `help`, `metavar`: where and how `--help` shows it.
    - `least`, `above`, `most`: bounds of a number, or of every number of a list.
    - `choices`: the words it may be.
    - `needs`: another option, and values of it, without which this one does nothing. With no
      values named, the other option must differ from its default.
    - `aliases`: other names of it.
    - `page`: the least and the largest value on the page of `iclflow explore`; None if the page
      does not have this option.
    """

    group: str
    help: str
    metavar: str | None = None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    page: tuple[float, float] | None = None

    repeats: ClassVar[bool] = False  # whether the shell gives its values one at a time

    def check(self, name: str, kind: Any, value: Any) -> Any:
        """The value as the type of its field, or `ValueError` in one line.

        - `name`: what messages call the option.
        - `kind`: the type of its field.
        - `value`: what was given.
        """
        if value is None and types.NoneType in typing.get_args(kind):
            return None
        kinds = kinds_of(kind)
        if isinstance(value, str) and str in kinds:
            if self.choices:
                require_choice(name.replace("_", " "), value, self.choices)
            return value
        lists = [typing.get_args(one)[0] for one in kinds if typing.get_origin(one) is tuple]
        if lists and isinstance(value, list | tuple):
            if not 0 < len(value) <= MANY:
                got = "an empty list" if not value else f"{len(value)}"
                raise ValueError(f"{name} needs 1 to {MANY} values, got {got}")
            return tuple(self._one(name, lists[0], item) for item in value)
        return self._one(name, next((k for k in kinds if k in _NEEDED), kinds[0]), value)

    def _one(self, name: str, kind: Any, value: Any) -> Any:
        fits = {
            bool: isinstance(value, bool),
            str: isinstance(value, str),
            int: isinstance(value, numbers.Integral) and not isinstance(value, bool),
            float: isinstance(value, numbers.Real) and not isinstance(value, bool),
        }
        if not fits.get(kind, False):
            raise ValueError(f"{name} needs {_NEEDED.get(kind, 'a list')}, got {short(value)}")
        if kind in (bool, str):
            return value
        if kind is float and not math.isfinite(value):
            raise ValueError(f"{name} must be finite, got {value}")
        value = kind(value)
        if self.least is not None and value < self.least:
            raise ValueError(f"{name} must be at least {self.least:g}, got {short(value)}")
        if self.above is not None and value <= self.above:
            raise ValueError(f"{name} must be above {self.above:g}, got {short(value)}")
        if self.most is not None and value > self.most:
            raise ValueError(f"{name} must be at most {self.most:g}, got {short(value)}")
        return value

    def read(self, name: str, kind: Any, text: str) -> Any:
        """The value that a text of the shell states.

        - `name`: what messages call the option.
        - `kind`: the type of its field.
        - `text`: one word of the shell; a list is separated by commas.
        """
        kinds = kinds_of(kind)
        if str in kinds and not (len(kinds) > 1 and ("," in text or not text[:1].isalpha())):
            return self.check(name, kind, text)
        for one in kinds:
            if typing.get_origin(one) is tuple:
                return self.check(name, kind, _items(name, typing.get_args(one)[0], text))
        return self.check(name, kind, _number(name, kinds[0], text))


_NEEDED = {bool: "true or false", str: "a word", int: "a whole number", float: "a number"}


def option(default: Any, group: str, help: str, kind: type[Option] = Option, **about: Any) -> Any:
    """A field of settings with its description.

    - `default`: its value where nothing is said.
    - `group`, `help`, `about`: the fields of `Option`.
    - `kind`: a class of `Option` that reads or checks values in its own way.
    """
    return dataclasses.field(default=default, metadata={"option": kind(group, help, **about)})


@functools.cache
def described(fields: type) -> dict[str, tuple[Any, Option]]:
    """The type and the description of every option, by name.

    - `fields`: a dataclass whose fields were made by `option`.
    """
    hints = typing.get_type_hints(fields)
    return {f.name: (hints[f.name], f.metadata["option"]) for f in dataclasses.fields(fields)}


def check_all(settings: Any, prefix: str = "") -> None:
    """Check every option of settings in place, or raise `ValueError` in one line.

    - `settings`: a frozen dataclass whose fields were made by `option`.
    - `prefix`: before the names in messages: `--` where they are flags of the shell.
    """
    for name, (kind, about) in described(type(settings)).items():
        value = about.check(f"{prefix}{name}", kind, getattr(settings, name))
        object.__setattr__(settings, name, value)


def short(value: Any) -> str:
    """A value in a message, not longer than a line."""
    try:
        shown = repr(value)
    except (ValueError, RecursionError):  # a number of too many digits, a list in a list in a …
        shown = f"one too long to show ({type(value).__name__})"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def kinds_of(kind: Any) -> tuple[Any, ...]:
    """The types that a field may have, besides None."""
    parts = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return tuple(part for part in parts if part is not types.NoneType)


def _items(name: str, kind: Any, text: str) -> list[Any]:
    """The parts of a list `a,b,c`. Whole numbers may also be stated as `FIRST-LAST`.

    - `name`: what messages call the option.
    - `kind`: the type of one part.
    - `text`: what was given.
    """
    first, dash, last = text.partition("-")
    if kind is int and dash:
        try:
            ends = int(first), int(last)
        except ValueError:
            raise ValueError(f"{name} needs FIRST-LAST or a list, got {short(text)}") from None
        if not 0 <= ends[1] - ends[0] < MANY:
            raise ValueError(f"{name} needs 1 to {MANY} values, got {short(text)}")
        return list(range(ends[0], ends[1] + 1))
    parts = [part.strip() for part in text.split(",") if part.strip()]
    return parts if kind is str else [_number(name, kind, part) for part in parts]


def _number(name: str, kind: Any, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        comma = "; separate numbers by commas" if len(text.split()) > 1 else ""
        raise ValueError(f"{name} needs {_NEEDED[kind]}, got {short(text)}{comma}") from None
