"""Sweeps: cells per second, and what batches, workers and the store cost or gain.

    python benchmarks/sweeps.py [batches growth workers bookkeeping announced million]

All but the last two if none is named. Ratios are of runs in the same process, one after the other;
the shell is timed on three cells.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import iclflow as icl  # noqa: E402
from iclflow.runs import sweep as sweeps  # noqa: E402
from iclflow.runs.cluster import local_client  # noqa: E402
from iclflow.runs.store import Store  # noqa: E402
from iclflow.sweeps.design import Design, run  # noqa: E402

SMALL = {"steps": 2000, "rate": 0.2, "scale": 0.07, "save": "linear:50"}
FOLDER = Path(tempfile.mkdtemp())


def timed(design: Design, name: str, **options) -> float:
    began = time.perf_counter()
    run(design, FOLDER / f"{name}.zarr", **options)
    return time.perf_counter() - began


def warm(design: Design, name: str, **options) -> float:
    """The second of two: the programs are compiled."""
    timed(design, f"{name}-cold", **options)
    return timed(design, name, **options)


def batches() -> None:
    """1,000 cells in one process, against simulate calls and the shell."""
    batched = warm(Design.of(**SMALL, seeds=1000), "batched")
    task = icl.Task(spectrum=[0.4, 0.3, 0.2, 0.1], context=31)
    loss, init = icl.Population(task), icl.Separate.initialiser(task, heads=5, scale=0.07)
    marks = np.unique(np.linspace(0, 2000, 50).astype(int))
    each = []
    for seed in range(30):
        began = time.perf_counter()
        run_ = icl.simulate(loss, init(jax.random.key(seed)), icl.Descent(0.2), saveat=marks)
        jax.block_until_ready(run_.record)
        each.append(time.perf_counter() - began)
    simulated = 1000 * float(np.median(each[5:]))
    began = time.perf_counter()
    for seed in range(3):
        shell = [sys.executable, "-m", "iclflow", "simulate", "--steps", "2000", "--rate", "0.2"]
        shell += ["--scale", "0.07", "--seed", str(seed), "--save", "linear:50", "--json"]
        subprocess.run(shell, check=True, capture_output=True)
    shelled = 1000 * (time.perf_counter() - began) / 3
    print(f"1,000 cells, one process: {batched:.2f} s, {1000 / batched:.0f} cells per second")
    print(f"  {simulated / batched:.1f} times warm simulate calls ({simulated:.1f} s)")
    print(f"  {shelled / batched:.0f} times the shell one by one ({shelled:.0f} s)")


def growth() -> None:
    """Seconds of 256 cells along cells, D and H."""
    for name, values in {
        "cells": [{"seeds": n} for n in (64, 256, 1024, 4096)],
        "D": [{"seeds": 256, "spectrum": "linear", "dim": d} for d in (2, 4, 8, 16)],
        "H": [{"seeds": 256, "heads": h} for h in (2, 4, 8, 16)],
    }.items():
        for change in values:
            seconds = warm(Design.of(**{**SMALL, **change}), f"{name}-{list(change.values())}")
            rate = change["seeds"] / seconds
            print(f"{name}: {change}: {seconds:.2f} s, {rate:.0f} cells per second")


def workers() -> None:
    """Two single-threaded workers against one, at the level of sequences."""
    words = {"steps": 1000, "rate": 0.2, "scale": 0.07, "save": "linear:20", "loss": "sequences"}
    design = Design.of(**words, sequences=500, seeds=64)
    seconds = {}
    for count in (1, 2):
        with local_client(count) as client:
            seconds[count] = warm(design, f"workers-{count}", block=4, client=client)
    ratio = seconds[1] / seconds[2]
    print(f"workers: 1 needs {seconds[1]:.1f} s, 2 need {seconds[2]:.1f} s, ratio {ratio:.2f}")


def bookkeeping() -> None:
    """The share of the atlas that is not computing its cells."""
    spent, write = {"compute": 0.0, "write": 0.0}, Store.write
    atlas = Path(__file__).parents[1] / "examples" / "sweeps" / "atlas.toml"
    design = Design.of(**tomllib.loads(atlas.read_text(encoding="utf-8"))["sweep"])

    def counted(name, function):
        def inner(*args):
            began = time.perf_counter()
            found = function(*args)
            spent[name] += time.perf_counter() - began
            return found

        return inner

    compute = sweeps.compute
    sweeps.compute = counted("compute", compute)
    Store.write = counted("write", write)
    total = timed(design, "atlas")
    sweeps.compute, Store.write = compute, write
    share = (total - spent["compute"]) / spent["compute"]
    print(f"atlas: {total:.1f} s, of which {spent['write']:.2f} s write; store and bookkeeping "
          f"{share:.1%} of compute")  # fmt: skip


def million() -> None:
    """A million population cells of D = 4 in bounded memory."""
    words = {**SMALL, "steps": 200, "record": [], "save": "linear:20"}
    seconds = timed(Design.of(**words, seeds=1_000_000), "million")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"1,000,000 cells of 200 steps: {seconds:.0f} s, peak memory {peak:.2f} GiB")


def announced() -> None:
    """What `iclflow sweep` announces, what it takes, and what `icl.sweep` takes, a process each."""
    words = {**SMALL, "steps": 200, "record": [], "save": "linear:20"}
    marks = "np.unique(np.linspace(0, 200, 20).astype(int))"
    for seeds in (100, 10_000, 100_000, 1_000_000):
        file = FOLDER / f"{seeds}.toml"
        table = {**words, "seeds": seeds}
        lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
        file.write_text("\n".join(["[sweep]", *lines]))
        shell = [sys.executable, "-m", "iclflow", "sweep", str(file), "--json"]
        said = subprocess.run([*shell, "--dry-run"], check=True, capture_output=True, text=True)
        expected = json.loads(said.stdout)["seconds"]
        began = time.perf_counter()
        subprocess.run([*shell, "--out", f"{file}.zarr"], check=True, capture_output=True)
        command = time.perf_counter() - began
        function = (
            "import jax, numpy as np; jax.config.update('jax_enable_x64', True)\n"
            "import iclflow as icl\n"
            "task = icl.Task([0.4, 0.3, 0.2, 0.1], 31)\n"
            "init = icl.Separate.initialiser(task, heads=5, scale=0.07)\n"
            f"icl.sweep(task, init, icl.Descent(0.2), saveat={marks}, seeds={seeds})"
        )
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", function], check=True)
        alone = time.perf_counter() - began
        print(
            f"{seeds:,} cells: announced {expected:.0f} s, took {command:.1f} s (ratio "
            f"{command / expected:.2f}); icl.sweep {alone:.1f} s ({command / alone:.2f})"
        )


PARTS = {f.__name__: f for f in (batches, growth, workers, bookkeeping, announced, million)}


def main() -> None:
    print(f"{len(os.sched_getaffinity(0))} cores, {jax.devices()[0].device_kind}")
    for name in sys.argv[1:] or list(PARTS)[:-2]:
        PARTS[name]()


if __name__ == "__main__":
    main()
