"""Facts of the machine, its peak, and how long a start takes."""

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import iclflow
from iclflow.bench.timing import best_seconds, step_seconds
from iclflow.results.provenance import PACKAGE
from iclflow.runs.compiling import cores

# Name -> a program whose start is timed, in a process of its own.
STARTS = {
    "python": ("-c", "pass"),
    "import jax": ("-c", "import jax"),
    "import iclflow": ("-c", "import iclflow"),
    "ready to sweep": ("-c", "import iclflow as icl; icl.Task, icl.Separate, icl.sweep"),
    "iclflow --help": ("-m", "iclflow", "--help"),
}
PEAK_SIZE = {"cpu": 1024, "gpu": 8192}


def facts() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    device = jax.devices()[0]
    single = not jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "backend": jax.default_backend(),
        "device": processor() if device.platform == "cpu" else device.device_kind,
        "cores": cores(),
        "processor": processor(),
        "precision": "single" if single else "double",
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "iclflow": iclflow.__version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
    }


def processor() -> str:
    """Its name, where the system says it."""
    described = Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def peak(least: float) -> float:
    """Operations a second in a product of two large matrices, at the precision of training."""
    size = PEAK_SIZE.get(jax.default_backend(), PEAK_SIZE["cpu"])
    left, right = jax.random.normal(jax.random.key(0), (2, size, size))

    @jax.jit
    def products(left: Any, right: Any, times: Any) -> Any:
        one = lambda _, x: jnp.matmul(x, right, precision="highest") * (1 / size)  # noqa: E731
        return jax.lax.fori_loop(0, times, one, left)

    run = lambda times: jax.block_until_ready(products(left, right, times))  # noqa: E731
    return 2.0 * size**3 / step_seconds(run, least)


def start_seconds(name: str, repeats: int) -> float:
    """Of one of `STARTS`, the fastest of several, after one that fills the caches."""
    # So that it is this package which is imported, from wherever the program was started.
    paths = [str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def start() -> None:
        command = [sys.executable, *STARTS[name]]
        subprocess.run(command, check=True, capture_output=True, env=environment)

    start()
    return best_seconds(start, repeats)
