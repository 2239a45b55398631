"""Files of the package that four commands walk through: `python benchmarks/walks.py`.

A file counts when one of its functions is called. Importing a file does not count, and neither do
functions that are called while files are imported. `--files` also prints the names of the files,
and of the functions that are called.
`python benchmarks/walks.py NAME` walks only the commands whose names begin so.
"""

import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
START = "simulate --heads 5 --scale 0.07 --rate 0.2 --steps 2001 --out run.nc --force"
DESIGN = "[sweep]\nsteps = 2000\nseeds = 8\nscale = [0.05, 0.1]\n"
COMMANDS = {
    "simulate": START,
    "sweep": "sweep design.toml --out design.zarr",
    "diagnose": "diagnose run.nc",
    "reproduce": "reproduce fig3 --quick --out report",
}

# Python reads this file at the start of each process, and so of each worker. A name is written when
# it is first seen, because workers end without saying goodbye.
WATCH = """
import os, sys, threading
seen, package, optimised = set(), os.environ["WALK_PACKAGE"], 1  # class bodies have no such flag

def imported(frame):
    while frame := frame.f_back:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True

def watch(frame, event, argument):
    code = frame.f_code
    name = code.co_filename
    if event != "call" or code in seen or not name.startswith(package) or not name.endswith(".py"):
        return
    if code.co_flags & optimised and not imported(frame):
        seen.add(code)
        with open(os.environ["WALK_FILES"], "a") as file:
            print(name[len(package):], code.co_qualname, file=file)

sys.setprofile(watch)
threading.setprofile(watch)
"""


def prepare(folder: Path | str) -> None:
    """Put what a walk needs into an empty folder."""
    Path(folder, "sitecustomize.py").write_text(WATCH)
    Path(folder, "design.toml").write_text(DESIGN)


def walk(arguments: str, folder: Path | str) -> dict[str, list[str]]:
    """The files that the command walks through, each with its functions that are called."""
    files = Path(folder, "files.txt")
    files.write_text("")
    environment = os.environ | {
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "WALK_PACKAGE": f"{ROOT / 'iclflow'}{os.sep}",
        "WALK_FILES": str(files),
        "ICLFLOW_CACHE": f"{folder}/cache",
    }
    command = [sys.executable, "-m", "iclflow", *arguments.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, cwd=folder)
    found: dict[str, list[str]] = {}
    for line in sorted(set(files.read_text().splitlines())):
        name, function = line.split(maxsplit=1)
        found.setdefault(name, []).append(function)
    return found


def main() -> None:
    wanted = " ".join(word for word in sys.argv[1:] if not word.startswith("--"))
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder)
        for name, arguments in COMMANDS.items():
            if not name.startswith(wanted):
                continue
            if name == "diagnose":
                walk(START, folder)
            files = walk(arguments, folder)
            rooms = Counter(file.split(os.sep)[0] for file in files)
            print(f"{name:10s} {len(files):3d} files in {len(rooms)} rooms", flush=True)
            if "--files" in sys.argv:
                print(
                    "\n".join(f"    {file}: {', '.join(called)}" for file, called in files.items())
                )


if __name__ == "__main__":
    main()
