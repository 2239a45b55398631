"""Seconds and peak memory of whole commands from the shell: `python benchmarks/commands.py`.

Start and compilation are included, and each command begins with an empty cache. The second column
is the same command again, with the compiled programs that the first call kept. The last column is
the time with programs compiled as XLA would by itself, relative to the first: it is longer. Steps,
engines and starts are measured by `iclflow bench`. `python benchmarks/commands.py NAME` runs the
commands whose names begin so.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version

FIG3 = (
    "simulate --model separate --heads 5 --rank 1 --spectrum 0.4,0.3,0.2,0.1 --context 31 "
    "--sequences 80000 --init 0.07 --rate 0.2 --steps 10001 --seeds 6 --json"
)
FIG4 = (
    "simulate --model separate --heads 9 --rank 2 --spectrum power:1 --dim 8 --context 31 "
    "--sequences 80000 --init 0.07 --rate 0.2 --steps 20001 --seeds 6 --json"
)
MILLIONS = FIG3.replace("80000", "2000000").replace("10001", "11").replace("--seeds 6", "")
PUBLISHED_FIG3 = 2.9 * 86400  # seconds, the published code on 2 CPU cores, measured
PLAN = "plan --spectrum 0.4,0.3,0.2,0.1 --heads 8 --scale 0.05 --rate 0.5 --steps 4000 --json"
DROP = "simulate --model merged --heads 8 --scale 1e-3 --spectrum linear --dim 4 --json"
START = "simulate --heads 5 --scale 0.07 --rate 0.2 --steps 40001 --out run.nc --force"
COMMANDS = {
    "a short run: the start is all of it": START,
    "theory": "theory --spectrum 0.4,0.3,0.2,0.1 --context 31 --json",
    "plan": PLAN,
    "one abrupt drop": DROP,
    "Fig. 3 job, six seeds": FIG3,
    "D = 8, rank 2, 20,001 steps, six seeds": FIG4,
    "2,000,000 sequences": MILLIONS,
}
# What the user says wins over what the commands choose for themselves.
THOROUGH = {"XLA_FLAGS": "--xla_backend_optimization_level=3"}
if version("jaxlib").startswith("0.10."):
    THOROUGH["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=true"
    THOROUGH["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=32"


def seconds(arguments, folder, **environment):
    command = [sys.executable, "-m", "iclflow", *arguments.split()]
    environment = os.environ | {"ICLFLOW_CACHE": f"{folder}/cache"} | environment
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, cwd=folder)
    return time.perf_counter() - begin


def main():
    wanted = " ".join(sys.argv[1:])
    print(f"{'':40s}  first  again")
    for name, arguments in COMMANDS.items():
        if not name.startswith(wanted):
            continue
        with tempfile.TemporaryDirectory() as folder:
            own, again = seconds(arguments, folder), seconds(arguments, folder)
            # Of the children until now: the largest yet.
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            ratio = seconds(arguments, folder, ICLFLOW_CACHE="off", **THOROUGH) / own
        print(
            f"{name:40s} {own:5.1f} s {again:5.1f} s  memory so far {peak:5.0f} MiB at most  "
            f"{ratio:.2f}"
        )
        if arguments == FIG3:
            print(f"  the published code needs 2.9 days: {PUBLISHED_FIG3 / own:,.0f} times that")


if __name__ == "__main__":
    main()
