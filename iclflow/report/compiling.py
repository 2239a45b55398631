"""How a process compiles: most of the figures' time would else be spent on it."""

import os
from importlib.metadata import version


def compile_sparingly(level: int = 0) -> None:
    """Let this process compile faster, to slower programs; before JAX is first used.

    Results agree to rounding. The user's `XLA_FLAGS` come last, and so win.

    - `level`: of LLVM's optimisation, 0 to 3; at 1 long loops still run nearly as fast as at 3.
    """
    flags = [f"--xla_backend_optimization_level={level}"]
    # XLA ends the process at a flag that it does not know, as 0.11 does with the first of these.
    if version("jaxlib").startswith("0.10."):
        flags.append("--xla_cpu_use_fusion_emitters=false")
        flags.append("--xla_cpu_parallel_codegen_split_count=1")  # each part has all declarations
    os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")]).strip()
