"""How a process compiles: in the quick form that is most of the time."""

import os
from importlib.metadata import version


def compile_sparingly() -> None:
    """Let this process compile faster, to slower programs; before JAX is first used.

    Results agree to rounding. The user's `XLA_FLAGS` come last, and so win.
    """
    # `reproduce all --quick` takes 105 s of processor time with these flags and 196 s without
    # (2 cores, `time`).
    flags = ["--xla_backend_optimization_level=0"]
    # XLA ends the process at a flag that it does not know, as 0.11 does with this one.
    if version("jaxlib").startswith("0.10."):
        flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")]).strip()
