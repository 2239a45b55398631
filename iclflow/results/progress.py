"""How a long computation says how far it is: a function to call, and the bar that it may move."""

import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

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

    >>> from iclflow.results.progress import progress_bar
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
