"""Ctrl-C and SIGTERM: heard wherever the program is, and an end that is not a crash."""

import _thread
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

EXIT = {signal.SIGINT: 130, signal.SIGTERM: 143}  # 128 + the signal, as shells have it
AGAIN = 0.02  # seconds until an interrupt that came at a bad moment is tried once more
# Code in which a `KeyboardInterrupt` would be swallowed (imports, JAX's search for devices), or
# would leave a process that is being started without its task.
DEAF = (
    "<frozen importlib._bootstrap>",
    "jax/_src/xla_bridge.py",
    "multiprocessing/popen_spawn_posix.py",
)


class Interrupts:
    """Which signal arrived, if any did."""

    received: signal.Signals | None = None
    over: bool = False  # nobody listens any more

    @property
    def code(self) -> int:
        """The exit code after an interrupt."""
        return EXIT[self.received or signal.SIGINT]

    def handle(self, number: int, frame: types.FrameType | None) -> None:
        """Raise `KeyboardInterrupt`, but not in the midst of an import, or of a start.

        They swallow whatever is raised while they look for others, or leave things half made.
        """
        self.received = signal.Signals(number)
        while frame is not None and not frame.f_code.co_filename.endswith(DEAF):
            frame = frame.f_back
        if frame is None:
            raise KeyboardInterrupt
        self.again()

    def again(self) -> None:
        """The same signal a moment later."""
        timer = threading.Timer(AGAIN, self._interrupt)
        timer.daemon = True
        timer.start()

    def _interrupt(self) -> None:
        if not self.over:
            _thread.interrupt_main(self.received or signal.SIGINT)


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Both signals raise `KeyboardInterrupt`, so that what was computed is kept."""
    found = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield found  # only the main thread may say what a signal does
        return

    def unraisable(about: Any) -> None:
        """In a destructor or a callback of the garbage collector an interrupt ends nothing."""
        if about.exc_type is KeyboardInterrupt:
            found.again()
        else:
            hook(about)

    # Programs in the background are started with Ctrl-C ignored, and stay so.
    heard = [number for number in EXIT if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, found.handle) for number in heard}
    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    try:
        yield found
    finally:
        found.over = True
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(code: int) -> NoReturn:
    """End the program; after an interrupt at once.

    XLA may be computing in threads of its own still, and brings down an interpreter that is being
    taken apart.
    """
    if code not in EXIT.values():
        for number in EXIT:  # all is done: what comes while the interpreter ends changes nothing
            signal.signal(number, signal.SIG_IGN)
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
