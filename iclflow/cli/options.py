"""Options of the shell: those of an experiment, made from its fields, and single ones."""

import argparse
import dataclasses
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

from iclflow.study.fields import Fields, Option, described, variant


def typed(kind: Any, **bounds: Any) -> Callable[[str], Any]:
    """A type for argparse: a number or a list within bounds, as `Option` checks it."""
    return partial(_read, Option("", "", **bounds), kind)


def _read(about: Option, kind: Any, text: str) -> Any:
    try:
        return about.read("", kind, text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).strip()) from None


def _variant(name: str, text: str) -> str:
    try:
        variant(name, text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


positive = typed(int, least=1)
above_zero = typed(float, above=0)
floats = typed(tuple[float, ...])
names = typed(tuple[str, ...])
seed = typed(int, least=0, most=2**32 - 1)


def add_settings(parser: argparse.ArgumentParser, *groups: str, only: tuple[str, ...] = ()) -> None:
    """Options for the fields of an experiment: whole groups of them, and single ones."""
    boxes: dict[str, Any] = {}
    defaults = {field.name: field.default for field in dataclasses.fields(Fields)}
    for name, (kind, about) in described().items():
        if about.group not in groups and name not in only:
            continue
        if about.group not in boxes:
            boxes[about.group] = parser.add_argument_group(about.group)
        add, default = boxes[about.group].add_argument, defaults[name]
        if kind is bool:
            flag = f"--no-{name}" if default else f"--{name}"
            add(flag, dest=name, action="store_const", const=not default, help=about.help)
            continue
        flags = [f"--{said.replace('_', '-')}" for said in (name, *about.aliases)]
        words = ", ".join(about.choices)
        text = f"{about.help}: {words}" if words else about.help
        shown = ",".join(f"{x:g}" for x in default) if isinstance(default, tuple) else default
        text += "" if default is None or default == 0 else f" ({shown})"
        metavar = about.metavar or (None if typing.get_origin(kind) else kind.__name__.upper())
        metavar = "NAME" if about.choices else metavar
        again = {"action": "append"} if about.variants else {}
        read = partial(_read, about, kind) if not about.variants else partial(_variant, name)
        add(*flags, dest=name, type=read, metavar=metavar, help=text, **again)


def settings_of(args: argparse.Namespace) -> Any:
    """The options that were given, over those of a settings file or a saved run."""
    from iclflow.study.settings import Settings

    given = {k: v for k, v in vars(args).items() if k in described() and v is not None}
    return Settings.read(getattr(args, "file", None), given)
