"""The progress bar: when it appears, what it says, and that it changes no result."""

import io
import itertools
import sys
import threading
import time

import jax
import numpy as np
import pytest

import iclflow as icl
from iclflow.results import messages as module
from iclflow.results.messages import no_other_bar, progress_bar

TASK = icl.Task([0.6, 0.4], 8)
INIT = icl.Merged.initialiser(TASK, heads=2, scale=0.1)
LOSS = icl.Population(TASK)
RUN = {"until": 60, "saveat": [0, 10, 30, 60]}


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def a_terminal(monkeypatch):
    """A terminal as stderr; set in the test itself, because pytest sets its own before each."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module, "WAIT", 0.01)
    return found


def work(show, appears=None):
    """Work that lasts until the bar `appears` in this stream, or for no time."""
    with progress_bar("counting", show) as report:
        report(1, 2)
        until = time.monotonic() + 60
        while appears is not None and not appears.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
        report(2, 2)


def timers():
    return [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_a_bar_appears_by_itself_on_a_terminal_when_the_work_is_long(monkeypatch):
    terminal = a_terminal(monkeypatch)
    work(None, appears=terminal)
    assert "counting" in terminal.getvalue()
    assert "100%" in terminal.getvalue()


def test_short_work_shows_no_bar_and_imports_no_rich(monkeypatch):
    terminal = a_terminal(monkeypatch)
    monkeypatch.setattr(module, "WAIT", 60.0)
    monkeypatch.setattr(module._Bar, "begin", lambda self: pytest.fail("the bar began"))
    work(None)
    assert terminal.getvalue() == ""
    assert timers() == []


def test_no_bar_where_nobody_looks_on_or_wants_one(monkeypatch):
    terminal = a_terminal(monkeypatch)

    def waits(show):
        with progress_bar("counting", show):
            return bool(timers())

    assert waits(None)
    assert not waits(False)
    assert not waits(lambda done, total: None)
    with no_other_bar():
        assert not waits(None)
    with progress_bar("outside", False):
        assert not waits(None)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not waits(None)
    assert terminal.getvalue() == ""


def test_true_shows_the_bar_also_in_a_file_and_leaves_it_there(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    work(True)
    said = sys.stderr.getvalue()  # pyright: ignore
    assert "counting" in said
    assert "100%" in said


def test_a_notebook_has_a_bar_without_a_terminal(monkeypatch):
    class Shell:
        kernel = None

    class IPython:
        get_ipython = staticmethod(Shell)

    monkeypatch.setitem(sys.modules, "IPython", IPython)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(module, "WAIT", 0.01)
    work(None, appears=sys.stderr)
    assert "100%" in sys.stderr.getvalue()  # pyright: ignore


def test_a_sweep_takes_true_false_none_or_a_function(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    silent = icl.sweep(LOSS, INIT, icl.Descent(0.2), **RUN, progress=False)
    assert sys.stderr.getvalue() == ""  # pyright: ignore
    shown = icl.sweep(LOSS, INIT, icl.Descent(0.2), **RUN, progress=True)
    assert "training" in sys.stderr.getvalue()  # pyright: ignore
    assert "100%" in sys.stderr.getvalue()  # pyright: ignore
    np.testing.assert_array_equal(silent["loss"], shown["loss"])


@pytest.mark.parametrize(
    "dynamics",
    [icl.Descent(0.2), pytest.param(icl.Flow(), marks=pytest.mark.long)],
    ids=["descent", "flow"],
)
def test_simulate_tells_at_every_save_point_and_gives_the_same_run(dynamics):
    seen = []
    model = INIT(jax.random.key(0))
    plain = icl.simulate(LOSS, model, dynamics, **RUN)
    told = lambda done, total: seen.append((done, total))  # noqa: E731
    watched = icl.simulate(LOSS, model, dynamics, **RUN, progress=told)
    assert [done for done, _ in seen] == RUN["saveat"]
    assert {total for _, total in seen} == {60}
    assert list(watched.record) == ["loss"]
    np.testing.assert_allclose(watched.loss, plain.loss, rtol=1e-12)
    seen.clear()
    icl.simulate(LOSS, model, dynamics, until=90, state=plain.state, progress=told)
    assert seen[-1] == (90, 90)
    assert all(a <= b for a, b in itertools.pairwise(seen))


def test_simulate_under_jit_refuses_a_bar_in_one_line():
    def last(rate):
        run = icl.simulate(LOSS, INIT(jax.random.key(0)), icl.Descent(rate), until=4, progress=True)
        return run.loss[-1]

    with pytest.raises(ValueError, match="under jit, vmap or grad") as error:
        jax.jit(last)(0.1)
    assert "\n" not in str(error.value)
