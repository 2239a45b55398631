"""Commands walk through few files, so that a newcomer can follow one from its start to its end."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "most"), [("simulate", 45), ("sweep", 35), ("diagnose", 35), ("reproduce", 60)]
)
def test_a_command_walks_through_few_files(command, most, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    walks = importlib.import_module("walks")
    walks.prepare(tmp_path)
    if command == "diagnose":
        walks.walk(walks.START, tmp_path)
    assert 20 < len(walks.walk(walks.COMMANDS[command], tmp_path)) <= most
