"""The process that a command runs in: how it compiles, what it keeps, and what signals do to it."""

import _thread
import os
import shutil
import signal
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from iclflow.results.cache import bound, cache_folder, processor

PROGRAMS = 200 << 20  # bytes of compiled programs that are kept


def compile_sparingly(level: int = 0) -> None:
    """Let this process compile faster, to slower programs; before JAX is first used.

    Results agree to rounding. The user's `XLA_FLAGS` come last, and so win.

    - `level`: of LLVM's optimisation, 0 to 3; at 1 long loops still run nearly as fast as at 3.
    """
    from importlib.metadata import version  # slow to import, and `iclflow --help` needs none

    # Compiling takes about 120 s of the processor time of `reproduce all` without these flags, 40 s
    # at level 1; `reproduce all --quick` takes 105 s with them and 196 s without (2 cores).
    flags = [f"--xla_backend_optimization_level={level}"]
    # XLA ends the process at a flag that it does not know, as 0.11 does with the first of these.
    if version("jaxlib").startswith("0.10."):
        flags.append("--xla_cpu_use_fusion_emitters=false")
        flags.append("--xla_cpu_parallel_codegen_split_count=1")  # each part has all declarations
    said = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join([*(flag for flag in flags if flag not in said), *said])


def keep_programs() -> None:
    """Let this process keep its compiled programs for the next one, and use those that are kept.

    They lie in the user's cache folder, 200 MB of them at most. `ICLFLOW_CACHE=off` switches this
    off, and a cache folder that the user gave to JAX wins.
    """
    import jax

    if jax.config.values.get("jax_compilation_cache_dir") is not None:
        return
    folder = cache_folder(f"programs-{processor()}")
    if folder is None:
        return
    bound(folder, PROGRAMS)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Most programs of a command compile in less than the second that JAX waits for by default.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def forget_programs() -> None:
    """Delete the kept programs: one of them is damaged, and JAX does not replace it by itself."""
    folder = cache_folder(f"programs-{processor()}")
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)


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
