"""The command line: `iclflow COMMAND ...`. No science inside; each command imports it when run.

The second half is about the process that a command runs in: how it compiles, what it keeps, and
what signals do to it.
"""

import _thread
import argparse
import gc
import importlib
import io
import os
import shutil
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import iclflow
from iclflow.results.files import bound, cache_folder, processor
from iclflow.results.messages import printable, require_choice

# Name -> one line. Module iclflow.cli.<name> has `add_arguments(parser)` and `run(args) -> int`.
COMMANDS = {
    "reproduce": "every figure of the paper and the scorecard of its claims, as one page",
    "simulate": "train a model on a task at the level of exactness you choose",
    "theory": "what the theory says of a task: levels, drops, stability, algorithms",
    "diagnose": "stages, algorithms and geometry of a run, a loss curve or checkpoints",
    "train": "the flags of the published code, in seconds instead of days",
    "compare": "repeat a recorded run of the published code and report the difference",
    "convert": "rate, init and clock of a run in the words of another code",
    "sweep": "many runs from one design: a grid or random, here or on a cluster, in one store",
    "plan": "will training get there? probabilities of each drop within a budget of steps",
    "plot": "a look at a sweep: lines, a map over two axes, or a fitted law with its interval",
    "explore": "a page that trains attention as you watch; or shows recorded runs",
    "bench": "how fast training is on this machine: steps per second by level, model and engine",
    "cite": "BibTeX entries: the software, and the papers whose theory was used",
    "animate": "a video of the weights over training, from a run that recorded them",
}

# Commands that compile for longer than they compute, and how (`compile_sparingly`).
LEVELS = {"theory": 0, "simulate": 1, "diagnose": 1, "train": 1, "compare": 1, "plan": 1}

LINE = 500  # characters of a message at most
OBJECTS = 50_000  # new objects between two searches for garbage

EXAMPLES = """examples:
  iclflow reproduce fig3 --quick
  iclflow simulate --spectrum 0.4,0.3,0.2,0.1 --context 31 --heads 5 --scale 0.01 --plot run.png
  iclflow train --model attnM --head 8 --init 1e-6
  iclflow COMMAND --help
"""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Print one line on stderr and exit with 2."""
        fail(f"{message} (see {self.prog} --help)")


def fail(message: str) -> NoReturn:
    """One clear line on stderr, exit code 2."""
    line = printable(" ".join(message.split()))
    line = line if len(line) <= LINE else f"{line[:LINE]}..."
    print(f"iclflow: {line}", file=sys.stderr)
    raise SystemExit(2)


def unexpected(error: Exception) -> int:
    """One line for an error that no command foresaw, exit code 1; `ICLFLOW_DEBUG=1` raises it."""
    if isinstance(error, RuntimeError) and "Symlink loop" in str(error):  # of Path.resolve
        fail(f"{str(error).partition('from ')[2].strip(chr(39))} is a link that leads to itself")
    if os.environ.get("ICLFLOW_DEBUG"):
        raise error
    line = " ".join(f"{type(error).__name__}: {error}".split())[:LINE]
    print(f"iclflow: {line}; this is a bug; ICLFLOW_DEBUG=1 shows the traceback", file=sys.stderr)
    return 1


def build_parser(command: str | None = None) -> Parser:
    """The parser; only the named command's options are built, so that start-up is quick."""
    parser = Parser(
        prog="iclflow",
        description="How does a transformer acquire in-context learning during training?",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"iclflow {iclflow.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    for name, line in COMMANDS.items():
        if command not in (None, name):
            continue
        if command is None:
            commands.add_parser(name, help=line)
            continue
        module = importlib.import_module(f"iclflow.cli.{name}")
        sub = commands.add_parser(
            name,
            help=line,
            description=(module.__doc__ or "").split("\n\n")[0],
            epilog=getattr(module, "EXAMPLES", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
    return parser


def program() -> NoReturn:
    """The command `iclflow` of the shell."""
    # Imports and JAX's tracing make objects by the hundred thousand, nearly all of which stay. To
    # look through them for garbage as often as Python does by default takes a tenth of a command.
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])
    if sys.argv[1:2] != ["sweep"]:
        # Where Dask is installed, xarray imports all of it when it first looks at an array, which
        # is a twentieth of a short command. Workers of a sweep need Dask, and nobody else does.
        sys.modules.setdefault("dask", None)  # pyright: ignore[reportArgumentType]
    leave(main())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        # A letter that the terminal's encoding does not have must not end a command after its work.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        try:
            return _main(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Who read us, such as `head`, has what it wanted; the rest is said to no one.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _main(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help"):
        build_parser().print_help()
        return 0 if given else 2
    if given[0] == "--version":
        build_parser().parse_args(given)
    with interruptible() as signals:
        try:
            return run_command(given)
        except BrokenPipeError:
            raise
        except (ValueError, OSError, OverflowError, ModuleNotFoundError) as error:
            fail(str(error))
        except MemoryError as error:
            fail(f"not enough memory: {error}; make the problem smaller")
        except RecursionError:
            fail("too deeply nested to be read")
        except KeyboardInterrupt as error:
            # What a command has written it says itself; of the rest nothing is known here.
            print(f"iclflow: interrupted{f'; {error}' if str(error) else ''}", file=sys.stderr)
        except Exception as error:
            # The compiler's own way to say that memory is short.
            if "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower():
                fail(f"not enough memory: {error}; make the problem smaller")
            if signals.received is None:
                return unexpected(error)
            # C++ below us makes other errors of an interrupt.
            print("iclflow: interrupted", file=sys.stderr)
        return signals.code


def run_command(given: Sequence[str]) -> int:
    """Parse the arguments of one command and run it."""
    require_choice("command", given[0], COMMANDS)
    lost = [text for text in given if text.startswith("--") and text.endswith("=--")]
    if lost:  # argparse makes an empty list of such a value, whatever the option's type
        fail(f"{lost[0]} has no value (see iclflow {given[0]} --help)")
    args = build_parser(given[0]).parse_args(given)
    module = importlib.import_module(f"iclflow.cli.{given[0]}")
    if given[0] in LEVELS:
        compile_sparingly(LEVELS[given[0]])
    import jax
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    keep_programs()
    # What is not finite is a result here, and said in words.
    with warnings_in_a_line(), np.errstate(all="ignore"):
        return module.run(args)


@contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Warnings of integrators and the like as one line each, once."""
    said = set()

    def show(message: Warning | str, *_: Any) -> None:
        line = printable(" ".join(str(message).split()))
        if "persistent compilation cache entry" in line:  # the program was compiled again
            return forget_programs()
        if line not in said:
            print(f"iclflow: warning: {line}", file=sys.stderr)
        said.add(line)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


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
        # An interpreter that ends looks for garbage among a million objects, all of which end with
        # it. That takes a tenth of a short command.
        gc.freeze()
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
