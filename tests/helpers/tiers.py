"""Which cases of a test `make test` takes, which CI as well, and which only `make test-all`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some(cases: Iterable[str], *here: str, slow: Collection[str] = ()) -> list[Any]:
    """The names as parameters: those `here` for `make test`, the others for CI, or slow."""
    cases = list(cases)
    assert {*here, *slow} <= set(cases), f"{here} and {slow} have names that are not in {cases}"
    marks = {name: pytest.mark.slow if name in slow else pytest.mark.long for name in cases}
    return [name if name in here else pytest.param(name, marks=marks[name]) for name in cases]
