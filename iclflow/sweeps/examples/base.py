"""An example: its question, its design, and how its answer is read off the store."""

import dataclasses
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from iclflow.results.messages import require_choice
from iclflow.study.study import read_toml
from iclflow.sweeps.design import Design

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(file.stem for file in FOLDER.glob("*.toml")))


@dataclasses.dataclass(frozen=True)
class ExampleAnswer:
    """The numbers found, by name, in words, and the data of the picture."""

    numbers: dict[str, Any]
    lines: list[str]
    data: xr.Dataset


@dataclasses.dataclass(frozen=True)
class Example:
    """A design that ships, and what is asked of it.

    - `question`: in words.
    - `by`: the module of this folder that answers it.
    - `x`, `y`, `theory`: for answers by curve: the axis, the variable, and what theory says of it.
    - `words`: the table of its design.
    """

    name: str
    question: str
    by: str
    words: Mapping[str, Any]
    x: str = ""
    y: str = "drop_times"
    theory: str = "predicted_times"

    @classmethod
    def read(cls, name: str) -> "Example":
        """An example by name."""
        require_choice("example", name, NAMES)
        found = read_toml(FOLDER / f"{name}.toml")
        return cls(name=name, words=found["sweep"], **found["example"])

    def design(self, changed: Mapping[str, Any] | None = None) -> Design:
        """Its design, with some words changed."""
        return Design.of(**{**self.words, **(changed or {})})

    def answer(self, store: xr.Dataset, design: Design) -> ExampleAnswer:
        """What the store says."""
        return _module(self.by).answer(self, store, design)

    def figure(self, answer: ExampleAnswer) -> Any:
        """The picture, theory beside simulation."""
        return _module(self.by).figure(self, answer)


def _module(name: str) -> Any:
    return importlib.import_module(f"iclflow.sweeps.examples.{name}")
