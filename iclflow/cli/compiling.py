"""How a command compiles: often that is half of its time, and of a quick report most."""

import os
import shutil

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
