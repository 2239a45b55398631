"""How a command compiles: often that is half of its time, and of a quick report most."""

import os


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
