"""Sparing compilation: flags in the environment, and results that agree to rounding."""

import importlib.metadata
import os
import subprocess
import sys

import pytest

from iclflow import cli
from iclflow.runs.device import cores

PROGRAM = """
import sys
from iclflow.cli import compile_sparingly
if sys.argv[1] != "plain":
    compile_sparingly(int(sys.argv[1]))
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
x = jax.jit(lambda x: jnp.sum(jnp.sin(x) * jnp.exp(-x)))(jnp.linspace(0, 3, 1001))
print(float(x).hex())
"""


def _value(how: str) -> float:
    environment = {name: v for name, v in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return float.fromhex(done.stdout)


@pytest.mark.long
def test_results_agree_to_rounding() -> None:
    plain = _value("plain")
    assert [_value("0"), _value("1")] == pytest.approx([plain, plain], rel=1e-14)


def test_flags_of_the_user_come_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=2")
    cli.compile_sparingly()
    flags = os.environ["XLA_FLAGS"].split()
    assert flags[-1] == "--xla_backend_optimization_level=2"
    assert flags[0] == "--xla_backend_optimization_level=0"


def test_a_flag_that_a_release_may_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.11.2")
    cli.compile_sparingly(1)
    assert os.environ["XLA_FLAGS"] == "--xla_backend_optimization_level=1"


def test_said_twice_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=here")
    cli.compile_sparingly(1)
    once = os.environ["XLA_FLAGS"]
    cli.compile_sparingly(1)
    assert os.environ["XLA_FLAGS"] == once
    assert once.split()[-1] == "--xla_dump_to=here"


def test_commands_that_compute_little_compile_sparingly(monkeypatch, capsys) -> None:
    assert set(cli.LEVELS) < set(cli.COMMANDS)
    monkeypatch.setenv("XLA_FLAGS", "")
    assert cli.main(["convert", "--rate", "0.2", "--scale", "0.1"]) == 0
    assert os.environ["XLA_FLAGS"] == ""
    assert cli.main(["theory", "--spectrum", "1,0.5", "--context", "9", "--json"]) == 0
    assert os.environ["XLA_FLAGS"].startswith("--xla_backend_optimization_level=0")
    assert capsys.readouterr().err == ""


ALL = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.mark.parametrize(
    ("given", "found"), [("1", 1), ("3", 3), ("", ALL), ("0", ALL), ("two", ALL)]
)
def test_cores_are_those_that_the_process_may_use(given, found, monkeypatch):
    monkeypatch.setenv("NPROC", given)
    assert cores() == found
