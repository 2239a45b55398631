"""Ctrl-C and SIGTERM at any moment: an exit code, a line that says how to go on, nothing lost."""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from iclflow.cli import EXIT, interruptible
from iclflow.cli.options import kept, train_into
from iclflow.results.netcdf import load, replace
from iclflow.runs.record import INTERRUPTED

TASK = ["--spectrum", "0.5,0.3", "--context", "5", "--heads", "2", "--scale", "0.5"]
RUN = ["simulate", *TASK, "--rate", "1e-4", "--save", "linear:50", "--steps", "20000000"]
RUN += ["--out", "run.nc"]


@pytest.mark.parametrize("number", EXIT)
def test_both_signals_raise_the_same(number):
    with interruptible() as found, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)
    assert found.code == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]


def wait_for_interrupt(seconds=5.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


class Leaving:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_in_a_destructor_is_not_lost():
    with interruptible():
        Leaving()
        with pytest.raises(KeyboardInterrupt):
            wait_for_interrupt()


def test_an_interrupt_in_an_import_waits_for_its_end(tmp_path, monkeypatch):
    text = "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\nexcept BaseException:\n"
    (tmp_path / "swallowing.py").write_text(text + "    raise ImportError\nwhole = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with interruptible():
        module = importlib.import_module("swallowing")
        assert module.whole
        with pytest.raises(KeyboardInterrupt):
            wait_for_interrupt()


@pytest.mark.parametrize("file", ["jax/_src/xla_bridge.py", "multiprocessing/popen_spawn_posix.py"])
def test_an_interrupt_while_something_starts_waits_for_its_end(file):
    text = "def search(end):\n try:\n  end()\n except BaseException:\n  return 'lost'\n"
    space = {}
    exec(compile(text, f"/somewhere/{file}", "exec"), space)
    with interruptible():
        assert space["search"](lambda: signal.raise_signal(signal.SIGINT)) is None
        with pytest.raises(KeyboardInterrupt):
            wait_for_interrupt()


@pytest.mark.parametrize("number", EXIT)
def test_a_signal_after_the_end_changes_nothing(number):
    text = "import atexit, os, signal; from iclflow.cli import leave; "
    text += f"atexit.register(os.kill, os.getpid(), signal.{number.name}); leave(1)"
    assert subprocess.run([sys.executable, "-c", text]).returncode == 1


def runs_that(result):
    return xr.Dataset({"result": ("seed", np.asarray([result], np.int8))})


def test_a_finished_run_is_not_replaced_by_the_beginning_of_another(tmp_path):
    out = tmp_path / "run.nc"
    replace(runs_that(0), out)
    with pytest.raises(KeyboardInterrupt, match="still the finished run; the same command goes on"):
        train_into(out, lambda store: runs_that(INTERRUPTED))
    assert int(load(out)["result"][0]) == 0
    other = tmp_path / "other.nc"
    train_into(other, lambda store: runs_that(INTERRUPTED))
    assert int(load(other)["result"][0]) == INTERRUPTED

    def refused(store):
        store.mkdir()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        train_into(other, refused)
    assert not kept(other).exists()


def started(folder, arguments):
    """A command in a group of its own, as a shell starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "iclflow", *map(str, arguments)], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip


def stop(process, number):
    """Stop a command as a terminal (the whole group) or as `kill` does; code and last line."""
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert "Traceback" not in out + err, err
    return process.returncode, err


def others(group):
    """Processes of a group that are still computing."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found += [path.parent.name] if int(its) == group and state != "Z" else []
    return found


@pytest.mark.long
def test_a_run_ends_at_a_signal_wherever_it_is(tmp_path):
    begun = started(tmp_path, RUN)
    plan = tmp_path / "run.nc.unfinished" / "plan.json"
    while begun.poll() is None and not plan.exists():
        time.sleep(0.05)
    code, err = stop(begun, signal.SIGTERM)
    assert code == 143, err
    assert "iclflow: interrupted; " in err
    assert "the same command goes on" in err
    early = started(tmp_path, RUN)
    time.sleep(1.0)  # in the midst of imports
    code, err = stop(early, signal.SIGINT)
    assert code == 130, err
    assert plan.is_file()


LONG = {
    "simulate": ([*RUN, "--sequences", "20000", "--plot", "run.png"], 15),
    "train": (["train", "--model", "attnS", "--head", "5", "--epoch", "500001", "--out", "o"], 15),
    "reproduce": (["reproduce", "all", "--quick", "--out", "report"], 30),
    "diagnose": (["diagnose", "run.nc", "--plot", "stages.png"], 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", LONG)
def test_no_moment_is_a_bad_one(command, tmp_path):
    arguments, longest = LONG[command]
    if command == "diagnose":
        made = started(tmp_path, [*RUN[:-3], "20001", "--seeds", "4", "--out", "run.nc"])
        _, err = made.communicate()
        assert made.returncode == 0, err
    wrong = []
    for i, delay in enumerate(np.linspace(0.5, longest, 14)):
        number = list(EXIT)[i % 2]
        process = started(tmp_path, arguments)
        time.sleep(delay)
        if process.poll() is not None:
            process.communicate()
            continue
        code, err = stop(process, number)
        if code not in (EXIT[number], 0) or (code != 0 and "interrupted" not in err):
            wrong.append(f"{delay:.1f} s: exit code {code}, {err[-200:]}")
        for _ in range(50):
            if not others(process.pid):
                break
            time.sleep(0.1)
        else:
            wrong.append(f"{delay:.1f} s: a worker goes on")
    assert not wrong, "\n".join(wrong)
    if command == "reproduce" and (data := list(tmp_path.glob("report/data/*.nc"))):
        assert all(load(path).attrs["content_key"] for path in data)  # whole, or not at all
