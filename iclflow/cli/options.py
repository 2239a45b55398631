"""Options of the shell: those of an experiment, made from its fields, and single ones."""

import argparse
import dataclasses
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

from iclflow.study.fields import Fields, Option, described


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


def given(args: argparse.Namespace, fields: type) -> dict[str, Any]:
    """The options of `add_settings` that were given."""
    names = described(fields)
    return {name: v for name, v in vars(args).items() if name in names and v is not None}


def settings_of(args: argparse.Namespace) -> Any:
    """The options that were given, over those of a settings file or a saved run."""
    from iclflow.study.settings import Settings

    return Settings.read(getattr(args, "file", None), given(args, Fields))
