"""Strict JAX, double precision and runtime shape checks for the whole package."""

import signal
from typing import Any, Self

import jax
from beartype import BeartypeConf, FrozenDict, beartype
from jaxtyping import install_import_hook

from iclflow.compiling import compile_sparingly

# A runner in the background starts us with Ctrl-C ignored; tests of interruption need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
# Tests compile far more than they compute.
compile_sparingly()
jax.config.update("jax_disable_most_optimizations", True)

# An int is a float (PEP 484). The hook decorates methods one by one, where beartype cannot know
# which class `Self` is.
CONF = BeartypeConf(is_pep484_tower=True, hint_overrides=FrozenDict({Self: Any}))
typecheck = beartype(conf=CONF)

# Before the first import of the package: every annotation in it is then checked when called.
install_import_hook("iclflow", "conftest.typecheck")
