"""Build sdist and wheel, look into them, and run the tests against the installed wheel.

    python release/check.py [tests/runs/test_simulate.py ...]

The wheel is built from the sdist, without a network. It is installed with the extras into a fresh
environment, at the versions of `constraints.txt`; the tests run there in a folder without the
source tree, all of them or the files given. Tests of the tree itself are left out.
"""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_SHIPPED = re.compile(r"__pycache__|\.pyc$|(^|/)\.(venv|ruff|pytest|hypo)|^(site|report)[-/]")


def run(*command: object, **options: object) -> None:
    """Run a program, or end with its exit code."""
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], check=True, **options)  # type: ignore[call-overload]


def build(out: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel made of it."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    return next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


def tree(folder: str) -> set[str]:
    """The files of a folder of the project, caches left out."""
    paths = (ROOT / folder).rglob("*")
    names = {path.relative_to(ROOT).as_posix() for path in paths if path.is_file()}
    return {name for name in names if not NOT_SHIPPED.search(name)}


def check_wheel(path: Path) -> None:
    """The whole package and nothing else, and metadata that says what the project says."""
    with zipfile.ZipFile(path) as file:
        names = set(file.namelist())
        about = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(file.read(about))
        entry = file.read(about.replace("METADATA", "entry_points.txt")).decode()
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == tree("iclflow"), sorted(inside ^ tree("iclflow"))
    needed = ("iclflow/py.typed", "iclflow/__init__.pyi", "iclflow/explorer/web/index.html")
    assert set(needed) <= inside
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search(r'__version__ = "(.+)"', (ROOT / "iclflow/__init__.py").read_text("utf-8"))
    assert version is not None
    expected = {
        "Name": project["name"],
        "Version": version[1],
        "Summary": project["description"],
        "License-Expression": project["license"],
        "Requires-Python": project["requires-python"],
        "Description-Content-Type": "text/markdown",
    }
    assert {name: metadata[name] for name in expected} == expected
    assert set(metadata.get_all("Provides-Extra", [])) == set(project["optional-dependencies"])
    assert "iclflow = iclflow.cli:program" in entry
    described = metadata.get_payload()
    assert isinstance(described, str)
    assert described.startswith("# iclflow")


def check_sdist(path: Path) -> None:
    """All that is needed to build, test and document, and no leftovers."""
    with tarfile.open(path) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert not [name for name in names if NOT_SHIPPED.search(name)]
    needed = {"README.md", "LICENSE", "CITATION.cff", "constraints.txt", "Makefile", "mkdocs.yml"}
    assert needed | tree("iclflow") | tree("tests") | tree("docs") <= names


def run_tests(wheel: Path, folder: Path, tests: list[str]) -> None:
    """Install the wheel into a fresh environment and run the tests where no source tree is."""
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    extras = "hub,sweep,test,video"
    quiet = ("--quiet", "--disable-pip-version-check")
    constraints = ROOT / "constraints.txt"
    run(python, "-m", "pip", "install", *quiet, "-c", constraints, f"{wheel}[{extras}]")
    away = folder / "away"
    shutil.copytree(ROOT / "tests", away / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", away)
    for path in (away / "tests").rglob("test_*.py"):
        if "parents[2]" in path.read_text(encoding="utf-8"):  # about the tree itself
            path.unlink()
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    where = "import iclflow, sys; assert iclflow.__file__.startswith(sys.prefix), iclflow.__file__"
    run(python, "-c", where, cwd=away, env=environment)
    kept = [name for name in tests if (away / name).exists()]
    jobs = ("-n", os.environ.get("JOBS", "2"), "--dist", "loadfile", "--no-loadscope-reorder")
    run(python, "-m", "pytest", "-q", *jobs, *kept, cwd=away, env=environment)


def main(tests: list[str]) -> None:
    """Everything, in a folder that is removed at the end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sdist, wheel = build(folder / "dist")
        check_sdist(sdist)
        check_wheel(wheel)
        print(f"{sdist.name}, {wheel.name}: contents and metadata are as they should be")
        run_tests(wheel, folder, tests)


if __name__ == "__main__":
    main(sys.argv[1:])
