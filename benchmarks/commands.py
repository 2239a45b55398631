"""Seconds and peak memory of whole commands from the shell: `python benchmarks/commands.py`.

Start and compilation are included. Steps, engines and starts are measured by `iclflow bench`.
"""

import resource
import subprocess
import sys
import time

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
COMMANDS = {
    "Fig. 3 job, six seeds": FIG3,
    "D = 8, rank 2, 20,001 steps, six seeds": FIG4,
    "2,000,000 sequences": MILLIONS,
}


def main():
    for name, arguments in COMMANDS.items():
        begin = time.perf_counter()
        command = [sys.executable, "-m", "iclflow", *arguments.split()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - begin
        # Of the children until now: the largest yet.
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"{name:40s} {seconds:6.1f} s  memory so far {peak:5.0f} MiB at most")
        if arguments == FIG3:
            print(
                f"  the published code needs 2.9 days: {PUBLISHED_FIG3 / seconds:,.0f} times that"
            )


if __name__ == "__main__":
    main()
