"""Files are written whole or not at all; a name that is not there is answered with the nearest."""

import errno
import os
import platform
import subprocess
import sys

import pytest
import xarray as xr

import iclflow as icl
from iclflow.results.files import replacing, require_path, write_text
from iclflow.results.messages import require_choice


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_text_is_written_whole_or_not_at_all(tmp_path):
    write_text(tmp_path / "a.txt", "first")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.txt", "\ud800")
    assert (tmp_path / "a.txt").read_text() == "first"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("failure", [ValueError("no"), KeyboardInterrupt()])
def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path, failure):
    path = write_text(tmp_path / "a.txt", "first")
    with pytest.raises(type(failure)):
        _fail(path, failure)
    assert path.read_text() == "first"
    assert names(tmp_path) == ["a.txt"]


def test_the_ending_is_that_of_the_file(tmp_path):
    with replacing(tmp_path / "a.b.nc") as partial:
        assert (partial.suffix, partial.parent) == (".nc", tmp_path)
        partial.touch()
    assert names(tmp_path) == ["a.b.nc"]


KILLED = """
import os, sys
from iclflow.results.files import replacing
with replacing(sys.argv[1]) as partial:
    partial.write_text("half")
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(os.name != "posix", reason="asks for a process by signal 0")
def test_what_a_killed_program_left_goes_and_what_another_writes_stays(tmp_path):
    path = tmp_path / "a.txt"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (left,) = names(tmp_path)
    assert left.startswith(".a.")
    living = f".a.{platform.node()}-{os.getppid()}.txt"
    (tmp_path / living).touch()
    (tmp_path / ".a.mine.txt").touch()
    write_text(path, "whole")
    assert names(tmp_path) == sorted([living, ".a.mine.txt", "a.txt"])


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "whatever the system says"),
        RuntimeError(f"can't write data (errno = 28, '{os.strerror(errno.ENOSPC)}')"),
    ],
)
def test_a_full_disk_is_one_clear_line(tmp_path, error):
    with pytest.raises(OSError, match=r"^\S*a\.nc was not written: the disk is full; free some"):
        _fail(tmp_path / "a.nc", error)
    with pytest.raises(OSError, match="read-only"):  # other errors say what they are
        _fail(tmp_path / "a.nc", OSError(errno.EROFS, "read-only"))
    assert names(tmp_path) == []


def _fail(path, error):
    with replacing(path) as partial:
        partial.write_text("half")
        raise error


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"the folder \S*none does not exist; create it"):
        write_text(tmp_path / "none" / "a.txt", "")


def test_what_names_no_file_is_refused_in_one_line():
    runs = xr.Dataset({"loss": ("time", [1.0])})
    for use in (icl.load, lambda given: icl.save(runs, given)):
        with pytest.raises(ValueError, match="path must be the name of a file or folder, got ''"):
            use("")
    for path in (3, None, b"run.nc"):
        with pytest.raises(ValueError, match="out must be the name of a file or folder, got"):
            require_path("out", path)


def test_the_nearest_choice_is_named():
    require_choice("colour", "red", ["red", "green"])
    with pytest.raises(ValueError, match=r"^unknown colour 'gren'; did you mean 'green'"):
        require_choice("colour", "gren", ["red", "green"])
    with pytest.raises(ValueError, match=r"^unknown colour 5; there are red, green$"):
        require_choice("colour", 5, ["red", "green"])
