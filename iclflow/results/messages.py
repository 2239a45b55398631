"""What is said to the user while something runs: names in messages, and how far the work is.

A message about a wrong name has the nearest one, and the words of others are made harmless before
they are printed. A long computation calls a function with how far it is, which may move a bar.
"""

import difflib
import multiprocessing
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


def require_choice(name: str, value: Any, allowed: Collection[str]) -> None:
    """Raise `ValueError` with the nearest name unless `value` is one of those allowed."""
    if value not in allowed:
        # The nearest name comes first: the list of all of them may be cut where a line ends.
        near = nearest(str(value), allowed)
        raise ValueError(f"unknown {name} {value!r}{near}; there are {', '.join(allowed)}")


def nearest(value: str, allowed: Collection[str]) -> str:
    """A part of a message: "; did you mean 'x'?", or nothing where no name is near."""
    found = difflib.get_close_matches(value, allowed, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def printable(text: Any) -> str:
    r"""A text in which no character can steer the terminal: control characters are escaped.

    Names of tensors, columns and files are others' words. Without this a name could move the
    cursor, change colours or rewrite a line that has been printed.

    >>> from iclflow.results.messages import printable
    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in str(text))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


Progress = Callable[[float, float], None]  # (done, total), in whatever unit; now and then
WAIT = 2.0  # seconds after which a bar appears by itself

_has_bar: ContextVar[bool] = ContextVar("_has_bar", default=False)


@contextmanager
def no_other_bar() -> Iterator[None]:
    """Inside, no bar appears by itself: somebody outside shows the progress already."""
    token = _has_bar.set(True)
    try:
        yield
    finally:
        _has_bar.reset(token)


@contextmanager
def progress_bar(label: str, show: bool | Progress | None = None) -> Iterator[Progress]:
    """A bar on stderr; gives the function (done, total) that moves it.

    - `label`: what is being done, to the left of the bar.
    - `show`: True shows the bar at once and leaves it there when the work is over. False shows
      none. None shows one where a person looks on, on a terminal or in a notebook, and only if
      the work lasts longer than two seconds; a bar inside another bar and a bar of a worker
      process stay away. A function is called instead of the bar.

    >>> from iclflow.results.messages import progress_bar
    >>> with progress_bar("counting", show=False) as report:
    ...     for i in range(3):
    ...         report(i + 1, 3)
    """
    if callable(show) or show is False:
        with no_other_bar():
            yield show if callable(show) else lambda done, total: None
        return
    bar = _Bar(label, stays=bool(show))
    alone = not _has_bar.get() and multiprocessing.parent_process() is None
    timer = threading.Timer(WAIT, bar.begin)
    timer.daemon = True
    if show:
        bar.begin()
    elif alone and (_in_notebook() or (sys.stderr is not None and sys.stderr.isatty())):
        timer.start()
    try:
        with no_other_bar():
            yield bar.update
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()  # it may be beginning just now
        bar.end()


def _in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this process."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class _Bar:
    """A bar that may begin later than the work; Rich is imported when it does."""

    def __init__(self, label: str, stays: bool) -> None:
        self.label, self.stays = label, stays
        self.done: tuple[float, float | None] = (0.0, None)
        self.bar: Any = None

    def begin(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        notebook = _in_notebook()
        # A notebook understands the signs of a terminal as far as one line needs them, and needs
        # no widgets then; but it cannot erase a line that is over.
        bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            "{task.percentage:>3.0f}%",
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(
                stderr=True, force_jupyter=False, force_terminal=True if notebook else None
            ),
            transient=not (self.stays or notebook),
            redirect_stdout=not notebook,
            redirect_stderr=not notebook,
        )
        bar.add_task(self.label, total=None)
        self.bar = bar
        self._move()
        bar.start()

    def update(self, done: float, total: float) -> None:
        self.done = (done, total)
        self._move()

    def _move(self) -> None:
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=self.done[0], total=self.done[1])

    def end(self) -> None:
        if self.bar is not None:
            self._move()  # what was told while the bar began
            self.bar.stop()
