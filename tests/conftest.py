"""Strict JAX, double precision and runtime shape checks for the whole package."""

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import hypothesis
import jax
import pytest
from beartype import BeartypeConf, FrozenDict, beartype
from jaxtyping import install_import_hook

from iclflow.cli import compile_sparingly

# A runner in the background starts us with Ctrl-C ignored; tests of interruption need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
os.environ["PJRT_NPROC"] = (
    "1"  # there are as many processes as cores; `iclflow.pool` has its own test
)
os.environ["ICLFLOW_CACHE"] = "off"  # no test reads or writes the cache of the user
os.environ["ICLFLOW_DEBUG"] = "1"  # what no command foresaw is raised, not said in a line
os.environ["BROWSER"] = "true"  # a command that does nothing: no test opens a page on a screen
# Tests compile far more than they compute, and much of it again in other files and processes: all
# processes of these tests share one folder of compiled programs, which is deleted at their end.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    PROGRAMS = tempfile.mkdtemp(prefix="iclflow-tests-")
    atexit.register(shutil.rmtree, PROGRAMS, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = PROGRAMS
    jax.config.update("jax_compilation_cache_dir", PROGRAMS)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
# Programs are compiled as those of `iclflow theory` are, and no other way. With all of XLA's
# optimisations tests/runs/test_simulate.py takes 56 s of processor time, and 23 s so.
compile_sparingly()

# The same examples in every `make test`; new ones in `make test-all`, which prints how to repeat
# the one that fails.
hypothesis.settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("random", print_blob=True, deadline=None)
hypothesis.settings.load_profile(os.environ.get("ICLFLOW_EXAMPLES", "fixed"))

# An int is a float (PEP 484). The hook decorates methods one by one, where beartype cannot know
# which class `Self` is.
CONF = BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict({Self: Any}))
typecheck = beartype(conf=CONF)

# Before the first import of the package: every annotation in it is then checked when called. The
# host loops of the staircase call small functions a hundred thousand times per test, and there the
# checks cost more than what they check: only `make test-all` makes them.
PACKAGE = Path(__file__).parents[1] / "iclflow"
UNCHECKED = () if os.environ.get("ICLFLOW_EXAMPLES") == "random" else ("drops",)
CHECKED = [
    ".".join(("iclflow", *path.relative_to(PACKAGE).with_suffix("").parts))
    for path in PACKAGE.rglob("*.py")
    if path.stem != "__init__" and path.parent.name not in UNCHECKED
]
install_import_hook(CHECKED, "tests.conftest.typecheck")

# Begun last, a long file would leave the other processes idle.
LONG = (
    "scorecard", "sweep_cluster", "explorer_browser", "snippets", "cli", "losses", "dynamics",
    "cli_diagnose", "staircase", "sweep", "contracts", "animate", "fixed_points", "chebyshev",
)  # fmt: skip
RANK = {f"test_{name}": rank for rank, name in enumerate(LONG)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long files first."""
    items.sort(key=lambda item: RANK.get(item.path.stem, len(RANK)))


def pytest_collection_finish() -> None:
    """The collector of cycles has no need to look at all that was imported, again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


MAPS = 12_000  # some 3 GB; and of more than 65,530 memory maps the compiler crashes, on Linux


@pytest.fixture(autouse=True, scope="module")
def _few_memory_maps() -> Iterator[None]:
    """Forget compiled programs, which are memory maps, when a process has thousands of them."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAPS:
        jax.clear_caches()
