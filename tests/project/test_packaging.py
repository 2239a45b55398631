"""What is shipped: bounds, extras that load only when used, and the built wheel."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import iclflow as icl
from iclflow import cli
from iclflow.runs.fused import cpp

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Modules that an extra brings. The extras `docs` and `test` are programs of ours, not libraries.
BRINGS = {
    "hub": {"huggingface_hub"},
    "sweep": {"dask", "distributed", "zarr"},
    "video": {"imageio_ffmpeg"},
}


def script(name):
    spec = importlib.util.spec_from_file_location(f"release_{name}", ROOT / f"release/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_requirement_has_a_lowest_version():
    lowest = script("lowest").lowest(PROJECT)
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    assert len(lowest) == len({line for group in groups for line in group})
    assert all(line.count("==") == 1 for line in lowest)
    with pytest.raises(ValueError, match="a name and a lower bound"):
        script("lowest").lowest({"dependencies": ["numpy"], "optional-dependencies": {}})


def imports(tree, inside=False):
    """(module, whether a function imports it), also by `import_module` and `require`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", inside
        elif isinstance(node, ast.Call) and node.args:
            asked = getattr(node.func, "attr", getattr(node.func, "id", ""))
            name = node.args[0]
            name = name.values[0] if isinstance(name, ast.JoinedStr) else name
            if asked in ("import_module", "require") and isinstance(name, ast.Constant):
                yield str(name.value), inside
        function = isinstance(node, ast.FunctionDef | ast.Lambda)
        yield from imports(node, inside or function)


def test_workflows_run_what_there_is():
    files = {path.stem: path for path in (ROOT / ".github/workflows").glob("*.yml")}
    jobs = {name: yaml.safe_load(path.read_text("utf-8"))["jobs"] for name, path in files.items()}
    assert set(jobs["checks"]) == {"lint", "tests", "docs", "wheel", "lowest"}
    least = PROJECT["requires-python"].removeprefix(">=")
    assert jobs["checks"]["tests"]["strategy"]["matrix"]["python"] == [least, "3.13"]
    steps = [step for file in jobs.values() for job in file.values() for step in job["steps"]]
    used = {step["uses"] for step in steps if "uses" in step}
    assert all(re.fullmatch(r"actions/(checkout|setup-python)@v\d+", name) for name in used)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.M)
    for words in (step["run"].split() for step in steps if "run" in step):
        assert words[1] in targets if words[0] == "make" else words[1] == "-m", words
    [newest] = re.findall(r'eager "\.\[(.+)\]"', files["newest"].read_text("utf-8"))
    assert set(newest.split(",")) == set(PROJECT["optional-dependencies"])


def test_issue_templates_are_forms():
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text("utf-8"))
        assert set(form) == {"name", "description", "body"}, path.name
        for field in form["body"]:
            assert field["type"] in ("input", "textarea")
            assert field["attributes"]["label"]


def test_extras_are_imported_only_where_they_are_used():
    assert set(BRINGS) == set(PROJECT["optional-dependencies"]) - {"docs", "test"}
    found = {
        (name.partition(".")[0], inside)
        for path in (ROOT / "iclflow").rglob("*.py")
        for name, inside in imports(ast.parse(path.read_text(encoding="utf-8")))
    }
    modules = set.union(*BRINGS.values())
    assert {name for name, inside in found if name in modules and not inside} == set()
    lazily = {name for name, inside in found if inside}
    assert all(brought & lazily for brought in BRINGS.values())


@pytest.fixture
def without(monkeypatch):
    """Makes the modules of an extra impossible to import."""

    def remove(extra):
        for name in BRINGS[extra]:
            monkeypatch.setitem(sys.modules, name, None)

    return remove


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("hub", ["diagnose", "--hf", "owner/model", "--revisions", "main"]),
        ("sweep", ["sweep", "design.toml", "--out", "s.zarr"]),
    ],
)
def test_a_missing_extra_is_one_line_that_names_it(
    extra, command, without, tmp_path, monkeypatch, capsys
):
    """So does `video` (tests/plots/test_animate.py)."""
    monkeypatch.chdir(tmp_path)
    Path("design.toml").write_text("[sweep]\nsteps = 4\nheads = 1\nspectrum = [1.0]\n")
    without(extra)
    try:
        code = cli.main(command)
    except SystemExit as stop:
        code = stop.code
    said = capsys.readouterr().err.strip()
    assert code == 2
    assert f"iclflow[{extra}]" in said.splitlines()[-1]
    assert "Traceback" not in said


def test_a_sweep_without_a_compiler_runs_and_says_so(monkeypatch):
    """Nothing has to be installed: where there is no C++ compiler `vmap` runs."""
    monkeypatch.setattr(cpp, "compiler", lambda: None)
    task = icl.Task(spectrum=[1.0], context=4)
    init = icl.Separate.initialiser(task, heads=1, scale=0.3)
    runs = icl.sweep(task, init, icl.Descent(0.1), until=2, seeds=1)
    assert "needs a C++ compiler" in runs.attrs["engine"]


@pytest.mark.slow
def test_the_wheel_is_whole_and_works_where_no_source_is(tmp_path):
    """`make release-check` installs it into a fresh environment and runs the tests there."""
    check = script("check")
    sdist, wheel = check.build(tmp_path / "dist")
    check.check_sdist(sdist)
    check.check_wheel(wheel)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", tmp_path / "there", wheel], check=True)
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "there")}
    (empty / "design.toml").write_text("[sweep]\nsteps = 4\n", encoding="utf-8")
    for command in ("explore --no-browser --out page.html", "sweep design.toml --dry-run"):
        words = [sys.executable, "-m", "iclflow", *command.split()]
        subprocess.run(words, cwd=empty, env=environment, check=True)
    assert "<html" in (empty / "page.html").read_text(encoding="utf-8")
