"""The cache of the user: kept, bounded, switched off, and worth no error whatever happens to it."""

import json
import os
import subprocess
import sys

import pytest

from iclflow.cli import forget_programs
from iclflow.results import files, provenance

THEORY = ["theory", "--spectrum", "1,0.5", "--context", "9", "--json"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


def command(folder) -> tuple[str, str]:
    """Output and errors of one command in a process of its own."""
    own = {name: v for name, v in os.environ.items() if not name.startswith("JAX_")}
    environment = own | {files.VARIABLE: str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "iclflow", *THEORY], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_what_is_kept_is_recalled(folder):
    assert files.recall("speeds.json") == {}
    files.keep("speeds.json", {"vmap": 3.5})
    assert files.recall("speeds.json") == {"vmap": 3.5}
    assert [path.name for path in folder.iterdir()] == ["speeds.json"]


@pytest.mark.parametrize("damage", [b"", b"\xff\x00", b"[1, 2]", b'{"vmap": ', b"[" * 100_000])
def test_a_damaged_file_is_as_if_it_were_not_there(damage, folder):
    files.keep("speeds.json", {"vmap": 3.5})
    (folder / "speeds.json").write_bytes(damage)
    assert files.recall("speeds.json") == {}
    files.keep("speeds.json", {"vmap": 4.5})
    assert files.recall("speeds.json") == {"vmap": 4.5}


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no"])
def test_one_variable_switches_it_off(word, monkeypatch):
    monkeypatch.setenv(files.VARIABLE, word)
    assert files.cache_folder() is None
    files.keep("speeds.json", {"vmap": 3.5})
    assert files.recall("speeds.json") == {}


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(files.VARIABLE, str(tmp_path / "file"))
    assert files.cache_folder("programs") is None
    files.keep("speeds.json", {"vmap": 3.5})
    assert files.recall("speeds.json") == {}


def test_the_oldest_files_go_first(tmp_path):
    for age, name in enumerate(["new", "middle", "old"]):
        path = tmp_path / name
        path.write_bytes(bytes(10))
        os.utime(path, (1e9 - age, 1e9 - age))
    files.bound(tmp_path, 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["middle", "new"]


def test_code_is_read_once_and_its_key_is_the_same(folder, monkeypatch):
    provenance._known.cache_clear()
    fresh = provenance.code_key("iclflow.models")
    [kept] = folder.glob("code-*.json")
    assert len(json.loads(kept.read_text())) > 3

    def unreadable(source):
        raise AssertionError("the file was parsed again")

    monkeypatch.setattr(provenance, "_read", unreadable)
    provenance._known.cache_clear()
    assert provenance.code_key("iclflow.models") == fresh
    provenance._known.cache_clear()


@pytest.mark.parametrize("entry", [None, 3, ["hash"], ["hash", "name"], ["hash", [3]], [3, []]])
def test_an_entry_of_another_shape_is_not_believed(entry, folder):
    provenance._known.cache_clear()
    fresh = provenance.code_key("iclflow.models")
    [kept] = folder.glob("code-*.json")
    kept.write_text(json.dumps(dict.fromkeys(json.loads(kept.read_text()), entry)))
    provenance._known.cache_clear()
    assert provenance.code_key("iclflow.models") == fresh
    provenance._known.cache_clear()


def test_forgetting_deletes_the_programs_and_nothing_else(folder):
    programs = files.cache_folder(f"programs-{files.processor()}")
    assert programs is not None
    (programs / "jit_f-cache").write_bytes(b"damaged")
    files.keep("speeds.json", {"vmap": 3.5})
    forget_programs()
    assert list(programs.iterdir()) == []
    assert files.recall("speeds.json") == {"vmap": 3.5}


@pytest.mark.long
def test_a_command_uses_kept_programs_and_survives_damaged_ones(folder):
    first = command(folder)
    [programs] = folder.glob("programs-*")
    kept = {path.name: path.read_bytes() for path in programs.iterdir()}
    assert len(kept) > 3
    assert command(folder) == first
    assert {path.name for path in programs.iterdir()} == set(kept)  # nothing was compiled again
    for path in programs.iterdir():
        path.write_bytes(path.read_bytes()[:40])
    assert command(folder) == first  # not a word about it
    assert command(folder) == first
    sizes = {path.stat().st_size for path in programs.iterdir()}
    assert 40 not in sizes
