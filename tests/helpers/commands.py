"""Commands called in this process, and what they answer."""

import signal

from iclflow.cli import main

LONG = 240  # seconds after which an input counts as one without an end


def call(capsys, *arguments):
    """Exit code, stdout and stderr of one command."""
    try:
        code = main([str(a) for a in arguments])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, *arguments):
    """The one line of an error with exit code 2."""
    code, out, err = call(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    return err


class Endless(BaseException):
    """An input that did not come to an end."""


def watch(signum, frame):
    raise Endless


def problem(capsys, arguments, quiet=True):
    """What is wrong with the answer to one input, in words; None if nothing."""
    before = signal.signal(signal.SIGALRM, watch)
    signal.alarm(LONG)
    try:
        code, _, err = call(capsys, *arguments)
    except Endless:
        return "no end"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        capsys.readouterr()
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if "Traceback" in err or "Exception ignored" in err:
        return f"stderr {err[-200:]}"
    if code == 2 and (err.count("\n") != 1 or not err.startswith("iclflow: ") or len(err) > 600):
        return f"not one line: {err[:200]!r}"
    if code == 0 and quiet and err.count("\n") > 1:
        return f"says {err[:200]!r}"
    return None
