"""Imports point downwards only; the layers are read from the picture in docs/architecture.md."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from iclflow.results.provenance import imported

ROOT = Path(__file__).parents[2]
PACKAGE = "iclflow"

Imports = set[tuple[str, str]]  # (unit, unit it imports); a unit is a module or folder of iclflow


def read_layers(page: str) -> list[list[str]]:
    """The import layers of the documentation page, top first."""
    block = re.search(r"<!-- layers -->\s*```text\n(.*?)```", page, flags=re.S)
    assert block is not None, "docs/architecture.md lost its list of layers"
    return [re.split(r"\s*·\s*", line.strip()) for line in block[1].splitlines() if line.strip()]


def modules_imported(source: str) -> list[str]:
    return imported(ast.parse(source))


def unit_of(path: Path, package: Path) -> str:
    return path.relative_to(package).with_suffix("").parts[0]


def package_imports(package: Path) -> Imports:
    """Imports between different units of the package; `iclflow` alone is its public face."""
    found = set()
    for path in sorted(package.rglob("*.py")):
        unit = unit_of(path, package)
        for name in modules_imported(path.read_text(encoding="utf-8")):
            head, *rest = name.split(".")
            if head != PACKAGE or rest == ["__version__"]:
                continue
            target = rest[0] if rest else "__init__"
            exists = (package / target).is_dir() or (package / f"{target}.py").is_file()
            found.add((unit, target if exists else "__init__"))
    return {(unit, target) for unit, target in found if unit != target}


def complaints(imports: Imports, layers: list[list[str]]) -> list[str]:
    """What breaks the rules, one line each."""
    level = {unit: -depth for depth, layer in enumerate(layers) for unit in layer}
    out = []
    for unit, target in sorted(imports):
        if unit in ("__init__", "__main__"):  # the public face and the way in see everything
            continue
        if target == "__init__":
            out.append(f"{unit} imports from {PACKAGE} itself; name the module that defines it")
        elif unit not in level or target not in level:
            missing = unit if unit not in level else target
            out.append(f"{missing} is in no layer of docs/architecture.md")
        elif unit == "plots":
            out.append(f"plots import {target}; they draw Datasets and compute nothing")
        elif unit == "measures" and target != "linalg":
            out.append(f"measures import {target}; arrays in, arrays out")
        elif level[target] > level[unit]:
            out.append(f"{unit} imports {target}, which is above it")
    cycle = find_cycle(imports)
    return out + ([f"cycle: {' -> '.join(cycle)}"] if cycle else [])


def find_cycle(imports: Imports) -> list[str]:
    """A cycle among the units (possible only inside one layer), or nothing."""
    below: dict[str, list[str]] = {}
    for unit, target in sorted(imports):
        if unit not in ("__init__", "__main__") and target != "__init__":
            below.setdefault(unit, []).append(target)

    def walk(unit: str, path: list[str]) -> list[str]:
        if unit in path:
            return [*path[path.index(unit) :], unit]
        return next((c for t in below.get(unit, []) if (c := walk(t, [*path, unit]))), [])

    return next((c for unit in below if (c := walk(unit, []))), [])


LAYERS = read_layers((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))


def test_imports_point_downwards():
    imports = package_imports(ROOT / PACKAGE)
    assert ("models", "tasks") in imports  # the reader sees the imports there are
    assert complaints(imports, LAYERS) == []


def test_every_module_has_a_layer():
    package = ROOT / PACKAGE
    units = {unit_of(path, package) for path in package.rglob("*.py")} - {"__init__", "__main__"}
    assert units - {unit for layer in LAYERS for unit in layer} == set()


def test_data_and_claims_of_an_experiment_have_no_ink():
    drawn = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE / "experiments").rglob("*.py")
        if path.name in ("data.py", "claims.py")
        and any(
            name.startswith((f"{PACKAGE}.plots", "matplotlib"))
            for name in modules_imported(path.read_text(encoding="utf-8"))
        )
    ]
    assert drawn == []


def test_plots_need_only_arrays_and_ink():
    allowed = {PACKAGE, "matplotlib", "numpy", "xarray"} | set(sys.stdlib_module_names)
    found = {
        name.split(".")[0]
        for path in (ROOT / PACKAGE / "plots").rglob("*.py")
        for name in modules_imported(path.read_text(encoding="utf-8"))
    }
    assert found - allowed == set()


def names_used(folder: Path) -> dict[str, set[str]]:
    """File -> what it imports, calls by name, and reaches as `module.name`."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = set(imported(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names.add(node.func.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names.add(f"{node.value.id}.{node.attr}")
        found[path.relative_to(folder).as_posix()] = names
    return found


def test_measures_touch_neither_disk_nor_screen():
    doors = {"open", "print", "input"}
    modules = {"io", "logging", "os", "pathlib", "rich", "subprocess", "sys", "tempfile", "urllib"}
    guilty = {
        file: sorted(names & doors | {n for n in names if n.split(".")[0] in modules})
        for file, names in names_used(ROOT / PACKAGE / "measures").items()
    }
    assert {file: used for file, used in guilty.items() if used} == {}


def test_theory_draws_no_random_numbers_but_in_estimates_that_say_so():
    random = {"jax.random", "np.random", "numpy.random"}
    drawing = {
        file
        for file, names in names_used(ROOT / PACKAGE / "theory").items()
        if any(name.startswith(tuple(random)) or name == "random" for name in names)
    }
    # The summary gives the Monte Carlo estimates their key.
    assert drawing == {"summary.py"}


def modules_after(*command: str) -> set[str]:
    """What is loaded in a process of its own when a program has run."""
    program = (
        "import runpy, sys\n"
        "try: runpy.run_module(sys.argv[1], run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    if command[0] == "-c":
        program, command = f"{command[1]}\nimport sys; print(*sys.modules, file=sys.stderr)", ()
    shown = subprocess.run(
        [sys.executable, "-c", program, *command],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return set(shown.stderr.split())


@pytest.mark.parametrize(
    "command", [("-c", "import iclflow"), ("iclflow", "--help"), ("iclflow", "--version")]
)
def test_a_start_imports_no_science(command):
    loaded = modules_after(*command)
    assert PACKAGE in loaded
    assert loaded & {"jax", "numpy", "equinox", "xarray", "scipy", "rich"} == set()


def test_a_sweep_is_ready_without_what_it_may_never_need():
    loaded = modules_after("-c", "import iclflow as icl; icl.Task, icl.Separate, icl.sweep")
    assert {"jax", "xarray"} <= loaded
    seldom = {"scipy.integrate", "scipy.optimize", "scipy.stats", "matplotlib", "diffrax"}
    seldom |= {"h5netcdf", "dask", "zarr", "rich", "safetensors.numpy"}
    assert loaded & seldom == set()


@pytest.mark.parametrize("command", ["bench", "simulate", "sweep"])
def test_the_help_of_a_command_imports_no_jax(command):
    assert modules_after(PACKAGE, command, "--help") & {"jax", "scipy", "xarray", "rich"} == set()


@pytest.mark.parametrize(
    ("imports", "complaint"),
    [
        ({("models", "losses")}, "models imports losses, which is above it"),
        ({("plots", "models")}, "plots import models; they draw Datasets and compute nothing"),
        ({("measures", "tasks")}, "measures import tasks; arrays in, arrays out"),
        ({("tasks", "utils")}, "utils is in no layer of docs/architecture.md"),
        (
            {("tasks", "__init__")},
            "tasks imports from iclflow itself; name the module that defines it",
        ),
        ({("tasks", "results"), ("results", "tasks")}, "cycle: results -> tasks -> results"),
    ],
)
def test_a_broken_rule_is_reported(imports, complaint):
    assert complaints(imports, LAYERS) == [complaint]


def test_imports_inside_functions_count():
    source = "def f():\n    from iclflow.models import base\n    import numpy as np\n"
    assert modules_imported(source) == ["iclflow.models.base", "numpy"]


def test_names_reached_through_the_package_count():
    source = "import iclflow as icl\n\ndef f():\n    return icl.plots.loss, icl.__version__\n"
    assert set(modules_imported(source)) == {"iclflow.plots", "iclflow.__version__"}


def test_no_two_public_classes_have_one_name():
    homes: dict[str, list[str]] = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    twice = {name: found for name, found in homes.items() if len(found) > 1}
    assert twice == {}
